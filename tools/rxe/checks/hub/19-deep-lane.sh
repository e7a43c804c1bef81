#!/bin/bash
# A lane may have more chunks than a NIC's send queue takes, on NICs with the limits of three kinds. For example, mlx5 reports
# 32768 and makes no send queue above 8192; bnxt_re makes none above 4351, and cannot resize a completion queue. Every result is
# exact, and no queue is requested that the NIC does not make. If the receive queue would have to be longer, the worker's error
# has both numbers. guest: one
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 300
like_hardware
model 9000000
probe=(phub-probe --transport verbs --cores 1 --workers 2 --rounds 2 --manifest /tmp/model --json)
# lane KIND CHUNK_BYTES LEAST: trains two workers on a NIC of this kind. The lane must have more than LEAST chunks.
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
# Here there are more completions than the first queue has room for.
lane bnxt_re 16384 2048
grep -q "^resize" "$LIKE_LOG"
if LIKE_AS=bnxt_re "${probe[@]}" --chunk-bytes 8192 >/tmp/report 2>/tmp/said; then exit 1; fi
grep -E "rxe0 cannot make a queue pair of [0-9]+ entries \(ibv_create_qp: the device's maximum is 4351\); use larger chunks" /tmp/said
