#!/bin/bash
# A guest loses its power during a transfer: the NIC of the writer in the other guest reports status 12, transport retry counter
# exceeded. The check uses the RDMA connection manager, because only with it perftest's count of retries can be set. The default
# is 7, which means no limit in rxe.
# guest: pair --nics 1 --kill-worker-when "bytes are flowing"
write=(-R --retry_count=6 -d rxe0 -s 32768 -F --run_infinitely)
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    ib_write_bw "${write[@]}" &
    received() { [ "$(cat /sys/class/net/nic0/statistics/rx_bytes)" -gt 1000000 ]; }
    within 60 received
    echo "bytes are flowing"
    wait
    exit 1 # the guest must be killed before
fi
if write_bw "${write[@]}" "$PHUB_RXE_PEER" >/tmp/writer 2>&1; then
    echo "the writer got no error:"
    cat /tmp/writer
    exit 1
fi
tail -n 5 /tmp/writer
grep -q "status 12" /tmp/writer
