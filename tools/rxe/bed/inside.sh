#!/bin/bash
# Runs in a guest: `inside.sh RUN`. Brings the NICs up, and makes an RDMA device on each. Then runs the command that guest.sh
# wrote to the folder RUN, and writes the exit status of the command there.
set -u
run=$1
hostname "$(basename "${run%.*}")"
# shellcheck disable=SC1091
. "$run/environment"

fail() {
    echo "guest: $*" >&2
    echo 125 >"$run/status"
    exit 0
}

# The MAC address identifies NIC i, because the kernel may find the NICs in any order.
bring_up() {
    local path old nic
    ip link set lo up
    for path in /sys/class/net/*; do
        case $(cat "$path/address") in 52:54:00:77:*)
            old=$(basename "$path")
            nic=$((0x$(cut -d: -f6 "$path/address")))
            ip link set "$old" name "nic$nic"
            ;;
        esac
    done
    for ((nic = 0; nic < PHUB_RXE_NICS; nic++)); do
        # The MTU has room for the largest RDMA packet, 4096 bytes, and RoCE's headers.
        ip link set "nic$nic" up mtu 4200 || fail "there is no nic$nic"
        ip address add "10.77.$nic.$PHUB_RXE_SIDE/24" dev "nic$nic"
        rdma link add "rxe$nic" type rxe netdev "nic$nic" || fail "no RDMA device on nic$nic"
        devices="${devices:+$devices,}rxe$nic"
    done
}

# Two devices of one guest have local addresses, so the kernel would not send their packets over a wire. The kernel uses the
# wire if each source address has a route, the reverse-path filter is off, and neighbours are fixed.
# `towards NIC OTHER`: makes packets of NIC to the address of OTHER use the wire.
towards() {
    local nic=$1 other=$2
    [ -e "/sys/class/net/nic$other" ] || return 0
    echo 1 >"/proc/sys/net/ipv4/conf/nic$nic/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/nic$nic/rp_filter"
    ip route add "10.77.$other.0/24" dev "nic$nic" table $((100 + nic))
    ip rule add from "10.77.$nic.$PHUB_RXE_SIDE" table $((100 + nic))
    ip neighbour add "10.77.$other.$PHUB_RXE_SIDE" lladdr "$(cat "/sys/class/net/nic$other/address")" dev "nic$nic"
}

devices=""
: >"$run/begun"
bring_up
if [ "$PHUB_RXE_JOIN" = yes ]; then
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    for ((nic = 0; nic < PHUB_RXE_NICS; nic++)); do towards "$nic" $((nic ^ 1)); done
fi
export PHUB_RXE_ADDRESS=10.77.0.$PHUB_RXE_SIDE PHUB_RXE_PEER=10.77.0.$((3 - PHUB_RXE_SIDE))
export PHUB_TEST_DEVICE=${PHUB_TEST_DEVICE:-$devices}
export TERM=dumb
bash "$run/command"
echo $? >"$run/status"
