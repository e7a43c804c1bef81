#!/bin/bash
# Waits until something listens at HOST PORT, for at most SECONDS: `await.sh HOST PORT [SECONDS]`. Guests boot at
# different speeds, and another machine can only see that a program has started when it answers.
set -u
host=$1 port=$2 limit=${3:-60}
until (: <"/dev/tcp/$host/$port") 2>/dev/null; do
    if [ $SECONDS -ge "$limit" ]; then
        echo "await.sh: nothing listened at $host:$port for $limit s" >&2
        exit 1
    fi
    sleep 0.1
done
