#!/bin/bash
# Two virtual machines reach each other on every wire, by TCP and by RDMA. A hub's control port answers a request over TCP from
# the other machine. If an interface is set down, only its own RDMA device goes down.
# guest: pair --nics 2
# build: bin phub-server
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    phub-server serve --listen "$PHUB_RXE_ADDRESS:7077" &
    hub=$!
    writers=()
    for i in 0 1; do
        ib_write_bw -d "rxe$i" -s 32768 -n 50 -F -p "1900$i" 2>&1 | sed "s/^/rxe$i /" &
        writers+=($!)
    done
    for writer in "${writers[@]}"; do wait "$writer"; done
    end_hub
    exit
fi
within 60 listens "$PHUB_RXE_PEER" 7077
ask "$PHUB_RXE_PEER" 7077 | jq -c .
for i in 0 1; do
    write_bw -d "rxe$i" -s 32768 -n 50 -F -p "1900$i" "10.77.$i.1" | tee "/tmp/$i"
    moved 50 "/tmp/$i"
done
ip link set nic1 down
ibv_devinfo -d rxe1 | grep PORT_DOWN
ibv_devinfo -d rxe0 | grep PORT_ACTIVE
ip link set nic1 up
ibv_devinfo -d rxe1 | grep PORT_ACTIVE
