#!/bin/bash
# perftest moves bytes by RDMA writes of a chunk's size: on the loop-back of a device, and over a wire between two devices of one
# guest. The net device of the receiver counts the bytes on the wire. The speed is only printed, because other work shares this
# processor.
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
