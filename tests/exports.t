#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The shared objects export exactly what their version scripts list and need nothing that an old or foreign
# process lacks; and all that is installed is linked so that a fault in it is hard to use.
set -euo pipefail
readonly preload=$MONARCH_BUILDDIR/libmonarch_preload.so
readonly plugin=$MONARCH_BUILDDIR/spank_monarch.so
readonly newest_glibc=2.17
readonly SAN_RT=${SAN_RT-} # not set where the test is run by hand

count=0
result() { count=$((count + 1)) && echo "$1 $count - $2"; }
skip() { result ok "$1 # SKIP $2"; }
# is_empty NAME TEXT: passes if there is no TEXT, which lists the faults.
is_empty() {
    if [ -z "$2" ]; then
        result ok "$1"
    else
        result 'not ok' "$1"
        printf '#   %s\n' "${2//$'\n'/$'\n#   '}"
    fi
}

exported() { nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sort -u; }
imported() { nm -D --undefined-only "$1" | awk '$1 == "U" { print $2 }' | sort -u; }
needed() { readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
glibc_versions() { readelf -VW "$1" | grep -o 'GLIBC_[0-9.]*[0-9]' | sort -u; }
# The global names of a version script; patterns keep their *.
listed() { sed 's/#.*//' "$1" | tr '\n' ' ' | sed 's/.*global:\(.*\)local:.*/\1/' | tr -d ' ' | tr ';' '\n' | grep . | sort -u; }

# The table of hooks: "SYMBOL FAMILY" lines.
hooks() {
    sed -n '/^#define MONARCH_HOOKS/,/^$/p' "$MONARCH_SRCDIR/preload/hooks.h" | grep -o 'X(\w*, \w*)' |
        sed 's/X(\(.*\), \(.*\))/\1 \2/'
}
# What it says about families, and about what is not hooked: the names that stand first in its comments.
described() { sed -n '1,/^#define MONARCH_HOOKS/s/^\/\/ \([a-z]\+\) .*/\1/p' "$MONARCH_SRCDIR/preload/hooks.h"; }
not_hooked() {
    sed -n '/^\/\/ Deliberately not hooked/,$s/^\/\/ \([a-z].*\)/\1/p' "$MONARCH_SRCDIR/preload/hooks.h" |
        sed 's/  .*//; s/ of .*//; s/(.*)//' | grep -ow '[a-z_0-9]\+'
}

# Each name of stdin that none of the patterns (arguments) matches.
unmatched() {
    local name pattern
    while read -r name; do
        for pattern; do
            # shellcheck disable=SC2053  # patterns on purpose
            [[ $name == $pattern ]] && continue 2
        done
        echo "$name"
    done
}

exports_equal_map() {
    local object=$1 map=$2 names patterns
    mapfile -t names < <(exported "$object")
    mapfile -t patterns < <(listed "$map")
    is_empty "$(basename "$object") exports nothing that $(basename "$map") does not list" \
        "$(exported "$object" | unmatched "${patterns[@]}")"
    is_empty "$(basename "$object") exports all that $(basename "$map") lists" \
        "$(listed "$map" | grep -v '\*' | unmatched "${names[@]}")"
}

needs_only_libc() {
    is_empty "$(basename "$1") needs only the C library" \
        "$(needed "$1" | unmatched 'libc.so.*' 'libdl.so.*' 'ld-linux*')"
}

newer_than_allowed() {
    local version
    glibc_versions "$1" | while read -r version; do
        [ "$(printf '%s\n' "${version#GLIBC_}" "$newest_glibc" | sort -V | tail -n 1)" = "$newest_glibc" ] || echo "$version"
    done
}

large_tls() {
    readelf -lW "$1" | awk '$1 == "TLS" { print $6 }' | while read -r size; do
        [ $((size)) -lt 64 ] || echo "the TLS segment has $((size)) bytes"
    done
}


exports_equal_map "$preload" "$MONARCH_BUILDDIR/preload/preload.map"
# They run, and write to their pages, at each start of a process; nm names them in what is not stripped. A sanitizer has one.
[ -n "$SAN_RT" ] ||
    is_empty 'the preload library constructs no objects' "$(nm -C "$preload" | grep ' [tT] _GLOBAL__sub_I_' || true)"
mapfile -t symbols < <(hooks | cut -d ' ' -f 1)
mapfile -t families < <(described)
is_empty 'preload.map lists no more than hooks.h' "$(listed "$MONARCH_BUILDDIR/preload/preload.map" | unmatched "${symbols[@]}")"
mapfile -t mapped < <(listed "$MONARCH_BUILDDIR/preload/preload.map")
is_empty 'preload.map lists all of hooks.h, once' \
    "$(printf '%s\n' "${symbols[@]}" | unmatched "${mapped[@]}")$(printf '%s\n' "${symbols[@]}" | sort | uniq -d)"
is_empty 'hooks.h says why for each family' "$(hooks | cut -d ' ' -f 2 | sort -u | unmatched "${families[@]}")"
mapfile -t left_out < <(not_hooked)
is_empty 'what hooks.h says is not hooked is not' "$([ ${#left_out[@]} -gt 9 ] || echo "found only: ${left_out[*]}"
    printf '%s\n' "${symbols[@]}" | while read -r symbol; do
        for name in "${left_out[@]}"; do [ "$symbol" != "$name" ] || echo "$name"; done
    done)"
# With a version of ours, the calls of programs (open@GLIBC_2.2.5) would pass it by.
is_empty 'the preload exports carry no version' "$(exported "$preload" | grep @ || true)"
if [ -n "$SAN_RT" ]; then
    skip 'libmonarch_preload.so needs only the C library' 'sanitizer build'
    skip "libmonarch_preload.so needs no GLIBC_ newer than $newest_glibc" 'sanitizer build'
    skip 'libmonarch_preload.so has little thread-local storage, addressed directly' 'sanitizer build'
else
    needs_only_libc "$preload"
    is_empty "libmonarch_preload.so needs no GLIBC_ newer than $newest_glibc" "$(newer_than_allowed "$preload")"
    is_empty 'libmonarch_preload.so has little thread-local storage, addressed directly' \
        "$(large_tls "$preload" && { imported "$preload" | grep __tls_get_addr || true; })"
fi

readonly peers=$MONARCH_BUILDDIR/libmonarch_peers.so agent=$MONARCH_BUILDDIR/monarchd
exports_equal_map "$peers" "$MONARCH_SRCDIR/runtime/peer/peers.map"
of_monarch() { grep '^_Z.*7monarch' || true; }
mapfile -t offered < <(exported "$agent" | of_monarch)
mapfile -t used < <(imported "$peers" | of_monarch)
is_empty 'monarchd has what libmonarch_peers.so needs of it' \
    "$([ ${#used[@]} -gt 9 ] || echo 'found nothing to look for'; printf '%s\n' "${used[@]}" | unmatched "${offered[@]}")"
is_empty 'monarchd exports no more than that' "$(printf '%s\n' "${offered[@]}" | unmatched "${used[@]}")"
for program in monarchd monarchctl; do
    is_empty "$program starts without OpenSSL and libevent" \
        "$(needed "$MONARCH_BUILDDIR/$program" | grep -E '^lib(ssl|crypto|event)' || true)"
done

if [ -e "$plugin" ]; then
    exports_equal_map "$plugin" "$MONARCH_SRCDIR/spank/spank_monarch.map"
    if [ -n "$SAN_RT" ]; then
        skip 'spank_monarch.so needs only the C library' 'sanitizer build'
        skip 'spank_monarch.so imports C library and Slurm symbols only' 'sanitizer build'
    else
        needs_only_libc "$plugin"
        is_empty 'spank_monarch.so imports C library and Slurm symbols only' \
            "$(imported "$plugin" | unmatched '*@*' 'spank_*' 'slurm_*')"
    fi
else
    skip 'spank_monarch.so' 'built without Slurm'
fi

# Each line a protection that the object has not.  PIE is for programs, shared objects can be mapped anywhere anyway.
unprotected() {
    local object=$1 dynamic headers
    dynamic=$(readelf -dW "$object") headers=$(readelf -lW "$object")
    grep -q '^ *GNU_RELRO ' <<<"$headers" || echo 'its relocations stay writable (relro)'
    grep -q '(FLAGS.*NOW' <<<"$dynamic" || echo 'symbols are bound late (now)'
    ! grep -q '(TEXTREL)' <<<"$dynamic" || echo 'its code is written to by relocations'
    grep -q '^ *GNU_STACK .* RW ' <<<"$headers" || echo 'its stack can be executed (noexecstack)'
    [ "${object%.so}" != "$object" ] || grep -q '(FLAGS_1).*PIE' <<<"$dynamic" || echo 'its address is fixed (PIE)'
    grep -q '^__stack_chk_' <<<"$(imported "$object")" || echo 'returns are not protected (stack protector)'
}
# Those of the C library's checks that compilers put in place of calls.
buffer_checks() { imported "$1" | grep -E '^__[a-z]+_chk(@|$)' | grep -v '^__stack_chk' || true; }

fortified=$(sed -n 's/^FORTIFY_CPPFLAGS = *//p' "$MONARCH_BUILDDIR/Makefile")
for object in monarchd monarchctl monarch_account libmonarch_peers.so libmonarch_preload.so spank_monarch.so; do
    if [ ! -e "$MONARCH_BUILDDIR/$object" ]; then
        skip "$object is protected" 'built without Slurm'
        continue
    fi
    is_empty "$object is protected" "$(unprotected "$MONARCH_BUILDDIR/$object")"
    name="$object asks the C library to check its buffers"
    # The preload library defines those functions itself.
    if [ "$object" = libmonarch_preload.so ]; then
        is_empty 'libmonarch_preload.so calls none of the checked functions' "$(buffer_checks "$MONARCH_BUILDDIR/$object")"
    elif [ -n "$fortified" ]; then
        is_empty "$name" "$([ -n "$(buffer_checks "$MONARCH_BUILDDIR/$object")" ] || echo 'none of its calls is checked')"
    else
        skip "$name" "not with these flags (sanitizers, or no optimization)"
    fi
done
echo "1..$count"
