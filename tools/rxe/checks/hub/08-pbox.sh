#!/bin/bash
# The zero-compute probe on a PBox, by RDMA with four workers. Every result is exact. Every NIC has at least one core. The bytes
# of a NIC differ from its share by at most a quarter.
# guest: one --numa --nics 4
# guest: one --numa --nics 10
# build: bin phub-probe
# seconds: 120
# ci
model 900000 60000 30000 10000 17
phub-probe --transport verbs --workers 4 --rounds 4 --manifest /tmp/model --json >/tmp/report
jq -c '{transport, workers, rounds, checked, goodput_gb_per_s}' /tmp/report
jq -r '.per_core[] | "cpu \(.cpu) \(.nic): \(.chunks) chunks, \(.bytes) bytes"' /tmp/report
jq -e '.transport == "verbs" and .checked' /tmp/report
jq -e --argjson nics "$PHUB_RXE_NICS" '[.per_core | group_by(.nic)[] | map(.bytes) | add] as $bytes
    | ($bytes | length) == $nics and (($bytes | add / length) as $share
    | $bytes | all(. > 0.75 * $share and . < 1.25 * $share))' /tmp/report
