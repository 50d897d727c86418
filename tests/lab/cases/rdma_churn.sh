#!/bin/sh
# Connecting over RDMA and leaving again, many times: the daemon keeps nothing of it. CHURN_ROUNDS=1000
# in the environment makes it more than the usual 40 rounds.
# lab: hosts=1 kernels=6.12 long=yes
. /lab/helpers.sh
rounds=${CHURN_ROUNDS:-40}

# Its descriptors too.
held() {
    rdma resource show
    grep -E '^Vm(Lck|Pin)' "/proc/$daemon_pid/status"
    find "/proc/$daemon_pid/fd" -mindepth 1 | wc -l
}
connect() {
    rdcp ping -n 1 --accept-new 10.0.0.1 >/run/lab/ping 2>&1 || { cat /run/lab/ping >&2 && fail "round $1"; }
    grep -q '^data goes by rdma' /run/lab/ping || { cat /run/lab/ping >&2 && fail "no rdma in round $1"; }
}

mkdir -p /tmp/export
start_daemon 10.0.0.1:20471 --export data=/tmp/export
# What the first session makes for all that follow is no leak.
connect 0
retry 60 grep -q '"message":"session ended"' "$daemon_log"
sleep 2
held | tee /run/lab/held
for round in $(seq "$rounds"); do
    connect "$round"
done
retry 60 held_as_before
[ "$(grep -c '"message":"rails are up"' "$daemon_log")" -eq $((rounds + 1)) ] || fail "the rails were not made each time"
stop_daemon
resources_released
rm -rf /tmp/export
