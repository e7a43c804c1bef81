#!/bin/bash
# perftest moves bytes by RDMA writes of a chunk's size. The transfers are on a device's own loop-back, and between two devices
# of one virtual machine that a wire joins. The second transfer really uses the wire: the receiver's network interface has
# counted the bytes. The speed is only logged, because other programs share this processor.
# guest: one --nics 2 --join
for client in "-d rxe0 127.0.0.1" "-d rxe1 10.77.0.1"; do
    ib_write_bw -d rxe0 -s 32768 -n 200 -F 2>&1 | sed "s/^/server /" &
    server=$!
    # shellcheck disable=SC2086
    write_bw -s 32768 -n 200 -F $client | tee /tmp/client
    wait $server
    moved 200 /tmp/client
done
received=$(cat /sys/class/net/nic0/statistics/rx_bytes)
echo "nic0 has received $received bytes"
[ "$received" -gt $((32768 * 200)) ]
