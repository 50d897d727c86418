#!/bin/sh
# The devices of the lab are there and usable; netem, which other cases use, too.
# lab: hosts=1
# lab: libs=without kernels=6.12
. /lab/helpers.sh

for n in 0 1; do
    rdma link show "rxe$n/1" | grep -q 'state ACTIVE.*netdev net' || fail "rxe$n is not active"
    [ -c "/dev/infiniband/uverbs$n" ] || fail "rxe$n has no device node"
done
[ -c /dev/infiniband/rdma_cm ] || fail "no rdma_cm"

if [ -e /usr/bin/ibv_devinfo ]; then
    for n in 0 1; do
        ibv_devinfo -d "rxe$n" | grep -q PORT_ACTIVE || fail "ibv_devinfo does not find rxe$n active"
    done
else
    # Where they are left out, no program of the lab may have brought them along.
    [ -z "$(find / -xdev -name 'libibverbs*' -o -xdev -name 'librdmacm*')" ] || fail "RDMA libraries"
fi

tc qdisc add dev net1 root netem delay 5ms loss 1%
tc qdisc show dev net1 | grep -q 'netem.*loss 1%' || fail "no netem"
tc qdisc del dev net1 root
resources_released
