#!/bin/bash
# Two NICs look like InfiniBand to libibverbs and in sysfs. Hub and worker pair them by name, because all GIDs are in fe80::/64.
# Their queue pairs use paths by LID, with service level and partition key. The paths are by GID if the ports require a GRH, or
# if the two ends are in different subnets.
#
# The interposing library carries the packets by RoCE, and every result is exact. The doctor names the link
# layer.
# guest: one --nics 2
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 150
# ci
like_hardware
model 300000
cat >/tmp/infiniband <<'FABRIC'
rxe0 7 fe80::7:1 1 ::ffff:10.77.0.1
rxe1 8 fe80::8:1 1 ::ffff:10.77.1.1
rxe0 7 fec0:1:1:1::7:1 1 ::ffff:10.77.0.1
rxe1 8 fec0:1:1:1::8:1 1 ::ffff:10.77.1.1
rxe0 7 fec0:2:2:2::7:1 1 ::ffff:10.77.0.1
rxe1 8 fec0:2:2:2::8:1 1 ::ffff:10.77.1.1
FABRIC
export LIKE_INFINIBAND=/tmp/infiniband LIKE_PKEYS=ffff,0,0,8003 PHUB_RDMA_PKEY=3 PHUB_RDMA_SL=3 PHUB_RDMA_TC=106

# in_subnet PREFIX COMMAND...: runs a command that sees ports of InfiniBand whose GIDs are in this subnet. No
# other process sees them.
in_subnet() {
    export SUBNET=$1
    shift
    # shellcheck disable=SC2016
    exec unshare -m bash -eu -c '
        for nic in 0 1; do
            fake=$(mktemp -d)
            mkdir "$fake/gids" "$fake/types" "$fake/ndevs"
            echo InfiniBand >"$fake/link_layer"
            echo "$SUBNET:0000:0000:000$((7 + nic)):0001" >"$fake/gids/0"
            echo "IB/RoCE v1" >"$fake/types/0"
            port=/sys/class/infiniband/rxe$nic/ports/1
            mount --bind "$fake/link_layer" $port/link_layer
            mount --bind "$fake/gids" $port/gids
            mount --bind "$fake/types" $port/gid_attrs/types
            mount --bind "$fake/ndevs" $port/gid_attrs/ndevs
        done
        exec "$@"' subnet "$@"
}
flat=fe80:0000:0000:0000
# trains SUBNET SUBNET: runs a hub in the first subnet and a worker in the second. Then /tmp/asked has the log's lines about
# changed queue pairs.
trains() {
    : >"$LIKE_LOG"
    (in_subnet "$1" phub-server serve --listen 127.0.0.1:7077 --transports verbs) &>/tmp/hub &
    hub=$!
    trap 'kill $(jobs -p) 2>/dev/null || true; cat /tmp/hub /tmp/worker.* 2>/dev/null || true' EXIT
    within 60 listens 127.0.0.1 7077
    (in_subnet "$2" phub-probe --hub 127.0.0.1:7077 --transport verbs --manifest /tmp/model --workers 1 --rank 0 --rounds 3 --json) \
        >/tmp/report 2>/tmp/worker.0
    jq -e '.checked and .transport == "verbs"' /tmp/report
    end_hub
    grep "^modify" "$LIKE_LOG" | sed 's/qp=[0-9]* //; s/ peer=[0-9]*//' | sort | uniq -c | tee /tmp/asked
}
# asked TEXT...: checks that /tmp/asked has each TEXT: a queue pair was changed with this setting.
asked() { for text in "$@"; do grep -F "$text" /tmp/asked >/dev/null || { echo "nobody asked for '$text'" && exit 1; }; done; }

trains $flat $flat
asked "state=1 access=2 pkey_index=3 port=1" "state=2 global=0 dlid=7 sl=3 " "state=2 global=0 dlid=8 sl=3 "
if grep "global=1" /tmp/asked; then exit 1; fi
export LIKE_GRH=1
trains $flat $flat
routed="sl=3 sgid_index=0 hop_limit=64 traffic_class=106"
asked "state=2 global=1 dlid=7 $routed" "dgid=fe80::7:1" "state=2 global=1 dlid=8 $routed" "dgid=fe80::8:1"
if grep "global=0" /tmp/asked; then exit 1; fi
unset LIKE_GRH
trains fec0:0001:0001:0001 fec0:0002:0002:0002
asked "state=2 global=1 dlid=7 $routed" "dgid=fec0:1:1:1::7:1" "dgid=fec0:2:2:2::7:1" "dgid=fec0:1:1:1::8:1" "dgid=fec0:2:2:2::8:1"

(in_subnet $flat phub-server doctor --transports verbs --listen 127.0.0.1:0) | tee /tmp/said
grep -E "^pass  NIC rxe0 +port 1 ACTIVE, InfiniBand" /tmp/said
grep -E "^pass  GID rxe0 +index 0, fe80::7:1: the port's own on InfiniBand" /tmp/said
grep -E "^pass  bytes over rxe1 " /tmp/said
# refused INDEX WORDS: runs a hub that must not start with this partition key.
refused() {
    if phub-server serve --transports verbs --listen 127.0.0.1:0 --rdma-pkey "$1" &>/tmp/said; then exit 1; fi
    grep -F -- "$2" /tmp/said || { cat /tmp/said && exit 1; }
}
refused 4 '--rdma-pkey is "4"; expected a number from 0 to 3, as the table of rxe0 port 1 has 4 keys'
refused 2 '--rdma-pkey is "2"; expected the index of a partition key: the table of rxe0 port 1 has no key at this index; its keys are 0 (0xffff), 3 (0x8003)'
