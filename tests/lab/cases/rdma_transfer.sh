#!/bin/sh
# Push and pull over RDMA: a file of 64 MiB and 500 small files, proved with sha256sum; and each way of
# the sender's memory that can be asked for works, or is refused by name where the kernel lacks it.
# lab: hosts=1
# lab: hosts=2 kernels=6.12
. /lab/helpers.sh

export_url=rdcp://10.0.0.1/data

# One copy, which must go over RDMA: its exit status is left in $status, its output in $output.
copy() {
    output=/run/lab/copy.json
    if rdcp "$@" --json --transport rdma >"$output" 2>&1; then status=0; else status=$?; fi
}
copied_by_rdma() {
    summary=$(grep '"type":"summary"' "$output") || fail "no summary"
    case $status:$summary in
        0:*'"transport":"rdma"'*) ;;
        *) cat "$output" >&2 && fail "not copied by rdma" ;;
    esac
}

# By the way that is forced on the sender, where this kernel has it.
forced() {
    case $memory:$(uname -r) in
        odp:6.* | mmap:6.1.*)
            grep -q "RDMA memory $memory is asked for" "$output" || fail "not said that $memory is not there"
            [ "$status" -eq 10 ] || fail "$memory is not there, but the exit status is $status"
            ;;
        *)
            copied_by_rdma
            cmp "$1" "$2"
            ;;
    esac
}

if [ "$LAB_HOST" = a ]; then
    mkdir -p /tmp/export
    start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
    tell listening
fi
if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
    await listening
    make_source /tmp/source
    copy push -a --accept-new /tmp/source/ "$export_url/pushed"
    copied_by_rdma
    copy pull -a "$export_url/pushed/" /tmp/pulled
    copied_by_rdma
    check_digests /tmp/pulled /tmp/source
    # The server's copy is checked there, by the digests that the source had.
    cp /tmp/source.sums /share/rdma_pushed.sums
    tell copied
fi
if [ "$LAB_HOST" = a ]; then
    await copied 240
    cp /share/rdma_pushed.sums /tmp/pushed.sums
    check_digests /tmp/export/pushed /tmp/pushed
    echo "the daemon took $(cpu_ms "$daemon_pid") ms of processor time"
    stop_daemon
fi
resources_released

if [ "$LAB_HOSTS" -eq 1 ]; then
    # Not a whole number of chunks.
    head -c 16000000 /tmp/source/large >/tmp/export/16m
    for memory in odp mmap pool; do
        printf '[rdma]\nmemory = "%s"\n' "$memory" >/tmp/rdcpd.toml
        start_daemon 10.0.0.1:20471 --config /tmp/rdcpd.toml --export data=/tmp/export:rw
        copy pull "$export_url/16m" "/tmp/pulled/$memory"
        forced /tmp/export/16m "/tmp/pulled/$memory"
        copy push --rdma-memory "$memory" /tmp/export/16m "$export_url/$memory"
        forced /tmp/export/16m "/tmp/export/$memory"
        stop_daemon
        resources_released
    done
fi
rm -rf /tmp/source /tmp/source.sums /tmp/pulled /tmp/export /tmp/pushed.sums /tmp/rdcpd.toml
