#!/bin/bash
# perftest moves bytes by RDMA writes in chunks' size, on a device's own loop-back. What it says of the speed is
# for the log: others share this processor.
# guest: one
set -eu -o pipefail
ib_write_bw -d rxe0 -s 32768 -n 200 -F >/tmp/server 2>&1 &
server=$!
# The first client that finds the server ready.
until ib_write_bw -d rxe0 -s 32768 -n 200 -F 127.0.0.1 >/tmp/client 2>&1; do
    kill -0 $server || { cat /tmp/server /tmp/client; exit 1; }
    sleep 0.1
done
wait $server
cat /tmp/client
grep -Eq "^ *32768 +200 +[1-9]" /tmp/client
