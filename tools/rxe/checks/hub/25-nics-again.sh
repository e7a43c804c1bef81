#!/bin/bash
# Of three NICs, one does not open when the hub starts, and another fails later in a round
# (IBV_EVENT_DEVICE_FATAL), which ends that job. Other jobs run over the remaining NICs, and GET /v1/hub has
# the reason for each lost NIC.
#
# A job that begins after the NICs open again has all three, and the hub's log reports it. If a NIC does not open, the doctor
# reports that a hub will try to open it again.
# guest: one --nics 3
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 150
like_hardware
model 300000
rm -f /tmp/events
mkfifo /tmp/events
# ill NIC...: makes these NICs fail to open, with EIO.
ill() { printf 'ibv_open_device@%s fail 5\n' "$@" >/tmp/faults; }
ill rxe2
export LIKE_FAULTS=/tmp/faults
phub-server doctor --transports verbs --listen 127.0.0.1:0 >/tmp/doctor || true
grep -F "ibv_open_device on rxe2: Input/output error" /tmp/doctor
grep -F "a hub opens the NIC again when a job begins" /tmp/doctor
export LIKE_EVENTS=/tmp/events LIKE_EVENTS_OF=rxe1
serve --transports verbs
# The workers' NICs work.
unset LIKE_FAULTS LIKE_EVENTS LIKE_EVENTS_OF
jobs=0

# runs_over NIC...: runs a job whose chunks must use these NICs of the hub.
runs_over() {
    jobs=$((jobs + 1))
    phub-probe --hub 127.0.0.1:7077 --transport verbs --job "job-$jobs" --manifest /tmp/model --workers 1 --rank 0 \
        --rounds 3 --json >/tmp/report 2>/tmp/worker.$jobs
    jq -e '.checked and .transport == "verbs"' /tmp/report >/dev/null
    seen=$(jq -r '[.per_core[] | select(.bytes > 0) | .nic] | unique | join(" ")' /tmp/report)
    echo "job $jobs runs over $seen"
    [ "$seen" = "$*" ]
}
# lost NIC WORDS: checks that the hub reports this reason for the loss of this NIC.
lost() { ask 127.0.0.1 7077 | jq -e --arg nic "$1" --arg words "$2" '.nics[] | select(.device == $nic) | .lost | contains($words)'; }

runs_over rxe0 rxe1
lost rxe2 "ibv_open_device on rxe2"
phub-probe --hub 127.0.0.1:7077 --transport verbs --job doomed --manifest /tmp/model --workers 1 --rank 0 --rounds 1000000 \
    >/dev/null 2>/tmp/worker.doomed &
doomed=$!
rounds_flow 127.0.0.1 7077
ill rxe1 rxe2
printf '\010' >/tmp/events # 8, DEVICE_FATAL
within 20 lost rxe1 "IBV_EVENT_DEVICE_FATAL"
if wait $doomed; then exit 1; fi
grep -F "rxe1 says IBV_EVENT_DEVICE_FATAL" /tmp/hub
runs_over rxe0
# A NIC that opens but has no usable address is still lost.
has_address() { cat /sys/class/infiniband/rxe2/ports/1/gids/* 2>/dev/null | grep "ffff:0a4d:0201" >/dev/null; } # 10.77.2.1
ip address flush dev nic2 scope global
is_bare() { ! has_address; }
within 20 is_bare
: >/tmp/faults
within 90 runs_over rxe0 rxe1
lost rxe2 "its only RoCE v2 address is link-local"
ip address add 10.77.2.1/24 dev nic2
within 20 has_address
within 90 runs_over rxe0 rxe1 rxe2
grep -F "the NIC was opened again: port 1" /tmp/hub | grep -F "rxe1"
grep -F "the NIC was opened again: port 1" /tmp/hub | grep -F "rxe2"
ask 127.0.0.1 7077 | jq -e '[.nics[] | select(.lost)] == []'
runs_over rxe0 rxe1 rxe2
end_hub
