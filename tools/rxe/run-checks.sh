#!/bin/bash
# Runs checks in a guest, one after the other: `run-checks.sh FILE...`. Each check has its own timeout, and the functions of
# steps.sh. The folder for results gets a file NAME.SIDE.log with the output of each check, and a file results.SIDE with a line
# for each check: its name, exit status and seconds.
set -u
side=$PHUB_RXE_SIDE
for check in "$@"; do
    # On side 2, waits until the hub's port on side 1 is closed, because the hub of the previous check may still be stopping.
    for _ in {1..200}; do
        [ "$side" = 2 ] && [ "$check" != "$1" ] && (: <"/dev/tcp/$PHUB_RXE_PEER/7077") 2>/dev/null || break
        sleep 0.1
    done
    name=$(basename "$check" .sh)
    limit=$((${PHUB_RXE_PATIENCE:-1} * $(sed -n 's/^# seconds: //p' "$check" | grep . || echo 60)))
    log=$PHUB_RXE_OUT/$name.$side.log
    begun=$EPOCHREALTIME
    echo "check $name"
    # The check's output is also printed, because --kill-when of guest.sh looks for its text in the guest's output.
    # shellcheck disable=SC2016
    timeout -k 2 "$limit" bash -eu -o pipefail -c '. tools/rxe/steps.sh && . "$1"' check "$check" 2>&1 </dev/null | tee "$log"
    status=${PIPESTATUS[0]}
    [ "$status" != 124 ] || echo "$name: not done after $limit s, so it was stopped" | tee -a "$log"
    echo "$name $status $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begun }")" >>"$PHUB_RXE_OUT/results.$side"
done
