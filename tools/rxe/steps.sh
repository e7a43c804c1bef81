# shellcheck shell=bash
# Functions that several checks use. run-checks.sh sources this file before each check.

# within SECONDS COMMAND...: repeats the command until it succeeds, and fails after the timeout.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "timed out waiting for: $*" && return 1; }
        sleep 0.1
    done
}

# listens HOST PORT: whether a program listens on this port. Checks wait for it, because the other guest may boot more slowly.
listens() { (: <"/dev/tcp/$1/$2") 2>/dev/null; }

# ask HOST PORT: prints the answer of a hub's control port to GET /v1/hub.
ask() {
    local answer token
    token=$(phub-server token)
    exec 3<>"/dev/tcp/$1/$2"
    printf 'GET /v1/hub HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n' "$token" >&3
    answer=$(tr -d '\r' <&3)
    [[ $answer == "HTTP/1.1 200 "* ]] || { echo "$1:$2 answered ${answer%%$'\n'*}" >&2 && return 1; }
    printf '%s\n' "${answer#*$'\n\n'}"
}

# chunks HOST PORT: prints the number of chunks that the hub's cores have stepped.
chunks() { ask "$1" "$2" | jq '[.cores[].chunks] | add'; }

# relinked HOST N: whether there were at least N reconnects of workers to the hub on port 7077 of HOST.
relinked() { [ "$(ask "$1" 7077 | jq .counts.relinks)" -ge "$2" ]; }

# rounds_flow HOST PORT: waits until the hub has stepped 50 more chunks.
rounds_flow() {
    local most
    most=$(($(chunks "$1" "$2") + 50))
    has_stepped() { [ "$(chunks "$1" "$2")" -ge "$3" ]; }
    within 60 has_stepped "$1" "$2" $most
}

# like_hardware: from now on programs use the interposer, a libibverbs with the limits and faults of the LIKE_... variables. The
# check must have the line `# build: interposer libibverbs.so.1`, which puts the library in the folder of the programs.
like_hardware() {
    LD_LIBRARY_PATH=$(dirname "$(type -p libibverbs.so.1)")
    export LD_LIBRARY_PATH LIKE_LOG=/tmp/verbs
    : >"$LIKE_LOG"
}

# serve OPTION...: starts a hub on port 7077. At the end of the check, the output of the hub and of the workers is printed. If
# `hub_by` is set, that command starts the hub.
hub_by=()
serve() {
    "${hub_by[@]}" phub-server serve "$@" &>/tmp/hub &
    hub=$!
    trap 'kill $(jobs -p) 2>/dev/null || true; cat /tmp/hub /tmp/worker.* 2>/dev/null || true' EXIT
    within 60 listens 127.0.0.1 7077
}

# end_hub: stops the hub. Fails if the hub does not end with status 0.
end_hub() {
    kill "$hub"
    wait "$hub"
}

# write_bw OPTION...: runs perftest's ib_write_bw as a client. Retries until the server, in this or the other guest, has
# started.
write_bw() {
    until ib_write_bw "$@" &>/tmp/write_bw; do
        # When client and server have connected, the output has the peer's address. There is no retry after a later failure.
        if grep -q "remote address" /tmp/write_bw; then
            cat /tmp/write_bw
            return 1
        fi
        sleep 0.2
    done
    cat /tmp/write_bw
}

# moved COUNT FILE: whether perftest has moved COUNT chunks, according to its output in FILE.
moved() { grep -Eq "^ *32768 +$1 +[1-9]" "$2"; }

# model ELEMENTS...: makes the safetensors file /tmp/model, with an f32 tensor of zeros for each ELEMENTS. The file is sparse, so
# it takes no room on the disk. Keep the model small: emulated NICs move tens of megabytes a second.
model() {
    local header="" begin end=0 number=0 elements byte octal
    for elements in "$@"; do
        begin=$end end=$((end + 4 * elements)) number=$((number + 1))
        header="$header${header:+,}\"tensor $number\":{\"dtype\":\"F32\",\"shape\":[$elements],\"data_offsets\":[$begin,$end]}"
    done
    header="{$header}"
    # The file begins with the length of the header, in eight bytes, little-endian.
    for ((byte = 0; byte < 8; byte++)); do
        printf -v octal %03o $((${#header} >> (8 * byte) & 255))
        printf '%b' "\\0$octal"
    done >/tmp/model
    printf %s "$header" >>/tmp/model
    truncate -s "+$end" /tmp/model
}
