#!/bin/bash
# Members that also have links on shared memory lose their links by RDMA. First the members are the hubs of a mesh, each of
# which has links to itself. Then the member is a worker with two hubs, one of them on its machine. A port reports in the middle
# of rounds that it is down, and stays down.
#
# All links are replaced, the links by RDMA by links over the other NIC. Every result is exact. This check runs in its own
# guests (virtual machines), because check 22 changes addresses in its guests.
# guest: pair --cpus 3 --nics 2
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 240
like_hardware
# Hub and worker have separate pipes for events: if two processes read one pipe, an event goes to only one of them.
events=(/tmp/events.hub /tmp/events.worker)
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    export LIKE_EVENTS=${events[0]} LIKE_EVENTS_OF=rxe1
    rm -f "${events[@]}"
    mkfifo "${events[@]}"
fi
# lose EVENTS N M: waits for rounds, and then reports on the pipe EVENTS that rxe1 is down. Waits until this side's hub counts N
# relinks, the other side's hub counts M, and rounds continue. Then reports that rxe1 is up.
lose() {
    rounds_flow 127.0.0.1 7077
    printf '\012' >"$1" # 10, PORT_ERR
    within 40 relinked 127.0.0.1 "$2"
    within 40 relinked "$PHUB_RXE_PEER" "$3"
    rounds_flow 127.0.0.1 7077
    printf '\011' >"$1" # 9, PORT_ACTIVE
}
ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
model 60000 60000
probe=(phub-probe --workers 1 --rank 0 --manifest /tmp/model --json --rounds 300)

serve --listen 0.0.0.0:7077 --cores 2
within 60 listens "$PHUB_RXE_PEER" 7077
mesh="$((PHUB_RXE_SIDE - 1))/2@10.77.0.1:7077"
env -u LIKE_EVENTS "${probe[@]}" --hub 127.0.0.1:7077 --mesh "$mesh" --job mesh >/tmp/report.0 2>/tmp/worker.0 &
worker=$!
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    # This hub asks both hubs for new links, and the other hub does so, too.
    lose "${events[0]}" 2 2
fi
wait $worker
jq -e '.checked and .transport == "shm"' /tmp/report.0
grep "; reconnected: " /tmp/hub | grep "transport=verbs"
# The job must end both between hub and worker and between the hubs.
within 60 ended 2

if [ "$PHUB_RXE_SIDE" = 1 ]; then
    # The hub on this worker's machine has links only on shared memory.
    LIKE_EVENTS=${events[1]} "${probe[@]}" --hub "10.77.0.1:7077,$PHUB_RXE_PEER:7077" --hub-wait-s 60 --job both \
        >/tmp/report.1 2>/tmp/worker.1 &
    worker=$!
    lose "${events[1]}" 3 3
    wait $worker
    jq -e .checked /tmp/report.1
    grep "; reconnected: " /tmp/worker.1 | grep "transport=shm"
    grep "; reconnected: " /tmp/worker.1 | grep "transport=verbs"
fi
within 120 ended 3
end_hub
