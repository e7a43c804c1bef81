#!/bin/bash
# A port goes down in the middle of rounds, and is up again before its queue pairs give up. The hub gets PORT_ERR. Its packets
# reach nobody until the NIC has sent a packet again, and then the hub gets PORT_ACTIVE. The job continues, and its results are
# exact. GET /v1/hub has the NIC's number of retries. In the next job the device reports DEVICE_FATAL: the job ends, and the
# hub's log names the device.
# guest: pair --nics 2 --cpus 3
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 120
# ci
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    trap 'cat /tmp/worker.* 2>/dev/null || true' EXIT
    within 60 listens "$PHUB_RXE_PEER" 7077
    model 300000
    run=(phub-probe --hub "$PHUB_RXE_PEER:7077" --transport verbs --nics =rxe0 --workers 1 --rank 0 --manifest /tmp/model --json)
    "${run[@]}" --rounds 60 >/tmp/report 2>/tmp/worker.0
    jq -e '.checked and .transport == "verbs"' /tmp/report
    if "${run[@]}" --job doomed --rounds 1000000 >/dev/null 2>/tmp/worker.1; then exit 1; fi
    exit
fi
like_hardware
export LIKE_EVENTS=/tmp/events
rm -f $LIKE_EVENTS
mkfifo $LIKE_EVENTS
serve --listen 0.0.0.0:7077 --nics =rxe0 --cores 2 --transports verbs
rounds_flow 127.0.0.1 7077
retries() { ask 127.0.0.1 7077 | jq '.nics[0].counters.completer_retry_err'; }
before=$(retries)
peer=$(ip neighbour show to "$PHUB_RXE_PEER" dev nic0 | sed 's/.*lladdr \([0-9a-f:]*\).*/\1/')
printf '\012' >$LIKE_EVENTS # 10, PORT_ERR
ip neighbour replace "$PHUB_RXE_PEER" lladdr 02:00:00:00:00:99 nud permanent dev nic0
has_retried() { [ "$(retries)" -gt "$before" ]; }
within 20 has_retried
ip neighbour replace "$PHUB_RXE_PEER" lladdr "$peer" nud reachable dev nic0
printf '\011' >$LIKE_EVENTS # 9, PORT_ACTIVE
rounds_flow 127.0.0.1 7077
within 90 grep -qF "all workers left" /tmp/hub
grep -c "^event" "$LIKE_LOG"
grep -q "^event 10" "$LIKE_LOG"
grep -q "^event 9" "$LIKE_LOG"
rounds_flow 127.0.0.1 7077
printf '\010' >$LIKE_EVENTS # 8, DEVICE_FATAL
within 20 grep -F "rxe0 says IBV_EVENT_DEVICE_FATAL" /tmp/hub
end_hub
