#!/bin/bash
# A guest that loses its power in the middle of a transfer: the writer at the other end is told by its NIC, with
# status 12, transport retry counter exceeded. By the RDMA connection manager, where perftest's count of retries
# can be set: it otherwise asks for 7, which rxe takes for no limit.
# guest: pair --nics 1 --kill-worker-when "bytes are flowing"
set -eu -o pipefail
write=(-R --retry_count=6 -d rxe0 -s 32768 -F --run_infinitely)
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    ib_write_bw "${write[@]}" &
    until [ "$(cat /sys/class/net/nic0/statistics/rx_bytes)" -gt 1000000 ]; do sleep 0.1; done
    echo "bytes are flowing"
    wait
    exit 1 # killed before
fi
if bash tools/rxe/write-bw.sh "${write[@]}" "$PHUB_RXE_PEER" >/tmp/writer 2>&1; then
    echo "the writer heard of nothing:"
    cat /tmp/writer
    exit 1
fi
tail -n 5 /tmp/writer
grep -q "status 12" /tmp/writer
