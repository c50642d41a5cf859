// SPDX-License-Identifier: Apache-2.0
// monarch_account: writes a job's line into Slurm's accounting database, as SystemComment. The one program
// of Monarch's that links libslurm, so that no other has to be rebuilt with Slurm.
//
//   monarch_account --job N [--cluster NAME] LINE
//
// Exit status: 0 written; 1 not now (slurmdbd is away, or the job's row is not there yet); 2 usage.
// SystemComment, since the job's owner cannot change it, since slurmctld does not overwrite it at the job's
// end as it does AdminComment, and since AdminComment is taken by other tools.
extern "C" {
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurmdb.h>
}

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

constexpr int kNotNow = 1, kUsage = 2;

int usage() {
  std::fprintf(stderr, "usage: monarch_account --job N [--cluster NAME] LINE\n");
  return kUsage;
}

// True: a row was changed.
bool modify(void* connection, uint32_t job, std::string& cluster, std::string& line) {
  slurm_selected_step_t step;
  std::memset(&step, 0, sizeof step);
  step.array_task_id = NO_VAL;
  step.het_job_offset = NO_VAL;
  step.step_id.job_id = job;
  step.step_id.step_id = NO_VAL;
  step.step_id.step_het_comp = NO_VAL;

  slurmdb_job_cond_t which;
  std::memset(&which, 0, sizeof which);
  which.step_list = slurm_list_create(nullptr);
  slurm_list_append(which.step_list, &step);
  which.cluster_list = slurm_list_create(nullptr);
  if (!cluster.empty()) slurm_list_append(which.cluster_list, cluster.data());
  which.flags = JOBCOND_FLAG_NO_DEFAULT_USAGE;
  which.db_flags = SLURMDB_JOB_FLAG_NOTSET;

  slurmdb_job_rec_t change;
  std::memset(&change, 0, sizeof change);
  change.derived_ec = NO_VAL;  // 0 would be written
  change.system_comment = line.data();

  errno = 0;
  auto changed = slurmdb_job_modify(connection, &which, &change);
  const int error = errno;
  const bool written = changed && slurm_list_count(changed) > 0;
  if (changed) slurm_list_destroy(changed);
  slurm_list_destroy(which.step_list);
  slurm_list_destroy(which.cluster_list);
  if (!written) {
    std::fprintf(stderr, "monarch_account: job %u: %s\n", job, slurm_strerror(error));
    return false;
  }
  return slurmdb_connection_commit(connection, true) == SLURM_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  unsigned long job = 0;
  std::string cluster, line;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--job" && i + 1 < argc)
      job = std::strtoul(argv[++i], nullptr, 10);
    else if (word == "--cluster" && i + 1 < argc)
      cluster = argv[++i];
    else if (line.empty() && word.compare(0, 2, "--") != 0)
      line = word;
    else
      return usage();
  }
  if (job == 0 || job > 0xfffffff0 || line.empty()) return usage();
  slurm_init(nullptr);
  uint16_t flags = 0;
  void* connection = slurmdb_connection_get(&flags);
  if (!connection) {
    std::fprintf(stderr, "monarch_account: slurmdbd: %s\n", std::strerror(errno));
    return kNotNow;
  }
  const bool written = modify(connection, static_cast<uint32_t>(job), cluster, line);
  slurmdb_connection_close(&connection);
  return written ? 0 : kNotNow;
}
