#!/bin/bash
# Three wires between two machines carry as many bytes as the probe reports that a worker sends in a round. The jobs use a dense
# codec, a sparse codec, Slim-DP (seeded and with keys), or pulls in one batch without compression.
# guest: pair --nics 3
# build: bin phub-server
# build: bin phub-probe
# seconds: 150
small=(--manifest /tmp/model --optimizer sgd --compress)
jobs=("${small[*]} qsgd:8:512" "${small[*]} topk:0.01" "${small[*]} slim:0.2:0.1:20000:none:seeded"
    "${small[*]} slim:0.2:0.1:20000:none:keys"
    "--compute resnet50 --shrink 128 --time-scale 0.001 --exchanges 1 --pull all")
sent() { awk '{ bytes += $1 } END { print bytes }' /sys/class/net/nic[0-9]*/statistics/tx_bytes; }

# hub NUMBER: serves one job. Each hub has its own port, because the previous hub may still be stopping.
hub() {
    phub-server serve --listen "0.0.0.0:$((7100 + $1))" &>"/tmp/hub.$1" &
    hub=$!
    within 140 grep -qF "all workers left" "/tmp/hub.$1"
    end_hub
}

# run NUMBER HOW...: runs two workers for eight rounds.
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
    # Up to four rounds are made before the counted rounds. These four rounds and the broadcast may send whole chunks. Another
    # three tenths and 200 KB are allowed for headers, acknowledgements, repeats and the joins.
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
        # shellcheck disable=SC2086 # words
        run "$number" ${jobs[number]}
    fi
done
