// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/node.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace monarch {
namespace {

template <typename T>
uint64_t digest(const std::vector<T>& values) {
  return XXH3_64bits(values.data(), values.size() * sizeof values[0]);
}

// Nodes on which a root is another directory do not get each other's files. Device numbers may differ from
// node to node.
uint64_t dataset_digest(const Dataset& dataset) {
  std::vector<uint64_t> all;
  for (const DatasetRoot& root : dataset.roots) {
    struct stat st {};
    struct statfs fs {};
    (void)::fstat(root.fd.get(), &st);
    (void)::fstatfs(root.fd.get(), &fs);
    all.push_back(XXH3_64bits(root.path.data(), root.path.size()));
    all.push_back(st.st_ino);
    all.push_back(static_cast<uint64_t>(fs.f_type));
  }
  return digest(all);
}

uint64_t settings_digest(const AgentConfig& config) {
  return digest(std::vector<uint64_t>{config.stage_wait_max, kPieceBytes});
}

}  // namespace

Result<std::unique_ptr<PeerNode>> PeerNode::create(const PeerNodeOptions& job, const AgentConfig& config,
                                                   const Parts& parts) {
  std::unique_ptr<PeerNode> node(new PeerNode(parts));
  Result<PeerTls> tls = PeerTls::create(job.identity, job.key);
  if (!tls.ok()) return tls.error();
  node->tls_ = tls.take();

  PeersOptions options;
  options.peers.nodes = job.nodes;
  options.peers.tls = &node->tls_;
  options.peers.after = job.encrypt ? Handshake::After::kEncrypted : Handshake::After::kClear;
  Hello& hello = options.peers.hello;
  hello.node = job.own;
  hello.dataset = dataset_digest(*parts.dataset);
  hello.settings = settings_digest(config);
  if (::getrandom(&hello.incarnation, sizeof hello.incarnation, 0) != sizeof hello.incarnation)
    return errno_error("getrandom");

  PeerNode* const self = node.get();
  node->holdings_.emplace(HoldingsOptions{
      parts.catalog, parts.hierarchy, parts.board, static_cast<uint32_t>(parts.dataset->roots.size()),
      [self](const RelPath& path, uint32_t piece) { self->wanted_(path, piece); }});
  node->serve_.emplace(ServeOptions{
      .open = [self](const Get& get, GetResult* why) { return self->holdings_->open(get, why); }});
  PeersHandlers handlers;
  handlers.for_each_held = [self](const auto& each) { self->holdings_->for_each(each); };
  handlers.changed = [self](const Mark& mark) { self->changes_.take(mark); };
  handlers.changes = [self] { return self->changes_.all(); };
  handlers.doubted = [self](const FileKey& key) { self->holdings_->doubt(key); };
  handlers.data = [self](Fd socket, Tls data) { self->serve_->add(std::move(socket), std::move(data)); };
  node->peers_.emplace(std::move(options), std::move(handlers));
  node->source_.emplace(parts.catalog, parts.dataset, parts.board, parts.pfs, &*node->peers_,
                        &*node->holdings_, job.bandwidth);
  return node;
}

Status PeerNode::start(std::function<void(const RelPath&, uint32_t)> wanted) {
  wanted_ = std::move(wanted);
  MONARCH_TRY(serve_->start());
  return peers_->start();
}

// Nobody is asked any more before those who ask are hung up on.
void PeerNode::stop() {
  if (peers_) peers_->stop();
  if (serve_) serve_->stop();
}

void PeerNode::tell_changes() {
  while (const std::optional<Mark> mark = changes_.next()) peers_->changed(*mark);
  peers_->remind();
}

}  // namespace monarch
