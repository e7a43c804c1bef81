#!/bin/bash
# The kernel has pinned memory for a hub and a worker with two NICs, by RDMA: two copies of the model for each of them, for any
# number of NICs. With two hubs, each hub has pinned two copies of its half, and the worker still two copies of the model.
# guest: one --nics 2
# build: bin phub-server
# build: bin phub-probe
# seconds: 120
model 900000 60000 30000 10000 17
bytes=4000068

declare -A pinned
# look NAME PID: keeps the most bytes that the kernel has pinned for a process, or for its only child.
look() {
    local now
    now=$(awk -v pid="$2" '
        $1 == "Pid:" { of = $2 }
        $1 == "PPid:" { from = $2 }
        $1 == "VmPin:" && $2 > 0 && (of == pid || from == pid) { print $2 * 1024 }' /proc/[0-9]*/status 2>/dev/null || true)
    if [ "${now:-0}" -gt "${pinned[$1]:-0}" ]; then pinned[$1]=$now; fi
}
# expect NAME MODELS: checks that NAME has pinned MODELS times the bytes of the model, or at most a sixth more. The rest is for
# registered ranges that begin or end within a page.
expect() {
    echo "$1: ${pinned[$1]:-0} bytes, $2 models expected"
    awk -v seen="${pinned[$1]:-0}" -v least="$((bytes * $2))" \
        'BEGIN { exit !(seen >= 0.97 * least && seen <= 1.17 * least) }'
}
# train HUBS: runs a job of one worker.
train() {
    local worker
    pinned=()
    phub-probe --hub "$1" --transport verbs --workers 1 --rank 0 --rounds 20 --manifest /tmp/model --json >/tmp/report 2>/tmp/worker.0 &
    worker=$!
    while kill -0 $worker 2>/dev/null; do
        look worker $worker
        look hub "${hub:?}"
        look other "${other:-0}"
    done
    wait $worker
    jq -c '{transport, checked}' /tmp/report
    jq -e '.transport == "verbs" and .checked' /tmp/report
    jq -e '[.per_core[].nic] | unique | length == 2' /tmp/report
}

serve --listen 127.0.0.1:7077
train 127.0.0.1:7077
expect hub 2
expect worker 2
end_hub

serve --listen 127.0.0.1:7077
phub-server serve --listen 127.0.0.1:7177 &>/tmp/worker.hub &
other=$!
within 60 listens 127.0.0.1 7177
train 127.0.0.1:7077,127.0.0.1:7177
expect worker 2
expect hub 1
expect other 1
