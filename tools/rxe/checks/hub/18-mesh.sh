#!/bin/bash
# Two machines with two workers each and a hub on each are a mesh by RDMA. Every result is exact. The wires
# carry one stream for each machine instead of one for each worker, also with clip_norm. With a codec between the hubs, they
# carry at most half of that stream.
# guest: pair --nics 2
# build: bin phub-server
# build: bin phub-probe
# seconds: 150
# ci
sent() { awk '{ bytes += $1 } END { print bytes }' /sys/class/net/nic[0-9]*/statistics/tx_bytes; }
ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge "$1" ]; }
mesh="$((PHUB_RXE_SIDE - 1))/2@10.77.0.1:7077"

# run JOB LEAST MOST OPTION...: makes twelve rounds. This machine must send at least LEAST and at most MOST times the bytes of
# the model.
run() {
    local job=$1 least=$2 most=$3 before other
    shift 3
    before=$(sent)
    probe=(phub-probe --hub 127.0.0.1:7077 --mesh "$mesh" --workers 2 --rounds 12 --manifest /tmp/model --json --job "$job" "$@")
    "${probe[@]}" --rank 0 >/tmp/report.0 &
    other=$!
    "${probe[@]}" --rank 1 >/tmp/report.1
    wait $other
    jq -c '{transport, checked, model_bytes}' /tmp/report.0 /tmp/report.1
    jq -es 'all(.transport == "shm")' /tmp/report.0 /tmp/report.1
    jq .model_bytes /tmp/report.0 | awk -v moved=$(($(sent) - before)) -v least="$least" -v most="$most" \
        '{ printf "sent %d bytes, %.2f models\n", moved, moved / $1; exit !(moved >= least * $1 && moved <= most * $1) }'
}

serve --listen 0.0.0.0:7077
within 60 listens "$PHUB_RXE_PEER" 7077
model 400000 17
# Each round sends as many bytes as the model has. Up to four rounds and the broadcast are made before the counted rounds.
# Another three tenths are allowed for headers and repeats. With a stream for each worker, the machine would send 24 models.
run bare 12 22.5
jq -es 'all(.checked)' /tmp/report.0 /tmp/report.1
run clipped 12 22.5 --clip-norm 1
run coded 3 11 --compress qsgd:8:512
grep -F "sums go up" /tmp/hub | grep -F "transport=verbs"
# All jobs must end, at both levels.
within 60 ended 6
end_hub
