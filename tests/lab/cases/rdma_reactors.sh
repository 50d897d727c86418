#!/bin/sh
# Over RDMA with the reactor that does without io_uring, at both ends: a tree, there and back.
# lab: hosts=1 kernels=6.12
. /lab/helpers.sh

export RDCP_NO_URING=1
mkdir -p /tmp/export
start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
retry 20 grep -q '"reactor":"readiness loop' "$daemon_log"
make_source /tmp/source
for copy in 'push /tmp/source/ rdcp://10.0.0.1/data/pushed' 'pull rdcp://10.0.0.1/data/pushed/ /tmp/pulled'; do
    # shellcheck disable=SC2086 # The words of one command line.
    rdcp ${copy%% *} -a --accept-new --json --transport rdma ${copy#* } >/run/lab/copy
    grep '"type":"summary"' /run/lab/copy | grep -q '"transport":"rdma"' || fail "no rdma: $copy"
done
check_digests /tmp/export/pushed /tmp/source
check_digests /tmp/pulled /tmp/source
stop_daemon
resources_released
rm -rf /tmp/export /tmp/source /tmp/source.sums /tmp/pulled
