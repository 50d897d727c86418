#!/bin/sh
# Connections by rdma_cm over each device: rping, whose server and client check each other's data.
# lab: hosts=1,2
. /lab/helpers.sh

for n in 0 1; do
    if [ "$LAB_HOST" = a ]; then
        rping -s -a "10.0.$n.1" -C 5 -v >/run/lab/server 2>&1 &
        server=$!
        retry 60 sh -c 'rdma resource show cm_id | grep -q "state LISTEN"'
        tell "listening$n"
    fi
    if [ "$LAB_HOSTS" -eq 1 ] || [ "$LAB_HOST" = b ]; then
        await "listening$n"
        rping -c -a "10.0.$n.1" -C 5 -v
    fi
    [ "$LAB_HOST" != a ] || wait "$server" || fail "rping's server"
done
resources_released
