#!/bin/sh
# READs and latency over each device, with perftest; the figures are printed, and not judged.
# lab: hosts=1,2
. /lab/helpers.sh

# perftest's server takes one client and ends.
measure() {
    program=$1 n=$2
    shift 2
    if [ "$LAB_HOST" = a ]; then
        "$program" -d "rxe$n" "$@" >/run/lab/server 2>&1 &
        server=$!
        retry 60 listens
        tell "$program$n"
    fi
    if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
        await "$program$n"
        "$program" -d "rxe$n" "$@" "10.0.$n.1" >/run/lab/client 2>&1 || without_figures
        cat /run/lab/client
    fi
    if [ "$LAB_HOST" = a ] && ! wait "$server"; then
        await "$program$n.unreported" 60
    fi
}
listens() { ss -Hltn 'sport = :18515' | grep -q LISTEN; }

# On a busy host the guest's clock is so uneven that perftest, after all READs were done, finds no
# frequency to calculate with; it leaves then, without a word to its server.
without_figures() {
    cat /run/lab/client >&2
    grep -q "Can't produce a report" /run/lab/client || fail "the client of $program"
    tell "$program$n.unreported"
}

for n in 0 1; do
    # A number of rounds, because a duration may measure nothing on a machine so slow.
    measure ib_read_bw "$n" -s 1048576 -n 20
    measure ib_read_lat "$n" -s 4096 -n 100
done
resources_released
