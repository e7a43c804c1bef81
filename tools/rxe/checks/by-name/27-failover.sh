#!/bin/bash
# A NIC is lost in the middle of rounds for longer than its queue pairs retry, as in check 28, but here the
# NIC's interface is taken down. Soft-RoCE (Linux 6.1) has to notice the loss. Soft-RoCE may take 50 s to
# destroy a queue pair whose packets are in flight. In one run, the virtual machine's kernel crashed when such
# a packet was freed afterwards.
# guest: pair --nics 2 --cpus 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 480

# lose HOST N: takes nic1 down, and waits until workers of the hub at HOST have reconnected N times.
lose() {
    ip link set nic1 down
    within 120 relinked "$1" "$2"
}
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --cores 2 --transports verbs,tcp
    rounds_flow 127.0.0.1 7077
    lose 127.0.0.1 1
    rounds_flow 127.0.0.1 7077
    ip link set nic1 up
    jobs_ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
    within 400 jobs_ended 4
    grep -F "worker reconnected" /tmp/hub
    end_hub
    exit
fi
trap 'cat /tmp/worker.*' EXIT
within 60 listens "$PHUB_RXE_PEER" 7077
model 60000 60000
run=(phub-probe --hub "$PHUB_RXE_PEER:7077" --hub-wait-s 60 --workers 1 --rank 0 --manifest /tmp/model --json)
by_rdma=("${run[@]}" --transport verbs)

"${by_rdma[@]}" --job hub --rounds 300 >/tmp/report.0 2>/tmp/worker.0
jq -e '.checked and .transport == "verbs"' /tmp/report.0
before=$(ask "$PHUB_RXE_PEER" 7077 | jq .counts.relinks)

# lost_here COMMAND...: loses nic1 while the command's rounds flow, and brings it back after the command has
# ended.
lost_here() {
    "$@" &
    rounds_flow "$PHUB_RXE_PEER" 7077
    before=$((before + 1))
    lose "$PHUB_RXE_PEER" "$before"
    rounds_flow "$PHUB_RXE_PEER" 7077
    wait $!
    ip link set nic1 up
}
lost_here "${by_rdma[@]}" --job worker --rounds 300 >/tmp/report.1 2>/tmp/worker.1
jq -e '.checked and .transport == "verbs"' /tmp/report.1

"${by_rdma[@]}" --job after --rounds 3 >/tmp/report.2 2>/tmp/worker.2
jq -e '.checked and .transport == "verbs"' /tmp/report.2

lost_here "${run[@]}" --job tcp --nics =rxe1 --rounds 1000 >/tmp/report.3 2>/tmp/worker.3
jq -e .checked /tmp/report.3
grep "; reconnected: " /tmp/worker.3 | grep "transport=tcp"
