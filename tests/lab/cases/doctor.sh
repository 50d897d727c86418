#!/bin/sh
# `rdcp doctor` finds the lab's devices in order and rails come up; without libraries it names the package.
# lab: hosts=1
# lab: libs=without kernels=6.12
. /lab/helpers.sh

# doctor STATUS ARG...: its exit status must be that.
doctor() {
    doctor_wanted=$1
    shift
    if rdcp doctor "$@" >/run/lab/doctor 2>&1; then doctor_status=0; else doctor_status=$?; fi
    cat /run/lab/doctor
    [ "$doctor_status" -eq "$doctor_wanted" ] || fail "doctor $* ended with $doctor_status"
}
port_is_down() { rdma link show rxe1/1 | grep -q 'state DOWN'; }
port_is_up() { rdma link show rxe1/1 | grep -q 'state ACTIVE'; }
finds() { grep -q "$1" /run/lab/doctor || fail "doctor does not say: $1"; }

if [ ! -e /usr/bin/ibv_devinfo ]; then
    doctor 10
    finds '^problem  library libibverbs: '
    finds 'apt-get install libibverbs1 ibverbs-providers'
    finds 'would not use RDMA'
    exit 0
fi

doctor 0 --path /tmp --path /dev/shm
finds '^ok       device rxe0: soft-RoCE.*on net0'
finds '^ok       port rxe1:1: active, RoCE.*RoCE v2 with 10.0.1.1 on net1'
finds '^ok       registration rxe0: slots'
finds '^ok       registration /tmp: tmpfs on rxe0: '
finds '^a transfer would use RDMA'
doctor 0 --json
finds '"would_use_rdma":true'

# The limit holds for those without privileges.
as_nobody sh -c 'ulimit -l 64; rdcp doctor --path /tmp' >/run/lab/doctor 2>&1 && fail "64 KiB are enough"
cat /run/lab/doctor
finds 'registration rxe0: slots can.t be registered'
finds 'memlock unlimited'

mkdir -p /tmp/export
start_daemon 10.0.0.1:20471 --export data=/tmp/export
doctor 0 --accept-new 10.0.0.1
finds '^ok       rails 10.0.0.1:20471: they come up'
stop_daemon
doctor 10 10.0.0.1
finds '^problem  rails 10.0.0.1:20471: '

ip link set net1 down
retry 20 port_is_down
doctor 0
finds '^problem  port rxe1:1: its state is down'
finds 'ip link set dev net1 up'
ip link set net1 up
retry 20 port_is_up
resources_released
