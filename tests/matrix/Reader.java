// SPDX-License-Identifier: Apache-2.0
import java.io.FileInputStream;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;

/** Reader FILE...: reads files in five ways, and prints a line about each. */
public class Reader {
  private static int sumOf(byte[] data) {
    int sum = 0;
    for (byte b : data) sum = sum * 31 + (b & 0xff);
    return sum;
  }

  private static byte[] byStream(Path path) throws IOException {
    try (FileInputStream stream = new FileInputStream(path.toFile())) {
      return stream.readAllBytes();
    }
  }

  private static byte[] byChannel(Path path) throws IOException {
    try (FileChannel channel = FileChannel.open(path)) {
      ByteBuffer all = ByteBuffer.allocate((int) channel.size());
      while (all.hasRemaining() && channel.read(all, all.position()) > 0) {}
      return all.array();
    }
  }

  private static byte[] byMap(Path path) throws IOException {
    try (FileChannel channel = FileChannel.open(path)) {
      byte[] all = new byte[(int) channel.size()];
      channel.map(FileChannel.MapMode.READ_ONLY, 0, all.length).get(all);
      return all;
    }
  }

  private static byte[] byRandomAccess(Path path) throws IOException {
    try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "r")) {
      byte[] all = new byte[(int) file.length()];
      int half = all.length / 2;
      file.seek(half);
      file.readFully(all, half, all.length - half);
      file.seek(0);
      file.readFully(all, 0, half);
      return all;
    }
  }

  public static void main(String[] names) throws IOException {
    for (String name : names) {
      Path path = Path.of(name);
      byte[][] all = {byStream(path), byChannel(path), byMap(path), byRandomAccess(path), Files.readAllBytes(path)};
      System.out.printf("%s %d", name, all[0].length);
      for (byte[] data : all) System.out.printf(" %08x", sumOf(data));
      System.out.println();
    }
  }
}
