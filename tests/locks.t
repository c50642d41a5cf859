#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The check of locks (clang's thread-safety analysis, run by build-aux/tidy-cxx) refuses what touches guarded
# data without its lock.
set -euo pipefail

for tool in clang++ clang-tidy; do
    command -v "$tool" >/dev/null || {
        echo "1..0 # SKIP no $tool"
        exit
    }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() {
    "$MONARCH_SRCDIR/build-aux/tidy-cxx" -std=c++20 -I"$MONARCH_SRCDIR" "$@" -c \
        -o "$work/out.o" "$MONARCH_SRCDIR/tests/fixtures/guarded.cc" >"$work/said" 2>&1
}

echo 1..2
if check -DWITH_LOCK; then
    echo "ok 1 - what holds the lock is accepted"
else
    echo "not ok 1 - what holds the lock is accepted"
    sed 's/^/# /' "$work/said"
fi
if ! check && grep -q 'counted_.*requires holding mutex' "$work/said"; then
    echo "ok 2 - what does not hold the lock is refused"
else
    echo "not ok 2 - what does not hold the lock is refused"
    sed 's/^/# /' "$work/said"
fi
