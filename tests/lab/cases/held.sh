#!/bin/sh
# A held range of a file is read in pieces by the calling thread, over RDMA and over TCP, with the bytes
# of the file; after a lease, and after the server's death, there are errors and no bytes.
# lab: hosts=1 kernels=6.1,6.12 long=yes
. /lab/helpers.sh

mkdir -p /tmp/export
head -c 8388608 /dev/urandom >/tmp/export/file
held() { held_reads 10.0.0.1:20471 data file /tmp/export/file "$@"; }
given_back() { [ "$(rdma resource show | grep -c ' pd 1 cq 1 qp 1 .* mr 0 ')" -eq 2 ]; }

start_daemon 10.0.0.1:20471 --export data=/tmp/export --allow-unverified
for transport in rdma tcp; do
    # Not by a pipe, whose status would be that of its last program.
    held 300 $transport >/run/lab/held
    cat /run/lab/held
    grep -q "\"transport\":\"$transport\"" /run/lab/held || fail "not read by $transport"
done
# While the daemon lives.
retry 60 given_back
held 10 rdma sleep true
retry 60 given_back
held 10 rdma kill "kill -9 $daemon_pid"
wait "$daemon_pid" || true
daemon_pid=
resources_released
