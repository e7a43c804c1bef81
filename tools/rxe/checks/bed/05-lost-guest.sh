#!/bin/bash
# A guest (a virtual machine) loses its power in the middle of a transfer. The NIC of the writer at the other end reports status
# 12, transport retry counter exceeded. The check uses the RDMA connection manager, because perftest can then set the count of
# retries. The default of 7 has no limit in rxe.
# guest: pair --nics 1 --kill-worker-when "bytes are flowing"
write=(-R --retry_count=6 -d rxe0 -s 32768 -F --run_infinitely)
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    ib_write_bw "${write[@]}" &
    received() { [ "$(cat /sys/class/net/nic0/statistics/rx_bytes)" -gt 1000000 ]; }
    within 60 received
    echo "bytes are flowing"
    wait
    exit 1 # the guest is killed before this
fi
if write_bw "${write[@]}" "$PHUB_RXE_PEER" >/tmp/writer 2>&1; then
    echo "the writer got no error:"
    cat /tmp/writer
    exit 1
fi
tail -n 5 /tmp/writer
grep -q "status 12" /tmp/writer
