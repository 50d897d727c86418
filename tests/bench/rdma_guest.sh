# shellcheck shell=sh
# Runs in a guest of the lab for rdma.py: rounds of everything that is compared, one after the other, each
# figure as a line `figure ROUND NAME VALUE`. Arguments: rounds, MiB of the file, seconds of `rdcp bench`.
. /lab/helpers.sh

rounds=$1
mib=$2
bench_time=${3}s
server=10.0.0.1

figure() { echo "figure $round $1 $2"; }

# timed NAME COMMAND...: milliseconds from beginning to end.
timed() {
    timed_name=$1
    shift
    timed_begun=$(uptime_ms)
    "$@" >/run/lab/timed 2>&1 || { cat /run/lab/timed >&2; fail "$*"; }
    figure "$timed_name" $(($(uptime_ms) - timed_begun))
}

# perftest NAME COLUMN PROGRAM ARG...: the figure in that column of its only line of figures.
perftest() {
    perftest_name=$1
    perftest_column=$2
    perftest_program=$3
    shift 3
    "$perftest_program" -d rxe0 -F "$@" >/dev/null 2>&1 &
    perftest_pid=$!
    sleep 0.5
    "$perftest_program" -d rxe0 -F "$@" $server >/run/lab/perftest 2>&1 || fail "$perftest_program"
    wait "$perftest_pid" || true
    figure "$perftest_name" "$(awk -v at="$perftest_column" '$1 ~ /^[0-9]+$/ && NF > 3 { value = $at } END { print value }' /run/lab/perftest)"
}

# The adapter and a writer at work at the same time, as both are in a pull: what each brings beside the
# other, in MiB/s. The writer writes as much as the file has, over and over until the adapter is done.
together() {
    : >/run/lab/written
    : >/run/lab/writing
    while [ -e /run/lab/writing ]; do
        written_begun=$(uptime_ms)
        dd if=/dev/zero of=/bench/to/written bs=1M count="$mib" 2>/dev/null
        echo $(($(uptime_ms) - written_begun)) >>/run/lab/written
        rm -f /bench/to/written
    done &
    writer_pid=$!
    perftest read_bw_beside_writes 4 ib_read_bw -s 1048576 -n "$mib" -e
    rm /run/lab/writing
    wait "$writer_pid"
    figure writes_beside_reads "$(awk -v mib="$mib" '{ sum += $1 } END { print mib * 1000 * NR / sum }' /run/lab/written)"
}

# json FIELD: its number in the last line that has it.
json() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" /run/lab/json | tail -n 1; }

pull() {
    rm -f /bench/to/file
    pull_begun=$(uptime_ms)
    rdcp pull --json --transport rdma --hash "$1" rdcp://$server/data/file /bench/to/ >/run/lab/json 2>&1 ||
        { cat /run/lab/json >&2; fail "pull --hash $1"; }
    figure "pull_$1_ms" $(($(uptime_ms) - pull_begun))
    figure "pull_$1_data_ms" "$(json data_ms)"
    cmp /bench/from/file /bench/to/file || fail "the copy differs"
}

mkdir -p /bench
mount -t tmpfs -o size=90% tmpfs /bench
mkdir -p /bench/from /bench/to /mnt/nfs
head -c 8388608 /dev/urandom >/bench/random
written=0
while [ "$written" -lt "$mib" ]; do
    cat /bench/random
    written=$((written + 8))
done >/bench/from/file
rm /bench/random

start_daemon $server:20471 --export data=/bench/from --allow-unverified >/dev/null
rdcp ping --accept-new $server >/dev/null
rcopy >/dev/null 2>&1 &
rcopy_pid=$!

mkdir -p /var/lib/nfs /run/rpc_pipefs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
echo '/bench/from *(ro,fsid=0,insecure,no_subtree_check,no_root_squash)' >/etc/exports
exportfs -ra
rpc.mountd -N 2 -N 3
rpc.nfsd -N 3 --rdma=20049 4
echo Y >/proc/fs/nfsd/v4_end_grace 2>/dev/null || true

round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    perftest read_bw_polled 4 ib_read_bw -s 1048576 -n 150
    perftest read_bw_events 4 ib_read_bw -s 1048576 -n 150 -e
    together
    rdcp bench --json --transport rdma --time "$bench_time" $server >/run/lab/json || fail "bench"
    figure bench_bytes_per_s "$(json bytes_per_second)"
    figure bench_read_p50_us "$(json read_p50_us)"
    pull none
    pull blake3
    timed rcopy_ms rcopy /bench/from/file $server:/bench/to/rcopied
    rm -f /bench/to/rcopied
    # Mounted anew, so that nothing of it is in memory at the client.
    mount -t nfs4 -o "ro,proto=rdma,port=20049" $server:/ /mnt/nfs
    timed nfs_ms dd if=/mnt/nfs/file of=/bench/to/file bs=1M
    umount /mnt/nfs
    # Column 5: the typical one, which is the median.
    perftest read_lat_us 5 ib_read_lat -s 4096 -n 1000
    held_reads $server:20471 data file /bench/from/file 1000 rdma >/run/lab/json || fail "held reads"
    figure held_p50_us "$(json p50_us)"
done
kill "$rcopy_pid" 2>/dev/null || true
stop_daemon
