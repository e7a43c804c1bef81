#!/bin/bash
# Three wires between two machines carry as many bytes as the probe says that a worker sends in a round. This holds with a dense
# codec, with a sparse codec, with Slim-DP (seeded and with keys), and for weights that are pulled in one batch without
# compression. guest: pair --nics 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 150
small=(--manifest /tmp/model --optimizer sgd --compress)
jobs=("${small[*]} qsgd:8:512" "${small[*]} topk:0.01" "${small[*]} slim:0.2:0.1:20000:none:seeded"
    "${small[*]} slim:0.2:0.1:20000:none:keys"
    "--compute resnet50 --shrink 128 --time-scale 0.001 --exchanges 1 --pull all")
sent() { awk '{ bytes += $1 } END { print bytes }' /sys/class/net/nic[0-9]*/statistics/tx_bytes; }

# hub NUMBER: serves one job. Each hub has its own port, because the hub before may still be stopping.
hub() {
    phub-server serve --listen "0.0.0.0:$((7100 + $1))" &>"/tmp/hub.$1" &
    hub=$!
    within 140 grep -qF "all workers left" "/tmp/hub.$1"
    end_hub
}

# run NUMBER OPTION...: runs two workers for eight rounds, and compares the bytes.
run() {
    local port=$((7100 + $1)) probe other before whole
    shift
    probe=(phub-probe --hub "$PHUB_RXE_PEER:$port" --workers 2 --rounds 8 --json "$@")
    within 60 listens "$PHUB_RXE_PEER" "$port"
    before=$(sent)
    "${probe[@]}" --rank 0 >/tmp/report.0 &
    other=$!
    "${probe[@]}" --rank 1 >/tmp/report.1
    wait $other
    jq -es 'all(.transport == "verbs" and .sent_bytes > 0)' /tmp/report.0 /tmp/report.1
    # Before the counted rounds there are up to four others and the broadcast, which may send whole chunks. Three tenths and 200
    # KB are added for headers, acknowledgements, retries, and the joins.
    whole=$(jq .model_bytes /tmp/report.0)
    jq -s 'map(.sent_bytes) | add' /tmp/report.0 /tmp/report.1 | awk -v moved=$(($(sent) - before)) -v whole="$whole" \
        -v how="$*" '{ least = 8 * $1; most = 1.3 * (8 * $1 + 5 * 2 * whole) + 200000
            printf "%s: %d bytes crossed, %d are said of eight rounds, at most %d are expected\n", how, moved, least, most
            exit !(moved >= least && moved <= most) }'
}

model 200000 17
for number in "${!jobs[@]}"; do
    if [ "$PHUB_RXE_SIDE" = 1 ]; then
        hub "$number"
    else
        # shellcheck disable=SC2086 # a job is several words
        run "$number" ${jobs[number]}
    fi
done
