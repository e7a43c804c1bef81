#!/bin/bash
# Two devices of one guest, joined by a wire, reach each other over that wire and not over the loop-back: the
# net device of the receiver has counted the bytes.
# guest: one --nics 2 --join
set -eu -o pipefail
ib_write_bw -d rxe0 -s 32768 -n 50 -F 2>&1 | sed "s/^/rxe0 /" &
receiver=$!
bash tools/rxe/write-bw.sh -d rxe1 -s 32768 -n 50 -F 10.77.0.1 | tee /tmp/sender
wait $receiver
grep -Eq "^ *32768 +50 +[1-9]" /tmp/sender
received=$(cat /sys/class/net/nic0/statistics/rx_bytes)
echo "nic0 has received $received bytes"
[ "$received" -gt $((32768 * 50)) ]
