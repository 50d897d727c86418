#!/bin/sh
# What dies in the middle of a transfer over RDMA: the daemon, the client, a link, a device. Transfers end
# right or say what failed, nothing hangs, and nothing stays registered or pinned.
# lab: hosts=1 long=yes
. /lab/helpers.sh

export_url=rdcp://10.0.0.1/data
mkdir -p /tmp/export
head -c 1048576 /dev/urandom >/tmp/random
# Large enough that a transfer is still under way when what is to happen happens.
for part in $(seq 192); do
    # Shifted each time: no two chunks are equal.
    echo "part $part"
    cat /tmp/random
done | head -c 201326592 >/tmp/export/large
rm /tmp/random

serve() {
    start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
    rdcp ping -n 1 --accept-new 10.0.0.1 >/run/lab/ping
}
# begin ARG...: a transfer of `large` in the background; returns when some chunks of it are there.
begin() {
    into=$1
    shift
    begun_ms=$(uptime_ms)
    mkdir -p "$into"
    rdcp "$@" >/run/lab/transfer 2>&1 &
    transfer=$!
    rdma_meddle in="$into" chunks=6 || fail "the transfer was over before anything could happen"
}
# Its end, which must come: the guard of the cases ends what hangs. Its status is left in $status.
end() {
    if wait "$transfer"; then status=0; else status=$?; fi
    cat /run/lab/transfer
    echo "$1: exit status $status, $((($(uptime_ms) - begun_ms) / 1000)) s"
}
ended_right() {
    [ "$status" -eq 0 ] || fail "exit status $status"
    cmp /tmp/export/large /tmp/pulled/large
    rm -r /tmp/pulled
}
nothing_left() {
    [ -z "$(find "$1" -name '.rdcp-*')" ] || fail "$(ls -A "$1") is left"
}
both_rails() {
    rdcp ping -n 1 10.0.0.1 >/run/lab/ping 2>&1
    grep -q '^data goes by rdma: rxe0:1 .*; rxe1:1 ' /run/lab/ping
}
port_is() { rdma link show rxe1/1 | grep -q "state $1"; }

# The daemon is killed.
serve
begin /tmp/pulled pull --timeout 10s "$export_url/large" /tmp/pulled/
kill -KILL "$daemon_pid"
wait "$daemon_pid" || true
daemon_pid=
end "the daemon killed"
case $status in 3 | 11) ;; *) fail "exit status $status" ;; esac
[ ! -e /tmp/pulled/large ] || fail "half of it has its name"
resources_released
# What came is gone on with, by the same command and the next daemon.
serve
rdcp pull "$export_url/large" /tmp/pulled/
nothing_left /tmp/pulled
status=0
ended_right

# The client is killed.
retry 60 grep -q '"message":"session ended"' "$daemon_log"
sleep 1
held | tee /run/lab/held
begin /tmp/export/pushed push /tmp/export/large "$export_url/pushed/"
kill -KILL "$transfer"
end "the client killed"
[ "$status" -eq 137 ] || fail "exit status $status"
[ ! -e /tmp/export/pushed/large ] || fail "half of it has its name"
retry 90 held_as_before
rdcp push /tmp/export/large "$export_url/pushed/"
cmp /tmp/export/large /tmp/export/pushed/large
nothing_left /tmp/export/pushed
rm -r /tmp/export/pushed
retry 90 held_as_before

# One of two links goes down, and comes again: the other one does, or tcp.
for only in auto rdma; do
    begin /tmp/pulled pull --transport "$only" --timeout 60s "$export_url/large" /tmp/pulled/
    ip link set net1 down
    retry 20 port_is DOWN
    ip link set net1 up
    end "a link down, transport $only"
    ended_right
    retry 20 port_is ACTIVE
    retry 60 both_rails
    retry 90 held_as_before
done

# One of two devices goes. Some kernels say nothing of that to who has it open, and wait for them.
begin /tmp/pulled pull --timeout 60s "$export_url/large" /tmp/pulled/
rdma link del rxe1 &
removal=$!
end "a device removed"
ended_right
wait "$removal" || fail "the device was not removed"
mkdir /tmp/pulled
rdcp pull "$export_url/large" /tmp/pulled/
cmp /tmp/export/large /tmp/pulled/large
rm -r /tmp/pulled
rdma link add rxe1 type rxe netdev net1
retry 20 port_is ACTIVE
retry 60 both_rails
stop_daemon
resources_released
rm -rf /tmp/export
