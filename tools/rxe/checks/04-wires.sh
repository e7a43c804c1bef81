#!/bin/bash
# Two guests reach each other on every wire, by RDMA and by TCP; and a wire that is cut is down at its own end only.
# guest: pair --nics 2
set -eu -o pipefail
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    for i in 0 1; do
        ib_write_bw -d "rxe$i" -s 32768 -n 50 -F -p "1900$i" 2>&1 | sed "s/^/rxe$i /" &
    done
    wait -n
    wait -n
else
    for i in 0 1; do
        until ib_write_bw -d "rxe$i" -s 32768 -n 50 -F -p "1900$i" "10.77.$i.1" >"/tmp/$i" 2>&1; do sleep 0.2; done
        grep -E "^ *32768 +50 +[1-9]" "/tmp/$i"
    done
    ip link set nic1 down
    ibv_devinfo -d rxe1 | grep PORT_DOWN
    ibv_devinfo -d rxe0 | grep PORT_ACTIVE
    ip link set nic1 up
    ibv_devinfo -d rxe1 | grep PORT_ACTIVE
fi
