#!/bin/sh
# A held range is there for as long as its holder renews the lease: longer than the ten minutes after which
# a server ends a transfer in which nothing moves. The clock is counted, and jumps over what is only waited
# for.
# lab: hosts=1 kernels=6.12 clock=counted long=yes limit_s=3000
. /lab/helpers.sh

mkdir -p /tmp/export
head -c 8388608 /dev/urandom >/tmp/export/file
start_daemon 10.0.0.1:20471 --export data=/tmp/export --allow-unverified
for transport in rdma tcp; do
    held_reads 10.0.0.1:20471 data file /tmp/export/file 10 $transport long 700 >/run/lab/held
    cat /run/lab/held
    grep -q "\"transport\":\"$transport\"" /run/lab/held || fail "not read by $transport"
done
stop_daemon
resources_released
rm -rf /tmp/export
