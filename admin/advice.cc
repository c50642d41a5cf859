// SPDX-License-Identifier: Apache-2.0
#include "admin/advice.h"

#include <algorithm>

#include "admin/output.h"
#include "runtime/base/size.h"
#include "runtime/metadata/series.h"

namespace monarch::admin {
namespace {

// So many percent of the opens are worth a line.
bool many(const Counts& c, TaskCounter fallback) { return c[fallback] * 20 > c.opens; }

// Epoch 1, or one node of several, tells nothing of what a job reads in all.
bool has_ended_whole(const Counts& c) { return !c.running && !c.partial; }

std::string missing(const Counts& c) {
  const Counts::Dataset all = c.dataset();
  return (all.estimated ? "about " : "") + format_size(all.bytes - std::min(all.bytes, c.placed())) +
         " for " + counted(all.no_room, "file");
}

// How the job asks for it.
const char* asked(const Counts& c, const char* of_slurm, const char* of_run) {
  return c.of_run ? of_run : of_slurm;
}

struct Rule {
  const char* name;
  bool (*holds)(const Counts&);
  std::string (*text)(const Counts&);
};
// In the order of what matters most.
constexpr Rule kRules[] = {
    {"late", [](const Counts& c) { return c[AgentCounter::late_nodes] > 0 && c.opens == 0; },
     [](const Counts&) { return std::string(kLateText); }},
    {"nothing-attached", [](const Counts& c) { return c.opens == 0 && !c.partial; },
     [](const Counts& c) {
       return "no program opened a file of the dataset through Monarch" +
              (c[AgentCounter::staged_files] > 0
                   ? " although " +
                         counted(c[AgentCounter::staged_files], "file was staged", "files were staged")
                   : std::string()) +
              ": does the job read the path that was given, and is the program one that is seen (not static, "
              "not Go)? "
              "MONARCH_IO_LOG=stderr tells";
     }},
    {"agent-died", [](const Counts& c) { return c.agent_died || many(c, TaskCounter::fallback_no_agent); },
     [](const Counts& c) {
       if (!many(c, TaskCounter::fallback_no_agent)) return std::string(kAgentDiedText);
       return counted(c[TaskCounter::fallback_no_agent], "open") +
              " went to the PFS since the agent had ended early: its log and the kernel's tell why; if "
              "memory was short, "
              "raise memory_max";
     }},
    {"tier-failed",
     [](const Counts& c) { return c[AgentCounter::tier_errors] + c[TaskCounter::fallback_tier_error] > 0; },
     [](const Counts& c) {
       return "a tier failed " +
              counted(c[AgentCounter::tier_errors] + c[TaskCounter::fallback_tier_error], "time") +
              ": tell the administrator to look at the device (dmesg)";
     }},
    {"pfs-failed", [](const Counts& c) { return c[AgentCounter::source_errors] > 0; },
     [](const Counts& c) {
       return counted(c[AgentCounter::source_errors], "file") +
              " could not be read from the PFS: the agent's log names the first";
     }},
    {"tier-too-small", [](const Counts& c) { return c[AgentCounter::no_fit_files] > 0; },
     [](const Counts& c) {
       const std::string small = "the tiers were too small by " + missing(c);
       if (c.of_run) return small + ": give them more by --tier NAME:PATH:SIZE, or name fewer directories";
       return small +
              ": ask for a larger part of the node (--exclusive, more cores), or name fewer directories. "
              "A larger part does not help if --monarch-capacity, the administrator's job_capacity or a "
              "full disk bounds the job";
     }},
    {"excluded", [](const Counts& c) { return many(c, TaskCounter::fallback_excluded); },
     [](const Counts& c) {
       return counted(c[TaskCounter::fallback_excluded], "open") +
              " went to the PFS because MONARCH_IO_EXCLUDE names the file or the program";
     }},
    {"mounts", [](const Counts& c) { return many(c, TaskCounter::fallback_mount); },
     [](const Counts& c) {
       return counted(c[TaskCounter::fallback_mount], "open") +
              " went to the PFS because the container mounts something over a part of the dataset: mount it "
              "elsewhere, see "
              "'monarchctl container-args'";
     }},
    {"large-files", [](const Counts& c) { return many(c, TaskCounter::fallback_large); },
     [](const Counts& c) {
       return counted(c[TaskCounter::fallback_large], "open") +
              " of large files came before these were staged: begin later, by " +
              asked(c, "--monarch-wait=full", "--wait full") +
              ", or raise "
              "stage_wait_max or stage_wait in monarch.conf";
     }},
    {"slow-staging", [](const Counts& c) { return many(c, TaskCounter::fallback_timeout); },
     [](const Counts& c) {
       return counted(c[TaskCounter::fallback_timeout], "open") +
              " did not wait any longer for the agent: the PFS is slow, or pfs_bandwidth is; " +
              asked(c, "--monarch-prefetch=all stages ahead", "--wait full begins when all is staged");
     }},
    {"written", [](const Counts& c) { return many(c, TaskCounter::fallback_invalid); },
     [](const Counts& c) {
       return counted(c[TaskCounter::fallback_invalid], "open was of a file", "opens were of files") +
              " that the job had written: write results outside of the dataset";
     }},
    {"changed", [](const Counts& c) { return many(c, TaskCounter::fallback_dropped); },
     [](const Counts& c) {
       return counted(c[TaskCounter::fallback_dropped], "open was of a file", "opens were of files") +
              " that changed on the PFS meanwhile, or whose copies another program removed: do not change a "
              "dataset in use, and keep cleaners away from the tiers";
     }},
    {"never-opened",
     [](const Counts& c) {
       return has_ended_whole(c) && c[AgentCounter::prefetch_files] > 0 &&
              c.opens * 2 < c[AgentCounter::staged_files] && c[AgentCounter::staged_files] >= 20;
     },
     [](const Counts& c) {
       return counted(c[AgentCounter::staged_files] - std::min(c[AgentCounter::staged_files], c.opens),
                      "file") +
              " were staged and not opened through Monarch: programs that are not seen (static, Go) may have "
              "read them; if the job "
              "reads a part of the dataset, name that part";
     }},
    {"read-once",
     [](const Counts& c) {
       return has_ended_whole(c) && c.bytes_read() > 0 && c.bytes_pfs() >= c.bytes_read();
     },
     [](const Counts&) {
       return std::string(
           "the job read each file about once, so the PFS is spared nothing: keep its epochs in one job");
     }},
    {"good", [](const Counts&) { return true; }, [](const Counts&) { return std::string(); }},
};

}  // namespace

Counts::Dataset Counts::dataset() const {
  const uint64_t no_room = (*this)[AgentCounter::no_fit_files], sized = (*this)[AgentCounter::sized_files],
                 all = (*this)[AgentCounter::staged_files] + no_room;
  // Older reports do not say of how many files the bytes are.
  const uint64_t known = sized == 0 ? all : sized;
  return {bytes_of_all((*this)[AgentCounter::dataset_bytes], known, all), no_room, known < all};
}

Advice advise(const Counts& counts) {
  for (const Rule& rule : kRules)
    if (rule.holds(counts)) return {rule.name, rule.text(counts)};
  return {"good", ""};
}

}  // namespace monarch::admin
