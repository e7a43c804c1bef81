#!/bin/bash
# Waits until the hub at HOST PORT has stepped COUNT more chunks: `chunks.sh HOST PORT COUNT [SECONDS]`. It fails after
# SECONDS (60).
set -eu -o pipefail
done_so_far() { bash "$(dirname "$0")/ask.sh" "$1" "$2" | jq '[.cores[].chunks] | add'; }
first=$(done_so_far "$1" "$2")
until [ "$(done_so_far "$1" "$2")" -ge $((first + $3)) ]; do
    if [ $SECONDS -ge "${4:-60}" ]; then
        echo "chunks.sh: the hub at $1:$2 did not step $3 chunks in ${4:-60} s"
        exit 1
    fi
    sleep 0.2
done
