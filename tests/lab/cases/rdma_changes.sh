#!/bin/sh
# A served file that is changed in the middle of a transfer over RDMA: what is published is one version of
# it whole, or nothing is, and that is said. In every way that memory is served, for every change.
# lab: hosts=1 disks=ext4+xfs
. /lab/helpers.sh

made=16777216
# before and after differ in every chunk, and neither has zeros where a chunk begins.
head -c 1048576 /dev/urandom >/tmp/random
for version in before after; do
    for part in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do
        echo "$version $part"
        cat /tmp/random
    done | head -c "$made" >"/tmp/$version"
done
rm /tmp/random

# changed KIND FOLDER: pulls FOLDER/file while it is changed. 3: the change came too late.
changed() {
    kind=$1
    folder=$2
    cp /tmp/before "$folder/file"
    cp /tmp/after "$folder/from"
    # Read back from the disk if there is one: what is written later must not be what is in memory.
    sync
    mkdir /tmp/pulled
    rdcp pull --transport rdma rdcp://10.0.0.1/data/file /tmp/pulled/ >/run/lab/pull 2>&1 &
    pull=$!
    meddled=0
    rdma_meddle in=/tmp/pulled chunks=3 kind="$kind" file="$folder/file" from="$folder/from" \
        >/run/lab/meddle || meddled=$?
    if wait "$pull"; then status=0; else status=$?; fi
    case $status in
        0)
            # The whole of one version: of the first, or of what the file is now.
            cmp -s /tmp/before /tmp/pulled/file || cmp -s "$folder/file" /tmp/pulled/file ||
                fail "$kind: a mixture was published"
            ;;
        6 | 9)
            [ -z "$(ls -A /tmp/pulled)" ] || fail "$kind: failed with $status, and left $(ls -A /tmp/pulled)"
            ;;
        *)
            cat /run/lab/pull >&2
            fail "$kind: exit status $status"
            ;;
    esac
    rm -r /tmp/pulled
    return "$meddled"
}

for way in $(
    case $(uname -r) in
        6.1.*) echo pool@ext4 ;;
        6.12.*) echo mmap@ext4 mmap@xfs pool@xfs ;;
        *) echo odp@ext4 odp@xfs pool@ext4 ;;
    esac
); do
    memory=${way%@*}
    folder=/mnt/${way#*@}
    printf '[rdma]\nmemory = "%s"\n' "$memory" >/tmp/rdcpd.toml
    start_daemon 10.0.0.1:20471 --config /tmp/rdcpd.toml --export "data=$folder"
    rdcp ping -n 1 --accept-new 10.0.0.1 >/dev/null
    for kind in truncate punch write map direct rename; do
        tries=0
        until changed "$kind" "$folder"; do
            tries=$((tries + 1))
            [ "$tries" -lt 8 ] || fail "$kind was never made in time"
        done
        echo "$way: $(cat /run/lab/meddle): exit status $status"
    done
    stop_daemon
    resources_released
    rm "$folder/file"
    rm -f "$folder/from"
done
rm /tmp/before /tmp/after /tmp/rdcpd.toml
