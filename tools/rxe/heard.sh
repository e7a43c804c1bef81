#!/bin/bash
# Waits until a program has written a line with TEXT to FILE: `heard.sh FILE TEXT [SECONDS]`. After SECONDS (60) it shows
# the end of the file and fails.
set -u
file=$1 text=$2 limit=${3:-60}
until grep -sqF -- "$text" "$file"; do
    if [ $SECONDS -ge "$limit" ]; then
        echo "heard.sh: no line of $file has '$text' after $limit s; its end:"
        tail -n 15 "$file"
        exit 1
    fi
    sleep 0.1
done
