#!/bin/bash
# The pages of a hub's windows on a machine with two NUMA nodes, by shared memory, TCP and RDMA. A range of 2 MiB is a huge page
# if all its chunks belong to cores of one node. Otherwise the range has small pages. In both cases, the memory of a core is on
# the core's node.
#
# The doctor names the same number of bytes in huge pages. The kernel has pinned as many bytes as the doctor says that the hub
# registers. A worker's gradients also have huge pages, by TCP and RDMA.
# guest: one --numa --nics 2 --memory 4096
# build: bin phub-server
# build: bin phub-probe
# seconds: 400

# pages PID [NAME]: prints a line for each mapping that is as large as a window and has NAME in its name. The
# line has the first address, and the number of bytes that are mapped by huge pages.
pages() {
    awk -v size="$window_kib" -v name="${2-}" '
        $1 ~ /^[0-9a-f]+-[0-9a-f]+$/ { split($1, range, "-"); is_named = name == "" || index($0, name) }
        $1 == "Size:" { is_window = $2 == size && is_named; huge = 0 }
        $1 == "AnonHugePages:" || $1 == "ShmemPmdMapped:" { huge += $2 * 1024 }
        $1 == "VmFlags:" && is_window { print range[1], huge }' "/proc/$1/smaps"
}
# on_nodes ADDRESS: prints how many bytes of the mapping at ADDRESS lie on node 0, and how many on node 1.
on_nodes() {
    awk -v start="$1" '
        $1 == start { for (i = 2; i <= NF; i++) if ($i ~ /^N[01]=/) on[substr($i, 2, 1)] = substr($i, 4) * 4096 }
        END { print on[0] + 0, on[1] + 0 }' "/proc/$hub/numa_maps"
}
stepped() { [ "$(chunks 127.0.0.1 7077)" -gt 0 ]; }
# look CORES TRANSPORT ROUNDS OPTION...: trains one worker at a hub with these cores, and reads the hub's
# state while the worker pauses.
look() {
    local probe worker address huge
    serve --listen 127.0.0.1:7077 --cores "$1"
    phub-probe --hub 127.0.0.1:7077 --transport "$2" --workers 1 --rank 0 --rounds "$3" "${@:4}" \
        --manifest /tmp/model --json >/tmp/report 2>/tmp/worker.0 &
    probe=$!
    within 100 stepped
    worker=$(pgrep -P $probe)
    kill -STOP "$worker"
    pages "$hub" | while read -r address huge; do echo "$huge $(on_nodes "$address")"; done >/tmp/windows
    # Private windows have a policy, so that the kernel's NUMA balancing does not move them.
    if pages "$hub" | cut -d " " -f 1 | grep -F -f - "/proc/$hub/numa_maps" | grep -v file= | grep -v " local "; then exit 1; fi
    own=$(pages "$worker" memfd | cut -d " " -f 2)
    pinned=$(awk '$1 == "VmPin:" { print $2 * 1024 }' "/proc/$hub/status")
    kill -CONT "$worker"
    wait $probe
    end_hub
    jq -e --arg way "$2" '.checked and .transport == $way' /tmp/report
}
# The gradients of a worker that shares no memory have huge pages in its process.
own_gradients_are_huge() { echo "own gradients: ${own:-none} in huge pages" && [ "$own" = $((window_kib / 2048 << 21)) ]; }
# expect HUGE: checks that both windows have HUGE bytes in huge pages, and on each node the bytes of this node's cores, within
# 128 KiB.
expect() {
    local share
    # Cpus 0 to 3 are on node 0.
    share=$(jq '(.per_core | map(select(.cpu < 4).bytes) | add) / (.per_core | map(.bytes) | add)' /tmp/report)
    echo "expected: $1 bytes in huge pages, and $share of each window on node 0; seen (in huge pages, node 0, node 1):"
    cat /tmp/windows
    awk -v huge="$1" -v share="$share" -v all="$((window_kib * 1024))" '
        function is_near(seen, wanted) { return seen > wanted - 131072 && seen < wanted + 131072 }
        $1 == huge && is_near($2, share * all) && is_near($3, (1 - share) * all) { good++ }
        END { exit !(NR == 2 && good == 2) }' /tmp/windows
}

# There are six cores and chunks of 1 MiB: 3 MiB belong to node 0, then 3 MiB to node 1. So of each three ranges of 2 MiB, the
# second has chunks of both nodes.
model 4718592 17
window_kib=18436
# There must be enough rounds that the worker still trains when the check reads the hub's state.
declare -A rounds=([shm]=150 [tcp]=40 [verbs]=30)
export RUST_LOG=info,phub_server::cores::near=debug
for way in shm tcp verbs; do
    look 0-2,4-6 $way "${rounds[$way]}" --chunk-bytes 1048576
    expect $((12 << 20))
    [ $way = shm ] || own_gradients_are_huge
done

# This model is large enough that whole huge pages go to the nodes. Its chunks cross the borders of huge pages. The job runs by
# RDMA.
model 17 70000000
phub-server doctor --listen 127.0.0.1:0 --manifest /tmp/model --workers 1 | tee /tmp/said
read -r huge bytes <<<"$(sed -n 's/.*MADV_COLLAPSE.*; \([0-9]*\) of \([0-9]*\) bytes of each window .*/\1 \2/p' /tmp/said)"
registered=$(sed -n 's/.*with 1 workers registers \([0-9]*\) bytes.*/\1/p' /tmp/said)
window_kib=$(((bytes + 4095) / 4096 * 4))
look 0-7 verbs 2
expect "$huge"
own_gradients_are_huge
echo "the doctor says that $registered bytes are registered, the kernel has pinned $pinned"
[ "$registered" = "$pinned" ]
