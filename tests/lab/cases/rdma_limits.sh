#!/bin/sh
# Too little locked memory: forced RDMA ends at once with 10 and says what raises the limit; otherwise the
# copy goes by tcp and says why. At either end, for pull and push.
# lab: hosts=1 kernels=6.12 long=yes
. /lab/helpers.sh

export_url=rdcp://10.0.0.1/data
output=/run/lab/limited
home=/tmp/nobody
mkdir -p /tmp/export "$home"
chmod 777 /tmp/export "$home"
head -c 3000000 /dev/urandom >/tmp/export/file
cp /tmp/export/file "$home/file"
chmod 644 /tmp/export/file "$home/file"

# limited KIB ARG...: rdcp as nobody with so much locked memory; its exit status is left in $status.
limited() {
    limit=$1
    shift
    # shellcheck disable=SC2016 # The inner shell's words.
    if as_nobody env HOME="$home" sh -c 'ulimit -l "$0"; exec rdcp "$@"' "$limit" "$@" \
        --accept-new >"$output" 2>&1; then status=0; else status=$?; fi
}
ended_with() {
    [ "$status" -eq "$1" ] || { cat "$output" >&2 && fail "rdcp ended with $status, not with $1"; }
}
says() { grep -q "$1" "$output" || { cat "$output" >&2 && fail "it does not say: $1"; }; }
explains() {
    says "RLIMIT_MEMLOCK) is $1 KiB"
    says 'memlock unlimited'
    says 'LimitMEMLOCK=infinity'
}

# forced LIMIT KIB: as the limit is here, and as it is where it is too low.
forced() {
    for way in pull push; do
        rm -f "$home/copy" /tmp/export/copy
        case $way in
            pull) limited "$1" pull --transport rdma "$export_url/file" "$home/copy" ;;
            push) limited "$1" push --transport rdma "$home/file" "$export_url/copy" ;;
        esac
        ended_with 10
        explains "$2"
    done
}
by_itself() {
    for way in pull push; do
        rm -f "$home/copy" /tmp/export/copy
        case $way in
            pull) limited "$1" pull --json "$export_url/file" "$home/copy" ;;
            push) limited "$1" push --json "$home/file" "$export_url/copy" ;;
        esac
        ended_with 0
        says '"type":"summary".*"transport":"tcp"'
        says '"bytes_by_transport":{"tcp":[1-9][0-9]*,"rdma":0}'
        explains "$2"
        [ "$way" = pull ] && cmp /tmp/export/file "$home/copy"
        [ "$way" = push ] && cmp "$home/file" /tmp/export/copy
        true
    done
}

# The client has too little: none at all that is of use, and not enough for one connection.
start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
forced 64 64
by_itself 64 64
forced 8192 8192
rm -f "$home/copy"
limited 64 pull -v "$export_url/file" "$home/copy"
ended_with 0
says 'transport="tcp".*RLIMIT_MEMLOCK'
stop_daemon
resources_released

# The server has.
cat >/tmp/limited <<'EOF'
#!/bin/sh
ulimit -l 64
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
EOF
chmod 755 /tmp/limited
daemon_prefix=/tmp/limited
export daemon_state=/run/lab/rdcpd-state-of-nobody
rm -rf $daemon_state "$home/.config"
mkdir -m 700 $daemon_state
chown 65534:65534 $daemon_state
start_daemon 10.0.0.1:20471 --export data=/tmp/export:rw
forced unlimited 64
says 'the server: rxe'
by_itself unlimited 64
stop_daemon
export daemon_prefix=""
export daemon_state=""
resources_released
rm -rf /tmp/export "$home" /run/lab/rdcpd-state-of-nobody /tmp/limited
