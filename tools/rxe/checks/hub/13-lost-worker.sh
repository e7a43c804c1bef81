#!/bin/bash
# A worker's virtual machine loses its power in the middle of rounds. The errors of the other workers, one on shared memory and
# one on RDMA, name the rank of the lost worker. The hub then serves another job.
# guest: pair --nics 2 --kill-worker-when "rounds are flowing"
# build: bin phub-server
# build: bin phub-probe
# seconds: 90
# ci
model 300000
run=(phub-probe --manifest /tmp/model --rounds 1000000 --workers 3)
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    within 60 listens "$PHUB_RXE_PEER" 7077
    "${run[@]}" --hub "$PHUB_RXE_PEER:7077" --rank 1 &
    rounds_flow "$PHUB_RXE_PEER" 7077
    echo "rounds are flowing"
    wait
    exit 1 # the guest is killed before this
fi
serve --listen 0.0.0.0:7077 --heartbeat-limit-s 5
run+=(--hub "$PHUB_RXE_ADDRESS:7077")
"${run[@]}" --rank 0 --transport shm &>/tmp/worker.0 &
workers=($!)
"${run[@]}" --rank 2 --transport verbs &>/tmp/worker.2 &
workers+=($!)
for worker in "${workers[@]}"; do
    if wait "$worker"; then
        echo "a worker did not fail, although another worker is lost"
        exit 1
    fi
done
# The hub's NIC gives up after about four seconds, and the heartbeat limit is five seconds. On a busy host, the heartbeat limit
# may end first.
for rank in 0 2; do grep -E "worker 1 (is gone|was silent)" /tmp/worker.$rank; done
phub-probe --manifest /tmp/model --hub 127.0.0.1:7077 --job next --workers 1 --rank 0 --rounds 3 --transport verbs --json >/tmp/worker.next
jq -e .checked /tmp/worker.next
end_hub
