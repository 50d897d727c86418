#!/bin/sh
# What a pull costs the sender's processor, over RDMA from mapped files and over TCP: the bytes are
# compared, the figures are printed, and not judged.
# lab: hosts=1 kernels=6.12
. /lab/helpers.sh

mkdir -p /tmp/export
head -c 8388608 /dev/urandom >/tmp/random
for part in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    # Shifted each time: no two chunks are equal.
    echo "part $part"
    cat /tmp/random
done | head -c 134217728 >/tmp/export/large
printf '[rdma]\nmemory = "mmap"\n' >/tmp/rdcpd.toml
start_daemon 10.0.0.1:20471 --config /tmp/rdcpd.toml --export data=/tmp/export
rdcp ping -n 1 --accept-new 10.0.0.1
for transport in rdma tcp; do
    before=$(cpu_ms "$daemon_pid")
    rdcp pull --hash none --transport "$transport" rdcp://10.0.0.1/data/large /tmp/pulled
    # The file is an eighth of a GiB.
    echo "$transport: $((8 * ($(cpu_ms "$daemon_pid") - before))) ms of the sender's processor for each GiB"
    cmp /tmp/export/large /tmp/pulled
    rm /tmp/pulled
done
stop_daemon
resources_released
rm -rf /tmp/export /tmp/random /tmp/rdcpd.toml
