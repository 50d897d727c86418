#!/bin/sh
# Push and pull over rails that rdma_cm connects, on both devices: a file of 64 MiB and 500 small
# files, proved with sha256sum. Requests that were not invited are refused and leave nothing; who
# asks for rdma_cm where nobody listens is told so.
# lab: hosts=1,2
. /lab/helpers.sh

export_url=rdcp://10.0.0.1/data
output=/run/lab/copy.json

# One copy: its exit status is left in $status, its output in $output.
copy() {
    if rdcp "$@" --json --transport rdma >"$output" 2>&1; then status=0; else status=$?; fi
}
copied() {
    summary=$(grep '"type":"summary"' "$output") || fail "no summary"
    case $status:$summary in
        0:*'"transport":"rdma"'*) ;;
        *) cat "$output" >&2 && fail "not copied by rdma" ;;
    esac
}
# In the daemon's log: how often rails of both devices came up that rdma_cm has connected.
both_by_rdma_cm() {
    rail='(RoCE v2, [^()]*, by rdma_cm, 2 queue pairs)'
    grep -c "rxe0:1 to rxe0:1 $rail; rxe1:1 to rxe1:1 $rail" "$daemon_log"
}
listens() { rdma resource show cm_id | grep 'state LISTEN' | grep "src-addr $1:"; }
# One descriptor and one thread serve all sessions, and there are none where nobody wants them.
channels() {
    readlink "/proc/$daemon_pid/fd/"* | grep -c '/rdma_cm$' || true
    cat "/proc/$daemon_pid/task/"*/comm | grep -cx 'rdcp-rdma-cm' || true
}
resources_as_before() {
    rdma resource show >/run/lab/resources.now
    diff /run/lab/resources.before /run/lab/resources.now
}

if [ "$LAB_HOST" = a ]; then
    mkdir -p /tmp/export
    printf '[rdma]\nconnect = "cm"\n' >/tmp/rdcpd.toml
    start_daemon 10.0.0.1:20471 --config /tmp/rdcpd.toml --export data=/tmp/export:rw
    for address in 10.0.0.1 10.0.1.1; do
        listens "$address" || fail "nobody listens on $address"
    done
    rdma resource show >/run/lab/resources.before
    tell listening
fi
if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
    await listening
    for address in 10.0.0.1 10.0.1.1; do
        for _ in 1 2 3; do
            ! rping -c -a "$address" -p 20471 -C 1 >/run/lab/refused 2>&1 || fail "rping was let in"
            grep -q 'REJECTED, error 28' /run/lab/refused || {
                cat /run/lab/refused >&2
                fail "not refused by whoever listens"
            }
        done
    done
    tell refused
fi
if [ "$LAB_HOST" = a ]; then
    await refused
    retry 60 resources_as_before
    grep -q 'without a known token' "$daemon_log" || fail "not in the log that requests were refused"
    tell released
fi
if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
    await released
    make_source /tmp/source
    copy push -a --accept-new --rdma-connect cm /tmp/source/ "$export_url/pushed"
    copied
    # The server's wish is enough.
    copy pull -a "$export_url/pushed/" /tmp/pulled
    copied
    check_digests /tmp/pulled /tmp/source
    # The server's copy is checked there, by the digests that the source had.
    cp /tmp/source.sums /share/rdma_cm_pushed.sums
    tell copied
fi
if [ "$LAB_HOST" = a ]; then
    await copied 240
    cp /share/rdma_cm_pushed.sums /tmp/pushed.sums
    check_digests /tmp/export/pushed /tmp/pushed
    [ "$(both_by_rdma_cm)" -eq 2 ] || fail "not both copies went over both devices by rdma_cm"
    # What the sessions had is gone, and the listeners are not.
    retry 60 resources_as_before
    [ "$(channels | tr '\n' ' ')" = '1 1 ' ] || fail "sessions left something of rdma_cm: $(channels)"
    stop_daemon
    resources_released
    start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
    ! listens 10.0.0.1 || fail "it listens though it was not told to"
    [ "$(channels | tr '\n' ' ')" = '0 0 ' ] || fail "it has something of rdma_cm: $(channels)"
    tell direct
fi
if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
    await direct
    copy pull --rdma-connect cm "$export_url/pushed/large" /tmp/pulled/again
    [ "$status" -eq 10 ] || fail "nobody listens, but the exit status is $status"
    grep -q 'the server does not listen with rdma_cm' "$output" || fail "not told that nobody listens"
    [ ! -e /tmp/pulled/again ] || fail "it was copied all the same"
    tell told
fi
if [ "$LAB_HOST" = a ]; then
    await told
    stop_daemon
fi
resources_released
rm -rf /tmp/source /tmp/source.sums /tmp/pulled /tmp/export /tmp/pushed.sums /tmp/rdcpd.toml
