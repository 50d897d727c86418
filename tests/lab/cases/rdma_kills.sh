#!/bin/sh
# SIGKILL at moments drawn by chance while bytes go over RDMA, of the client and of the daemon, in pulls and in
# pushes: the same command again, or the one that still runs, ends with the right file by SHA-256, no more is
# fetched again than a window and what a journal waits for, and nothing stays pinned.
# RDMA_KILLS in the environment is their number, RDMA_KILLS_SEED decides the moments.
# lab: hosts=1 kernels=6.12 long=yes limit_s=2400
. /lab/helpers.sh

kills=${RDMA_KILLS:-20}
dice=${RDMA_KILLS_SEED:-1}
kib=196608
size=$((kib * 1024))
rate=24M
# A window of 64 MiB, and as much that is proved before the journal is told.
again_max=$((128 * 1024 * 1024))
told=/run/lab/kills.json

below() {
    dice=$(((dice * 1103515245 + 12345) % 2147483648))
    drawn=$((dice / 65536 % $1))
}
sum() { sha256sum <"$1" | cut -c 1-64; }
serve() { start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw; }
# moved: how many bytes had travelled when that was last told.
moved() { sed -n 's/.*"bytes_moved":\([0-9]*\).*/\1/p' "$told" | tail -n 1; }
# landed: how many bytes came by either transport, those that came twice counted twice.
landed() {
    grep '"type":"summary"' "$told" | sed -n 's/.*"bytes_by_transport":{"tcp":\([0-9]*\),"rdma":\([0-9]*\)}.*/\1 \2/p' |
        awk '{ print $1 + $2 }'
}
# received: how many bytes the daemon has read over RDMA, which in a push nobody else knows at once.
received() {
    rdcp status --json 10.0.0.1 |
        sed -n 's/.*"type":"status".*"name":"rdma","sent_bytes":[0-9]*,"received_bytes":\([0-9]*\).*/\1/p'
}
had_come() {
    case $way in
        pull) had=$(moved) ;;
        push) had=$(($(received) - before)) ;;
    esac
    had=${had:-0}
}
summary() { grep '"type":"summary"' "$told" | sed -n "s/.*\"$1\":\"\{0,1\}\([a-z0-9+]*\).*/\1/p"; }
# of WAY: what is copied, where it is then.
of() {
    case $1 in
        pull) words="rdcp://10.0.0.1/data/pulled /tmp/local/" copy=/tmp/local/pulled ;;
        push) words="/tmp/local/pushed rdcp://10.0.0.1/data/in/" copy=/tmp/export/in/pushed ;;
    esac
}
# No function starts it: in the background that would be a shell, and SIGKILL would hit that.
command="--json --accept-new --transport rdma --timeout 120s"
judge() {
    [ "$(summary transport)" = rdma ] || fail "$what: not by rdma alone: $(tail -n 1 "$told")"
    [ "$(sum "$copy")" = "$expected" ] || fail "$what: the copy differs"
    [ -z "$(find "${copy%/*}" -name '.rdcp-*')" ] || fail "$what: left behind: $(ls -A "${copy%/*}")"
    again=$(($1 - size))
    [ "$again" -le "$again_max" ] || fail "$what: $again bytes were fetched again"
    again_all=$((again_all + (again > 0 ? again : 0)))
    [ "$again" -le "$again_most" ] || again_most=$again
    echo "= $what after $pause_ms ms, $had bytes had come: $again fetched again"
    rm "$copy"
    retry 90 held_as_before
}

mkdir -p /tmp/export/in /tmp/local
rdma_hostile make=/tmp/export/pulled seed=1 kib=$kib
cp /tmp/export/pulled /tmp/local/pushed
expected=$(sum /tmp/export/pulled)
serve
rdcp ping -n 1 --accept-new 10.0.0.1 >/run/lab/ping
retry 60 grep -q '"message":"session ended"' "$daemon_log"
sleep 1
held | tee /run/lab/held

# How long one lasts that nothing happens to.
of pull
begun_ms=$(uptime_ms)
# shellcheck disable=SC2086 # Words.
rdcp pull $command --bwlimit $rate $words >"$told" 2>&1
lasts_ms=$(($(uptime_ms) - begun_ms))
[ "$(sum "$copy")" = "$expected" ] || fail "the copy differs"
rm "$copy"
echo "a pull of $size bytes lasts $lasts_ms ms"

killed=0
late=0
again_all=0
again_most=0
while [ "$killed" -lt "$kills" ]; do
    [ "$late" -lt $((kills + 10)) ] || fail "most copies were over before the moment came"
    case $((killed % 4)) in
        0) victim=client way=pull ;;
        1) victim=client way=push ;;
        2) victim=daemon way=pull ;;
        3) victim=daemon way=push ;;
    esac
    of "$way"
    what="$way, $victim killed"
    # Not all last as long as the first one did.
    below $((lasts_ms * 8 / 10))
    pause_ms=$drawn
    before=$(received)
    # shellcheck disable=SC2086 # Words.
    rdcp $way $command --bwlimit $rate $words >"$told" 2>&1 &
    client_pid=$!
    sleep "$(printf '%d.%03d' $((pause_ms / 1000)) $((pause_ms % 1000)))"
    if [ "$victim" = client ]; then
        # It fails if the copy is over already.
        kill -KILL "$client_pid" 2>/dev/null || true
        if wait "$client_pid"; then status=0; else status=$?; fi
        had_come
        if [ "$status" -ne 137 ]; then
            [ "$status" -eq 0 ] || { cat "$told" >&2; fail "$what: exit status $status"; }
            late=$((late + 1))
            rm "$copy"
            continue
        fi
        # shellcheck disable=SC2086 # Words.
        rdcp $way $command $words >"$told" 2>&1 || { cat "$told" >&2; fail "$what: the same command again"; }
        killed=$((killed + 1))
        case $way in
            pull) judge $((had + $(landed))) ;;
            push) judge $(($(received) - before)) ;;
        esac
    else
        # What comes while this is asked is not in it.
        had_come
        kill -KILL "$daemon_pid"
        wait "$daemon_pid" || true
        serve
        if wait "$client_pid"; then status=0; else status=$?; fi
        if [ "$status" -eq 3 ] && [ "$had" -eq 0 ]; then
            # The daemon had not taken the request yet, so there was nothing to go on with.
            late=$((late + 1))
            continue
        fi
        [ "$status" -eq 0 ] || { cat "$told" >&2; fail "$what: exit status $status"; }
        [ "$(grep -c '"type":"summary"' "$told")" -eq 1 ] || fail "$what: not one summary"
        if [ "$(summary reconnects)" -eq 0 ]; then
            late=$((late + 1))
            rm "$copy"
            retry 90 held_as_before
            continue
        fi
        killed=$((killed + 1))
        case $way in
            pull) judge "$(landed)" ;;
            push) judge $((had + $(received))) ;;
        esac
    fi
done
echo "= $killed kills, $late too late; fetched again $((again_all / 1048576)) MiB in all, $((again_most / 1048576)) MiB at most"
stop_daemon
resources_released
rm -rf /tmp/export /tmp/local
