#!/bin/bash
# What runs in a guest: `inside.sh RUN`. Brings the NICs up, makes an RDMA device on each, runs the command that
# guest.sh left in the folder RUN, and leaves its exit status there.
set -u
run=$1
mountpoint -q /tmp || mkdir -p /tmp
hostname "phub-$(basename "$run")" 2>/dev/null
# shellcheck disable=SC1091
. "$run/environment"

fail() {
    echo "guest: $*" >&2
    echo 125 >"$run/status"
    exit 0
}

# NIC i is known by its address, whatever order the kernel found them in.
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
        # Room for 4096 bytes and RoCE's headers: the largest MTU that RDMA knows.
        ip link set "nic$nic" up mtu 4200 || fail "there is no nic$nic"
        ip address add "10.77.$nic.$PHUB_RXE_SIDE/24" dev "nic$nic"
        rdma link add "rxe$nic" type rxe netdev "nic$nic" || fail "no RDMA device on nic$nic"
        devices="${devices:+$devices,}rxe$nic"
    done
}

devices=""
bring_up
export PHUB_RXE_ADDRESS=10.77.0.$PHUB_RXE_SIDE PHUB_RXE_PEER=10.77.0.$((3 - PHUB_RXE_SIDE))
export PHUB_TEST_DEVICE=${PHUB_TEST_DEVICE:-$devices}
export TERM=dumb
bash "$run/command"
echo $? >"$run/status"
