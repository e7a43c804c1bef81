#!/bin/bash
# Boots a guest (a virtual machine) with soft-RoCE, runs a command in the guest, and ends with the command's exit status:
#
#     tools/rxe/bed/guest.sh [OPTIONS] -- COMMAND [ARGUMENT...]
#
#     --cpus N           processors (2; 8 with --numa)
#     --memory MB        memory (2048), half of it on each node
#     --nics N           NICs (1): NIC i is nic<i>, with the address 10.77.<i>.1 and the RDMA device rxe<i>
#     --numa             the guest is like a PBox: two sockets, each with half of the memory and of the NICs
#     --join             NICs 0 and 1 are on one wire, NICs 2 and 3 on the next wire, and so on
#     --wires DIR        NIC i is on wire i, a socket in DIR; the guest at the other end has another --side
#     --side 1|2         the guest's end of the wires (1), which is also the last number of its addresses
#     --timeout S        the guest is killed after S seconds (120)
#     --kill-when TEXT   the guest is killed, as by a power failure, when it writes a line with TEXT
#     --log FILE         a copy of the output (target/rxe/logs/guest.log)
#     --name NAME        the guest's name in messages (guest)
#
# The guest's root is the host's root, read-only, with writes kept in the guest's memory. Programs that were built on the host
# run in the guest, in the same folder, with the caller's variables PHUB_* and RUST_*. The command may write results to the
# folder $PHUB_RXE_OUT. The results are kept if the caller has set PHUB_RXE_OUT to a folder. The command also has
# PHUB_RXE_ADDRESS and PHUB_RXE_PEER (the addresses of this and the other end of wire 0), PHUB_RXE_NICS, PHUB_RXE_SIDE, and
# PHUB_TEST_DEVICE (all devices).
#
# Exit status: that of the command; 124 after the timeout; 125 if the guest crashed; 137 if --kill-when killed the guest.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
cpus="" memory=2048 nics=1 numa=no join=no wires="" side=1 timeout=120 kill_when="" log="" name=guest
usage() {
    echo "guest.sh: $1; see the head of $here/guest.sh" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --numa) numa=yes ;;
    --join) join=yes ;;
    --) break ;;
    --cpus | --memory | --nics | --wires | --side | --timeout | --kill-when | --log | --name)
        [ $# -gt 1 ] || usage "$1 needs a value"
        variable=${1#--}
        printf -v "${variable//-/_}" %s "$2"
        shift
        ;;
    *) usage "unknown option '$1'" ;;
    esac
    shift
done
[ $# -gt 1 ] || usage "no command after --"
shift
if [ -z "$cpus" ]; then if [ $numa = yes ]; then cpus=8; else cpus=2; fi; fi

bash "$here/setup.sh"
rxe_dir=$(cd "${PHUB_RXE_DIR:-$here/../../../target/rxe}" && pwd)
log=${log:-$rxe_dir/logs/guest.log}
mkdir -p "$rxe_dir/runs"
# Remove the folders of former runs of this script that were killed.
for old in "$rxe_dir"/runs/*; do
    if [ -s "$old/owner" ] && ! kill -0 "$(cat "$old/owner")" 2>/dev/null; then rm -rf "$old"; fi
done
# The folder that guest and host share. The host writes the command there, and the guest writes the results.
run=$(mktemp -d "$rxe_dir/runs/$name.XXXXXX")
echo $$ >"$run/owner"
qemu=""
pull_plug() { kill -KILL "$(cat "$run/pid")"; }
# shellcheck disable=SC2317 # the trap reaches it
finish() {
    [ -z "$qemu" ] || { kill "$qemu" || true; pull_plug || true; } 2>/dev/null
    rm -rf "$run"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# The kernel kills the guest when this script ends, for any reason.
with_parent=()
! setpriv --pdeathsig KILL true 2>/dev/null || with_parent=(setpriv --pdeathsig KILL)

joined=()
for ((nic = 0; nic < nics; nic++)); do
    if [ $join = yes ]; then joined+=($((nic / 2))); else joined+=("$nic"); fi
done
# shellcheck source=tools/rxe/bed/machine.sh
. "$here/machine.sh"
machine_arguments

# The two guests of a check do not share a home directory, in which programs would find a common secret.
export PHUB_TOKEN=${PHUB_TOKEN:-all-guests-of-this-bed-have-it}

# The files that inside.sh reads.
mkdir "$run/out"
printf '%s' "$run" >"$run/path"
printf '%s' "$here/inside.sh" >"$run/inside"
printf '%q ' "$@" >"$run/command"
{
    for variable in ${!PHUB_@} ${!RUST_@} HOME LANG; do
        [ "$variable" = PHUB_RXE_OUT ] || [ -z "${!variable+set}" ] || printf 'export %s=%q\n' "$variable" "${!variable}"
    done
    printf 'export PHUB_RXE_NICS=%q PHUB_RXE_SIDE=%q PHUB_RXE_JOIN=%q PHUB_RXE_OUT=%q\n' "$nics" "$side" "$join" "$run/out"
    printf 'export PATH=%q\ncd %q\n' "$PATH" "$PWD"
} >"$run/environment"

# Prints the guest's output while it runs, and writes it to the log. Kills the guest at the first line that contains $kill_when.
show() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
        if [ -n "$kill_when" ] && [[ $line == *"$kill_when"* ]] && ! [ -e "$run/killed" ]; then
            : >"$run/killed"
            pull_plug
        fi
    done <"$run/pipe" | tee "$log"
}
mkdir -p "$(dirname "$log")"
mkfifo "$run/pipe"
begun=$SECONDS ended=0
# live SECONDS: boots the guest and waits for its end, for at most SECONDS.
live() {
    local shown
    show &
    shown=$!
    "${with_parent[@]}" timeout --signal KILL "$1" \
        "${with_parent[@]}" qemu-system-x86_64 "${machine[@]}" -pidfile "$run/pid" </dev/null >"$run/qemu" 2>&1 &
    qemu=$!
    watch_boot "$qemu" &
    { wait "$qemu" || ended=$?; } 2>/dev/null # bash would say "Killed"
    qemu=""
    # If QEMU never opened the pipe, its reader still waits for a writer. So the pipe is opened and closed here.
    : <>"$run/pipe"
    wait "$shown" || true
}
# On a busy host, an emulated processor can lose its timer while the guest's kernel measures the processor's speed. The guest
# then hangs. With eight processors this happens in one of a few dozen boots. If a guest has not begun its command after 60 s,
# this script assumes that the guest hangs.
boot_limit=60
watch_boot() {
    local seconds
    for ((seconds = 0; seconds < boot_limit; seconds++)); do
        sleep 1
        if [ -e "$run/begun" ] || ! kill -0 "$1" 2>/dev/null; then return; fi
    done
    : >"$run/stuck"
    pull_plug
}
live "$timeout"
if [ -e "$run/stuck" ] && ! [ -e "$run/begun" ]; then
    echo "$name: the boot hung for $boot_limit s; booting once more" >&2
    rm "$run/stuck"
    begun=$SECONDS ended=0
    live "$timeout"
fi

# Keep the printable text of the console, without the bytes that move a cursor.
console=${log%.log}.console.log
[ ! -e "$run/console" ] || LC_ALL=C tr -cd '\11\12\40-\176' <"$run/console" >"$console"
[ -z "${PHUB_RXE_OUT:-}" ] || cp -r "$run/out/." "$PHUB_RXE_OUT/"
if [ -s "$run/status" ]; then exit "$(cat "$run/status")"; fi
if [ -e "$run/killed" ]; then exit 137; fi
{
    if [ $((SECONDS - begun)) -ge "$timeout" ]; then
        echo "$name: no verdict after $timeout s, so it was killed; the end of its output:"
        verdict=124
    else
        echo "$name: the guest ended without a verdict (QEMU's exit status $ended); the end of its output:"
        verdict=125
    fi
    tail -n 5 "$log" | sed 's/^/    /'
    ! panic=$(grep -m 1 -o "Kernel panic.*" "$console") || echo "$name: $panic"
    echo "$name: the end of its console ($console):"
    tail -n 15 "$console" 2>/dev/null | sed 's/^/    /'
    grep -v "is not connected to host network" "$run/qemu" | sed 's/^/    /' || true
} >&2
exit "$verdict"
