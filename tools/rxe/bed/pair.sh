#!/bin/bash
# Boots two guests (virtual machines), and runs a command in each guest. Wire i joins NIC i of the two guests:
#
#     tools/rxe/bed/pair.sh [OPTIONS] -- HUB_COMMAND... -- WORKER_COMMAND...
#
#     --nics N                   wires (2)
#     --timeout S                both guests are killed after S seconds (180)
#     --cpus N, --memory MB      and other options of guest.sh that have a value
#     --kill-hub-when TEXT,      this side's guest is killed when it writes a line with TEXT, and has then passed; if it
#     --kill-worker-when TEXT    ends without such a line, it has failed
#
# The hub is side 1 (10.77.<i>.1), the worker side 2 (10.77.<i>.2). PHUB_RXE_PEER is the address of the other side on wire 0.
# TCP runs on the wires, too. `within 60 listens HOST PORT` of steps.sh waits for a program of the other side. `ip link set nic0
# down` in either guest cuts a wire. Each line of output begins with the name of its side. The output is also in hub.log and
# worker.log in target/rxe/logs (or PHUB_RXE_LOGS).
#
# Exit status: 0 if both sides passed, else the exit status of the first side that failed. The other side is then ended.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
options=(--nics 2 --timeout 180) kill_hub_when="" kill_worker_when=""
usage() {
    echo "pair.sh: $1; see the head of $here/pair.sh" >&2
    exit 2
}
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ $# -gt 1 ] || usage "$1 needs a value"
    case $1 in
    --kill-hub-when) kill_hub_when=$2 ;;
    --kill-worker-when) kill_worker_when=$2 ;;
    *) options+=("$1" "$2") ;;
    esac
    shift 2
done
hub=() worker=()
[ $# -eq 0 ] || shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    hub+=("$1")
    shift
done
[ $# -eq 0 ] || shift
worker=("$@")
if [ ${#hub[@]} -eq 0 ] || [ ${#worker[@]} -eq 0 ]; then usage "a command for the hub and one for the worker are needed"; fi

bash "$here/setup.sh"
rxe_dir=$(cd "${PHUB_RXE_DIR:-$here/../../../target/rxe}" && pwd)
logs=${PHUB_RXE_LOGS:-$rxe_dir/logs}
wires=$(mktemp -d "${TMPDIR:-/tmp}/phub-wires.XXXXXX") # the path of a socket has room for 107 bytes
running=()
finish() {
    [ ${#running[@]} -eq 0 ] || kill "${running[@]}" 2>/dev/null || true
    wait
    rm -rf "$wires"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
with_parent=()
! setpriv --pdeathsig TERM true 2>/dev/null || with_parent=(setpriv --pdeathsig TERM)

# start NAME SIDE KILL_WHEN COMMAND...: starts one guest in the background.
start() {
    local name=$1 side=$2 when=$3
    shift 3
    local kill_when=()
    [ -z "$when" ] || kill_when=(--kill-when "$when")
    "${with_parent[@]}" bash "$here/guest.sh" --name "$name" --side "$side" --wires "$wires" --log "$logs/$name.log" \
        "${options[@]}" "${kill_when[@]}" -- "$@" \
        > >(sed -u "s/^/$name: /") &
    running+=($!)
}
start hub 1 "$kill_hub_when" "${hub[@]}"
start worker 2 "$kill_worker_when" "${worker[@]}"

names=(hub worker) expected=(0 0)
[ -z "$kill_hub_when" ] || expected[0]=137
[ -z "$kill_worker_when" ] || expected[1]=137
guests=("${running[@]}")
while [ ${#running[@]} -gt 0 ]; do
    status=0
    wait -n -p ended "${running[@]}" || status=$?
    left=()
    for i in 0 1; do
        if [ "${guests[i]}" != "$ended" ]; then
            [[ " ${running[*]} " != *" ${guests[i]} "* ]] || left+=("${guests[i]}")
        elif [ "$status" != "${expected[i]}" ]; then
            echo "pair.sh: the ${names[i]} ended with exit status $status, expected ${expected[i]}" >&2
            verdict=$((status == 0 ? 1 : status))
        fi
    done
    running=("${left[@]}")
    [ -z "${verdict:-}" ] || exit "$verdict"
done
