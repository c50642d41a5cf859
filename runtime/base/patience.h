// SPDX-License-Identifier: Apache-2.0
// How long Monarch waits for what: each constant with what it bounds, and why that value. Waits that an
// admin or a user sets are in config.h.
#pragma once

#include <cstdint>

namespace monarch::patience {

// ---- runtime/base, metadata, placement, agent

// A thread that keeps to a rate sees that it is to give up, and one that was left behind ends: a fifth of
// what a person notices.
inline constexpr int64_t kRateSliceNs = 20'000'000;
// What a rate makes up for after a pause: longer than a busy machine lets a thread wait for a processor.
inline constexpr int64_t kRateBurstNs = 100'000'000;
// For how long what a task has taken in excess of a rate holds up prefetch: a rate's mean holds within it.
inline constexpr int64_t kRateDebtNs = 2'000'000'000;
// How old may be what is known of the node's memory: what a thread can fill meanwhile is less than the
// reserve.
inline constexpr int64_t kMemoryFreshNs = 100'000'000;
// Between two looks at what changes with each call of a task (counters, events), and at what the kernel does
// not tell, at most: a hundredth of a processor.
inline constexpr int64_t kBusyLookNs = 10'000'000;
// The first look at what the kernel does not tell, or another node: most is there soon. Then each pause is
// twice the last.
inline constexpr int64_t kFirstPollNs = 500'000;
// The first look at what is to change soon (readers that close a copy, reads that pay for prefetch).
inline constexpr int64_t kFirstLookNs = 50'000'000;
// Between two looks at what a person or a script waits for, and how long a thread keeps its buffers for more.
inline constexpr int64_t kShortLookNs = 200'000'000;
// Between two looks at what nobody tells of (memory, descriptors, uses, counters): costs nothing, and is
// soon. At the agent's end, for what the other nodes have counted.
inline constexpr int64_t kLookNs = 1'000'000'000;
// Between two files of what all nodes have counted: as often as the nodes tell it.
inline constexpr int64_t kNodesFileNs = 2'000'000'000;
// How long those who have copies open may keep them where a quota was lowered: most files are read in less.
inline constexpr int64_t kReadersNs = 3'000'000'000;
// Between two looks of what is idle, or that nobody waits for, and before a tier that failed is probed first:
// a fault often is over then.
inline constexpr int64_t kIdleLookNs = 10'000'000'000;
// The longest pause after failures in a row (tiers, descriptors, memory): a fault that lasts costs little.
inline constexpr int64_t kMostPauseNs = 300'000'000'000;
// How long a directory's times may stay the same though it changes: a tick of a kernel, or a second of a
// clock without fractions (Walker).
inline constexpr int64_t kTickNs = 100'000'000, kCoarseTickNs = 2'000'000'000;
// While tasks tell what they see, the agent looks by itself, so often and for so long after the last: waking
// it takes longer than seeing.
inline constexpr int64_t kSeenNapNs = 1'000'000, kSeenNs = 20'000'000;
// At the agent's end: for its threads, which may hang in the PFS; Slurm waits for the agent.
inline constexpr int64_t kStopNs = 500'000'000;
// At the agent's end, before the other nodes are asked: for the copies that are being made.
inline constexpr int64_t kLastCopiesNs = 150'000'000;

// ---- runtime/peer

// A connection: the other machine's kernel makes it, however busy the agent is. As long is a home not asked
// anew.
inline constexpr int kPeerConnectMs = 250;
// Until a look at whether the other machine is there, and from one to the next; what is gathered before it is
// told.
inline constexpr int kPeerLookMs = 100;
// From the first look on, for a machine to confirm anything: a lost packet is sent again by then.
inline constexpr int kPeerConfirmMs = 300;
// The last counters of an agent, and whoever has not come: an epilog waits for both.
inline constexpr int kPeerLastMs = 300;
// What a busy node has done by then: a handshake for messages, its start, what it has heard.
inline constexpr int kPeerSlowMs = 2000;
// Between attempts at what has failed, and until what is known is old: one a second costs nothing.
inline constexpr int kPeerRestMs = 1000;
// Until what begins at any moment is looked at again: a node that refuses, a piece, a walk.
inline constexpr int kPeerSoonMs = 50;
// The longest time between attempts to reach a node, for a piece that goes on, and without more of a file:
// half a restart.
inline constexpr int kPeerRetryMs = 30'000;
// For whatever a node that was met is asked, and a reader's lease, which is told on four times as often: a
// node that has said nothing for so long hangs. It costs that once; a stop of two seconds is none.
inline constexpr int kPeerSilenceMs = 5000;
// A job's nodes begin within it; then what did not work is tried anew: as Slurm's own delays.
inline constexpr int kPeerBeginMs = 60'000;
// Between reports of counters, for a walk to go on, a node to say all, and until unused shares are forgotten:
// a person waits.
inline constexpr int kPeerEveryMs = 10'000;
// The longest of these, and the first behind a reader: short beside a task's patience.
inline constexpr int kPeerNapMs = 8;
// The longest nap behind a reader or a busy node: the time of some pieces.
inline constexpr int kPeerLongestNapMs = 80;
// What was sent and nobody confirms, for the kernel: a packet is sent again some times by then.
inline constexpr int kPeerUnackedMs = 3000;

// ---- runtime/node, monarchd

// For a killed helper's end: only a hang in the kernel takes longer.
inline constexpr int kDeathMs = 100;
// For what an epilog or a start leaves to the background if it takes longer: a removal, a report.
inline constexpr int kMomentMs = 100;
// What is left to a wait at least, whatever those before it took; for a look at one job's counters or board.
inline constexpr int kLeastMs = 200;
// For a lock or a child with milliseconds of work, in a hook; an agent has seen its new quota by then.
inline constexpr int kBriefMs = 300;
// For a hook's work on files, in a child, as a device may hang; for a killed agent, which has much to give
// back.
inline constexpr int kHookStepMs = 500;
// For the list of the job's nodes, which comes off kReadyMs, and an epilog's look at the owner's counters.
inline constexpr int kAnswersMs = 700;
// For a lock that another helper holds while it waits in its turn, slurmctld, name services, a board; for a
// killed agent in an epilog, and a child of the remover's: haste has a price.
inline constexpr int kHookWaitMs = 1000;
// For an agent to be ready: on a busy node it takes seconds, and a PFS that hangs is to hold up no start.
inline constexpr int kReadyMs = 3000;
// For an agent with peers to end by itself: it tells its counts.
inline constexpr int kAskMs = 1300;
// For a start's lock and the ledger's: above kReadyMs.
inline constexpr int kStartLockMs = 3500;
// For one call of the background on a tier, which may hang, and for a look at all boards, whose owners may.
inline constexpr int kStuckMs = 2000;
// For a user's name, which may come from a directory service.
inline constexpr int kNamesMs = 3000;
// For one attempt to empty a job's directory; at most, where the one before did not see all of it.
inline constexpr int kAttemptMs = 10'000, kLongestAttemptMs = 600'000;
// For attempts that each remove something.
inline constexpr int kLongestRemovalMs = 1'800'000;
// For measuring what stays until an administrator comes, and for writing a report as a job's owner.
inline constexpr int kMeasureMs = 60'000;
// Until what does not answer is asked again; what is half made is left behind then.
inline constexpr int64_t kRetrySeconds = 60;
// At most; also for what is on tiers that are away, and for a job without an agent, whose first step may
// come.
inline constexpr int64_t kLongestRetrySeconds = 3600;
// Until the note of a failed start is removed; between two tries of a line for sacct.
inline constexpr int64_t kFailedSeconds = 300;
// Until the background looks again at what seldom changes.
inline constexpr int kLookAgainSeconds = 10;
// Between two looks of the keeper's.
inline constexpr int kBeatSeconds = 1;
// For monarch_account: slurmdbd may be slow.
inline constexpr int kAccountSeconds = 20;
// For one pass over the spooled lines, before the last of them.
inline constexpr int kPassSeconds = 30;
// For the spool's lock: above kPassSeconds + kAccountSeconds.
inline constexpr int kSpoolLockSeconds = 60;
// What Slurm has told of itself holds so long: it may change.
inline constexpr int kBelievedSeconds = 600;

}  // namespace monarch::patience
