#!/bin/bash
# `phub-server doctor --peer` on one machine measures the path to a hub on another. It reports the path MTU, the speed by TCP,
# and both pairs of NICs. The hub writes checkpoints, but has no checkpoint of the doctor's job afterwards.
# guest: pair --nics 2 --cpus 3
# build: bin phub-server
# seconds: 120
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    phub-server serve --listen 0.0.0.0:7079 --cores 2 --checkpoints /tmp/kept &>/tmp/hub.peer &
    hub=$!
    trap 'cat /tmp/hub.peer; kill $hub 2>/dev/null || true' EXIT
    within 100 grep -q 'job="phub-doctor-2".*all workers left\|all workers left.*job="phub-doctor-2"' /tmp/hub.peer
    [ -z "$(find /tmp/kept -name '*phub-doctor*')" ]
    exit
fi
within 60 listens "$PHUB_RXE_PEER" 7079
phub-server doctor --listen 127.0.0.1:0 --peer "$PHUB_RXE_PEER:7079" | tee /tmp/said
grep -E "^pass  path MTU to .* 4200 bytes: a packet of this size arrived at the peer" /tmp/said
# An emulated processor may serve one NIC twice as fast as the other. The line rate of soft-RoCE is nominal.
grep -E "^(pass|note|warn)  RDMA to .*rxe0.*1 links, .* GB/s.*, each way [0-9]+ % of a line rate of [0-9.]+ Gb/s" /tmp/said
grep -E "^ +.*rxe1.*1 links, .* GB/s.*, each way [0-9]+ % of a line rate of [0-9.]+ Gb/s" /tmp/said
