#!/bin/bash
# Calls of libibverbs fail at the hub and at the worker, in a join and in rounds. The worker ends with an
# error, and the worker or the hub names the call and the NIC. Nothing of the worker is left in the kernel,
# and the next job at the same hub is exact. A hub that cannot start prints such an error, too.
#
# A worker joins even if its registration takes longer than the time limit of a hello. The doctor fails for a job that needs
# queues of too many entries.
# guest: one
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 400
like_hardware
model 300000
: >/tmp/faults.hub
: >/tmp/faults.worker
# objects: prints the kernel's objects of rxe0.
objects() { rdma resource show | grep rxe0; }
as_before() { [ "$(objects)" = "$before" ]; }
# named CALL FILE...: returns whether a file names the call and the NIC.
named() {
    awk -v call="$1" 'index($0, call) && index($0, "rxe0") { print substr($0, 1, 260); found = 1; exit }
        END { exit !found }' "${@:2}"
}
jobs=0
# job SECONDS ROUNDS: runs a job, with its output in /tmp/report and /tmp/said.
job() {
    jobs=$((jobs + 1))
    LIKE_FAULTS=/tmp/faults.worker timeout "$1" phub-probe --hub 127.0.0.1:7077 --transport verbs --workers 1 --rank 0 \
        --manifest /tmp/model --json --job "job-$jobs" --rounds "$2" >/tmp/report 2>/tmp/said
}
fine() { job 60 3 && jq -e '.checked and .transport == "verbs"' /tmp/report >/dev/null; }
# fault SIDE ROUNDS LINE: runs a job with this fault at this side.
fault() {
    local status=0 from
    from=$(($(wc -c </tmp/hub) + 1))
    echo "$3" >/tmp/faults."$1"
    job 60 "$2" || status=$?
    : >/tmp/faults."$1"
    within 20 as_before
    # The worker may end before the hub has written its log.
    somebody_names() { tail -c "+$from" /tmp/hub >/tmp/hub.said && named "$1" /tmp/said /tmp/hub.said; }
    # Status 124 means that the worker did not end in time.
    if [ $status = 0 ] || [ $status = 124 ] || ! within 10 somebody_names "${3%% *}"; then
        echo "$1, $3: exit status $status, it says:" && cat /tmp/said && exit 1
    fi
}

for call in ibv_open_device ibv_query_device ibv_query_port ibv_create_comp_channel ibv_create_cq; do
    echo "$call@rxe0 fail 12" >/tmp/faults.hub
    status=0
    LIKE_FAULTS=/tmp/faults.hub timeout 20 phub-server serve --transports verbs --listen 127.0.0.1:0 &>/tmp/said || status=$?
    [ $status = 1 ] || { cat /tmp/said && echo "$call: exit status $status" && exit 1; }
    named $call /tmp/said
done
: >/tmp/faults.hub

LIKE_FAULTS=/tmp/faults.hub serve --transports verbs --listen 127.0.0.1:7077
fine
before=$(objects)
echo "$before"
for line in "ibv_open_device fail 5" "ibv_query_port fail 5" "ibv_create_cq fail 12"; do fault worker 3 "$line"; done
for side in hub worker; do
    for line in "ibv_alloc_pd fail 12" "ibv_reg_mr fail 12" "ibv_reg_mr_iova2 fail 12" "ibv_create_qp fail 12" \
        "ibv_modify_qp fail 22" "ibv_modify_qp fail 110 after 1" "ibv_modify_qp fail 22 after 2" "ibv_post_recv fail 12"; do
        fault $side 3 "$line"
    done
    for line in "ibv_post_send fail 12 after 20" "ibv_post_recv fail 12 after 40" "ibv_poll_cq fail 2 after 200" \
        "ibv_req_notify_cq fail 5 after 20"; do
        fault $side 1000000 "$line"
    done
    fine
done
echo "ibv_reg_mr delay 6000" >/tmp/faults.worker
fine
end_hub

# A lane of VGG-19 has more chunks than a receive queue of this NIC has entries.
if LIKE_AS=bnxt_re phub-server doctor --transports verbs --cores 1 --model vgg19 --listen 127.0.0.1:0 >/tmp/said; then exit 1; fi
grep -E "^FAIL  bytes over rxe0 .*ibv_create_qp: the device's maximum is 4351" /tmp/said
