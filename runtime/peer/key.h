// SPDX-License-Identifier: Apache-2.0
// The name of a file among the nodes of a job, and the node that keeps its entry in the directory: its home.
// A home owns the entry, not the bytes: whoever reads a file first keeps it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace monarch {

using NodeIndex = uint32_t;  // a node's place in Slurm's list of the job's nodes, from 0 on

// All 128 bits name the file: two of a job's files never have the same.
struct FileKey {
  uint64_t high = 0, low = 0;
  friend bool operator==(const FileKey&, const FileKey&) = default;
  bool operator<(const FileKey& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
};

// The key of the file at `path` below dataset number `root`; both as in RelPath.
FileKey file_key(uint32_t root, std::string_view path);

// The key of a file with several names, whichever of them it is asked for by.
FileKey key_of_inode(uint32_t root, uint64_t inode);

// Where the entry is, of `nodes` nodes, at least one; each has the same share. By multiplication and shift: a
// node finds its share of a million files in milliseconds.
NodeIndex home_of(const FileKey& key, uint32_t nodes);
// Where it is while the home cannot be reached; another node, if there are two.
NodeIndex deputy_of(const FileKey& key, uint32_t nodes);

}  // namespace monarch

template <>
struct std::hash<monarch::FileKey> {
  size_t operator()(const monarch::FileKey& key) const noexcept { return key.low; }
};
