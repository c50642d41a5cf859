// SPDX-License-Identifier: Apache-2.0
// How long Monarch waits for what: each constant with what it bounds, and why that value. Waits that an
// admin or a user sets are in config.h.
#pragma once

#include <cstdint>

namespace monarch::patience {

// ---- runtime/base, metadata, placement, agent

// A thread that keeps to a rate sees that it is to give up: a fifth of what a person notices.
inline constexpr int64_t kRateSliceNs = 20'000'000;
// What a rate makes up for after a pause: longer than a busy machine lets a thread wait for a processor.
inline constexpr int64_t kRateBurstNs = 100'000'000;
// For how long what a task has taken in excess of a rate holds up prefetch: a rate's mean holds within it.
inline constexpr int64_t kRateDebtNs = 2'000'000'000;
// How old may be what is known of the node's memory: what a thread can fill meanwhile is less than the
// reserve.
inline constexpr int64_t kMemoryFreshNs = 100'000'000;
// Between two looks at what changes with each call of a task (counters, events): a hundredth of a processor.
inline constexpr int64_t kBusyLookNs = 10'000'000;
// The first look at what is to change soon (readers that close a copy, reads that pay for prefetch).
inline constexpr int64_t kFirstLookNs = 50'000'000;
// Between two looks at what a person or a script waits for, and how long a thread keeps its buffers for more.
inline constexpr int64_t kShortLookNs = 200'000'000;
// Between two looks at what nobody tells of (memory, descriptors, uses, counters): costs nothing, and is
// soon.
inline constexpr int64_t kLookNs = 1'000'000'000;
// Between two files of what all nodes have counted: as often as the nodes tell it.
inline constexpr int64_t kNodesFileNs = 2'000'000'000;
// How long those who have copies open may keep them where a quota was lowered: most files are read in less.
inline constexpr int64_t kReadersNs = 3'000'000'000;
// Between two looks at the run directory, and at quotas where inotify does not tell: nobody waits for either.
inline constexpr int64_t kRunDirLookNs = 5'000'000'000;
// Between two looks of what is idle, and before a tier that failed is probed first: a fault often is over
// then.
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
// At the agent's end: for what the other nodes have counted.
inline constexpr int64_t kAccountNs = 1'000'000'000;
// Before what a thread that was left behind has made is removed once more.
inline constexpr int64_t kRemoveAgainNs = 20'000'000;

// ---- runtime/peer

// A connection, and its handshake, for each port of a node: a task may wait behind both.
inline constexpr int kPeerConnectMs = 250;
// An answer to a few bytes, and what is gathered before it is told: a hung home costs a task no more.
inline constexpr int kPeerAnswerMs = 100;
// The first byte of a file, some of a piece, a part of the walk: a peer reads its disk for them.
inline constexpr int kPeerDataMs = 500;
// The last counters of an agent, and whoever has not come: an epilog waits for both.
inline constexpr int kPeerLastMs = 300;
// A task, for a home that asks others; until a home is asked anew: as long as a connection takes.
inline constexpr int kPeerLaterMs = 250;
// A reader's lease, told on four times as often: a reader that hangs holds up the others for as long.
inline constexpr int kPeerLeaseMs = 2000;
// What a busy node has done by then: a handshake, its start, an answer that nobody waits for.
inline constexpr int kPeerSlowMs = 2000;
// Between attempts at what has failed, and until what is known is old: one a second costs nothing.
inline constexpr int kPeerRestMs = 1000;
// Until what begins at any moment is looked at again: a node that refuses, a piece, a walk.
inline constexpr int kPeerSoonMs = 50;
// The longest time between attempts to reach a node, and without more of a file: half a restart.
inline constexpr int kPeerRetryMs = 30'000;
// A node that has said nothing for so long hangs or is gone: more than twice kPeerSlowMs.
inline constexpr int kPeerSilenceMs = 5000;
// The longest suspicion of a node that never answers in time: each question costs kPeerAnswerMs.
inline constexpr int kPeerSuspicionMs = 300'000;
// A job's nodes begin within it; then what did not work is tried anew: as Slurm's own delays.
inline constexpr int kPeerBeginMs = 60'000;
// Between reports of counters, and until slow links and unused shares are forgotten: a person waits.
inline constexpr int kPeerEveryMs = 10'000;
// The first nap between questions to a home that asks others: the time of an answer.
inline constexpr int64_t kPeerFirstNapNs = 500'000;
// The longest of these, and the first behind a reader: short beside a task's patience.
inline constexpr int kPeerNapMs = 8;
// The longest nap behind a reader or a busy node: the time of some pieces.
inline constexpr int kPeerLongestNapMs = 80;
// What was sent and nobody confirms, for the kernel: a packet is sent again some times by then.
inline constexpr int kPeerUnackedMs = 3000;

// ---- runtime/node, monarchd

inline constexpr int64_t kFirstPollNs = 500'000;  // looks for what the kernel does not tell: most is there
inline constexpr int64_t kLongestPollNs = 10'000'000;  // soon; then each pause is twice the last, up to this
inline constexpr int kDeathMs = 100;  // for a killed helper's end: only a hang in the kernel takes longer
inline constexpr int kAgentDeathMs = 500;  // for a killed agent's: it has descriptors and memory to give back
inline constexpr int kLongDeathMs =
    1000;  // likewise in an epilog, and of a child of the remover: haste has a price
inline constexpr int kLeastMs = 200;        // what is left to a wait at least, whatever those before it took
inline constexpr int kBriefMs = 300;        // for a lock or a child with milliseconds of work, in a hook
inline constexpr int kHookStepMs = 500;     // for a hook's work on files, in a child: a device may hang
inline constexpr int kLockMs = 1000;        // for a lock that another helper holds while it waits in its turn
inline constexpr int kStartLockMs = 1500;   // likewise a start's, and the ledger's: above kReadyMs
inline constexpr int kReadyMs = 1000;       // for an agent to be ready: a PFS that hangs holds up no start
inline constexpr int kFactsMs = 1000;       // for slurmctld's and the name services' answers
inline constexpr int kPeersMs = 700;        // for the list of the job's nodes; comes off kReadyMs
inline constexpr int kAskMs = 1300;         // for an agent with peers to end by itself: it tells its counts
inline constexpr int kAccountReadMs = 800;  // for an epilog's look at the counters of the job's owner
inline constexpr int kReportMs = 600;       // for an epilog's report, which users can hold up
inline constexpr int kShortReadMs = 200;    // as kAccountReadMs, where a job's start or a prolog waits
inline constexpr int kShortReportMs = 100;  // as kReportMs, likewise
inline constexpr int kRemoveMs = 100;       // for an epilog's removal, which goes on in the background
inline constexpr int kSweepAccountMs = 200;  // for the accounts of dead jobs in one sweep; the rest wait
inline constexpr int kBoardMs = 1000;        // for the keeper's or an admin's look at one job's board
inline constexpr int kAllBoardsMs = 2000;    // likewise at all: owners may have any number of them hang
inline constexpr int kGrantSeenMs = 300;     // an agent has seen its new quota by then: it looks each 100 ms
inline constexpr int kStuckMs = 2000;        // for one call of the background on a tier: it may hang
inline constexpr int kNamesMs = 3000;        // for a user's name, which may come from a directory service
inline constexpr int kAttemptMs = 10'000;    // for one attempt to empty a job's directory
inline constexpr int kLongestAttemptMs = 600'000;    // likewise, where the one before did not see all of it
inline constexpr int kMeasureMs = 60'000;            // for measuring what stays until an administrator comes
inline constexpr int kTriesMs = 30'000;              // for attempts while nothing gets smaller
inline constexpr int kLongestRemovalMs = 1'800'000;  // for attempts in all
inline constexpr int kLongestRestSeconds = 8;  // between two attempts: from 1 s on, twice as long each time
inline constexpr int64_t kRetrySeconds = 60;   // until what was given up is tried again; doubles each time
inline constexpr int64_t kLongestRetrySeconds = 3600;  // at most; also for what is on tiers that are away
inline constexpr int kLookAgainSeconds = 10;  // until the background looks again at what seldom changes
inline constexpr int kRestSeconds = 60;     // what is half made is left behind then: no helper takes as long
inline constexpr int kFailedSeconds = 300;  // until the note of a failed start is removed
inline constexpr int kNoteSeconds = 3600;   // likewise of a job without an agent: its first step may come
inline constexpr int kBeatSeconds = 1;      // between two looks of the keeper's
inline constexpr int kAccountSeconds = 20;  // for monarch_account: slurmdbd may be slow
inline constexpr int kPassSeconds = 30;     // for one pass over the spooled lines, before the last of them
inline constexpr int kSpoolLockSeconds = 60;  // for the spool's lock: above kPassSeconds + kAccountSeconds
inline constexpr int64_t kLongestTrySeconds = 300;  // between two tries of a line for sacct
inline constexpr int kBelievedSeconds = 600;  // what Slurm has told of itself holds so long: it may change

}  // namespace monarch::patience
