#!/bin/bash
# Two wires between two machines share no subnet, and the names of the worker's NICs cross. The NIC rxe0 at one end is on the
# wire of rxe1 at the other. As on InfiniBand, addresses resolve on both wires, so only a transfer of packets shows which pairs
# work.
#
# The worker tries the pairs of equal names, finds them dead, and takes the other pairs. For a worker with one NIC,
# the hub serves all lanes by the NIC of its wire. A worker with a NIC that reaches nobody uses TCP. If TCP is
# not allowed, it names the NICs that do not reach each other.
# guest: pair --nics 2 --cpus 4
# build: bin phub-server
# build: bin phub-probe
# seconds: 150
if [ "$PHUB_RXE_SIDE" = 2 ]; then
    for nic in 0 1; do rdma link delete rxe$nic; done
    for nic in 0 1; do rdma link add rxe$nic type rxe netdev nic$((1 - nic)); done
fi
for nic in 0 1; do
    ip address flush dev nic$nic scope global
    ip address add "10.77.$nic.$PHUB_RXE_SIDE/32" dev nic$nic
done
# leads_nowhere NIC ADDRESS: sends packets for the address to a machine that is not on the wire.
leads_nowhere() { ip neighbour replace "$2" lladdr 02:00:00:00:00:99 dev "$1" nud permanent; }
for nic in 0 1; do
    for wire in 0 1; do
        other=10.77.$wire.$((3 - PHUB_RXE_SIDE))
        metric=10
        [ $wire = $nic ] || metric=20
        ip route replace "$other/32" dev nic$nic src "10.77.$nic.$PHUB_RXE_SIDE" metric $metric
        [ $wire = $nic ] || leads_nowhere nic$nic "$other"
    done
done
has_addresses() { [ "$(ibv_devinfo -v | grep -c "10\.77\.[01]\.$PHUB_RXE_SIDE, RoCE v2")" = 2 ]; }
within 20 has_addresses
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --cores 2 --transports verbs,tcp
    jobs_ended() { [ "$(grep -cF "all workers left" /tmp/hub)" -ge 3 ]; }
    within 120 jobs_ended
    grep -F "a worker cannot connect by this transport" /tmp/hub
    end_hub
    exit
fi
trap 'cat /tmp/worker.*' EXIT
within 60 listens "$PHUB_RXE_PEER" 7077
model 60000 60000
run=(phub-probe --hub "$PHUB_RXE_PEER:7077" --workers 1 --rank 0 --manifest /tmp/model --rounds 3 --json)

"${run[@]}" --job crossed --transport verbs >/tmp/report.0 2>/tmp/worker.0
jq -e '.checked and .transport == "verbs" and ([.per_core[].nic] == ["rxe0", "rxe1"])' /tmp/report.0
grep -F "nothing crosses from rxe0 (GID ::ffff:10.77.1.2) to the hub's rxe0 (GID ::ffff:10.77.0.1)" /tmp/worker.0
grep -F "nothing crosses from rxe1 (GID ::ffff:10.77.0.2) to the hub's rxe1 (GID ::ffff:10.77.1.1)" /tmp/worker.0

"${run[@]}" --job one-nic --transport verbs --nics =rxe1 >/tmp/report.1 2>/tmp/worker.1
jq -e '.checked and .transport == "verbs"' /tmp/report.1

leads_nowhere nic1 10.77.1.1
if "${run[@]}" --job nowhere --transport verbs --nics =rxe0 &>/tmp/worker.2; then exit 1; fi
grep -F "nothing crosses from rxe0 (GID ::ffff:10.77.1.2) to the hub's rxe1 (GID ::ffff:10.77.1.1)" /tmp/worker.2
"${run[@]}" --job by-tcp --nics =rxe0 >/tmp/report.3 2>/tmp/worker.3
jq -e '.checked and .transport == "tcp"' /tmp/report.3
