#!/bin/bash
# Runs the checks of tools/rxe/checks: all checks (`make rxe`), the checks whose names begin with an argument (`tools/rxe/run.sh
# 02 03`), or the checks that CI runs on each change (`tools/rxe/run.sh ci`). Prints a line for each check, with its time. The
# output of the checks is in target/rxe/logs.
#
# A check in checks/by-name runs only if an argument names it, because soft-RoCE is not reliable enough for this check.
#
# A check is a script NN-name.sh in checks/bed (the guests and their wires) or checks/hub. The script runs in a guest (a virtual
# machine), in the root of the repository, by `bash -eu -o pipefail`, with the functions of steps.sh. If its exit status is 0,
# the check has passed. Comments in its head say what it needs:
#
#     # guest: one OPTIONS       options of bed/guest.sh; one boot serves all checks with the same line
#     # guest: pair OPTIONS      options of bed/pair.sh: the script runs at both ends (PHUB_RXE_SIDE is 1 or 2), and
#                                both must pass, except a side that --kill-...-when kills
#     # build: KIND NAME        a program that binary.sh builds; the check finds it by NAME on its PATH
#     # seconds: N               the timeout of the check in the guest (60)
#     # ci                       CI runs it on each change; `make nightly` runs all checks
#
# With several `guest` lines the check runs once in each kind of guest. Several `build` lines build several programs.
#
# PHUB_RXE_TRIES (1) is the number of times that the failed checks of a boot are tried, each time in a fresh guest: an emulated
# processor on a busy host loses timers and packets. PHUB_RXE_PATIENCE (1) multiplies every timeout.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
bash "$here/bed/setup.sh"
rxe_dir=$(cd "${PHUB_RXE_DIR:-target/rxe}" && pwd)
logs=$rxe_dir/logs
unset PHUB_TEST_DEVICE # a guest does not have this machine's devices
rm -rf "$logs" "${rxe_dir:?}/bin"
mkdir -p "$logs" "$rxe_dir/bin"
failed=0 boots=0

# The requested checks, and the programs to build for them.
checks=()
for check in "$here"/checks/*/*.sh; do
    [ $# -gt 0 ] || [[ $check == */by-name/* ]] || checks+=("$check")
    for wanted in "$@"; do
        if [ "$wanted" = ci ]; then
            ! grep -qx '# ci' "$check" || checks+=("$check")
        else
            [[ $(basename "$check") != "$wanted"* ]] || checks+=("$check")
        fi
    done
done
if [ ${#checks[@]} -eq 0 ]; then
    echo "run.sh: no check begins with '$*'; there are: $(cd "$here/checks" && echo */*.sh)" >&2
    exit 2
fi
builds=$(sed -n 's/^# build: //p' "${checks[@]}" | sort -u)
while read -r kind name; do
    [ -n "$kind" ] || continue
    path=$(bash "$here/binary.sh" "$kind" "$name")
    ln -sf "$path" "$rxe_dir/bin/$name"
done <<<"$builds"

tries=${PHUB_RXE_TRIES:-1}
export PHUB_RXE_PATIENCE=${PHUB_RXE_PATIENCE:-1}
for number in "$tries" "$PHUB_RXE_PATIENCE"; do
    [[ $number =~ ^[1-9]$ ]] || { echo "run.sh: PHUB_RXE_TRIES and PHUB_RXE_PATIENCE are 1 to 9, not '$number'" >&2 && exit 2; }
done
seconds_of() { echo $((PHUB_RXE_PATIENCE * $(sed -n 's/^# seconds: //p' "$1" | grep . || echo 60))); }

# boot SHAPE FILE...: runs the checks in guests of this shape. If some fail and tries are left, runs them again.
boot() {
    local shape=$1 before=$failed try
    shift
    for ((try = 1; try <= tries; try++)); do
        failed=$before
        boot_once "$shape" "$@"
        [ "$failed" -gt "$before" ] || return 0
        [ "$try" -eq "$tries" ] || echo "AGAIN the checks of this boot, in a fresh guest (try $((try + 1)) of $tries)"
    done
}

# boot_once SHAPE FILE...: runs the checks in guests of this shape, and reports the results.
boot_once() {
    local shape=$1 status=0 begun=$SECONDS options command kept limit check
    shift
    boots=$((boots + 1))
    kept=$logs/boot-$boots
    mkdir "$kept"
    export PHUB_RXE_OUT=$kept PHUB_RXE_LOGS=$kept
    echo "boot $boots: $shape"
    # On a shared emulated processor, a boot with ten NICs can take half a minute.
    limit=$((60 * PHUB_RXE_PATIENCE))
    for check in "$@"; do limit=$((limit + $(seconds_of "$check"))); done
    eval "options=(${shape#"${shape%% *}"})" # eval, because a text of --kill-when is quoted
    command=(env "PATH=$rxe_dir/bin:$PATH" bash "$here/run-checks.sh" "$@")
    case $shape in
    one*)
        bash "$here/bed/guest.sh" --log "$kept/guest.log" --timeout "$limit" "${options[@]}" -- "${command[@]}"
        ;;
    pair*)
        bash "$here/bed/pair.sh" --timeout "$limit" "${options[@]}" -- "${command[@]}" -- "${command[@]}"
        ;;
    *) echo "run.sh: a guest is 'one OPTIONS' or 'pair OPTIONS', not '$shape'" && false ;;
    esac >"$kept/all.log" 2>&1 </dev/null || status=$?
    for check in "$@"; do report "$shape" "$kept" "$(basename "$check" .sh)"; done
    if [ "$status" != 0 ]; then
        echo "FAIL  the exit status of the guest is $status; the end of $kept/all.log:"
        tail -n 25 "$kept/all.log" | sed 's/^/      | /'
        failed=$((failed + 1))
    fi
    echo "      $((SECONDS - begun)) s with the boot"
}

# report SHAPE LOGS NAME: prints a line about a check. A side that is killed on purpose needs no result. Any other side without a
# result has failed: its guest has crashed.
report() {
    local shape=$1 kept=$2 name=$3 sides="1" side status seconds="-" verdict=ok ended=""
    case $shape in
    *--kill-hub-when*) sides="2" ;;
    *--kill-worker-when*) sides="1" ;;
    pair*) sides="1 2" ;;
    esac
    for side in $sides; do
        status=none
        read -r _ status seconds < <(grep -s "^$name " "$kept/results.$side") || verdict=FAIL
        [ "$status" = 0 ] || verdict=FAIL
        ended="$ended${ended:+, }side $side: $status"
    done
    printf '%-5s %-40s %6s s\n' "$verdict" "$name" "${seconds:--}"
    [ $verdict = FAIL ] || return 0
    failed=$((failed + 1))
    for side in $sides; do
        tail -n 12 "$kept/$name.$side.log" 2>/dev/null | sed "s/^/      $side | /" || true
    done
    echo "      exit status of $ended; logs: $kept"
}

without=$(grep -L '^# guest: ' "${checks[@]}" || true)
if [ -n "$without" ]; then
    echo "run.sh: expected a line '# guest: one OPTIONS' or '# guest: pair OPTIONS' in each check; there is none in: $without"
    exit 1
fi
shapes=$(sed -n 's/^# guest: //p' "${checks[@]}" | sort -u)
while read -r shape; do
    mapfile -t together < <(grep -lxF "# guest: $shape" "${checks[@]}")
    boot "$shape" "${together[@]}"
done <<<"$shapes"
if [ $failed -gt 0 ]; then
    echo "rxe: $failed failed, in $SECONDS s; logs: $logs"
    exit 1
fi
echo "rxe: all passed, in $SECONDS s"
