#!/bin/bash
# Every RoCE packet on the wire, both ways, has the traffic class of NCCL's variable. No packet is longer than the MTU of a flag
# that only the hub has. The packets are captured at the hub's NIC.
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
# Captures packets of UDP to port 4791. At the end, it prints for each direction (the kernel's kind 4 is outgoing) and type of
# service the number of packets, and the length of the longest.
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
trap 'kill $capture 2>/dev/null || true' EXIT # a capture that still runs would keep the output of this check open
within 60 grep -q listening /tmp/captured
serve --listen 0.0.0.0:7077 --nics =rxe0 --transports verbs --rdma-mtu 1024
within 90 grep -qF "all workers left" /tmp/hub
end_hub
kill $capture
wait $capture || true
cat /tmp/captured
[ "$(sed 1d /tmp/captured | cut -d ' ' -f 1-2 | xargs)" = "in 106 out 106" ]
# The length of a packet is 1024 bytes and its headers.
awk 'NR > 1 && ($3 < 100 || $4 < 1024 || $4 > 1024 + 100) { wrong = 1 } END { exit wrong }' /tmp/captured
