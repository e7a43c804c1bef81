#!/bin/bash
# Every RDMA device is active with the largest MTU, and has a GID of RoCE v2 with the address of its NIC.
# guest: one
# guest: one --numa --nics 4
# guest: one --numa --nics 10
# ci
[ "$(find /sys/class/infiniband/ -name 'rxe*' | wc -l)" = "$PHUB_RXE_NICS" ]
for ((i = 0; i < PHUB_RXE_NICS; i++)); do
    info=$(ibv_devinfo -v -d "rxe$i")
    for wanted in "state:.*PORT_ACTIVE" "active_mtu:.*4096" "link_layer:.*Ethernet" "::ffff:10.77.$i.$PHUB_RXE_SIDE, RoCE v2"; do
        if ! grep -q "$wanted" <<<"$info"; then
            echo "rxe$i: ibv_devinfo has no '$wanted' in"
            echo "$info"
            exit 1
        fi
    done
    echo "rxe$i: active, MTU 4096, 10.77.$i.$PHUB_RXE_SIDE"
done
