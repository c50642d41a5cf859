# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the scripts in dev/ share.  Source it after `set -euo pipefail`; it sets TOP (the top directory of
# the tree) and PROGRAM (the name in messages), and arranges for on_exit.
#
#   print_help                      print the script's header comment
#   say, warn, die TEXT...          messages: progress to stdout, the others to stderr; die exits with 1
#   need_root WHAT                  die unless root
#   need_commands GROUP CMD...      die, naming dev/deps GROUP, unless all the commands exist
#   on_exit CMD ARG...              run CMD when the script ends or is interrupted; the last one given runs first
#   run_group CMD ARG...            run CMD so that an interrupt takes effect at once and ends all its children, which have
#                                   GROUP_SECONDS (10) to clean up
#   lock FILE [SECONDS]             hold FILE's lock until unlock or the script's end; die after SECONDS (60)
#   unlock FILE                     release the lock and remove FILE
#   unlocked CMD ARG...             run CMD, which makes a daemon of itself, without the locks' descriptors
#   spawn CMD ARG...                start CMD as a daemon, without them too; SPAWNED is its pid
#   wait_for SECONDS CMD ARG...     repeat CMD until it succeeds; 1 after SECONDS, on a machine MONARCH_TEST_SLOW times as slow after
#                                   as many times that
#   record_pid FILE [PID]           remember in FILE.start which process FILE's pid means (PID: write FILE too)
#   pid_alive FILE NAME             does the process that FILE means live, and is its name NAME?
#   stop_pid FILE NAME [SECONDS]    end that process (TERM, KILL after 10 s) and remove FILE; never another one
#   stop_orphans NAME PATH          end processes named NAME that have an argument at or below PATH
#   free_port OWNER                 print a TCP port that is free and not promised to another existing OWNER path
#   release_ports OWNER             take back the ports promised to OWNER
#   port_listening PORT [PID]       does something listen on PORT, in the network of PID?
#   mounted PATH                    is PATH a mount point?  (also when the file system behind it is dead)
#   unmount PATH                    unmount all that is mounted at PATH, lazily where it is busy
#   short_id PATH                   eight hexadecimal digits that stand for PATH
#   tree_files [PATHSPEC...]        the tree's files by name, new ones too, but none that is copied from elsewhere
#   tree_hash                       stands for what is in them

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck disable=SC2034  # for the scripts that source this
readonly TOP
PROGRAM=${PROGRAM:-$(basename "$0")}
export PATH=$PATH:/usr/sbin:/sbin

# ---- messages

print_help() { sed -n '4,${/^#/!q; s/^# \{0,1\}//; p}' "$0"; }
say() { printf '%s: %s\n' "$PROGRAM" "$*"; }
warn() { printf '%s: warning: %s\n' "$PROGRAM" "$*" >&2; }
die() {
    printf '%s: error: %s\n' "$PROGRAM" "$*" >&2
    exit 1
}

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: run it as root or by sudo"; }

need_commands() {
    local group=$1 command
    shift
    for command; do
        command -v "$command" >/dev/null || die "no command '$command': run $TOP/dev/deps $group"
    done
}

# ---- cleaning up

declare -a exit_commands_=()
on_exit() { exit_commands_+=("$(printf '%q ' "$@")"); }

run_exit_commands_() {
    local status=$? i
    trap '' INT TERM HUP
    set +e
    for ((i = ${#exit_commands_[@]} - 1; i >= 0; i--)); do eval "${exit_commands_[i]}"; done
    exit "$status"
}
trap run_exit_commands_ EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

group_=
end_group_() {
    [ -n "$group_" ] || return 0
    kill -TERM -- "-$group_" 2>/dev/null || return 0
    wait_for "${GROUP_SECONDS:-10}" group_gone_ || kill -KILL -- "-$group_" 2>/dev/null || true
}
group_gone_() { ! kill -0 -- "-$group_" 2>/dev/null; }

# bash handles a signal only after its foreground child has ended; it does at once while it waits for a job.
# Job control is on for the start, because without it a background child would ignore SIGINT for good.
run_group() {
    local status=0
    [ -n "${group_trap_:-}" ] || on_exit end_group_
    group_trap_=1
    set -m
    "$@" </dev/null &
    group_=$!
    set +m
    wait "$group_" || status=$?
    end_group_
    group_=
    return "$status"
}

# ---- locks

declare -A lock_fds_=()
lock_wanted_=

# The holder removes the file, so whoever gets the lock must check that the name still means the locked file.
lock() {
    local file=$1 seconds=${2:-60} fd
    mkdir -p "$(dirname "$file")"
    [ -n "$lock_wanted_" ] || on_exit unlock_all_
    lock_wanted_=$file
    while :; do
        exec {fd}>>"$file"
        flock -w "$seconds" "$fd" || die "$file is locked by another run for more than $seconds s: wait for it or end it"
        [ "$file" -ef "/proc/$$/fd/$fd" ] && break
        exec {fd}>&-
    done
    lock_fds_[$file]=$fd
}

unlock() {
    local fd=${lock_fds_[$1]:-}
    [ -n "$fd" ] || return 0
    rm -f "$1"
    exec {fd}>&-
    unset "lock_fds_[$1]"
}

unlock_all_() {
    local file
    for file in "${!lock_fds_[@]}"; do unlock "$file"; done
    if [ -e "$lock_wanted_" ]; then flock -n "$lock_wanted_" rm -f "$lock_wanted_"; fi # interrupted within lock
}

close_locks_() {
    local fd
    for fd in "${lock_fds_[@]}"; do exec {fd}>&-; done
    trap - EXIT HUP INT TERM
}

unlocked() {
    (
        close_locks_
        exec "$@"
    )
}

spawn() {
    (
        close_locks_
        exec setsid "$@"
    ) </dev/null &
    # shellcheck disable=SC2034  # for the caller
    SPAWNED=$!
}

# ---- waiting and processes

wait_for() {
    local end=$((${EPOCHREALTIME/[^0-9]/} + $1 * ${MONARCH_TEST_SLOW:-1} * 1000000))
    shift
    until "$@"; do
        [ "${EPOCHREALTIME/[^0-9]/}" -lt "$end" ] || return 1
        sleep 0.02
    done
}

# Print the first line of a file that may be missing.  (A failing $(<FILE) ends the script whatever is around it.)
first_line_() {
    local line=
    { read -r line <"$1"; } 2>/dev/null || [ -n "$line" ] || return 1
    echo "$line"
}

# The start time (clock ticks after boot) tells a process from a later one with the same pid.  A zombie is gone.
process_start_() {
    local stat
    stat=$(first_line_ "/proc/$1/stat") || return 1
    read -ra stat <<<"${stat##*) }"
    [ "${stat[0]}" != Z ] && [ "${stat[0]}" != X ] && echo "${stat[19]}"
}

record_pid() {
    local file=$1 pid=${2:-}
    if [ -n "$pid" ]; then echo "$pid" >"$file"; fi
    if pid=$(first_line_ "$file") && process_start_ "$pid" >"$file.start"; then return 0; fi
    rm -f "$file.start"
    return 1
}

pid_alive() {
    local pid start comm
    pid=$(first_line_ "$1") && start=$(first_line_ "$1.start") && comm=$(first_line_ "/proc/$pid/comm") || return 1
    [ "$comm" = "${2:0:15}" ] && [ "$(process_start_ "$pid")" = "$start" ]
}

stop_pid() {
    local file=$1 name=$2 seconds=${3:-10} pid
    if pid_alive "$file" "$name"; then
        pid=$(first_line_ "$file")
        kill -TERM "$pid" 2>/dev/null || true
        if ! wait_for "$seconds" pid_dead_ "$file" "$name"; then
            warn "$name (pid $pid) did not end within $seconds s: killing it"
            kill -KILL "$pid" 2>/dev/null || true
            wait_for 60 pid_dead_ "$file" "$name" || die "$name (pid $pid) cannot be killed: is its disk or network hanging?"
        fi
    fi
    rm -f "$file" "$file.start"
}
pid_dead_() { ! pid_alive "$@"; }

# In rounds, since one may be starting another.
stop_orphans() {
    local pid found=1
    while [ -n "$found" ]; do
        found=
        for pid in $(orphans_ "$@"); do
            found=1
            kill -KILL "$pid" 2>/dev/null || true
            wait_for 60 process_gone_ "$pid" || die "$1 (pid $pid) cannot be killed: is its disk or network hanging?"
        done
    done
}
orphans_() {
    local name=$1 path=$2 comm pid
    for comm in /proc/[0-9]*/comm; do
        [ "$(first_line_ "$comm")" = "${name:0:15}" ] || continue
        pid=${comm#/proc/}
        pid=${pid%/comm}
        { tr '\0=' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | path=$path awk '
            $0 == ENVIRON["path"] || index($0, ENVIRON["path"] "/") == 1 { found = 1 } END { exit !found }' || continue
        echo "$pid"
    done
}
process_gone_() { ! process_start_ "$1" >/dev/null; }

# ---- ports

readonly port_promises_="/tmp/monarch-dev-ports.$UID"

port_listening() {
    local hex
    hex=$(printf '%04X' "$1")
    awk -v port=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 } END { exit !found }' \
        "/proc/${2:-self}/net/tcp" "/proc/${2:-self}/net/tcp6" 2>/dev/null
}

# A promise is a link PORT -> OWNER and ends when OWNER is gone.  Below the range of outgoing connections.
free_port() {
    local owner=$1 port try
    (umask 077 && mkdir -p "$port_promises_")
    [ -O "$port_promises_" ] || die "$port_promises_ belongs to another user: remove it"
    [ -e "$owner" ] || die "free_port: $owner does not exist"
    (
        flock 9
        for ((try = 0; try < 1000; try++)); do
            port=$((20000 + SRANDOM % 12000))
            [ -e "$port_promises_/$port" ] && continue
            port_listening "$port" && continue
            ln -sfn "$owner" "$port_promises_/$port"
            echo "$port"
            exit 0
        done
        die "no free TCP port in 20000-31999: what listens? (ss -ltn)"
    ) 9>>"$port_promises_/lock"
}

release_ports() {
    local link
    for link in "$port_promises_"/*; do
        [ -L "$link" ] || continue
        if [ "$(readlink "$link")" = "$1" ] || ! [ -e "$link" ]; then rm -f "$link"; fi
    done
}

# ---- mounts

mounted() {
    local path=$1
    path=${path//\\/\\134}
    path=${path// /\\040}
    path=$path awk '$5 == ENVIRON["path"] { found = 1 } END { exit !found }' /proc/self/mountinfo
}

unmount() {
    while mounted "$1"; do
        umount "$1" 2>/dev/null || umount -l "$1" || return 1
    done
}

short_id() { printf '%s' "$1" | sha1sum | cut -c1-8; }

# ---- the tree

tree_files() {
    git -c safe.directory='*' -C "$TOP" ls-files -co --exclude-standard "$@" |
        grep -vxE 'm4/ax_.*|build-aux/tap-driver\.sh' | while read -r file; do
        if [ -f "$TOP/$file" ]; then echo "$file"; fi
    done
}
tree_hash() { (cd "$TOP" && tree_files . | tr '\n' '\0' | xargs -0 sha1sum | sha1sum | cut -c1-16); }
