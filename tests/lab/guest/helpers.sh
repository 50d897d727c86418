# shellcheck shell=sh
# What scripts in a guest have at hand; read with `. /lab/helpers.sh`. A script that reads it ends at
# the first command that fails, and leaves no daemon behind.
#
#   fail TEXT                     say what is wrong and end the script
#   retry SECONDS COMMAND...      again, until it succeeds or the time is over
#   tell NAME, await NAME [S]     between two hosts: something is ready, wait for that
#   start_daemon ADDRESS ARG...   rdcpd, until it listens; leaves $daemon_pid and $daemon_log; a command
#                                 in $daemon_prefix starts it, if that is set; its state, with the host key, is in
#                                 $daemon_state, so that one of another user has its own
#   stop_daemon                   ends it in an orderly way; it must exit with 0
#   make_source FOLDER            64 MiB in one file and 500 small files, with digests
#   check_digests FOLDER SOURCE   the files have the digests of the source
#   resources_released            RDMA objects are again what they were after boot
#   cpu_ms PID                    processor time of a process so far
#   expect_power_cut, cut_power   the machine ends as when power is lost, without writing anything any more
#                                 (power=cut); the first, which takes a moment, says that this is wanted
#   as_nobody COMMAND...          without privileges, so that memory limits hold
#   peer                          the address of the other host (of this one, if there is one) on net0
set -eu
. /lab/settings

daemon_pid=
daemon_log=

fail() {
    echo "FAILED on $LAB_HOST: $*" >&2
    [ -z "$daemon_log" ] || { echo "the daemon's log:"; tail -n 30 "$daemon_log"; } >&2
    exit 1
}

at_exit() {
    at_exit_status=$?
    trap - EXIT
    if [ -n "$daemon_pid" ]; then
        kill -TERM "$daemon_pid" 2>/dev/null || true
        wait "$daemon_pid" || true
    fi
    # The other host must not wait for something that will never be told.
    [ "$at_exit_status" -eq 0 ] || tell failed
    exit "$at_exit_status"
}
trap at_exit EXIT
trap 'exit 143' TERM

retry() {
    retry_end=$(($(uptime_ms) + $1 * 1000))
    shift
    until "$@" >/run/lab/retry 2>&1; do
        if [ "$(uptime_ms)" -gt "$retry_end" ]; then
            cat /run/lab/retry >&2
            fail "no success in time: $*"
        fi
        sleep 0.1
    done
}

# Named after the script as well, so that scripts of one boot don't hear each other.
tell() { : >"/share/.lab/told.${LAB_CASE:-command}.$1"; }
is_told() { [ -e "/share/.lab/told.${LAB_CASE:-command}.$1" ]; }

await() {
    await_end=$(($(uptime_ms) + ${2:-120} * 1000))
    until is_told "$1"; do
        ! is_told failed || fail "the other host failed"
        [ "$(uptime_ms)" -lt "$await_end" ] || fail "was not told in time: $1"
        sleep 0.1
    done
}

uptime_ms() {
    read -r uptime_s _ </proc/uptime
    echo "${uptime_s%.*}${uptime_s#*.}0"
}

peer() { [ "$LAB_HOSTS" -eq 1 ] && echo 10.0.0.1 || echo "10.0.0.$((3 - LAB_INDEX))"; }

start_daemon() {
    daemon_log=/tmp/rdcpd.log
    daemon_address=$1
    shift
    # Before it starts, lest the log of an earlier one say that it listens.
    : >"$daemon_log"
    # shellcheck disable=SC2086 # The prefix is several words.
    ${daemon_prefix:-} rdcpd --listen "$daemon_address" --auth none \
        --state-dir "${daemon_state:-/run/lab/rdcpd-state}" --log-format json "$@" 2>"$daemon_log" &
    daemon_pid=$!
    retry 60 daemon_listens
}

daemon_listens() {
    kill -0 "$daemon_pid" && grep -q '"message":"listening"' "$daemon_log"
}

stop_daemon() {
    kill -TERM "$daemon_pid"
    if wait "$daemon_pid"; then stopped=0; else stopped=$?; fi
    daemon_pid=
    [ "$stopped" -eq 0 ] || fail "rdcpd ended with $stopped"
}

# Eight times the same 8 MiB, because random bytes are slow here, but shifted each time: no two chunks
# are equal, so that one at a wrong place is found; and the last chunk is a short one.
make_source() {
    mkdir -p "$1/small"
    head -c 8388608 /dev/urandom >/tmp/random
    for part in 1 2 3 4 5 6 7 8; do
        echo "part $part"
        cat /tmp/random
    done >"$1/large"
    head -c 2048000 /tmp/random | (cd "$1/small" && split -b 4096 -a 3 - f)
    rm /tmp/random
    (cd "$1" && find . -type f -exec sha256sum {} +) >"$1.sums"
    [ "$(wc -l <"$1.sums")" -eq 501 ] || fail "the source has not 501 files"
}

check_digests() {
    (cd "$1" && sha256sum -c "$2.sums" >/run/lab/digests 2>&1) || {
        grep -v ': OK$' /run/lab/digests | head >&2
        fail "$1 differs from $2"
    }
    [ "$(find "$1" -type f | wc -l)" -eq "$(wc -l <"$2.sums")" ] || fail "$1 has other files too"
}

resources_released() { retry 60 resources_as_after_boot; }
resources_as_after_boot() {
    # Without the devices' numbers: one that was removed and added has another.
    sed 's/^[0-9]*: //' /run/lab/resources >/run/lab/resources.then
    rdma resource show | sed 's/^[0-9]*: //' >/run/lab/resources.now
    diff /run/lab/resources.then /run/lab/resources.now
}

# Locked and pinned memory of the daemon, and its RDMA objects.
held() {
    grep -E '^Vm(Lck|Pin)' "/proc/$daemon_pid/status"
    rdma resource show
}
# held_as_before: what it holds is what a case has put into /run/lab/held.
held_as_before() {
    held >/run/lab/held.now
    diff /run/lab/held /run/lab/held.now
}

# Fields 14 and 15 of stat(5), counted behind the name, which may have blanks. 100 ticks a second.
cpu_ms() {
    sed 's/.*) //' "/proc/$1/stat" | awk '{ print ($12 + $13) * 10 }'
}

expect_power_cut() { echo 0 >"/share/.lab/$LAB_HOST.exit"; }
cut_power() {
    echo b >/proc/sysrq-trigger
    sleep 60
    fail "power was not cut"
}

as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
