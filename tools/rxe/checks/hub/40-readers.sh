#!/bin/bash
# A reader in another machine gets a job's weights by RDMA, while the job trains and while its worker is stopped. The files are the
# same as over TCP, as f32 and as bf16. A process that publishes versions uses the same NICs for all of them. A reader that is
# killed costs nobody else anything.
# guest: pair --nics 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 150
# ci
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --heartbeat-limit-s 140
    within 140 grep -qF "job failed" /tmp/hub
    grep -F "state sent" /tmp/hub
    [ "$(grep -c 'state sent.*lent="verbs"' /tmp/hub)" -ge 8 ]
    end_hub
    exit
fi
within 60 listens "$PHUB_RXE_PEER" 7077
# The weights are longer than the ring of a loan, and no multiple of its slots.
model 3000000 17
phub-probe --hub "$PHUB_RXE_PEER:7077" --workers 1 --rank 0 --rounds 100000 --job vgg --manifest /tmp/model --optimizer adam \
    &>/tmp/worker.0 &
probe=$!
trap 'kill -KILL $probe $worker 2>/dev/null || true; cat /tmp/worker.0 /tmp/pull.* || true' EXIT
within 60 rounds_flow "$PHUB_RXE_PEER" 7077
worker=$(pgrep -P $probe)
values() { tail -c "$bytes" "$1" | sha256sum; }
pull() { phub-server pull vgg "$PHUB_RXE_PEER:7077" "$@"; }
for number in 1 2 3; do
    pull --to "/tmp/training.$number" &>"/tmp/pull.$number"
    timeout -s KILL "$number.5" phub-server pull vgg "$PHUB_RXE_PEER:7077" --to "/tmp/killed.$number" || true
done
# One process reads several versions.
phub-server publish vgg "$PHUB_RXE_PEER:7077" --to /tmp/versions --every 1 &>/tmp/pull.publish &
publisher=$!
published() { ls -d /tmp/versions/weight_v00000[3-9]; }
within 60 published
kill -INT $publisher
wait $publisher || true
kill -STOP "$worker"
pull --to /tmp/first &>/tmp/pull.4 # the hub may still have a few chunks to step
for dtype in f32 bf16; do
    pull --dtype $dtype --to "/tmp/rdma.$dtype" &>"/tmp/pull.rdma.$dtype"
    NCCL_IB_DISABLE=1 pull --dtype $dtype --to "/tmp/tcp.$dtype" &>"/tmp/pull.tcp.$dtype"
    # The order of the metadata in the header differs from file to file.
    bytes=$((3000017 * $([ $dtype = f32 ] && echo 4 || echo 2)))
    [ "$(values /tmp/rdma.$dtype)" = "$(values /tmp/tcp.$dtype)" ]
done
ls -l /tmp/training.* /tmp/rdma.* /tmp/tcp.*
[ "$(stat -c %s /tmp/training.1)" = "$(stat -c %s /tmp/tcp.f32)" ]
kill -CONT "$worker"
if [ "$(values /tmp/training.1)" = "$(values /tmp/training.3)" ]; then exit 1; fi # the job does train
kill -KILL $probe "$worker" # the hub then ends
wait $probe || true
