#!/bin/bash
# Measures incast over RDMA: `tools/rxe/incast.sh [REPETITIONS]` (default: 3). Four workers in one virtual machine, each with its own
# NIC, push to a hub in another virtual machine. The hub's only NIC is behind a switch port of 64 Mb/s. The port has a queue of
# 256 KB, and drops packets when the queue is full:
#
#     workers: nic0 to nic3 --wires-- nic0 to nic3 [bridge] port: tbf -- veth -- the hub's NIC
#
# For each credit in PHUB_INCAST_CREDITS, in bytes or `none`, the script prints the number of packets that the switch dropped,
# the number of retries of the workers' NICs, and the goodput in MB/s. Measurements with the different credits alternate. The
# processors are emulated, so only ratios count.
set -eu -o pipefail
rate=64mbit queue=256kb
read -ra credits <<<"${PHUB_INCAST_CREDITS:-none 1048576 262144 131072 65536 32768}"
if [ -z "${PHUB_RXE_SIDE:-}" ]; then
    here=$(cd "$(dirname "$0")" && pwd)
    hub=$(bash "$here/binary.sh" bin phub-server)
    probe=$(bash "$here/binary.sh" bin phub-probe)
    cd "$here/../.."
    run=(env "PATH=$(dirname "$hub"):$(dirname "$probe"):$PATH" bash "$here/incast.sh" "${1:-3}")
    exec bash "$here/bed/pair.sh" --nics 4 --cpus 2 --timeout "${PHUB_INCAST_TIMEOUT:-900}" -- "${run[@]}" -- "${run[@]}"
fi
. tools/rxe/steps.sh
repetitions=$1
address=10.78.0.1

if [ "$PHUB_RXE_SIDE" = 2 ]; then
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.all.arp_ignore=1
    for nic in 0 1 2 3; do
        ip address flush dev nic$nic scope global
        ip address add 10.78.0.1$nic/24 dev nic$nic
        ip neighbour replace $address lladdr 02:00:00:78:00:01 dev nic$nic
        sysctl -qw net.ipv4.conf.nic$nic.rp_filter=0
    done
    within 60 listens $address 7077
    model 1000000
    again() { cat /sys/class/infiniband/rxe*/ports/1/hw_counters/completer_retry_err | awk "{ n += \$1 } END { print n }"; }
    for ((repetition = 0; repetition < repetitions; repetition++)); do
        for credit in "${credits[@]}"; do
            before=$(again)
            workers=()
            for rank in 0 1 2 3; do
                timeout 120 phub-probe --hub $address:7077 --transport verbs --nics "=rxe$rank" --job "incast-$repetition-$credit" \
                    --credit "$credit" --workers 4 --rank $rank --rounds 4 --manifest /tmp/model --json \
                    >/tmp/report.$rank 2>/tmp/worker.$rank &
                workers+=($!)
            done
            failed=0
            for worker in "${workers[@]}"; do wait "$worker" || failed=$((failed + 1)); done
            echo "credit $credit: goodput $(jq -r '.goodput_gb_per_s * 1000' /tmp/report.0 2>/dev/null || echo none)," \
                "retries $(($(again) - before)), workers that failed $failed"
        done
    done
    exit
fi
modules=target/rxe/kernel/lib/modules/$(uname -r)/kernel
for module in net/llc/llc net/802/stp net/bridge/bridge net/sched/sch_tbf; do insmod "$modules/$module.ko"; done
ip link add port type veth peer name own
ip link add switch type bridge
ip link set own address 02:00:00:78:00:01
for nic in nic0 nic1 nic2 nic3 port; do
    ip address flush dev $nic scope global
    ip link set $nic mtu 4200 master switch
    ip link set $nic up
done
ip link set switch mtu 4200 up
ip link set own mtu 4200 up
ip address add $address/24 dev own
for nic in 0 1 2 3; do
    ip neighbour replace 10.78.0.1$nic lladdr "$(printf '52:54:00:77:02:%02x' $nic)" dev own
done
rdma link add rxeh type rxe netdev own
tc qdisc replace dev port root tbf rate $rate burst 64kb limit $queue
serve --listen 0.0.0.0:7077 --nics =rxeh --transports verbs --cores 1
seen=0
while true; do
    ended=$(grep -c "job ended" /tmp/hub || true)
    if [ "$ended" -gt "$seen" ]; then
        seen=$ended
        echo "switch after job $seen: $(tc -s qdisc show dev port | sed -n 's/^ Sent/sent/p')"
    fi
    [ "$seen" -lt $((repetitions * ${#credits[@]})) ] || break
    sleep 0.2
done
end_hub
