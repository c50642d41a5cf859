# SPDX-License-Identifier: Apache-2.0
# reader.pl FILE...: reads files by lines, at once, and by sysread, and prints a line about each.
use strict;
use warnings;

for my $path (@ARGV) {
    open(my $stream, '<:raw', $path) or die "$path: $!";
    my ($lines, $text) = (0, '');
    while (my $line = <$stream>) { $lines++; $text .= $line }
    seek($stream, 0, 0);
    my $whole = do { local $/; <$stream> };
    close($stream);
    sysopen(my $other, $path, 0) or die "$path: $!";
    my $raw = '';
    while (sysread($other, $raw, 65536, length $raw)) { }
    close($other);
    printf("%s %d %d %d %s\n", $path, length $whole, $lines, unpack('%32C*', $whole), $text eq $whole && $raw eq $whole);
}
