// SPDX-License-Identifier: Apache-2.0
// reader FILE...: reads files by std::fs::read, by a BufReader and by mmap, and prints a line about each.
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::os::unix::io::AsRawFd;

extern "C" {
    fn mmap(at: *mut u8, size: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(at: *mut u8, size: usize) -> i32;
}

fn sum_of(data: &[u8]) -> u32 {
    data.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte as u32))
}

fn mapped(file: &File, size: usize) -> u32 {
    const PROT_READ: i32 = 1;
    const MAP_PRIVATE: i32 = 2;
    unsafe {
        let data = mmap(std::ptr::null_mut(), size, PROT_READ, MAP_PRIVATE, file.as_raw_fd(), 0);
        assert!(data as isize != -1, "mmap");
        let sum = sum_of(std::slice::from_raw_parts(data, size));
        munmap(data, size);
        sum
    }
}

fn main() -> std::io::Result<()> {
    for path in std::env::args().skip(1) {
        let whole = std::fs::read(&path)?;
        let mut file = File::open(&path)?;
        let mut buffered = Vec::new();
        BufReader::new(&file).read_to_end(&mut buffered)?;
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(whole.len() as u64 / 2))?;
        file.read_to_end(&mut end)?;
        let mut middle = vec![0u8; whole.len().min(100)];
        file.read_exact_at(&mut middle, 0)?;
        let size = file.metadata()?.len() as usize;
        println!("{} {} {:08x} {} {:08x} {:08x} {:08x}", path, size, sum_of(&whole), whole == buffered, sum_of(&end),
                 sum_of(&middle), mapped(&file, size));
    }
    Ok(())
}
