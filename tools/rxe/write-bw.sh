#!/bin/bash
# Runs perftest's ib_write_bw as the client of a server that is starting in this guest or another. It tries again until the
# server is there, at most until the check's time-out, and shows the output and the exit status of the run that connected.
set -u
output=$(mktemp)
until ib_write_bw "$@" >"$output" 2>&1; do
    # The output has the peer's address once they have met: a failure after that is a failure.
    if grep -q "remote address" "$output"; then
        cat "$output"
        exit 1
    fi
    sleep 0.2
done
cat "$output"
