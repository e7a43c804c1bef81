#!/bin/bash
# A worker's guest loses its power in the middle of rounds: the other workers, one on shared memory and one on RDMA, are told
# which rank is gone, and the hub takes another job.
# guest: pair --nics 2 --kill-worker-when "rounds are flowing"
# build: bin phub-server
# build: bin phub-probe
# seconds: 90
set -eu -o pipefail
bash tools/rxe/model.sh /tmp/model 300000
run=(phub-probe --manifest /tmp/model --rounds 1000000 --workers 3)
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    bash tools/rxe/await.sh "$PHUB_RXE_PEER" 7077
    "${run[@]}" --hub "$PHUB_RXE_PEER:7077" --rank 1 &
    bash tools/rxe/chunks.sh "$PHUB_RXE_PEER" 7077 50
    echo "rounds are flowing"
    wait
    exit 1 # killed before
fi
phub-server serve --listen 0.0.0.0:7077 --heartbeat-limit-s 5 &>/tmp/hub &
hub=$!
trap 'kill $(jobs -p) 2>/dev/null || true; cat /tmp/hub /tmp/worker.*' EXIT
bash tools/rxe/await.sh 127.0.0.1 7077
run+=(--hub "$PHUB_RXE_ADDRESS:7077")
"${run[@]}" --rank 0 --transport shm &>/tmp/worker.0 &
workers=($!)
"${run[@]}" --rank 2 --transport verbs &>/tmp/worker.2 &
workers+=($!)
for worker in "${workers[@]}"; do
    if wait "$worker"; then
        echo "a worker was not told that another is lost"
        exit 1
    fi
done
# The NIC gives up after about four seconds, the heartbeats' limit is five: on a busy host either may come first.
for rank in 0 2; do grep -E "worker 1 (is gone|was silent)" /tmp/worker.$rank; done
phub-probe --manifest /tmp/model --hub 127.0.0.1:7077 --job next --workers 1 --rank 0 --rounds 3 --transport verbs --json >/tmp/worker.next
jq -e .checked /tmp/worker.next
kill $hub
wait $hub
