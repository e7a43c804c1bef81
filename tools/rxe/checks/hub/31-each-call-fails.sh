#!/bin/bash
# Each call of libibverbs fails once at the hub and once at the worker, in a join and in rounds: the worker ends with an error that
# names the call and the NIC, nothing of it is left in the kernel, and the next job at the same hub is exact. A registration that
# takes longer than a hello may, and longer than a silence of a worker may, delays a job and ends none.
# guest: one
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 400
like_hardware
model 300000
: >/tmp/faults
run=(phub-probe --hub 127.0.0.1:7077 --transport verbs --workers 1 --rank 0 --manifest /tmp/model --json)
jobs=0
# fine NAME=VALUE...: a job ends well, also with these variables.
fine() {
    jobs=$((jobs + 1))
    timeout 60 env "$@" "${run[@]}" --job "job-$jobs" --rounds 3 >/tmp/report 2>/tmp/worker.fine
    jq -e '.checked and .transport == "verbs"' /tmp/report >/dev/null
}
# What the kernel has of objects. The contexts of processes that have ended are gone, too.
objects() { rdma resource show; }
as_before() { [ "$(objects)" = "$before" ]; }
# fault SIDE ROUNDS LINE: with this fault at this side a job ends with the call's name, and leaves nothing.
fault() {
    local side=$1 rounds=$2 call variables=() status=0
    call=${3%% *}
    echo "$3" >/tmp/faults
    [ "$side" = hub ] || variables=(LIKE_FAULTS=/tmp/faults)
    [ "$side" = hub ] || mv /tmp/faults /tmp/faults.worker && variables=("${variables[@]/%faults/faults.worker}")
    [ "$side" = worker ] || true
    jobs=$((jobs + 1))
    timeout 60 env "${variables[@]}" "${run[@]}" --job "job-$jobs" --rounds "$rounds" >/dev/null 2>/tmp/said || status=$?
    : >/tmp/faults
    if [ $status = 0 ] || [ $status = 124 ]; then
        cat /tmp/said
        echo "$side, $3: exit status $status" && exit 1
    fi
    cat /tmp/said /tmp/hub | grep -F "$call" | grep -F rxe0 >/tmp/named || { cat /tmp/said && echo "$side, $3: nobody names it" && exit 1; }
    echo "$side, $3: $(head -n 1 /tmp/named | cut -c 1-300)"
    within 20 as_before
}
