#!/bin/bash
# A hub in one virtual machine and two workers in another, with three wires between the machines: the workers choose RDMA by
# themselves. Each of the hub's NICs is paired with the workers' NIC on the same wire, all wires carry chunks, and every result
# is exact.
# guest: pair --nics 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 120
# ci
counted() { cat "/sys/class/net/nic$1/statistics/${2}_bytes"; }
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077
    within 90 grep -qF "all workers left" /tmp/hub
    end_hub
    exit
fi
within 60 listens "$PHUB_RXE_PEER" 7077
model 400000 17
for nic in 0 1 2; do for way in rx tx; do counted $nic $way; done; done >/tmp/before
run=(phub-probe --hub "$PHUB_RXE_PEER:7077" --workers 2 --rounds 3 --manifest /tmp/model --json)
"${run[@]}" --rank 0 >/tmp/report.0 &
other=$!
"${run[@]}" --rank 1 >/tmp/report.1
wait $other
for nic in 0 1 2; do for way in rx tx; do counted $nic $way; done; done >/tmp/after
jq -c '{transport, checked}' /tmp/report.0 /tmp/report.1
jq -e '.transport == "verbs" and .checked' /tmp/report.0
jq -e '.transport == "verbs" and .checked' /tmp/report.1
jq -r '.per_core[] | "cpu \(.cpu) \(.nic): \(.bytes) bytes"' /tmp/report.0
jq -e '[.per_core[].nic] | unique | length == 3' /tmp/report.0
# Two workers make three measured rounds. Each wire carries a third of 1.6 MB in each direction.
paste /tmp/before /tmp/after | awk '{ moved = $2 - $1; print "wire", int((NR - 1) / 2), NR % 2 ? "rx" : "tx", moved }
    moved < 0.75 * 2 * 3 * 1600000 / 3 { low = 1 } END { exit low }'
