#!/bin/bash
# A NIC is lost in the middle of rounds for longer than its grace: first one of the hub's, then one of the worker's, each with its
# link taken down. The lane's links move to the other NIC, and the results are exact. The NIC comes back while the job goes on, and
# the next job uses it.
# guest: pair --nics 2 --cpus 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 420
# relinked HOST N: whether workers of the hub there have made their links again so often.
relinked() { [ "$(ask "$1" 7077 | jq .counts.relinks)" -ge "$2" ]; }
# lose HOST N: takes nic1 down, and waits until workers of the hub there have made their links again so often. A queue pair of soft-RoCE
# (Linux 6.1) hands packets to an interface that is down for ever, by the route that it remembers: the kernel forgets it.
lose() {
    ip link set nic1 down
    ip route flush cache
    within 60 relinked "$1" "$2"
}
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --cores 2 --transports verbs
    rounds_flow 127.0.0.1 7077
    lose 127.0.0.1 1
    rounds_flow 127.0.0.1 7077
    ip link set nic1 up
    jobs_ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
    within 330 jobs_ended 3
    grep -F "a worker has made its links again" /tmp/hub
    end_hub
    exit
fi
trap 'cat /tmp/worker.*' EXIT
within 60 listens "$PHUB_RXE_PEER" 7077
model 60000 60000
run=(phub-probe --hub "$PHUB_RXE_PEER:7077" --transport verbs --hub-wait-s 60 --workers 1 --rank 0 --manifest /tmp/model --json)

"${run[@]}" --job hub --rounds 300 >/tmp/report.0 2>/tmp/worker.0
jq -e '.checked and .transport == "verbs"' /tmp/report.0
before=$(ask "$PHUB_RXE_PEER" 7077 | jq .counts.relinks)

"${run[@]}" --job worker --rounds 300 >/tmp/report.1 2>/tmp/worker.1 &
probe=$!
rounds_flow "$PHUB_RXE_PEER" 7077
lose "$PHUB_RXE_PEER" $((before + 1))
rounds_flow "$PHUB_RXE_PEER" 7077
ip link set nic1 up
wait $probe
jq -e '.checked and .transport == "verbs"' /tmp/report.1

"${run[@]}" --job after --rounds 3 >/tmp/report.2 2>/tmp/worker.2
jq -e '.checked and [.per_core[].nic] == ["rxe0", "rxe1"]' /tmp/report.2
