// SPDX-License-Identifier: Apache-2.0
// reader FILE...: reads files by os.ReadFile and by bufio, and prints a line about each.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
)

func sumOf(data []byte) uint32 {
	var sum uint32
	for _, b := range data {
		sum = sum*31 + uint32(b)
	}
	return sum
}

func readFile(path string) error {
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered, err := io.ReadAll(bufio.NewReader(file))
	if err != nil {
		return err
	}
	fmt.Printf("%s %d %08x %v\n", path, len(whole), sumOf(whole), bytes.Equal(whole, buffered))
	return nil
}

func main() {
	for _, path := range os.Args[1:] {
		if err := readFile(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
}
