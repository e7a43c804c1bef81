#!/bin/bash
# A NIC goes down in the middle of rounds and stays down. The job fails with the name of a worker, and the hub
# or a worker names the NIC and the status of a write. The hub keeps running, and the next job uses the other
# NIC.
#
# Here hub and workers use the same NIC, so the first process that notices the loss ends the links of the other processes.
# guest: one --nics 2
# build: bin phub-server
# build: bin phub-probe
# seconds: 90
# ci
model 300000
serve
run=(phub-probe --hub 127.0.0.1:7077 --transport verbs --manifest /tmp/model)
workers=()
for rank in 0 1; do
    "${run[@]}" --job doomed --workers 2 --rank $rank --rounds 1000000 &>/tmp/worker.$rank &
    workers+=($!)
done
rounds_flow 127.0.0.1 7077
ip link set nic1 down
for rank in 0 1; do
    if wait "${workers[rank]}"; then
        echo "worker $rank did not fail"
        exit 1
    fi
    grep "worker [01] is gone" /tmp/worker.$rank
done
grep "worker [01] is gone" /tmp/hub
grep -hE "by NIC rxe1, completed with [a-z ]+(error|exceeded)" /tmp/hub /tmp/worker.*
"${run[@]}" --job next --workers 1 --rank 0 --rounds 3 --json >/tmp/worker.next
jq -e '.checked and .transport == "verbs"' /tmp/worker.next
jq -e '[.per_core[] | select(.bytes > 0) | .nic] == ["rxe0"]' /tmp/worker.next
end_hub
# The following checks need both NICs.
ip link set nic1 up
within 60 grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state
