#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Calls on dataset files and tiers pass runtime/base/os.h, where tests make them fail: the objects that work on
# either call the C library for none of it. Root's helpers work on the state directory and on /proc, too; what they do on
# a tier begins at a descriptor or changes something.
set -euo pipefail

readonly objects='placement/* metadata/walker metadata/dataset hierarchy/* store/* peer/* agent/sweep base/uring base/remove_tree unity/hierarchy unity/placement unity/peer_*'
readonly calls='open|openat|creat|fopen|opendir|fdopendir|readdir|scandir|stat|lstat|fstat|fstatat|statx|statfs|fstatfs|statvfs|fstatvfs|access|faccessat|realpath|read|pread|preadv|write|pwrite|pwritev|sendfile|fallocate|posix_fallocate|truncate|ftruncate|fsync|fdatasync|sync_file_range|posix_fadvise|fcntl|flock|futimens|utimensat|chmod|fchmod|fchmodat|chown|fchown|fchownat|ioctl|link|linkat|symlink|rename|renameat|renameat2|unlink|unlinkat|rmdir|mkdir|mkdirat|io_uring_submit|io_uring_submit_and_wait|openat2'
# What looks at tiers or datasets before a job runs does not pass os.h, as os.h says: hierarchy/discovery here, and config/
# and admin/, which are not looked at. On paths of Monarch's own: base/paths (its parts) and node/state (its directory).
# peer/handshake: O_NONBLOCK of a socket. hierarchy/job_room: a control group's files. store/: requests in a pipe.
readonly exceptions='store/server:read store/client:write hierarchy/job_room:access|open|read hierarchy/discovery:lstat|stat|statvfs peer/handshake:fcntl base/paths:access node/state:access|lstat|statvfs'

readonly helpers='node/job_dirs node/ledger node/memory_tier node/probe node/removal node/state node/sweep base/paths unity/node_tiers'
readonly helpers_calls='openat|openat2|fdopendir|fstatat|fstatfs|statvfs|fstatvfs|access|faccessat|realpath|lstat|fchmod|fchmodat|fchown|fchownat|linkat|symlinkat|renameat|renameat2|unlinkat|mkdirat|fallocate|ftruncate'

status=0 checked=0

# excepted OBJECT: its own exceptions, as a pattern.
excepted() {
    local exception
    for exception in $exceptions; do
        [ "${exception%:*}" != "$1" ] || echo "${exception#*:}"
    done
}

# check PATTERNS CALLS: none of these objects has one of these calls, but for the exceptions.
check() {
    local pattern object name found
    for pattern in $1; do
        # shellcheck disable=SC2231 # they are patterns
        for object in "$MONARCH_BUILDDIR"/{runtime/,}${pattern%/*}/*lib*_a-${pattern#*/}.o; do
            [ -e "$object" ] || continue  # it is a part of one in unity/, or there is none of it
            checked=$((checked + 1))
            name=${object##*lib*_a-} name=${pattern%/*}/${name%.o}
            # `|| true`: grep finds nothing.
            found=$(nm -u "$object" | sed -E 's/^ *U //; s/@.*//; s/^__//; s/^(.*)64(_2)?$/\1/; s/_chk$//; s/_2$//' |
                grep -xE "$2" | grep -vxE "$(excepted "$name")" || true)
            [ -z "$found" ] || {
                echo "# $name calls $(tr '\n' ' ' <<<"$found")"
                status=1
            }
        done
    done
}

echo 1..1
check "$objects" "$calls"
check "$helpers" "$helpers_calls"
if [ "$status" = 0 ] && [ "$checked" -ge 15 ]; then
    echo "ok 1 - calls on datasets and tiers pass os.h ($checked objects)"
else
    echo "not ok 1 - calls on datasets and tiers pass os.h ($checked objects)"
fi
