#!/bin/bash
# Memory that a NIC writes is registered with relaxed ordering, and memory that a NIC only reads is registered without it. Every
# result is exact. If the library refuses relaxed ordering, hub and worker do without it, unless a setting demands it. Then the
# error names the call and gives advice. A setting also turns relaxed ordering off.
# guest: one
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 120
like_hardware
model 300000
: >/tmp/faults
export LIKE_FAULTS=/tmp/faults
worker() {
    phub-probe --hub 127.0.0.1:7077 --transport verbs --manifest /tmp/model --workers 1 --rank 0 --rounds 3 --json "$@" \
        >/tmp/report 2>/tmp/worker.0
}
# registered ACCESS OPTION...: trains at a hub with these options. Hub and worker must register memory with exactly these kinds
# of access.
registered() {
    : >"$LIKE_LOG"
    serve --transports verbs --listen 127.0.0.1:7077 "${@:2}"
    worker "${@:2}"
    jq -e '.checked and .transport == "verbs"' /tmp/report
    end_hub
    grep "^region" "$LIKE_LOG" | tee /tmp/regions
    [ "$(grep -o "access=[0-9]*" /tmp/regions | sort -u | xargs)" = "$1" ]
}
# The access 1048579 is local write, remote write and relaxed ordering. The access 0 is that of the window whose bytes are sent.
registered "access=0 access=1048579"
grep -F "relaxed ordering where it is taken" /tmp/hub
registered "access=0 access=1048579" --rdma-relaxed-ordering 1
registered "access=0 access=3" --rdma-relaxed-ordering 0
echo "ibv_reg_mr_iova2 fail 22" >/tmp/faults # EINVAL
registered "access=0 access=3"
: >/tmp/faults
serve --transports verbs --listen 127.0.0.1:7077
echo "ibv_reg_mr_iova2 fail 22" >/tmp/faults
if PHUB_RDMA_RELAXED_ORDERING=1 worker; then exit 1; fi
grep -F "ibv_reg_mr_iova2: Invalid argument" /tmp/worker.0 | grep -F "allow strict ordering (PHUB_RDMA_RELAXED_ORDERING=2)"
end_hub
