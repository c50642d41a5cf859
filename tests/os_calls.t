#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Calls on dataset files and tiers pass runtime/base/os.h, where tests make them fail: the objects that work on
# either call the C library for none of it. Root's helpers work on the state directory and on /proc, too; what they do on
# a tier begins at a descriptor or changes something.
set -euo pipefail

readonly objects='placement/* metadata/walker metadata/dataset hierarchy/tier hierarchy/driver hierarchy/hierarchy peer/serve peer/wire base/uring base/remove_tree'
readonly calls='open|openat|creat|fopen|opendir|fdopendir|readdir|scandir|stat|lstat|fstat|fstatat|statx|statfs|fstatfs|statvfs|fstatvfs|access|faccessat|read|pread|preadv|write|pwrite|pwritev|sendfile|fallocate|posix_fallocate|truncate|ftruncate|fsync|fdatasync|sync_file_range|posix_fadvise|fcntl|flock|futimens|utimensat|chmod|fchmod|fchmodat|chown|fchown|fchownat|ioctl|link|linkat|symlink|rename|renameat|renameat2|unlink|unlinkat|rmdir|mkdir|mkdirat|io_uring_submit|io_uring_submit_and_wait|openat2'

readonly helpers='node/job_dirs node/ledger node/memory_tier node/mounts node/removal node/state node/sweep'
readonly helpers_calls='openat|openat2|fdopendir|fstatat|fstatfs|statvfs|fstatvfs|faccessat|fchmod|fchmodat|fchown|fchownat|linkat|symlinkat|renameat|renameat2|unlinkat|mkdirat|fallocate|ftruncate'

status=0 checked=0

# check PATTERNS CALLS: none of these objects has one of these calls.
check() {
    local pattern object found
    for pattern in $1; do
        # shellcheck disable=SC2231 # they are patterns
        for object in "$MONARCH_BUILDDIR"/runtime/${pattern%/*}/lib*_a-${pattern#*/}.o; do
            checked=$((checked + 1))
            # `|| true`: grep finds nothing.
            found=$(nm -u "$object" | sed -E 's/^ *U //; s/@.*//; s/^__//; s/^(.*)64(_2)?$/\1/; s/_chk$//; s/_2$//' |
                grep -xE "$2" || true)
            [ -z "$found" ] || {
                echo "# ${object#"$MONARCH_BUILDDIR"/} calls $(echo "$found" | tr '\n' ' ')"
                status=1
            }
        done
    done
}

echo 1..1
check "$objects" "$calls"
check "$helpers" "$helpers_calls"
if [ "$status" = 0 ] && [ "$checked" -ge 24 ]; then
    echo "ok 1 - calls on datasets and tiers pass os.h ($checked objects)"
else
    echo "not ok 1 - calls on datasets and tiers pass os.h ($checked objects)"
fi
