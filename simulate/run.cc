// SPDX-License-Identifier: Apache-2.0
// Events are the moments at which a thread begins a read or has ended one. A read's rate is fixed when it
// begins, so its end is known then, and with the ends of a batch's reads the end of the batch.
#include "simulate/run.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>

#include "simulate/copies.h"

namespace monarch::simulate {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr int kMostHolders = 4;  // among which a reader chooses, as in runtime/peer/directory.h

class Run {
 public:
  Run(const Machine& machine, const Accesses& accesses, const Plan& plan, Compat compat)
      : machine_(machine),
        accesses_(accesses),
        plan_(plan),
        compat_(compat),
        tiers_(machine.tiers.size()),
        write_rate_(std::min(machine.preprocess, machine.staging.write.each(machine.staging.threads))),
        copies_(machine, accesses, plan),
        nodes_(accesses.nodes()),
        busy_on_host_(accesses.nodes() / machine.per_host + 1),
        next_loss_(machine.lost_every > 0 ? machine.lost_every : kUnknown) {
    outcome_.waiting.resize(tiers_ + 2);
    outcome_.read.resize(tiers_ + 2);
    outcome_.coverage = plan.coverage;
    for (Node& node : nodes_) {
      node.on_tier.resize(tiers_);
      node.waiting.resize(tiers_ + 2);
    }
  }

  Outcome outcome() {
    for (size_t list = 0; list < plan_.lists.size(); ++list)
      start(plan_.lists[list].threads, plan_.lists[list].node, list);
    next_of_list_.resize(plan_.lists.size());
    if (plan_.trains_when_staged) outcome_.staging = work();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].clock = outcome_.staging;
      start(plan_.reading == Plan::Reading::kAsked ? 1 : machine_.staging.threads, i, kLoader);
    }
    batch_end_ = outcome_.staging;
    work();
    outcome_.seconds = batch_end_;
    return outcome_;
  }

 private:
  static constexpr size_t kLoader = SIZE_MAX;

  // From where a thread reads.
  struct Choice {
    size_t source = 0;
    double rate = 0;
    size_t holder = 0, tier = 0;  // unless it is the PFS
  };
  struct Read {
    double ready = kUnknown;  // when it is in the staging buffer
    size_t source = 0;
  };
  struct Node {
    size_t taken = 0, computed = 0;        // reads
    double clock = 0;                      // when the last of these was computed
    double held = 0;                       // MB in the staging buffer
    std::deque<Read> reads;                // those taken and not computed
    std::vector<uint32_t> idle;            // threads that wait for room in the staging buffer
    std::vector<uint32_t> asleep;          // and those that wait until the computation needs their sample
    std::vector<uint32_t> on_tier;         // threads that read from each of its tiers, also for other nodes
    uint32_t on_pfs = 0, on_network = 0;   // of its threads
    uint32_t sends = 0;                    // to threads of other nodes
    double computing = 0, batch_size = 0;  // of this batch
    std::vector<double> waiting;
  };
  struct Thread {
    size_t node, list;
    size_t read = 0;  // of a loader: the number of its read
    uint32_t sample = 0;
    bool has_sample = false;  // which is still to be asked for
    bool is_reading = false;
    Choice from = {};
  };
  struct Event {
    double time;
    uint32_t thread;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : thread > other.thread;
    }
  };

  size_t others() const { return tiers_; }
  size_t pfs() const { return tiers_ + 1; }
  const std::vector<uint32_t>& reads_of(size_t node) const {
    return plan_.reads.empty() ? accesses_.of(node) : plan_.reads[node];
  }
  size_t end_of_batch() const { return (batch_ + 1) * accesses_.batch(); }

  void start(uint32_t threads, size_t node, size_t list) {
    for (uint32_t i = 0; i < threads; ++i) {
      threads_.push_back({node, list});
      wake(static_cast<uint32_t>(threads_.size() - 1), outcome_.staging);
    }
  }
  void wake(uint32_t thread, double time) { events_.push({std::max(time, now_), thread}); }

  // Until the last batch has ended, or nothing is left to do; the time of that.
  double work() {
    for (; !events_.empty() && end_of_batch() <= reads_of(0).size(); end_batches()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      for (; now_ >= next_loss_; next_loss_ += machine_.lost_every) copies_.lose(losses_++ % nodes_.size());
      Thread& thread = threads_[event.thread];
      if (thread.is_reading) count(&thread, -1);
      if (has_use(thread) || take(event.thread)) begin(event.thread);
    }
    return now_;
  }

  // One thread more or less (`by`) reads what this one does.
  void count(Thread* thread, int by) {
    Node& node = nodes_[thread->node];
    const uint32_t change = static_cast<uint32_t>(by);
    thread->is_reading = by > 0;
    if (thread->from.source == pfs()) {
      const bool was_reading = node.on_pfs > 0;
      node.on_pfs += change;
      if (was_reading != (node.on_pfs > 0)) nodes_on_pfs_ += change;
      return;
    }
    Node& holder = nodes_[thread->from.holder];
    holder.on_tier[thread->from.tier] += change;
    busy_on_host_[host_of(thread->node)] += change;
    if (thread->from.source != others()) return;
    node.on_network += change;
    holder.sends += change;
  }

  // Gives the thread its next sample; false: there is none now.
  bool take(uint32_t id) {
    Thread& thread = threads_[id];
    return thread.list == kLoader ? take_read(id) : take_of_list(&thread);
  }

  bool take_read(uint32_t id) {
    Thread& thread = threads_[id];
    Node& node = nodes_[thread.node];
    if (node.taken == reads_of(thread.node).size()) return false;
    thread.sample = reads_of(thread.node)[node.taken];
    const double size = accesses_.size(thread.sample);
    if (node.taken >= end_of_batch() && node.held + size > machine_.staging.capacity) {
      node.idle.push_back(id);
      return false;
    }
    thread.has_sample = true;
    thread.read = node.taken++;
    node.held += size;
    node.reads.emplace_back();
    if (!is_asked(thread)) return true;
    node.asleep.push_back(id);
    wake_asleep(&node);
    return false;
  }

  bool take_of_list(Thread* thread) {
    const List& list = plan_.lists[thread->list];
    size_t& next = next_of_list_[thread->list];
    while (next < list.samples.size()) {
      thread->sample = list.samples[next++];
      thread->has_sample = true;
      if (has_use(*thread)) return true;
    }
    return false;
  }

  // Whether the thread has a sample to ask for; one of a list may have become a copy, or lost its room,
  // since.
  bool has_use(const Thread& thread) const {
    if (!thread.has_sample || thread.list == kLoader) return thread.has_sample;
    const Copy* own = copies_.of(thread.sample, thread.node);
    return own ? own->ready == Copy::kPlanned : copies_.has_room(thread.node, thread.sample);
  }

  // Whether the thread reads its sample only when the computation needs it.
  bool is_asked(const Thread& thread) const {
    return plan_.reading == Plan::Reading::kAsked ||
           (plan_.reading == Plan::Reading::kCopiesAhead && !copies_.first(thread.sample));
  }

  void wake_asleep(Node* node) {
    if (node->computed >= end_of_batch()) return;
    const auto is_next = [&](uint32_t id) { return threads_[id].read == node->computed; };
    const auto next = std::find_if(node->asleep.begin(), node->asleep.end(), is_next);
    if (next == node->asleep.end()) return;
    wake(*next, node->clock);
    node->asleep.erase(next);
  }

  double pfs_rate(const Node& node) const {
    const double readers = nodes_on_pfs_ + (node.on_pfs == 0 ? 1 : 0);
    return std::min(machine_.pfs_link, machine_.pfs.each(readers)) / sharers(node.on_pfs);
  }
  // An open waits while other threads' samples are transferred: it is to be seen where there are few.
  double pfs_seconds(double size, double rate) const {
    const double alone = std::max(rate, std::min(machine_.pfs_link, machine_.pfs.at(1)));
    return std::max(size / rate, machine_.pfs_open + size / alone);
  }
  double tier_rate(size_t node, size_t tier) const {
    const Tier& it = machine_.tiers[tier];
    if (compat_ == Compat::kNopfs) return it.read.each(it.threads);
    return it.read.each(is_shared() ? on_host(node) : nodes_[node].on_tier[tier] + 1);
  }
  double network_rate(size_t to, size_t from) const {
    if (compat_ == Compat::kNopfs) return machine_.network.at(1);
    if (is_shared()) return machine_.network.each(on_host(to));
    return std::min(machine_.network.each(nodes_[to].on_network + 1),
                    machine_.network.each(nodes_[from].sends + 1));
  }
  bool is_shared() const { return machine_.per_host > 1; }
  size_t host_of(size_t node) const { return node / machine_.per_host; }
  // The threads that its processors work for, with one more.
  uint32_t on_host(size_t node) const { return busy_on_host_[host_of(node)] + 1; }
  double sharers(uint32_t others) const { return compat_ == Compat::kNopfs ? 1 : others + 1; }

  // Where the thread reads its sample. kUnknown in *later: now; else it waits until then.
  Choice choose(const Thread& thread, double* later) const {
    const Node& node = nodes_[thread.node];
    const Choice from_pfs = {pfs(), pfs_rate(node)};
    const bool takes_fastest = plan_.source == Plan::Source::kFastest;
    Choice best;
    double coming = kUnknown;
    const Copy* own = copies_.of(thread.sample, thread.node);
    if (own && own->ready > now_) coming = own->ready;
    if (own && own->ready <= now_) {
      const Choice from_own = {own->tier, tier_rate(thread.node, own->tier), thread.node, own->tier};
      if (!takes_fastest) return from_own;
      if (from_own.rate >= from_pfs.rate) best = from_own;
    }
    const bool is_full = !own && !copies_.has_room(thread.node, thread.sample);
    if (plan_.source == Plan::Source::kOwn || (plan_.source == Plan::Source::kRoom && is_full))
      return from_pfs;
    int holders = 0;
    for (const Copy* copy = copies_.first(thread.sample); copy && holders < kMostHolders;
         copy = copies_.next(copy)) {
      if (copy->node == thread.node) continue;
      if (copy->ready > now_) {
        if (plan_.follows) coming = std::min<double>(coming, copy->ready);
        continue;
      }
      ++holders;
      const double rate = std::min(network_rate(thread.node, copy->node), tier_rate(copy->node, copy->tier));
      if (rate > best.rate) best = {others(), rate, copy->node, copy->tier};
    }
    if (best.rate == 0) *later = coming;
    return best.rate > 0 && (!takes_fastest || best.rate >= from_pfs.rate) ? best : from_pfs;
  }

  void begin(uint32_t id) {
    Thread& thread = threads_[id];
    double later = kUnknown;
    thread.from = choose(thread, &later);
    if (later != kUnknown) return wake(id, later);
    thread.has_sample = false;
    count(&thread, 1);
    const double size = accesses_.size(thread.sample);
    const bool is_pfs = thread.from.source == pfs();
    const double fetch = is_pfs ? pfs_seconds(size, thread.from.rate) : size / thread.from.rate;
    if (is_pfs) outcome_.pfs += size;
    thread.list == kLoader ? read(id, fetch) : copy(id, fetch);
  }

  void copy(uint32_t id, double fetch) {
    const Thread& thread = threads_[id];
    const Tier& tier = machine_.tiers[copies_.place(thread.node, thread.sample)];
    const double write = accesses_.size(thread.sample) / tier.write.each(tier.threads);
    const double end = now_ + std::max(fetch, write);
    copies_.set_ready(thread.node, thread.sample, end);
    wake(id, copies_.of(thread.sample, thread.node)->ready);
  }

  void read(uint32_t id, double fetch) {
    const Thread& thread = threads_[id];
    Node& node = nodes_[thread.node];
    const double size = accesses_.size(thread.sample), write = size / write_rate_;
    const bool is_asked = this->is_asked(thread);
    const double fetched = now_ + (is_asked ? fetch : std::max(fetch, write));
    outcome_.read[thread.from.source] += size;
    keep(thread, fetched);
    node.reads[thread.read - node.computed] = {is_asked ? fetched + write : fetched, thread.from.source};
    wake(id, fetched);
    compute(&node, thread.node);
  }

  void keep(const Thread& thread, double ready) {
    const Copy* own = copies_.of(thread.sample, thread.node);
    if (own ? own->ready != Copy::kPlanned : !copies_.may_keep(thread.node, thread.sample)) return;
    copies_.place(thread.node, thread.sample);
    copies_.set_ready(thread.node, thread.sample, ready);
  }

  // As far as the batch goes and its samples are known to be there.
  void compute(Node* node, size_t index) {
    if (node->computed >= end_of_batch()) return;
    for (; node->computed < end_of_batch() && !node->reads.empty() && node->reads.front().ready != kUnknown;
         ++node->computed) {
      const Read& read = node->reads.front();
      const double size = accesses_.size(reads_of(index)[node->computed]), takes = size / machine_.compute;
      node->waiting[read.source] += std::max(0.0, read.ready - node->clock);
      node->clock = std::max(node->clock, read.ready) + takes;
      node->computing += takes;
      node->batch_size += size;
      node->reads.pop_front();
    }
    if (node->computed == end_of_batch()) ++nodes_at_end_;
    wake_asleep(node);
  }

  void end_batches() {
    while (nodes_at_end_ == nodes_.size()) {
      const auto slowest = std::max_element(nodes_.begin(), nodes_.end(),
                                            [](const Node& a, const Node& b) { return a.clock < b.clock; });
      batch_end_ = slowest->clock;
      outcome_.computing += slowest->computing;
      for (size_t i = 0; i < slowest->waiting.size(); ++i) outcome_.waiting[i] += slowest->waiting[i];
      ++batch_;
      nodes_at_end_ = 0;
      for (size_t i = 0; i < nodes_.size(); ++i) begin_batch(&nodes_[i], i);
    }
  }

  void begin_batch(Node* node, size_t index) {
    node->clock = batch_end_;
    node->held -= node->batch_size;
    node->computing = node->batch_size = 0;
    std::fill(node->waiting.begin(), node->waiting.end(), 0);
    for (const uint32_t id : node->idle) wake(id, batch_end_);
    node->idle.clear();
    wake_asleep(node);
    compute(node, index);
  }

  const Machine& machine_;
  const Accesses& accesses_;
  const Plan& plan_;
  const Compat compat_;
  const size_t tiers_;
  const double write_rate_;  // of a thread into the staging buffer
  Copies copies_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> busy_on_host_;  // threads that read from tiers and from other nodes
  double next_loss_;
  size_t losses_ = 0;
  std::vector<Thread> threads_;
  std::vector<size_t> next_of_list_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0, batch_end_ = 0;
  uint32_t nodes_on_pfs_ = 0;
  size_t batch_ = 0, nodes_at_end_ = 0;
  Outcome outcome_;
};

// Of a run in which no sample is waited for.
Outcome without_waiting(const Machine& machine, const Accesses& accesses) {
  Outcome outcome;
  outcome.waiting.resize(machine.tiers.size() + 2);
  outcome.read.resize(machine.tiers.size() + 2);
  for (size_t at = 0; at < accesses.of(0).size(); at += accesses.batch()) {
    double largest = 0;
    for (const std::vector<uint32_t>& reads : accesses.all()) {
      double size = 0;
      for (size_t i = at; i < at + accesses.batch(); ++i) size += accesses.size(reads[i]);
      largest = std::max(largest, size);
    }
    outcome.computing += largest / machine.compute;
  }
  outcome.seconds = outcome.computing;
  return outcome;
}

}  // namespace

Outcome run(const Machine& machine, const Accesses& accesses, const Policy& policy, Compat compat) {
  const Plan plan = policy.plan(machine, accesses);
  if (plan.reading == Plan::Reading::kNone) return without_waiting(machine, accesses);
  if (plan.refusal.empty()) return Run(machine, accesses, plan, compat).outcome();
  Outcome refused;
  refused.refusal = plan.refusal;
  return refused;
}

}  // namespace monarch::simulate
