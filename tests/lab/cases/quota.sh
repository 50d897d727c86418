#!/bin/sh
# A quota that is used up, here and on the server: exit status 7, the file and what to do in the message, what fits
# is copied, nothing else is left; and with a larger quota the same command does the rest.
# lab: hosts=1 kernels=6.12 disks=xfs
. /lab/helpers.sh

user=65534
device=$(awk '$2 == "/mnt/xfs" { print $1 }' /proc/mounts)
from=/tmp/export

quota_mib() { xfs_quota -x -c "limit -u bhard=${1}m $user" /mnt/xfs; }
umount /mnt/xfs
mount -t xfs -o uquota "$device" /mnt/xfs
mkdir -p /mnt/xfs/here /mnt/xfs/there $from/tree
chown $user:$user /mnt/xfs/here /mnt/xfs/there
rdma_hostile make=$from/tree/large seed=1 kib=24576
for number in 1 2 3 4 5 6 7 8 9; do
    rdma_hostile make=$from/tree/small$number seed=$number kib=20
done

# No function: the daemon itself is to be what is ended.
export daemon_prefix="setpriv --reuid=$user --regid=$user --clear-groups"
export daemon_state=/run/lab/rdcpd-state-of-nobody
rm -rf $daemon_state
mkdir -p $daemon_state /tmp/home
chown $user:$user $daemon_state /tmp/home
start_daemon 10.0.0.1:20471 --export data=$from --export disk=/mnt/xfs/there:rw
export HOME=/tmp/home

# copies TO COMMAND...
copies() {
    to=$1
    shift
    quota_mib 8
    if as_nobody "$@" >/tmp/said 2>&1; then status=0; else status=$?; fi
    [ "$status" -eq 7 ] || { cat /tmp/said >&2; fail "status $status, not 7: $*"; }
    for part in tree/large 'quota exceeded' 'raise the quota'; do
        grep -q "$part" /tmp/said || { cat /tmp/said >&2; fail "does not say '$part': $*"; }
    done
    [ "$(wc -l </tmp/said)" -eq 1 ] || { cat /tmp/said >&2; fail "more failed than had to: $*"; }
    [ ! -e "$to/tree/large" ] || fail "published: $to/tree/large"
    for number in 1 2 3 4 5 6 7 8 9; do
        cmp "$from/tree/small$number" "$to/tree/small$number"
    done
    retry 10 nothing_hidden
    quota_mib 64
    as_nobody "$@"
    cmp $from/tree/large "$to/tree/large"
    nothing_hidden || fail "something hidden is left"
    rm -r "$to/tree"
}
nothing_hidden() { [ -z "$(find "$to" -name '.rdcp-*')" ]; }

copies /mnt/xfs/here rdcp pull --accept-new -r rdcp://10.0.0.1/data/tree /mnt/xfs/here/
copies /mnt/xfs/there rdcp push --accept-new -r $from/tree rdcp://10.0.0.1/disk/
stop_daemon
umount /mnt/xfs
mount -t xfs "$device" /mnt/xfs
rm -r /mnt/xfs/here /mnt/xfs/there
