#!/bin/sh
# Files of all sizes around pages, segments, packs, chunks and READs go over RDMA, pulled and pushed, by both
# hashes; and a sparse one beyond 4 GiB with data on both sides of 2 and 4 GiB.
# lab: hosts=1 kernels=6.12 long=yes limit_s=900
. /lab/helpers.sh

# One of their own, because the guest's root is no file system that has holes.
top=/run/lab/rdma_sizes
mkdir -p $top
mount -t tmpfs -o size=90% tmpfs $top
mkdir -p $top/export/sizes $top/local
head -c 4200000 /dev/urandom >/tmp/random
for size in 0 1 4095 4096 4097 65535 65536 65537 131071 131073 262143 262144 262145 393217 \
    1048575 1048576 1048577 1179647 2097151 2097153 4194303 4194304; do
    # Begun elsewhere in the random bytes each time: no two files begin alike.
    tail -c +$((size % 1009 + 1)) /tmp/random | head -c "$size" >"$top/export/sizes/$size"
done
rm /tmp/random
(cd $top/export/sizes && find . -type f -exec sha256sum {} +) >/tmp/sizes.sums
[ "$(wc -l </tmp/sizes.sums)" -eq 22 ] || fail "not all sizes were made"

start_daemon 10.0.0.1:20471 --export data=$top/export:rw
copied() {
    rdcp "$@" --json --accept-new --transport rdma >/run/lab/copy.json 2>&1 ||
        { cat /run/lab/copy.json >&2; fail "$*"; }
    grep '"type":"summary"' /run/lab/copy.json | grep -q '"transport":"rdma"' ||
        { cat /run/lab/copy.json >&2; fail "not by rdma: $*"; }
}
for hash in blake3 sha256; do
    for chunk in 64K 1M; do
        copied pull -r --hash $hash --chunk $chunk rdcp://10.0.0.1/data/sizes $top/local/
        check_digests $top/local/sizes /tmp/sizes
        copied push -r --hash $hash --chunk $chunk $top/local/sizes/ rdcp://10.0.0.1/data/pushed
        check_digests $top/export/pushed /tmp/sizes
        rm -r $top/local/sizes $top/export/pushed
    done
done

# On either side of where a number of 31 or 32 bits ends, and at the end of the file, behind a hole.
gib=$((1024 * 1024 * 1024))
islands="0 $((2 * gib - 1500)) $((4 * gib - 1500)) $((5 * gib))"
for at in $islands; do
    echo "here begins $at"
    head -c 3000 /dev/urandom
done >/tmp/island
for at in $islands; do
    (echo "at $at" && cat /tmp/island) | dd of=$top/export/sparse bs=4096 seek="$at" oflag=seek_bytes conv=notrunc 2>/dev/null
done
size=$(stat -c %s $top/export/sparse)
[ "$size" -gt $((5 * gib)) ] || fail "the file has $size bytes"
is_sparse() {
    [ "$(stat -c %s "$1")" = "$size" ] || fail "$1 has $(stat -c %s "$1") bytes"
    [ "$(stat -c %b "$1")" -lt 10000 ] || fail "$1 has no holes but $(stat -c %b "$1") blocks"
    cmp $top/export/sparse "$1"
}
# Judged before it is a source itself: to map a hole of a tmpfs for an adapter fills it.
copied pull --hash blake3 rdcp://10.0.0.1/data/sparse $top/local/
is_sparse $top/local/sparse
copied push --hash blake3 $top/local/sparse rdcp://10.0.0.1/data/again
is_sparse $top/export/again
stop_daemon
resources_released
umount $top
rm -rf /tmp/sizes.sums /tmp/island
