#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The unit tests of tiers and placement, with root's stores (tests/stores.h) in place of the agent's own.
set -euo pipefail

readonly tests='Again* Chunk* Evict* Faults* HardLinksPlacement* Hierarchy* Large* Placement* Prefetch* Probe* Tier* *CopyTest*'
# These are about a directory of the user's own, where root's store differs: modes, names that it did not make, directories
# that somebody removes, files that count nothing, and a file for each probe.
readonly but='HierarchyTest.CountsWholeBlocksUpToTheQuota HierarchyTest.LeavesTheFloorOfTheFileSystemFree
    HierarchyTest.DirectoriesAreTheUsersAlone TierErrorsTest.ACopyIsPublishedWhereItsDirectoryIsGone
    TierErrorsTest.ALeftOver* ProbeErrorsTest.EachStepOfAProbeCanFail
    ProbeErrorsTest.AShortageIsNoReasonToWaitLonger'

MONARCH_TEST_STORE=1 "$MONARCH_BUILDDIR/tests/unit" --gtest_brief=1 \
    --gtest_filter="$(tr -s ' \n' : <<<"$tests")-$(tr -s ' \n' : <<<"$but")" 2>&1 |
    { grep -v '^\[20' || true; } | sed 's/^/# /' && status=ok || status='not ok'
echo "1..1"
echo "$status 1 - tiers and placement work with root's stores"
