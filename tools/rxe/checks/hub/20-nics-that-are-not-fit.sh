#!/bin/bash
# Of three NICs, one does not open, and one has no IP address and thus only a link-local GID. Hub and worker use neither of
# these two NICs and print a warning, and a job runs by RDMA over the third NIC. A hub that must use a NIC that does not open
# prints the reason. Queue pairs follow the flags and the environment variables about their path. A value out of range stops the
# hub.
# guest: one --nics 3
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 90
like_hardware
model 300000
echo "ibv_open_device@rxe1 fail 13" >/tmp/faults # EACCES
export LIKE_FAULTS=/tmp/faults NCCL_IB_TC=106 NCCL_IB_SL=3 PHUB_RDMA_TIMEOUT=18
has_address() { cat /sys/class/infiniband/rxe2/ports/1/gids/* 2>/dev/null | grep "ffff:0a4d:0201" >/dev/null; } # 10.77.2.1
ip address flush dev nic2 scope global
is_bare() { ! has_address; }
within 20 is_bare
serve --rdma-rnr-retries 2
phub-probe --hub 127.0.0.1:7077 --transport verbs --manifest /tmp/model --workers 1 --rank 0 --rounds 3 --json >/tmp/report 2>/tmp/worker.0
jq -e '.checked and .transport == "verbs"' /tmp/report
jq -e '[.per_core[] | select(.bytes > 0) | .nic] | unique == ["rxe0"]' /tmp/report
grep -F "RDMA does not use rxe1: cannot open the RDMA device rxe1" /tmp/hub
grep -F "RDMA does not use rxe2: its only RoCE v2 address is link-local" /tmp/hub
grep -F "timeout 18 and 6 retries (7.5 s), 2 RNR retries, traffic class 106, service level 3, pkey index 0, adaptive routing 0, relaxed ordering" /tmp/hub
end_hub
# The log must show the chosen settings for the queue pairs of both ends.
sed 's/qp=[0-9]*//; s/ peer=[0-9]*//' "$LIKE_LOG" | sort | uniq -c
grep -E "state=2 .*global=1 .*sl=3 .*hop_limit=64 traffic_class=106" "$LIKE_LOG"
grep -E "state=3 timeout=18 retries=6 rnr_retries=2" "$LIKE_LOG" # the hub's
grep -E "state=3 timeout=18 retries=6 rnr_retries=7" "$LIKE_LOG"
grep -E "state=1 .*pkey_index=0" "$LIKE_LOG"

# refused WORDS VARIABLE... COMMAND: runs a hub that must not start, and that must print these words.
refused() {
    local words=$1
    shift
    if env "$@" &>/tmp/refused; then exit 1; fi
    grep -F "$words" /tmp/refused || { cat /tmp/refused && exit 1; }
}
refused "cannot open the RDMA device rxe1" phub-server serve --nics =rxe1 --transports verbs --listen 127.0.0.1:0
refused 'PHUB_RDMA_SL is "16"; expected a number from 0 to 15' PHUB_RDMA_SL=16 phub-server serve --listen 127.0.0.1:0
refused 'PHUB_RDMA_PKEY is "999"; expected a number from 0 to' PHUB_RDMA_PKEY=999 phub-server serve --listen 127.0.0.1:0
# The following checks need three NICs.
ip address add 10.77.2.1/24 dev nic2
within 20 has_address
