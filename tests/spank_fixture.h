// SPDX-License-Identifier: Apache-2.0
// The SPANK plugin as it is built, loaded by a Slurm that is made up (fake_slurm.cc).
#pragma once

#include <dlfcn.h>

#include <map>
#include <sstream>

extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
extern slurm_conf_t slurm_conf;
}

#include "tests/scratch.h"

namespace monarch {

inline constexpr uint32_t kExternStep = 0xfffffffc, kBatchStep = 0xfffffffb;
inline constexpr char kDatasetVariable[] = "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_dataset";
inline constexpr char kRefusedVariable[] = "SLURM_SPANK__SLURM_SPANK_OPTION_monarch_no_monarch";

// JobContainerType, which later releases call NamespaceType.
template <class Conf>
char*& namespace_type(Conf& conf) {
  if constexpr (requires { conf.namespace_plugin; })
    return conf.namespace_plugin;
  else
    return conf.job_container_plugin;
}

// What Slurm would know and be told.
struct FakeSpank {
  spank_context_t context = S_CTX_REMOTE;
  std::map<spank_item, uint32_t> items;
  std::vector<gid_t> groups;  // none: the item is missing
  std::string cores;          // likewise
  bool no_cores = false;      // the item is there, and nothing in it
  uint64_t memory = 0;        // likewise missing
  std::map<std::string, std::string> environment, given;
  std::map<std::string, std::string> controlled;  // by spank_job_control_setenv()
  std::vector<spank_option> options;
  int said = -1;  // a file: children of the test write there, too
};
extern FakeSpank* slurm;
extern int seconds_a_look;               // by which CLOCK_MONOTONIC is later whenever somebody looks at it
extern std::function<void()> at_a_look;  // called then

// The environment without what Slurm and Monarch go by; afterwards it is as it was.
class OwnEnvironment {
 public:
  OwnEnvironment() : before_(forget()) {}
  ~OwnEnvironment() {
    (void)forget();
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static std::map<std::string, std::string> forget() {
    std::map<std::string, std::string> found;
    for (char** at = environ; *at; ++at)
      for (const char* prefix : {"LD_PRELOAD=", "MONARCH_IO_", "MONARCH_MOUNT_", "SLURM", "SPANK_"})
        if (std::string text = *at; text.starts_with(prefix))
          found[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    for (const auto& [name, value] : found) ::unsetenv(name.c_str());
    return found;
  }
  const std::map<std::string, std::string> before_;
};

class SpankPlugin : public testing::Test {
 protected:
  SpankPlugin() {
    slurm = &fake_;
    fake_.said = ::open(scratch_.file("said", "").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    fake_.items = {{S_JOB_ID, 7}, {S_JOB_UID, 1000}, {S_JOB_GID, 100}, {S_JOB_STEPID, 0}, {S_TASK_ID, 0}};
    ::setenv("SLURMD_NODENAME", "n1", 1);
    slurm_conf = {};
    for (const char* name : {"board", "began", "told"}) scratch_.file(std::string("run/") + name, "");
    scratch_.file("libmonarch_preload.so", "");
    helper("echo \"ready $here/run $here/libmonarch_preload.so\" >&3");
    load();
  }
  ~SpankPlugin() override {
    ::dlclose(plugin_);
    ::close(fake_.said);
  }

  // Anew, as each process of Slurm's does.
  void load() {
    if (plugin_) ::dlclose(plugin_);
    fake_.options.clear();
    fake_.environment.clear();
    fake_.controlled.clear();
    forget_said();
    std::filesystem::remove(scratch_ / "arguments");
    const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe");
    plugin_ = ::dlopen((own.parent_path().parent_path() / "spank_monarch.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(plugin_) << ::dlerror();
  }

  void hook(const std::string& name) {
    std::vector<char*> argv;
    for (std::string& word : words_) argv.push_back(word.data());
    call(name, std::move(argv));
  }
  void call(const std::string& name, std::vector<char*> argv) {
    const auto f = function(name);
    const int descriptors = open_descriptors();
    EXPECT_EQ(f(nullptr, static_cast<int>(argv.size()), argv.data()), ESPANK_SUCCESS) << name;
    EXPECT_EQ(open_descriptors(), descriptors) << name;
  }
  spank_f* function(const std::string& name) {
    void* found = ::dlsym(plugin_, ("slurm_spank_" + name).c_str());
    EXPECT_TRUE(found) << name;
    return reinterpret_cast<spank_f*>(found);
  }
  void init(spank_context_t context) {
    fake_.context = context;
    hook("init");
  }
  // As if the user had given it; what the plugin says to that.
  int option(const std::string& name, const char* value, int remote = 0) {
    for (const spank_option& o : fake_.options)
      if (o.name == name) return o.cb(o.val, value, remote);
    ADD_FAILURE() << "no option " << name;
    return 0;
  }
  using Items = std::map<spank_item, uint32_t>;
  using Options = std::vector<std::pair<std::string, const char*>>;
  // A step on a node, up to where its agent is started, with these items instead.
  void step(const Items& items = {}, const std::map<std::string, std::string>& environment = {},
            const Options& options = {{"monarch-dataset", "/data"}}) {
    load();
    fake_.environment = environment;
    for (const auto& [item, value] : items) fake_.items[item] = value;
    init(S_CTX_REMOTE);
    for (const auto& [name, value] : options) option(name, value, 1);
    hook("init_post_opt");
  }
  // The prolog of job 7, with these options.
  void prolog(const std::map<std::string, std::string>& given) {
    load();
    fake_.context = S_CTX_JOB_SCRIPT;
    fake_.given = given;
    ::setenv("SLURM_JOB_ID", "7", 1);
    hook("job_prolog");
  }

  // What stands for monarchd: notes its arguments in a line, and its environment, then does `body`.
  void helper(const std::string& body) {
    scratch_.file("monarchd", "#!/bin/sh\nhere=" + scratch_.path() +
                                  "\necho \"$*\" >> $here/arguments\n/usr/bin/env > $here/variables\n" +
                                  body + "\n");
    ::chmod((scratch_ / "monarchd").c_str(), 0755);
  }
  std::string arguments() const { return read("arguments"); }
  // What the last one was told by its environment.
  std::string told_helper(const std::string& name) const {
    std::istringstream in(read("variables"));
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(name + "=")) return line.substr(name.size() + 1);
    return "none";
  }
  std::string read(const std::string& name) const {
    return ::access((scratch_ / name).c_str(), F_OK) == 0 ? contents(scratch_ / name) : "";
  }
  std::string said() const { return contents(scratch_ / "said"); }
  void forget_said() { (void)!::ftruncate(fake_.said, 0); }

  // What the hook writes to its standard error, a task's.
  std::string told(const std::string& by = "task_init") {
    const int own = ::dup(STDERR_FILENO);
    const int file =
        ::open((scratch_ / "stderr").c_str(), O_CREAT | O_TRUNC | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    ::dup2(file, STDERR_FILENO);
    hook(by);
    ::dup2(own, STDERR_FILENO);
    ::close(file);
    ::close(own);
    return contents(scratch_ / "stderr");
  }
  // Notes that the prolog was told of datasets.
  void note(const std::string& cluster = "cluster") { record(R"("wanted": "/data",)", cluster); }
  // Of job 7.
  void record(const std::string& line, const std::string& cluster = "cluster") {
    scratch_.file("state/jobs/" + cluster + ".7.n1/record.json", "{\n " + line + "\n \"last\": 1\n}\n");
  }

  // The exit status of a submission with these options, in this context; 0 if it went on.
  int submit_with(const Options& options, spank_context_t context = S_CTX_ALLOCATOR) {
    load();
    return in_child([&] {
      init(context);
      for (const auto& [name, value] : options) option(name, value);
      hook("init_post_opt");
      return HasFailure() ? 2 : 0;
    });
  }
  int submit(const std::string& dataset, spank_context_t context = S_CTX_ALLOCATOR) {
    return submit_with({{"monarch-dataset", dataset.c_str()}}, context);
  }

  Scratch scratch_;
  FakeSpank fake_;

  std::vector<std::string> words_ = {"config=" + (scratch_ / "monarch.conf"),
                                     "state_dir=" + (scratch_ / "state"),
                                     "monarchd=" + (scratch_ / "monarchd"), "log=" + (scratch_ / "log")};

 private:
  const OwnEnvironment environment_;
  void* plugin_ = nullptr;
};

}  // namespace monarch
