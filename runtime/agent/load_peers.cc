// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/load_peers.h"

#include <dlfcn.h>

#include <utility>

#include "runtime/base/os.h"

namespace monarch {
namespace {

Result<CreatePeerNode*> load(const std::string& path) {
  // Bound at once: what is missing is to be told here, not where it is called.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library ? ::dlsym(library, kCreatePeerNode) : nullptr;
  if (symbol) return reinterpret_cast<CreatePeerNode*>(symbol);
  const char* const why = ::dlerror();
  return Error{ENOENT, "load " + path + ": " + (why ? why : "unknown error") +
                           "; install it, and OpenSSL 3 and libevent with it"};
}

}  // namespace

LoadingPeers::LoadingPeers(std::string path) : path_(std::move(path)) {
  (void)os::start_thread(&thread_, [this] { loaded_ = load(path_); });
}

LoadingPeers::~LoadingPeers() {
  if (thread_.joinable()) thread_.join();
}

Result<CreatePeerNode*> LoadingPeers::get() {
  if (thread_.joinable()) thread_.join();
  return loaded_ ? *loaded_ : load(path_);
}

}  // namespace monarch
