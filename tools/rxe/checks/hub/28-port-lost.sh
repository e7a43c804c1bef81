#!/bin/bash
# Links move to another NIC, or to TCP, when a port reports during rounds that it is down for longer than its timeout. Its queue
# pairs do not fail. The port is first one of the hub's, then one of the worker's, then the only one of a worker that may use TCP,
# too. The results are exact, and rounds continue without the port. When the port is up again, the next job uses it. The hub
# reports which NICs carry bytes. Check 27 takes the links themselves down. This check has its own guests, because check 22
# changes addresses. guest: pair --cpus 3 --nics 2
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 180
like_hardware
export LIKE_EVENTS=/tmp/events LIKE_EVENTS_OF=rxe1
rm -f $LIKE_EVENTS
mkfifo $LIKE_EVENTS
# lose HOST N: reports that rxe1 is down, waits for the Nth reconnect of a worker to the hub of HOST, and waits for more rounds.
lose() {
    printf '\012' >$LIKE_EVENTS # 10, PORT_ERR
    within 40 relinked "$1" "$2"
    rounds_flow "$1" 7077
}
back() { printf '\011' >$LIKE_EVENTS; } # 9, PORT_ACTIVE
jobs_ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --cores 2 --transports verbs,tcp
    # carried_by NICS: whether exactly these NICs have carried bytes of the worker's links, both ways.
    carried_by() {
        [ "$(ask 127.0.0.1 7077 | jq -c '[.jobs[0].members[0].links[]? | select(.sent_bytes > 0 and .received_bytes > 0).nic]')" = "$1" ]
    }
    rounds_flow 127.0.0.1 7077
    within 20 carried_by '["rxe0","rxe1"]'
    lose 127.0.0.1 1
    within 20 carried_by '["rxe0"]'
    back
    # The next job uses both NICs.
    within 60 carried_by '["rxe0","rxe1"]'
    within 150 jobs_ended 4
    grep -F "rxe1 says IBV_EVENT_PORT_ERR" /tmp/hub
    [ "$(ask 127.0.0.1 7077 | jq .counts.relinks)" = 3 ]
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

# lost_here N COMMAND...: reports that rxe1 is down during the rounds of the command, and waits for the Nth reconnect.
lost_here() {
    local times=$1
    shift
    "$@" &
    rounds_flow "$PHUB_RXE_PEER" 7077
    lose "$PHUB_RXE_PEER" "$times"
    wait $!
}
lost_here 2 "${by_rdma[@]}" --job worker --rounds 300 >/tmp/report.1 2>/tmp/worker.1
jq -e '.checked and .transport == "verbs"' /tmp/report.1
grep -F "rxe1 says IBV_EVENT_PORT_ERR" /tmp/worker.1

"${by_rdma[@]}" --job after --rounds 3 >/tmp/report.2 2>/tmp/worker.2
jq -e '.checked and .transport == "verbs"' /tmp/report.2

# From the worker's rxe1 no wire leads to the hub's rxe0, so the hub serves both cores by its rxe1.
lost_here 3 "${run[@]}" --job tcp --nics =rxe1 --rounds 600 >/tmp/report.3 2>/tmp/worker.3
jq -e .checked /tmp/report.3
grep "; reconnected: " /tmp/worker.3 | grep "transport=tcp"
