#!/bin/bash
# A lane has more chunks than its NIC's send queue has entries. The NIC has the limits of mlx5, mlx4 or bnxt_re. NICs of mlx5
# report 32768 entries, but make no send queue of more than 8192. NICs of bnxt_re make no send queue of more than 4351, and
# cannot resize a completion queue.
#
# Every result is exact, and hub and worker ask for no queue that is too long for the NIC. If a lane needs too long a receive
# queue, the worker's error has the needed and the longest length.
# guest: one
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 300
like_hardware
model 9000000
probe=(phub-probe --transport verbs --cores 1 --workers 2 --rounds 2 --manifest /tmp/model --json)
# lane KIND CHUNK_BYTES LEAST: trains two workers at a hub with one lane, on a NIC with the limits of KIND. Chunks have
# CHUNK_BYTES. Fails unless the lane has more than LEAST chunks.
lane() {
    : >"$LIKE_LOG"
    LIKE_AS=$1 "${probe[@]}" --chunk-bytes "$2" >/tmp/report
    jq -c '{transport, checked, chunks: .per_core[0].chunks}' /tmp/report
    jq -e --argjson least "$3" '.transport == "verbs" and .checked and .per_core[0].chunks > $least' /tmp/report
    sort "$LIKE_LOG" | uniq -c | grep make
    if grep refused "$LIKE_LOG"; then exit 1; fi
}
lane mlx5 4096 8192
lane mlx4 4096 8192
# This job has more completions than the completion queue holds when it is made.
lane bnxt_re 16384 2048
grep -q "^resize" "$LIKE_LOG"
if LIKE_AS=bnxt_re "${probe[@]}" --chunk-bytes 8192 >/tmp/report 2>/tmp/said; then exit 1; fi
grep -E "rxe0 cannot make a queue pair of [0-9]+ entries \(ibv_create_qp: the device's maximum is 4351\); use larger chunks" /tmp/said
