#!/bin/bash
# perftest's ib_write_bw as the client of one that is being started in this guest or another: tried again until it
# is there, for which the check's time-out is the limit. Its output is shown; the exit status is that of the one
# that got through.
set -u
output=$(mktemp)
until ib_write_bw "$@" >"$output" 2>&1; do
    # The peer's address stands there once the two have met: what fails after that has failed.
    if grep -q "remote address" "$output"; then
        cat "$output"
        exit 1
    fi
    sleep 0.2
done
cat "$output"
