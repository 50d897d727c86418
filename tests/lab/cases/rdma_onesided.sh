#!/bin/sh
# What a pull costs the sender's processor, over RDMA from mapped files and over TCP: the adapter's work
# is not the daemon's, and what is left to it is mapping and registering.
# lab: hosts=1 kernels=6.12,7 disks=xfs clock=counted long=yes
. /lab/helpers.sh

mib=64
rdma_hostile make=/mnt/xfs/large seed=1 kib=$((mib * 1024))
rdma_hostile make=/mnt/xfs/small seed=2 kib=4
# A file that was only just written is in memory in small pieces, and each has to be pinned.
sync
echo 3 >/proc/sys/vm/drop_caches

# Microseconds that the daemon's threads have run. What the driver does for the adapter runs in threads
# of the kernel; with counted time, these are instructions, and the same on every host.
daemon_us() {
    cat /proc/"$daemon_pid"/task/*/schedstat | awk '{ ns += $1 } END { printf "%d\n", ns / 1000 }'
}
# pull TRANSPORT FILE: leaves in $cost_us what it cost the daemon.
pull() {
    before_us=$(daemon_us)
    rdcp pull --json --hash none --transport "$1" "rdcp://10.0.0.1/data/$2" /tmp/pulled >/run/lab/pull
    cost_us=$(($(daemon_us) - before_us))
    grep '"type":"summary"' /run/lab/pull | grep -q "\"transport\":\"$1\"" || fail "not by $1"
    cmp "/mnt/xfs/$2" /tmp/pulled
    rm /tmp/pulled
}

case $(uname -r) in
    6.*) memory=mmap ;;
    *) memory=odp ;;
esac
# Each adapter that a window is registered with costs as much again.
printf '[rdma]\nmemory = "%s"\ndevices = ["rxe0"]\n' "$memory" >/tmp/rdcpd.toml
start_daemon 10.0.0.1:20471 --config /tmp/rdcpd.toml --export data=/mnt/xfs --allow-unverified
rdcp ping -n 1 --accept-new 10.0.0.1
# From the disk; that is not compared.
pull rdma large
echo "rdma, $memory, read from the disk: $cost_us us"
for transport in rdma tcp; do
    # The session's own cost, which a file of 4 KiB has as well, is none of the bytes'.
    pull "$transport" small
    session_us=$cost_us
    pull "$transport" large
    bytes_us=$((cost_us - session_us))
    echo "$transport, $memory: session $session_us us, $mib MiB $bytes_us us"
    [ "$transport" = tcp ] || rdma_us=$bytes_us
done
percent=$((100 * rdma_us / bytes_us))
echo "the sender's processor does $percent % over RDMA of what it does over TCP"
[ "$percent" -le 10 ] || fail "more than a tenth"
stop_daemon
resources_released
rm /mnt/xfs/large /mnt/xfs/small /tmp/rdcpd.toml
