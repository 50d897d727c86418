#!/bin/sh
# A network that delays each packet by 20 ms and loses one in a hundred, both ways: files and trees arrive,
# whole, by TCP and by RDMA, pulled and pushed.
# lab: hosts=2 kernels=6.12 long=yes limit_s=1200
. /lab/helpers.sh

kib=8192
n=0
while [ "$n" -lt "$LAB_DEVICES" ]; do
    # Devices of real hosts have queues; the default limit of netem is short of what is on the way here.
    tc qdisc add dev "net$n" root netem limit 100000 delay 20ms loss 1%
    n=$((n + 1))
done
mkdir -p /tmp/export/tree /tmp/pushed
rdma_hostile make=/tmp/export/tree/large seed="$LAB_INDEX" kib=$kib
n=0
while [ "$n" -lt 50 ]; do
    n=$((n + 1))
    head -c 5000 /dev/urandom >"/tmp/export/tree/small$n"
done
(cd /tmp/export/tree && find . -type f -exec sha256sum {} +) >"/share/lossy.$LAB_HOST.sums"
check() {
    (cd "$1" && sha256sum -c "/share/lossy.$2.sums" >/tmp/digests 2>&1) ||
        { grep -v OK /tmp/digests >&2; fail "$1 differs"; }
    [ "$(find "$1" -type f | wc -l)" -eq 51 ] || fail "$1 has not 51 files"
}

if [ "$LAB_HOST" = a ]; then
    start_daemon 10.0.0.1:20471 --export data=/tmp/export --export in=/tmp/pushed:rw
    tell listens
    for way in tcp rdma; do
        await "pushed.$way" 600
        check "/tmp/pushed/$way/tree" b
    done
    await all_done 600
    stop_daemon
    resources_released
else
    await listens
    rdcp ping -n 1 --accept-new 10.0.0.1
    for way in tcp rdma; do
        begun_ms=$(uptime_ms)
        rdcp pull -r --transport $way rdcp://10.0.0.1/data/tree /tmp/pulled/ --mkpath
        pulled_ms=$(($(uptime_ms) - begun_ms))
        check /tmp/pulled/tree a
        rm -r /tmp/pulled
        begun_ms=$(uptime_ms)
        rdcp push -r --transport $way --mkpath /tmp/export/tree rdcp://10.0.0.1/in/$way/
        echo "$way: pulled in $pulled_ms ms, pushed in $(($(uptime_ms) - begun_ms)) ms"
        tell "pushed.$way"
    done
    tell all_done
    resources_released
fi
