#!/bin/bash
# A port reports in the middle of rounds that it is down, and stays down until its links are given up. Its queue pairs never
# fail. The port is first one of the hub's ports, then one of a worker's two ports, then the only port of a worker that may also
# use TCP.
#
# The links of the lane move to the other NIC, or to TCP, and the results are exact. Rounds continue without
# the port, and the next job uses the port when it is back. The hub reports which NICs carry bytes.
#
# Check 27 takes the NICs' interfaces down. This check runs in its own guests (virtual machines), because check 22 changes
# addresses in its guests.
# guest: pair --cpus 3 --nics 2
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 180
like_hardware
export LIKE_EVENTS=/tmp/events LIKE_EVENTS_OF=rxe1
rm -f $LIKE_EVENTS
mkfifo $LIKE_EVENTS
# lose HOST N: reports that rxe1 is down. Waits until workers of the hub at HOST have reconnected N times, and rounds continue.
lose() {
    printf '\012' >$LIKE_EVENTS # 10, PORT_ERR
    within 40 relinked "$1" "$2"
    rounds_flow "$1" 7077
}
back() { printf '\011' >$LIKE_EVENTS; } # 9, PORT_ACTIVE
jobs_ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --cores 2 --transports verbs,tcp
    # carried_by NICS: returns whether exactly these NICs have carried bytes of the worker's links in both
    # directions.
    carried_by() {
        [ "$(ask 127.0.0.1 7077 | jq -c '[.jobs[0].members[0].links[]? | select(.sent_bytes > 0 and .received_bytes > 0).nic]')" = "$1" ]
    }
    rounds_flow 127.0.0.1 7077
    within 20 carried_by '["rxe0","rxe1"]'
    lose 127.0.0.1 1
    within 20 carried_by '["rxe0"]'
    back
    # The next job.
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

# lost_here N COMMAND...: runs the command, and reports during its rounds that rxe1 is down. Waits for the N-th reconnect, and
# for the end of the command.
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

# The NIC rxe1 of this worker cannot reach the hub's rxe0, so the hub serves both cores by its rxe1.
lost_here 3 "${run[@]}" --job tcp --nics =rxe1 --rounds 600 >/tmp/report.3 2>/tmp/worker.3
jq -e .checked /tmp/report.3
grep "; reconnected: " /tmp/worker.3 | grep "transport=tcp"
