# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# A private directory for one run of a script, with all that lives in it.  Source it after lib.sh.
#
#   make_scratch NAME      make a directory, set SCRATCH, remove it when the script ends; first remove those
#                          that killed runs of NAME left.  Below $TMPDIR, or /var/tmp.
#
# In a scratch directory, `slurm`, `peers` and `pfs` are those of dev/lab (`pfs` may be a link to a directory in it), `tier`
# may be a link to a directory elsewhere, anything may be mounted, and the programs of scratch_programs may run with
# arguments below it: all of that goes with it.

readonly scratch_programs=(calls io_reader monarchctl monarchd python3 slowfs)

make_scratch() {
    local base=${TMPDIR:-/var/tmp} lock_file
    base=$(cd "$base" && pwd -P)
    lock_file=$base/monarch-$1.$UID.lock
    lock "$lock_file" 120
    remove_leftovers_ "$base/monarch-$1"
    SCRATCH=$(mktemp -d "$base/monarch-$1.XXXXXX")
    on_exit remove_scratch_ "$SCRATCH"
    chmod 755 "$SCRATCH" # the PFS in it is for all users
    cat /proc/$$/comm >"$SCRATCH/owner.name"
    record_pid "$SCRATCH/owner" $$
    unlock "$lock_file"
}

remove_leftovers_() {
    local directory
    for directory in "$1".??????; do
        if ! [ -d "$directory" ] || ! [ -O "$directory" ]; then continue; fi
        pid_alive "$directory/owner" "$(cat "$directory/owner.name" 2>/dev/null)" && continue
        say "removing $directory, left by a killed run" >&2
        remove_scratch_ "$directory"
    done
}

remove_scratch_() {
    local directory=$1 program mount_point
    [ ! -d "$directory/slurm" ] || "$TOP/dev/lab" slurm down --dir "$directory/slurm" >&2 || true
    [ ! -d "$directory/peers" ] || "$TOP/dev/lab" peers down "$directory/peers" >&2 || true
    for program in "${scratch_programs[@]}"; do
        [ "$program" = slowfs ] || stop_orphans "$program" "$directory"
    done
    [ ! -d "$directory/pfs" ] || "$TOP/dev/lab" pfs down --dir "$directory/pfs" >&2 || true
    stop_orphans glusterfs "$directory" # those in a mount namespace that is not ours
    while read -r mount_point; do
        unmount_scratch_ "$mount_point" || warn "cannot unmount $mount_point"
    done < <(awk -v below="$directory/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
    stop_orphans slowfs "$directory"
    [ ! -L "$directory/tier" ] || rm -rf --one-file-system "$(readlink "$directory/tier")"
    rm -rf --one-file-system "$directory" || warn "cannot remove $directory"
}

unmount_scratch_() { if [ "$UID" = 0 ]; then unmount "$1"; else fusermount3 -uz "$1"; fi; }
