#!/bin/sh
# A network that delays each packet by 20 ms and loses one in a hundred, both ways: files and trees arrive,
# whole, by TCP and by RDMA, pulled and pushed. Then one file beside rsync and curl, in rounds of all of them:
# LOSSY_ROUNDS in the environment is their number.
# lab: hosts=2 kernels=6.12 programs=rsync+curl long=yes limit_s=2400
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

file_mib=32
rounds=${LOSSY_ROUNDS:-3}
if [ "$LAB_HOST" = a ]; then
    rdma_hostile make=/tmp/export/file seed=3 kib=$((file_mib * 1024))
    sha256sum /tmp/export/file | cut -c 1-64 >/share/lossy.file.sum
    printf 'use chroot = no\nuid = 0\ngid = 0\n[data]\npath = /tmp/export\n' >/tmp/rsyncd.conf
    rsync --daemon --no-detach --address 10.0.0.1 --port 8730 --config /tmp/rsyncd.conf &
    busybox httpd -f -p 10.0.0.1:8080 -h /tmp/export &
    start_daemon 10.0.0.1:20471 --export data=/tmp/export --export in=/tmp/pushed:rw
    tell listens
    for way in tcp rdma; do
        await "pushed.$way" 600
        check "/tmp/pushed/$way/tree" b
    done
    await all_done 2400
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
        echo "= $way: pulled in $pulled_ms ms, pushed in $(($(uptime_ms) - begun_ms)) ms"
        tell "pushed.$way"
    done

    # timed NAME COMMAND...: how long it took to bring the file, which has to be right.
    timed() {
        timed_name=$1
        shift
        begun_ms=$(uptime_ms)
        "$@" >/tmp/timed 2>&1 || { cat /tmp/timed >&2; fail "$timed_name: $*"; }
        echo $(($(uptime_ms) - begun_ms)) >>"/tmp/times.$timed_name"
        [ "$(sha256sum </tmp/brought | cut -c 1-64)" = "$(cat /share/lossy.file.sum)" ] ||
            fail "$timed_name brought another file"
        rm /tmp/brought
    }
    n=0
    while [ "$n" -lt "$rounds" ]; do
        n=$((n + 1))
        timed curl curl -sSf -o /tmp/brought http://10.0.0.1:8080/file
        timed rsync rsync rsync://10.0.0.1:8730/data/file /tmp/brought
        for streams in 1 default 8; do
            [ $streams = default ] && option= || option="--streams $streams"
            # shellcheck disable=SC2086 # Words.
            timed "rdcp-tcp-streams-$streams" rdcp pull --transport tcp $option rdcp://10.0.0.1/data/file /tmp/brought
        done
        timed rdcp-rdma rdcp pull --transport rdma rdcp://10.0.0.1/data/file /tmp/brought
    done
    for times in /tmp/times.*; do
        sort -n "$times" | awk -v name="${times#/tmp/times.}" -v mib=$file_mib '
            { ms[NR] = $1 }
            END {
                printf "= %-24s median %6d ms, %5.2f MiB/s; %d to %d ms\n",
                    name, ms[int((NR + 1) / 2)], mib * 1000 / ms[int((NR + 1) / 2)], ms[1], ms[NR]
            }'
    done
    tell all_done
    resources_released
fi
