#!/bin/bash
# perftest moves bytes by RDMA writes of a chunk's size, on a device's own loop-back. Its speed is only for the log,
# because others share this processor.
# guest: one
set -eu -o pipefail
ib_write_bw -d rxe0 -s 32768 -n 200 -F 2>&1 | sed "s/^/server /" &
server=$!
bash tools/rxe/write-bw.sh -d rxe0 -s 32768 -n 200 -F 127.0.0.1 | tee /tmp/client
wait $server
grep -Eq "^ *32768 +200 +[1-9]" /tmp/client
