#!/bin/sh
# A client that READs what it was not given sees no byte of others, in every way that memory is served,
# and the daemon goes on for those who behave.
# lab: hosts=1
. /lab/helpers.sh

mkdir -p /tmp/export
# Words that tell whose they are. `mine` ends in the middle of a chunk, and no two files have equal bytes.
rdma_hostile make=/tmp/export/mine seed=1 kib=9300
rdma_hostile make=/tmp/export/sparse seed=1 kib=9300 every=4
rdma_hostile make=/tmp/export/tiny seed=1 kib=4
rdma_hostile make=/tmp/export/other seed=2 kib=12288

attack() {
    memory=$1
    printf '[rdma]\nmemory = "%s"\n' "$memory" >/tmp/rdcpd.toml
    start_daemon 10.0.0.1:20471 --config /tmp/rdcpd.toml --export data=/tmp/export
    # Half a minute of silence, in which others go on.
    rdma_hostile server=10.0.0.1:20471 memory="$memory" steps=lease >/run/lab/lease 2>&1 &
    lease=$!
    rdma_hostile server=10.0.0.1:20471 memory="$memory" steps="$2" || fail "in mode $memory"
    if ! wait "$lease"; then
        cat /run/lab/lease >&2
        fail "at the lease's end in mode $memory"
    fi
    cat /run/lab/lease
    rdcp pull --accept-new --json --transport rdma rdcp://10.0.0.1/data/mine /tmp/pulled >/run/lab/pull
    grep -q '"transport":"rdma"' /run/lab/pull || fail "no rdma after the attack"
    cmp /tmp/export/mine /tmp/pulled
    rm /tmp/pulled
    ! grep -i panic "$daemon_log" || fail "the daemon panicked"
    stop_daemon
    resources_released
}

all=bounds,release,guess,sessions,slots
case $(uname -r) in
    6.1.*) attack pool "$all" ;;
    6.12.*) attack mmap "$all" ;;
    *) attack odp "$all" ;;
esac
rm -rf /tmp/export /tmp/rdcpd.toml
