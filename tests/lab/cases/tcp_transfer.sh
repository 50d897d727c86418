#!/bin/sh
# Push, pull and verify over TCP: a file of 64 MiB and 500 small files, proved with sha256sum.
# lab: hosts=1
# lab: hosts=2 kernels=6.12
# lab: libs=without kernels=6.12
. /lab/helpers.sh

if [ "$LAB_HOST" = a ]; then
    mkdir -p /tmp/export
    start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
    tell listening
fi
if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
    await listening
    make_source /tmp/source
    rdcp push -a --accept-new --transport tcp /tmp/source/ rdcp://10.0.0.1/data/pushed
    rdcp verify /tmp/source rdcp://10.0.0.1/data/pushed
    rdcp pull -a --transport tcp rdcp://10.0.0.1/data/pushed/ /tmp/pulled
    check_digests /tmp/pulled /tmp/source
    # Beyond loopback nothing is copied unverified unless its owner says so.
    if rdcp pull --hash none rdcp://10.0.0.1/data/pushed/large /tmp/unsure 2>/tmp/said; then status=0; else status=$?; fi
    [ "$status" -eq 4 ] || fail "status $status, not 4: $(cat /tmp/said)"
    grep -q unverified /tmp/said || fail "says nothing of it: $(cat /tmp/said)"
    [ ! -e /tmp/unsure ] || fail "copied something"
    # The server's copy is checked there, by the digests that the source had.
    cp /tmp/source.sums /share/pushed.sums
    tell copied
fi
if [ "$LAB_HOST" = a ]; then
    await copied 240
    cp /share/pushed.sums /tmp/pushed.sums
    check_digests /tmp/export/pushed /tmp/pushed
    echo "the daemon took $(cpu_ms "$daemon_pid") ms of processor time"
    stop_daemon
fi
resources_released
rm -rf /tmp/source /tmp/source.sums /tmp/pulled /tmp/export /tmp/pushed.sums
