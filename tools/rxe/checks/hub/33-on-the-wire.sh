#!/bin/bash
# Every RoCE packet on the wire has the traffic class that NCCL's variable names, in both directions. No packet is longer than
# the MTU, which only the hub gets, by a flag. Packets are captured at the hub's NIC.
# guest: pair --nics 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 120
export NCCL_IB_TC=106
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    within 60 listens "$PHUB_RXE_PEER" 7077
    model 300000
    phub-probe --hub "$PHUB_RXE_PEER:7077" --transport verbs --nics =rxe0 --workers 1 --rank 0 --rounds 3 --manifest /tmp/model --json >/tmp/report
    jq -e '.checked and .transport == "verbs"' /tmp/report
    exit
fi
# The output has, for UDP to port 4791: direction (4 is outgoing), type of service, number of packets, and the
# length of the longest.
cat >/tmp/capture.py <<'PYTHON'
import collections, signal, socket, sys

packets = collections.Counter()
longest = collections.Counter()
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
wire.bind(("nic0", 3))
print("listening", flush=True)
try:
    while True:
        packet, (_, _, kind, _, _) = wire.recvfrom(64)
        if packet[:1] == b"\x45" and packet[9] == 17 and packet[22:24] == (4791).to_bytes(2, "big"):
            key = kind == 4, packet[1]
            packets[key] += 1
            longest[key] = max(longest[key], int.from_bytes(packet[2:4], "big"))
finally:
    for (outgoing, service), count in sorted(packets.items()):
        print("out" if outgoing else "in", service, count, longest[outgoing, service])
PYTHON
python3 /tmp/capture.py >/tmp/captured &
capture=$!
trap 'kill $capture 2>/dev/null || true' EXIT # a capture that still runs would keep this check's output open
within 60 grep -q listening /tmp/captured
serve --listen 0.0.0.0:7077 --nics =rxe0 --transports verbs --rdma-mtu 1024
within 90 grep -qF "all workers left" /tmp/hub
end_hub
kill $capture
wait $capture || true
cat /tmp/captured
[ "$(sed 1d /tmp/captured | cut -d ' ' -f 1-2 | xargs)" = "in 106 out 106" ]
# A packet has its headers in addition to 1024 bytes.
awk 'NR > 1 && ($3 < 100 || $4 < 1024 || $4 > 1024 + 100) { wrong = 1 } END { exit wrong }' /tmp/captured
