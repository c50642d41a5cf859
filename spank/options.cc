// SPDX-License-Identifier: Apache-2.0
// The options of sbatch, salloc and srun, their environment twins, and the words of plugstack.conf.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

Request the_request = {"", false, Check::kError, "", "", "", "", "", "", "", "", ""};
Settings the_settings = {
    SYSCONFDIR "/monarch/monarch.conf", RUNSTATEDIR "/monarch", SBINDIR "/monarchd", "syslog", {}, 0};

// In the user's own sbatch, salloc or srun an error is said at once and the option refused; on the node,
// where the text has come through, it only means no Monarch.
int refuse(int remote, const char* text, const char* value) {
  if (!remote) slurm_error("%s: '%s'", text, value);
  return ESPANK_BAD_ARG;
}

// "/", however it is written.
bool is_root(const char* path, const char* end) {
  for (; path < end; ++path)
    if (*path != '/' && !(*path == '.' && (path + 1 == end || path[1] == '/'))) return false;
  return true;
}

int take_datasets(int, const char* value, int remote) {
  if (!value || !*value) return refuse(remote, "--monarch-dataset: no path given", "");
  if (strlen(value) >= kDatasetBytes) return refuse(remote, "--monarch-dataset: too long", "");
  if (!remote && strchr(value, ':') && access(value, F_OK) == 0)
    return refuse(
        remote,
        "--monarch-dataset: ':' separates paths, so it cannot be part of one; make a symbolic link without "
        "':' to the directory and give that",
        value);
  int paths = 0;
  for (const char* at = value; *at;) {
    const char* end = strchr(at, ':');
    if (!end) end = at + strlen(at);
    if (++paths > kMostDatasets)
      return refuse(remote,
                    "--monarch-dataset: more than 16 paths; name a directory that holds several of them", at);
    if (end - at >= kPathBytes)
      return refuse(remote, "--monarch-dataset: a path is longer than 4095 bytes", at);
    if (*at == '/' && is_root(at, end))
      return refuse(remote,
                    "--monarch-dataset: the whole root directory cannot be a dataset; name one below it", at);
    if (*at != '/')
      return refuse(remote,
                    at == value ? "--monarch-dataset: not an absolute path; write it from / on"
                                : "--monarch-dataset: not an absolute path (is ':' part of a name? then make "
                                  "a symbolic link without ':' and give that)",
                    at);
    at = *end ? end + 1 : end;
  }
  // Slurm hands over the same option twice in places, and the command line after the environment.
  memcpy(the_request.datasets, value, strlen(value) + 1);
  return ESPANK_SUCCESS;
}

int take_no_monarch(int, const char*, int) {
  the_request.refused = true;
  return ESPANK_SUCCESS;
}

int take_check(int, const char* value, int remote) {
  const char* text = value ? value : "";
  if (strcmp(text, "error") == 0)
    the_request.check = Check::kError;
  else if (strcmp(text, "warn") == 0)
    the_request.check = Check::kWarn;
  else if (strcmp(text, "off") == 0)
    the_request.check = Check::kOff;
  else
    return refuse(remote, "--monarch-check: not one of error, warn, off", text);
  return ESPANK_SUCCESS;
}

// One of the words, which are separated by '|'.
bool is_word(const char* value, const char* words) {
  const size_t len = strlen(value);
  for (const char* at = words; len > 0 && !strchr(value, '|'); ++at) {
    if (strncmp(at, value, len) == 0 && (at[len] == '|' || !at[len])) return true;
    at = strchr(at, '|');
    if (!at) break;
  }
  return false;
}

int take_prefetch(int, const char* value, int remote) {
  const char* text = value ? value : "";
  if (!is_word(text, "auto|all|off"))
    return refuse(remote, "--monarch-prefetch: not one of auto, all, off", text);
  strcpy(the_request.prefetch, text);
  return ESPANK_SUCCESS;
}

int take_consistency(int, const char* value, int remote) {
  const char* text = value ? value : "";
  if (!is_word(text, "job|open")) return refuse(remote, "--monarch-consistency: not one of job, open", text);
  strcpy(the_request.consistency, text);
  return ESPANK_SUCCESS;
}

// Which tiers a node has is known there only.
int take_tiers(int, const char* value, int remote) {
  constexpr char kNameBytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  const char* text = value ? value : "";
  if (strlen(text) >= kTiersBytes) return refuse(remote, "--monarch-tiers: too long", "");
  for (const char* at = text;; ++at) {
    const size_t len = strspn(at, kNameBytes);
    at += len;
    if (len == 0 || (*at && *at != ','))
      return refuse(
          remote,
          "--monarch-tiers: not names of tiers, separated by commas; monarchctl tiers shows those of "
          "a node",
          text);
    if (!*at) break;
  }
  strcpy(the_request.tiers, text);
  return ESPANK_SUCCESS;
}

// A number without sign, blanks or leading zeros, of at most `most`; 0: it is none.
unsigned long number_in(const char* text, const char** end, unsigned long most) {
  unsigned long n = 0;
  const char* at = text;
  for (; *text != '0' && *at >= '0' && *at <= '9' && n <= most; ++at)
    n = 10 * n + static_cast<unsigned long>(*at - '0');
  *end = at;
  return n <= most ? n : 0;
}

int take_wait(int, const char* value, int remote) {
  const char *text = value ? value : "", *end = "";
  if (!is_word(text, "none|full") && (number_in(text, &end, 100) == 0 || strcmp(end, "%") != 0))
    return refuse(remote, "--monarch-wait: not one of none, full, 1% to 100%; write for example 50%", text);
  strcpy(the_request.wait, text);
  return ESPANK_SUCCESS;
}

int take_wait_timeout(int, const char* value, int remote) {
  const char *text = value ? value : "", *end = "";
  if (number_in(text, &end, 604800) == 0 || *end)
    return refuse(remote,
                  "--monarch-wait-timeout: not a number of seconds from 1 to 604800, which is a week; "
                  "--monarch-wait=none does not wait",
                  text);
  strcpy(the_request.wait_timeout, text);
  return ESPANK_SUCCESS;
}

// Bytes of "10G", "1.5T", "4096" as monarchd reads them; negative: it is none.
double size_at(const char* text, const char** end) {
  constexpr char kUnits[] = "KMGTP";
  double size = 0, place = 1;
  const char* at = text;
  for (; *at >= '0' && *at <= '9'; ++at) size = 10 * size + (*at - '0');
  if (at == text) return -1;
  if (*at == '.')
    for (++at; *at >= '0' && *at <= '9'; ++at) size += (place /= 10) * (*at - '0');
  const char upper = *at >= 'a' && *at <= 'z' ? static_cast<char>(*at - 32) : *at;
  if (const char* unit = upper ? strchr(kUnits, upper) : nullptr) {
    for (const char* u = kUnits; u <= unit; ++u) size *= 1024;
    at += strncmp(at + 1, "iB", 2) == 0 ? 3 : at[1] == 'B' ? 2 : 1;
  }
  *end = at;
  return size < 9e18 ? size : -1;
}

// MIN[:MAX][,require], or the last with a colon
int take_capacity(int, const char* value, int remote) {
  const char *text = value ? value : "", *end = "";
  const double least = size_at(text, &end);
  double most = least;
  const auto is_require = [&end] { return (*end == ',' || *end == ':') && strcmp(end + 1, "require") == 0; };
  if (least >= 0 && *end == ':' && !is_require()) most = size_at(end + 1, &end);
  if (strlen(text) >= sizeof the_request.capacity || least < 0 || most < 0 || (*end && !is_require()))
    return refuse(remote,
                  "--monarch-capacity: not MIN[:MAX][,require] of sizes; write for example 200G, 100G:1T or "
                  "200G,require",
                  text);
  if (most < least || most < 1)
    return refuse(remote, "--monarch-capacity: MAX is less than MIN, or nothing; leave out MAX for no limit",
                  text);
  strcpy(the_request.capacity, text);
  return ESPANK_SUCCESS;
}

// What is a word among others for monarchd has no blank.
bool is_plain(const char* text) {
  while (static_cast<unsigned char>(*text) > ' ' && *text != 127) ++text;
  return !*text;
}

int take_exclude(int, const char* value, int remote) {
  const char* text = value ? value : "";
  if (strlen(text) >= kExcludeBytes) return refuse(remote, "--monarch-exclude: longer than 1023 bytes", "");
  if (strspn(text, ":") == strlen(text))
    return refuse(remote, "--monarch-exclude: no pattern given; write for example '*.log:raw/*'", text);
  if (!is_plain(text))
    return refuse(remote, "--monarch-exclude: a blank in a pattern; write ? in its place", text);
  strcpy(the_request.exclude, text);
  return ESPANK_SUCCESS;
}

int take_hints(int, const char* value, int remote) {
  const char* text = value ? value : "";
  if (!is_word(text, "torch|off")) return refuse(remote, "--monarch-hints: not one of torch, off", text);
  strcpy(the_request.hints, text);
  return ESPANK_SUCCESS;
}

int take_report(int, const char* value, int remote) {
  const char* text = value ? value : "";
  const size_t len = strlen(text);
  if (len >= kReportBytes) return refuse(remote, "--monarch-report: longer than 1023 bytes", "");
  if (*text != '/' || text[len - 1] == '/' || !is_plain(text))
    return refuse(remote,
                  "--monarch-report: not the absolute path of a file, without blanks; write for example "
                  "/home/me/report.%j.json",
                  text);
  strcpy(the_request.report, text);
  return ESPANK_SUCCESS;
}

char dataset_name[] = "monarch-dataset", dataset_argument[] = "PATH[:PATH...]",
     dataset_usage[] = "stage these directories into the node's own storage while the job runs";
char no_name[] = "no-monarch", no_usage[] = "run without Monarch, whatever the environment says";
char check_name[] = "monarch-check", check_argument[] = "error|warn|off",
     check_usage[] = "what to do if a dataset cannot be read at submission (default error)";
char prefetch_name[] = "monarch-prefetch", prefetch_argument[] = "auto|all|off",
     prefetch_usage[] = "what is staged that no program has opened yet: within bounds, all, or nothing";
char consistency_name[] = "monarch-consistency", consistency_argument[] = "job|open",
     consistency_usage[] = "whether each open asks the file system if the file has changed (open)";
char tiers_name[] = "monarch-tiers", tiers_argument[] = "NAME[,NAME...]",
     tiers_usage[] = "use these of a node's tiers, and fill them in this order";
char wait_name[] = "monarch-wait", wait_argument[] = "none|NN%|full",
     wait_usage[] = "begin once so much of the dataset is staged; implies --monarch-prefetch=all";
char wait_timeout_name[] = "monarch-wait-timeout", wait_timeout_argument[] = "SECONDS",
     wait_timeout_usage[] = "begin by then in any case (default 1800)";
char capacity_name[] = "monarch-capacity", capacity_argument[] = "MIN[:MAX][,require]",
     capacity_usage[] =
         "without Monarch, or failing, where a node gives less than MIN; never more than MAX of it";
char exclude_name[] = "monarch-exclude", exclude_argument[] = "PATTERN[:PATTERN...]",
     exclude_usage[] = "read files with such names on their file system";
char hints_name[] = "monarch-hints", hints_argument[] = "torch|off",
     hints_usage[] = "let torch's DataLoader tell which files it will read next (default off)";
char report_name[] = "monarch-report", report_argument[] = "FILE",
     report_usage[] = "write the job's report to this file as it ends; %j is the job's number";

spank_option options[] = {
    {dataset_name, dataset_argument, dataset_usage, 1, 0, &take_datasets},
    {no_name, nullptr, no_usage, 0, 0, &take_no_monarch},
    {check_name, check_argument, check_usage, 1, 0, &take_check},
    {prefetch_name, prefetch_argument, prefetch_usage, 1, 0, &take_prefetch},
    {consistency_name, consistency_argument, consistency_usage, 1, 0, &take_consistency},
    {tiers_name, tiers_argument, tiers_usage, 1, 0, &take_tiers},
    {wait_name, wait_argument, wait_usage, 1, 0, &take_wait},
    {wait_timeout_name, wait_timeout_argument, wait_timeout_usage, 1, 0, &take_wait_timeout},
    {capacity_name, capacity_argument, capacity_usage, 1, 0, &take_capacity},
    {exclude_name, exclude_argument, exclude_usage, 1, 0, &take_exclude},
    {hints_name, hints_argument, hints_usage, 1, 0, &take_hints},
    {report_name, report_argument, report_usage, 1, 0, &take_report},
};

// An option's twin, and the variable by which Slurm itself takes an option from the environment and hands it
// on from a job to its steps.
struct Twin {
  const char* own;
  const char* slurm;
  bool needs_value;
};
constexpr Twin twins[] = {
    {"MONARCH_IO_OPT_DATASET", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_dataset", true},
    {"MONARCH_IO_OPT_NO_MONARCH", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_no_monarch", false},
    {"MONARCH_IO_OPT_CHECK", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_check", true},
    {"MONARCH_IO_OPT_PREFETCH", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_prefetch", true},
    {"MONARCH_IO_OPT_CONSISTENCY", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_consistency", true},
    {"MONARCH_IO_OPT_TIERS", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_tiers", true},
    {"MONARCH_IO_OPT_WAIT", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_wait", true},
    {"MONARCH_IO_OPT_WAIT_TIMEOUT", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_wait_timeout", true},
    {"MONARCH_IO_OPT_CAPACITY", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_capacity", true},
    {"MONARCH_IO_OPT_EXCLUDE", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_exclude", true},
    {"MONARCH_IO_OPT_HINTS", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_hints", true},
    {"MONARCH_IO_OPT_REPORT", "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_report", true},
};

bool came_from_environment = false;

// SECTION.KEY=VALUE, which monarchd looks at.
bool is_of_configuration(const char* word) {
  const char* is = strchr(word, '=');
  const char* dot = strchr(word, '.');
  return is && dot && dot < is;
}

// False: there are too many.
bool keep_word(const char* word) {
  if (the_settings.word_count == kMostWords) return false;
  the_settings.words[the_settings.word_count++] = word;
  return true;
}

}  // namespace

Request& request() { return the_request; }
bool wanted() { return the_request.datasets[0] != '\0' && !the_request.refused; }
const Settings& settings() { return the_settings; }

// An unknown word is told in the log of the node's daemons, not to each user of sbatch.
void read_settings(int argc, char** argv) {
  const spank_context_t context = spank_context();
  const bool is_told = context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR;
  the_settings.word_count = 0;
  const struct {
    const char* key;
    const char** place;
  } keys[] = {{"config=", &the_settings.config},
              {"state_dir=", &the_settings.state_dir},
              {"monarchd=", &the_settings.monarchd},
              {"log=", &the_settings.log}};
  for (int i = 0; i < argc; ++i) {
    bool known = false;
    for (const auto& k : keys) {
      const size_t n = strlen(k.key);
      if (strncmp(argv[i], k.key, n) != 0) continue;
      *k.place = argv[i] + n;
      known = true;
    }
    if (!known && is_of_configuration(argv[i])) known = keep_word(argv[i]);
    if (!known && is_told)
      slurm_error(
          "monarch: plugstack.conf: %s '%s'; known are config= state_dir= monarchd= log= and up to %d "
          "SECTION.KEY=VALUE of monarch.conf",
          is_of_configuration(argv[i]) ? "too many words:" : "unknown word", argv[i], kMostWords);
  }
}

void register_options(spank_t sp) {
  for (spank_option& o : options) spank_option_register(sp, &o);
}

void ask_options(spank_t sp) {
  for (spank_option& o : options) {
    char* value = nullptr;
    if (spank_option_getopt(sp, &o, &value) == ESPANK_SUCCESS) o.cb(o.val, value, 1);
  }
}

void take_options_from_environment() {
  const bool in_a_job = getenv("SLURM_JOB_ID") != nullptr;
  for (const Twin& twin : twins) {
    const char* value = getenv(twin.own);
    if (value && !*value && twin.needs_value) {
      slurm_error("%s is set to nothing; give it a value, or unset it", twin.own);
      exit(1);  // the user's own command, before anything was submitted, as in submit.cc
    }
    if (value) {
      came_from_environment = true;
      setenv(twin.slurm, value, 0);
    } else if (in_a_job && spank_context() == S_CTX_ALLOCATOR) {
      unsetenv(twin.slurm);  // a job submitted from within a job is a job of its own
    }
  }
}

bool has_options_from_environment() { return came_from_environment; }

void drop_options_from_environment() {
  for (const Twin& twin : twins) unsetenv(twin.own);
}

void hide_options(spank_t sp) {
  for (const Twin& twin : twins) spank_unsetenv(sp, twin.own);
}

const char* job_options() {
  static char text[kOptionsBytes];
  size_t n = 0;
  const auto add = [&](const char* key, const char* value) {
    if (value[0])
      n += static_cast<size_t>(snprintf(text + n, sizeof text - n, "%s%s=%s", n ? " " : "", key, value));
  };
  text[0] = '\0';
  add("prefetch", the_request.prefetch);
  add("consistency", the_request.consistency);
  add("tiers", the_request.tiers);
  add("wait", the_request.wait);
  add("wait_timeout", the_request.wait_timeout);
  add("capacity", the_request.capacity);
  add("exclude", the_request.exclude);
  add("hints", the_request.hints);
  add("report", the_request.report);
  return text;
}

}  // namespace monarch::spank
