// SPDX-License-Identifier: Apache-2.0
// Stages whole files: opens and examines one on the PFS, copies it to the first tier with room, publishes the
// copy, and sees to it that it reaches its device. Large files it hands on.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/placement/chunk_stager.h"
#include "runtime/placement/context.h"
#include "runtime/placement/credit.h"
#include "runtime/placement/hard_links.h"
#include "runtime/placement/queue.h"
#include "runtime/placement/tier_health.h"
#include "runtime/placement/write_back.h"

namespace monarch {

// All members may be called from any thread.
class FileStager {
 public:
  FileStager(PlacementContext* context, WorkQueue* queue, TierHealth* health, PrefetchCredit* credit,
             ChunkStager* chunks);

  // Takes on what is staged since an open waits for it (kDemand) or by prefetch.
  void stage(std::unique_ptr<Staging> file, Copier* copier);
  // A task opened a file that the job wrote, or found no copy of it where one was placed: it is staged again
  // (kAgain) once it was left alone for stage_again seconds.
  void ask_again(const RelPath& path);
  void stage_again(std::unique_ptr<Staging> file, Copier* copier);
  // Somebody waits for a file that nobody waited for: if it is copied already, it is published.
  void hurry(Ref ref);
  // The entry's copy is not what was read: where it has not been published yet, it will not be, and the
  // descriptor is closed. False: it has been, or is none.
  bool refuse(Ref ref, uint64_t inode, Fd* copy) EXCLUDES(refusing_);
  // Whose copy the entry shares; itself: nobody's.
  Ref maker_of(Ref ref) const { return links_.maker_of(ref); }
  // The copy of this name is about to be removed. The entries that share it get that state word, and are
  // returned; those that waited for it stay on the PFS.
  std::vector<Ref> take_links(Ref maker, uint64_t word);
  // Ends the watch over what was written; waits for its threads.
  void stop();

 private:
  void open_and_place(std::unique_ptr<Staging> file, Copier* copier);
  // Nobody waits for the file, and it costs more than prefetch can pay: it is left for later.
  bool put_back(Staging* file, const Copier& copier);
  // Whether an entry of unknown type is a regular file; else it has been settled. No open of a device or
  // FIFO, not even to look at it.
  bool is_regular(Ref ref, const std::string& path);
  // What the path leads to, without an open of it. False: errno says why.
  bool look(Ref ref, const std::string& path, struct stat* st) const;
  // Whether tasks are served by the entry's copy, which is there.
  bool serves(Ref ref);
  // Tasks find the copy, which is placed, from now on where they found the entry before it. False: that has
  // been settled otherwise meanwhile, and the copy is placed no more.
  bool replace(const Staging& file);
  // What was asked for is there, or not. Where much is not, tasks are to look before they ask: what is not
  // there takes an entry in the catalog for good.
  void note_found();
  void note_absent();
  void place(std::unique_ptr<Staging> file, Copier* copier);
  // Whether the file has several names, and its copy by another one is this one's, too, or will be.
  bool shares_copy(const Staging& file, const Copier& copier);
  // Places a name by a link to a copy of which `source` tells.
  bool link(Ref ref, const HardLinks::Copy& copy, const struct stat& source, bool prefetched);
  // The copy of this name will not come, or is given up: nor will the names that wait for it have one, and
  // those that have it lose it. False: one of these is there still.
  bool end_sharing(Ref maker);
  // False: it was not made, or could not be published.
  bool place_copy(std::unique_ptr<Staging> file, Copier* copier);
  Status make_copy(Staging* file, Tier* tier, Writing writing, Copier* copier, struct stat* made);
  void copying_failed(Ref ref, int tier, const Error& error);
  // Whether the job changed the file since the work began, or may do so by a descriptor that it has.
  bool is_being_changed(const Staging& file) const;
  void watch_directory(Ref ref, const std::string& path);
  // Publishes a copy, or settles its entry if that cannot be.
  void publish(Staging* file) EXCLUDES(refusing_);
  // False: the entry has been settled, or give_back() will do so.
  bool enter(const Staging& file) EXCLUDES(refusing_);
  void publish_links(const Staging& file);
  // The copy is on its device, or lost.
  void written(Staging* file, const Status& written);
  // The error of a tier that lost a copy, which is logged.
  Error lost(Ref ref, const Status& written) const;
  void give_back(Staging* file);

  PlacementContext* const context_;
  WorkQueue* const queue_;
  TierHealth* const health_;
  PrefetchCredit* const credit_;
  ChunkStager* const chunks_;
  std::atomic<uint64_t> found_{0}, absent_{0};  // paths
  std::atomic<bool> told_removed_{false};
  HardLinks links_;
  std::vector<std::unique_ptr<WriteBack>> write_back_;  // by tier
  Mutex refusing_;
  std::map<Ref, uint64_t> refused_ GUARDED_BY(refusing_);  // inodes of copies that are not to be published
};

}  // namespace monarch
