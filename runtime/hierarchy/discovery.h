// SPDX-License-Identifier: Apache-2.0
// Which directories of this node can be tiers, for a configuration that names none.
//
// Looks at the mount table, at sysfs and at hwloc's view of the disks, and proposes what users can write
// already: a sticky, world-writable directory of root's on a local disk. Asks nothing of a network file
// system and of nothing that lies below one, so a parallel file system that hangs does not hang it. Changes
// nothing; needs no privileges, though an ordinary user may see fewer directories than root.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch {

// A mounted file system, or a disk from which none is mounted, and what became of it.
struct Candidate {
  std::string path;           // the tier's directory, else the mount point; empty: not mounted
  std::string mount_point;    // empty: not mounted
  std::string device;         // as the mount table names it
  std::string device_number;  // "259:1"
  std::string fstype;
  std::vector<std::string> disks;  // the kernel's names of the disks below partitions, RAID, LVM, LUKS, loop
  std::string transport;           // of the disks: nvme, sata, virtio, usb, ...; empty: not known
  std::optional<Medium> medium;    // of the slowest disk; none: not known
  uint64_t size = 0, free = 0;     // bytes, free for users; 0: not asked
  int numa_node = -1;              // next to all its disks; -1: none, or not known
  bool chosen = false;
  std::string reason;  // why it is chosen or refused
  // Of a configured one that jobs cannot use, or may be unable to; empty: nothing is to be done, or the
  // reason says what.
  std::string remedy;
  TierConfig tier;  // meant only if chosen or configured
};

// Where to look; tests give a tree of their own.
struct Sources {
  std::string root;      // put before all paths that are looked at: /proc, /sys, /dev, mount points
  std::string topology;  // hwloc's XML file; empty: this machine's
  uid_t owner = 0;       // who must own a tier's directory and those above it
};

// Chosen ones first, in the order in which tiers are filled: nvme, ssd, hdd, and of one medium the larger
// first. With `configured` tiers those are chosen alone, in their own order, unless they cannot be used; what
// else is found follows as refused. An error only if the mount table or the given topology cannot be read.
Result<std::vector<Candidate>> discover(const Sources& sources,
                                        const std::vector<TierConfig>& configured = {});

// Whether a directory with this `st` may be a tier in Slurm: `owner`'s, and others cannot rename what is in
// it.
Status safe_for_jobs(const std::string& path, const struct stat& st, uid_t owner = 0);

// The tiers of those that are chosen.
std::vector<TierConfig> chosen(const std::vector<Candidate>& candidates);

}  // namespace monarch
