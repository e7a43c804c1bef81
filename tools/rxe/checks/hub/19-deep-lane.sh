#!/bin/bash
# A lane of more chunks than a NIC's send queue takes: a NIC that says 32768 and makes no queue above 8192 (as mlx5 does, whose
# send requests have 256 bytes). Every result is exact;
# no send queue is asked for that the NIC does not make.
# guest: one
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 240
like_hardware
model 9000000
# lane LIMIT...: 8790 chunks of one core, by two workers, on a NIC with these limits.
lane() {
    : >"$LIKE_LOG"
    env "$@" phub-probe --transport verbs --cores 1 --workers 2 --rounds 2 --chunk-bytes 4096 --manifest /tmp/model --json >/tmp/report
    jq -c '{transport, checked, chunks: .per_core[0].chunks}' /tmp/report
    jq -e '.transport == "verbs" and .checked and .per_core[0].chunks > 8192' /tmp/report
    sort "$LIKE_LOG" | uniq -c | grep make
    if grep refused "$LIKE_LOG"; then exit 1; fi
}
lane LIKE_MAX_SEND_WR=8192
