#!/bin/sh
# Where RDMA is not to be had, or goes away: forced it ends with 10 and the reason, else the copy goes by
# tcp and says why; what goes away in mid-transfer costs nothing but time. Every byte is compared.
# lab: hosts=1 libs=without kernels=6.12 long=yes
# lab: hosts=1 alone=yes long=yes
. /lab/helpers.sh

# The control connection must outlive the links.
url=rdcp://127.0.0.1/data
output=/run/lab/fallback
log=/run/lab/fallback.log

says() { grep -q "$1" "$output" || { cat "$output" >&2 && fail "it does not say: $1"; }; }
ended_with() {
    [ "$status" -eq "$1" ] || { cat "$output" "$log" >&2 && fail "rdcp ended with $status, not with $1"; }
}
# copy pull|push ARG...: of the small file.
copy() {
    copy_way=$1
    shift
    rm -f /tmp/copy /tmp/export/copy
    case $copy_way in
        pull) set -- pull "$@" "$url/small" /tmp/copy ;;
        push) set -- push "$@" /tmp/export/small "$url/copy" ;;
    esac
    if rdcp "$@" --json --accept-new >"$output" 2>"$log"; then status=0; else status=$?; fi
}
copied() {
    ended_with 0
    case $copy_way in
        pull) cmp /tmp/export/small /tmp/copy ;;
        push) cmp /tmp/export/small /tmp/export/copy ;;
    esac
}
# not_to_be_had REASON
not_to_be_had() {
    for way in pull push; do
        copy "$way" --transport rdma
        ended_with 10
        says "$1"
        copy "$way"
        copied
        says '"type":"summary".*"transport":"tcp"'
        says "\"reason\":\"no rdma: [^\"]*$1"
        says '"bytes_by_transport":{"tcp":3000000,"rdma":0}'
    done
}

mkdir -p /tmp/export
head -c 3000000 /dev/urandom >/tmp/export/small
start_daemon 127.0.0.1:20471 --export data=/tmp/export:rw

if [ ! -e /usr/bin/ibv_devinfo ]; then
    not_to_be_had 'libibverbs'
    stop_daemon
    rm -rf /tmp/export /tmp/copy
    exit 0
fi

port_is() { rdma link show "$1/1" | grep -q "state $2"; }
link_down() { ip link set "net$1" down && retry 20 port_is "rxe$1" DOWN; }
link_up() { ip link set "net$1" up && retry 20 port_is "rxe$1" ACTIVE; }

# A link that is down before the start: the other one does it.
link_down 1
copy pull --transport rdma
copied
says '"type":"summary".*"transport":"rdma".*rxe1:1: its state is'
says '"bytes_by_transport":{"tcp":0,"rdma":3000000}'
link_down 0
not_to_be_had 'rxe0:1: its state is'
link_up 0
link_up 1

# Links that go down in mid-transfer, and come up again.
make_source /tmp/source
cat /tmp/source/large /tmp/source/large /tmp/source/large /tmp/source/large >/tmp/export/large
rm -rf /tmp/source /tmp/source.sums
moves_or_ended() {
    grep -q '"type":"progress".*"bytes_moved":[1-9]' "$output" || ! kill -0 "$copy_pid"
}
# under_way ARG...: a pull of the large file, which has begun to move bytes.
under_way() {
    rm -f /tmp/copy
    rdcp pull -v --json "$@" "$url/large" /tmp/copy >"$output" 2>"$log" &
    copy_pid=$!
    retry 60 moves_or_ended
    kill -0 "$copy_pid" || { cat "$output" "$log" >&2 && fail "it ended too early"; }
}
large_copied() {
    if wait "$copy_pid"; then status=0; else status=$?; fi
    ended_with 0
    cmp /tmp/export/large /tmp/copy
}

for transport in rdma auto; do
    under_way --transport "$transport"
    ip link set net1 down
    sleep 1
    ip link set net1 up
    large_copied
    says '"type":"summary".*"transport":"rdma'
    retry 20 port_is rxe1 ACTIVE
done

# Both: without tcp it goes on only when one is back, with tcp it goes on at once.
under_way --transport rdma
ip link set net0 down
ip link set net1 down
sleep 2
kill -0 "$copy_pid" || fail "it did not wait for its rails"
ip link set net0 up
ip link set net1 up
large_copied
says '"type":"summary".*"transport":"rdma"'
grep -q 'rails came up' "$log" || fail "it does not say that the rails came up again"
retry 20 port_is rxe0 ACTIVE
retry 20 port_is rxe1 ACTIVE

under_way
ip link set net0 down
ip link set net1 down
large_copied
says '"type":"summary".*"transport":"rdma+tcp"'
link_up 0
link_up 1
stop_daemon
resources_released

# No device at all.
start_daemon 127.0.0.1:20471 --export data=/tmp/export:rw
rdma link del rxe0
rdma link del rxe1
not_to_be_had 'no RDMA device'
stop_daemon
rm -rf /tmp/export /tmp/copy
