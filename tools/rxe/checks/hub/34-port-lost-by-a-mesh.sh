#!/bin/bash
# Two machines are a mesh by RDMA. A port of one machine says in the middle of rounds that it is down, and stays so. Both hubs make
# their links to each other again over the other NIC, and every result is exact.
# In guests of its own: check 22 leaves other addresses.
# guest: pair --cpus 3 --nics 2
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 180
like_hardware
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    export LIKE_EVENTS=/tmp/events LIKE_EVENTS_OF=rxe1
    rm -f $LIKE_EVENTS
    mkfifo $LIKE_EVENTS
fi
ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
model 60000 60000
probe=(phub-probe --hub 127.0.0.1:7077 --workers 1 --rank 0 --manifest /tmp/model --json --rounds 300)

serve --listen 0.0.0.0:7077 --cores 2
within 60 listens "$PHUB_RXE_PEER" 7077
"${probe[@]}" --mesh "$((PHUB_RXE_SIDE - 1))/2@10.77.0.1:7077" --job mesh >/tmp/report.0 2>/tmp/worker.0 &
worker=$!
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    rounds_flow 127.0.0.1 7077
    printf '\012' >$LIKE_EVENTS # 10, PORT_ERR
    # Its own links at both hubs, and those of the other hub.
    within 40 relinked 127.0.0.1 2
    within 40 relinked "$PHUB_RXE_PEER" 1
    rounds_flow 127.0.0.1 7077
    printf '\011' >$LIKE_EVENTS # 9, PORT_ACTIVE
fi
wait $worker
jq -e '.checked and .transport == "shm"' /tmp/report.0
within 60 ended 2
grep "the links are made again" /tmp/hub | grep "transport=verbs"
