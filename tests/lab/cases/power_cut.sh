#!/bin/sh
# Power is lost between the last byte of a file and its name, at many moments, on ext4 and xfs: after the
# next boot the name has what it had before, or all of the new content; and the same command ends it well.
# POWER_CUTS in the environment is their number.
# lab: hosts=1 kernels=6.12 disks=ext4+xfs power=cut long=yes
. /lab/helpers.sh

cuts=${POWER_CUTS:-40}
kib=49152
from=/tmp/export
# What has to outlast the power.
state=/share/power_cut
mkdir -p "$state"

told() { cat "$state/$1" 2>/dev/null || echo "${2:-0}"; }
count() { echo $(($(told "$1") + 1)) >"$state/$1"; }
sum() { sha256sum <"$1" | cut -c 1-64; }
# No function: started in the background, that would be a shell, and not the program whose bytes count.
pull="rdcp pull --accept-new --json rdcp://10.0.0.1/data/file"
# The kernel's count of bytes that a program has written has all of the file, or it has ended.
has_written_all() {
    grep -q '^State:.[ZX]' "/proc/$1/status" 2>/dev/null && return 0
    written=$(sed -n 's/^write_bytes: //p' "/proc/$1/io" 2>/dev/null)
    [ "${written:-$((kib * 1024))}" -ge $((kib * 1024)) ]
}

mkdir -p $from
rdma_hostile make=$from/file seed=1 kib=$kib
rdma_hostile make=/tmp/older seed=2 kib=$kib
new=$(sum $from/file)
old=$(sum /tmp/older)
start_daemon 10.0.0.1:20471 --export data=$from

for fs in ext4 xfs; do
    copy=/mnt/$fs/copies/file
    [ -e "$state/begun" ] || continue
    # Only one was waited for; the other was cut anywhere.
    if [ ! -e "$copy" ]; then
        [ "$(told before)" = absent ] || fail "$fs, cut $(told cut): the older version is lost"
        count absent
    elif [ "$(sum "$copy")" = "$new" ]; then
        count new
    elif [ "$(told before)" = older ] && [ "$(sum "$copy")" = "$old" ]; then
        count older
    else
        fail "$fs, cut $(told cut): neither the new nor the older version"
    fi
    $pull "/mnt/$fs/copies/" >/tmp/pull 2>&1 || { cat /tmp/pull >&2; fail "$fs, cut $(told cut): the same command again"; }
    [ "$(sum "$copy")" = "$new" ] || fail "$fs, cut $(told cut): a wrong file"
    ! grep -q '"bytes_resumed":[1-9]' /tmp/pull || count resumed
    [ "$(find "/mnt/$fs/copies" -type f | wc -l)" -eq 1 ] || fail "$fs: leftovers: $(ls -A "/mnt/$fs/copies")"
done

if [ "$(told cut)" -ge "$cuts" ]; then
    echo "$(told cut) cuts: absent $(told absent), older $(told older), new $(told new); resumed $(told resumed)"
    [ $(($(told absent) + $(told older) + $(told new))) -eq $((2 * cuts)) ] || fail "not all were judged"
    stop_daemon
    exit 0
fi

count cut
cut=$(told cut)
[ $((cut % 4)) -lt 2 ] && before=absent || before=older
echo "$before" >"$state/before"
for fs in ext4 xfs; do
    mkdir -p "/mnt/$fs/copies"
    rm -f "/mnt/$fs/copies/file"
    [ "$before" = absent ] || cp /tmp/older "/mnt/$fs/copies/file"
done
sync
watched=$([ $((cut % 2)) -eq 0 ] && echo ext4 || echo xfs)
if [ ! -e "$state/lasts_ms" ]; then
    # How long it takes from the last byte to the name, nothing being cut; the other one runs as well.
    $pull /mnt/xfs/copies/ >/tmp/other 2>&1 &
    other_pid=$!
    $pull /mnt/ext4/copies/ >/tmp/pull 2>&1 &
    pull_pid=$!
    until has_written_all "$pull_pid"; do :; done
    begun_ms=$(uptime_ms)
    wait "$pull_pid"
    echo $(($(uptime_ms) - begun_ms)) >"$state/lasts_ms"
    wait "$other_pid"
    rm -f /mnt/ext4/copies/file /mnt/xfs/copies/file
    sync
fi
touch "$state/begun"
expect_power_cut
[ "$watched" = ext4 ] && other=xfs || other=ext4
$pull "/mnt/$other/copies/" >/tmp/other 2>&1 &
$pull "/mnt/$watched/copies/" >/tmp/pull 2>&1 &
pull_pid=$!
until has_written_all "$pull_pid"; do :; done
# From the last byte on until a bit after the name is there, in even steps, each twice.
pause_ms=$(($(told lasts_ms) * 11 * ((cut - 1) / 2) / (cuts / 2) / 10))
sleep "$(printf '%d.%03d' $((pause_ms / 1000)) $((pause_ms % 1000)))"
cut_power
