#!/bin/sh
# `rdcp bench` measures RDMA over the rails of both devices and tcp beside it, gives all memory back, and
# without RDMA says why it is not there.
# lab: hosts=1 kernels=6.1,6.12
# lab: libs=without kernels=6.12
. /lab/helpers.sh

given_back() { [ "$(rdma resource show | grep -c ' pd 1 cq 1 qp 1 .* mr 0 ')" -eq 2 ]; }

start_daemon 10.0.0.1:20471 --export data=/tmp
if [ ! -e /usr/bin/ibv_devinfo ]; then
    rdcp bench --accept-new --time 200ms 10.0.0.1 >/run/lab/bench
    cat /run/lab/bench
    grep -q '^rdma .*libibverbs' /run/lab/bench || fail "not said why there is no rdma"
    grep -q '^tcp .*iB/s' /run/lab/bench || fail "tcp was not measured"
    if rdcp bench --transport rdma 10.0.0.1; then status=0; else status=$?; fi
    [ "$status" -eq 10 ] || fail "exit status $status"
    exit 0
fi
rdcp bench --accept-new --time 1s 10.0.0.1 >/run/lab/bench
cat /run/lab/bench
grep -q '^rdma .*iB/s .*rxe0:1 to rxe0:1.*rxe1:1 to rxe1:1' /run/lab/bench || fail "rdma was not measured"
grep -q '^tcp .*iB/s' /run/lab/bench || fail "tcp was not measured"
# While the daemon lives: what was lent goes at once, and the session's queue pairs with it.
retry 60 given_back
stop_daemon
resources_released
