#!/bin/bash
# Forty workers join a job at the same time by RDMA, and each registration takes eight seconds longer at both
# ends. More than 32 handshakes are in progress at the same time, all workers join, and every result is exact.
# guest: one --memory 4096
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 300
like_hardware
model 20000
workers=40
printf "%s delay 8000\n" ibv_reg_mr ibv_reg_mr_iova2 >/tmp/faults
export LIKE_FAULTS=/tmp/faults
LIKE_LOG=/tmp/verbs.hub serve --transports verbs --listen 127.0.0.1:7077 --cores 1
for ((rank = 0; rank < workers; rank++)); do
    phub-probe --hub 127.0.0.1:7077 --transport verbs --workers $workers --rank $rank --manifest /tmp/model --rounds 2 --json \
        >/tmp/report.$rank 2>/tmp/worker.$rank &
    pids[rank]=$!
done
for pid in "${pids[@]}"; do wait "$pid"; done
[ "$(cat /tmp/report.* | jq -s '[.[] | select(.checked and .transport == "verbs")] | length')" = $workers ]
# For each worker, the hub registers the weights (access 0) and then the gradients. Between the two, the handshake is in
# progress.
most=$(awk '/access=0$/ { most = ++n > most ? n : most } /access=1048579$/ { n-- } END { print most }' /tmp/verbs.hub)
echo "$most handshakes at once"
[ "$most" -gt 32 ]
# A completion queue grows only in handshakes, and doubles each time.
echo "the hub resized its queue $(grep -c "^resize" /tmp/verbs.hub) times for $(grep -c "^make" /tmp/verbs.hub) queue pairs"
end_hub
