#!/bin/sh
# Disks that fail, under the receiver and under the sender: the right exit status, the name of the file,
# nothing published, an older version untouched; and when the disk is whole again, the same command does it.
# lab: hosts=1 kernels=6.12 disks=ext4,xfs
. /lab/helpers.sh

fs=$LAB_DISKS
mount_point=/mnt/$fs
device=$(awk -v at="$mount_point" '$2 == at { print $1 }' /proc/mounts)
sectors=$(blockdev --getsz "$device")
kib=24576
from=/tmp/export

dm() { dmsetup --noudevsync --noudevrules "$@"; }
# With nothing flushed and nothing frozen: a disk does not ask before it fails.
becomes() {
    dm suspend --noflush --nolockfs faulty
    dm load faulty --table "$1"
    dm resume faulty
}
whole() { becomes "0 $sectors linear $device 0"; }
dead() { becomes "0 $sectors error"; }
# Down for all of the time.
fails() { becomes "0 $sectors flakey $device 0 0 3600 1 $1"; }
# No udev makes names here.
mounted() { mount -t "$fs" /dev/dm-0 "$mount_point"; }
# As after the next boot: what a failed disk took along is not in memory any more.
mounted_anew() {
    whole
    umount "$mount_point"
    mounted
}
sum() { sha256sum <"$1" | cut -c 1-64; }

# ends_with STATUS TEXT COMMAND...: its status, and what it says.
ends_with() {
    wanted=$1
    text=$2
    shift 2
    if "$@" >/tmp/said 2>&1; then status=0; else status=$?; fi
    [ "$status" -eq "$wanted" ] || { cat /tmp/said >&2; fail "status $status, not $wanted: $*"; }
    [ -z "$text" ] || grep -q "$text" /tmp/said || { cat /tmp/said >&2; fail "does not say '$text': $*"; }
}
# fails_when HOW STATUS TEXT COMMAND...: the disk becomes so when a third of the file has been written.
fails_when() {
    how=$1
    wanted=$2
    text=$3
    shift 3
    "$@" >/tmp/said 2>&1 &
    failing_pid=$!
    until [ "$(written_kib "$writer")" -ge $((begun_kib + kib / 3)) ]; do
        kill -0 "$failing_pid" 2>/dev/null || { cat /tmp/said >&2; fail "ended too early: $*"; }
    done
    $how
    if wait "$failing_pid"; then status=0; else status=$?; fi
    [ "$status" -eq "$wanted" ] || { cat /tmp/said >&2; fail "status $status, not $wanted: $*"; }
    [ -z "$text" ] || grep -q "$text" /tmp/said || { cat /tmp/said >&2; fail "does not say '$text': $*"; }
}
written_kib() {
    if [ "$1" = client ]; then set -- "$failing_pid"; fi
    written=$(sed -n 's/^write_bytes: //p' "/proc/$1/io" 2>/dev/null) || written=0
    echo $((${written:-0} / 1024))
}
error_writes() { fails error_writes; }
# No function: started in the background, that would be a shell, and not the program whose bytes count.
pull="rdcp pull rdcp://10.0.0.1/data/file $mount_point/copies/"

umount "$mount_point"
dm create faulty --table "0 $sectors linear $device 0"
mounted
mkdir "$mount_point/copies" "$mount_point/export"
mkdir -p $from
rdma_hostile make=$from/file seed=1 kib=$kib
rdma_hostile make=/tmp/older seed=2 kib=4096
new=$(sum $from/file)
old=$(sum /tmp/older)

# It holds the directories that it serves, so none on the disk that is mounted anew.
start_daemon 10.0.0.1:20471 --export data=$from
rdcp ping -n 1 --accept-new 10.0.0.1 >/dev/null

# The receiver's, in mid-pull: dead as a whole, and for writes alone; over both transports.
for way in tcp rdma; do
    for how in dead error_writes; do
        for before in absent older; do
            rm -f "$mount_point/copies/file"
            [ $before = absent ] || cp /tmp/older "$mount_point/copies/file"
            sync
            writer=client
            begun_kib=0
            # shellcheck disable=SC2086 # $pull is several words.
            fails_when "$how" 7 'copies/file' $pull --transport $way --bwlimit 8M
            mounted_anew
            if [ $before = absent ]; then
                [ ! -e "$mount_point/copies/file" ] || fail "$way, $how: published"
            else
                [ "$(sum "$mount_point/copies/file")" = "$old" ] || fail "$way, $how: the older version is lost"
            fi
            # shellcheck disable=SC2086
            ends_with 0 '' $pull --transport $way
            [ "$(sum "$mount_point/copies/file")" = "$new" ] || fail "$way, $how: a wrong copy"
            echo "pull by $way, $how, $before: right"
        done
    done
done

# The receiver's, in mid-push: the daemon's.
serve_disk() { start_daemon 10.0.0.1:20471 --export data=$from --export disk="$mount_point/export:rw"; }
stop_daemon
serve_disk
for how in dead error_writes; do
    writer=$daemon_pid
    begun_kib=$(written_kib "$writer")
    fails_when "$how" 7 'file' rdcp push --bwlimit 8M $from/file rdcp://10.0.0.1/disk/
    stop_daemon
    mounted_anew
    [ ! -e "$mount_point/export/file" ] || fail "push, $how: published"
    serve_disk
    ends_with 0 '' rdcp push $from/file rdcp://10.0.0.1/disk/
    [ "$(sum "$mount_point/export/file")" = "$new" ] || fail "push, $how: a wrong copy"
    rm "$mount_point/export/file"
    sync
    echo "push, $how: right"
done

# The sender's can't be read: that file fails, by its name; others are copied.
mkdir "$mount_point/export/tree"
cp $from/file "$mount_point/export/tree/bad"
echo good >"$mount_point/export/tree/good"
sync
for way in tcp rdma; do
    echo 3 >/proc/sys/vm/drop_caches
    # In memory, and so to be had.
    cat "$mount_point/export/tree/good" >/dev/null
    ls -l "$mount_point/export/tree" >/dev/null
    fails error_reads
    ends_with 7 'tree/bad' rdcp pull -r --transport $way rdcp://10.0.0.1/disk/tree /tmp/
    whole
    [ ! -e /tmp/tree/bad ] || fail "$way, reads fail: published"
    [ "$(cat /tmp/tree/good)" = good ] || fail "$way, reads fail: the other file is missing"
    ends_with 0 '' rdcp pull -r --transport $way rdcp://10.0.0.1/disk/tree /tmp/
    [ "$(sum /tmp/tree/bad)" = "$new" ] || fail "$way, reads fail: a wrong copy"
    rm -r /tmp/tree
    echo "reads fail, $way: right"
done
stop_daemon
resources_released
umount "$mount_point"
dm remove faulty
mount -t "$fs" "$device" "$mount_point"
rm -r "$mount_point/copies" "$mount_point/export"
