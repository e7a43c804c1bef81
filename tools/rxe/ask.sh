#!/bin/bash
# Asks a hub's control port and prints the body of the answer: `ask.sh HOST PORT [PATH]` (default /v1/hub).
set -eu -o pipefail
exec 3<>"/dev/tcp/$1/$2"
printf 'GET %s HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n' "${3:-/v1/hub}" >&3
answer=$(tr -d '\r' <&3)
[[ $answer == "HTTP/1.1 200 "* ]] || {
    echo "ask.sh: $1:$2 answered ${answer%%$'\n'*}" >&2
    exit 1
}
printf '%s\n' "${answer#*$'\n\n'}"
