#!/bin/bash
# `phub-server doctor` on a PBox. All is well, and every NIC moves real bytes. The doctor finds a NIC that is down, a limit on
# locked memory, and a setting for huge pages, and its fixes work. The kernel pins as many bytes for a running job as the doctor
# says that the hub registers.
# guest: one --numa --nics 4 --memory 4096
# build: bin phub-server
# build: bin phub-probe
# seconds: 150

# doctor STATUS ARGUMENT...: runs the doctor, expects this status, and keeps the output in /tmp/said.
doctor() {
    local wanted=$1 status=0
    shift
    echo "--- doctor $*"
    phub-server doctor --listen 127.0.0.1:0 "$@" | tee /tmp/said || status=$?
    [ $status = "$wanted" ] || { echo "exit status $status, expected $wanted" && exit 1; }
}
# says PATTERN...: checks that the output of the last run has all of these.
says() {
    local pattern
    for pattern in "$@"; do
        grep -Eq -- "$pattern" /tmp/said || { echo "the doctor does not say '$pattern'" && exit 1; }
    done
}
# fix NAME: prints the fix that the doctor names for this check.
fix() { grep -A 9 -E "^(warn|FAIL)  $1 " /tmp/said | sed -n 's/^ *fix: //p' | head -n 1; }
packets() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/rcvd_pkts"; }

# Every NIC moves 8 MiB to itself and back in packets of 4096 bytes, and its own counter shows it.
declare -a before
for ((i = 0; i < PHUB_RXE_NICS; i++)); do before[i]=$(packets "$i"); done
doctor 0 --transports verbs
for ((i = 0; i < PHUB_RXE_NICS; i++)); do
    says "^pass  NIC rxe$i +port 1 ACTIVE, Ethernet, MTU 4096, .*interface nic$i" \
        "^pass  GID rxe$i +index 1, ::ffff:10.77.$i.1: RoCE v2 with an IPv4 address of the port's own" \
        "^pass  bytes over rxe$i +8388608 bytes to itself and back, each byte checked: [0-9.]+ GB/s"
    moved=$(($(packets "$i") - before[i]))
    echo "rxe$i: $moved packets"
    [ $moved -ge 4096 ]
done
says "^pass  NUMA and NICs +2 nodes, 8 cores, 4 NICs"

# A kernel setting that costs some percent of speed gives a warning, and the printed fix works.
says "^pass  huge pages of windows +made by MADV_COLLAPSE .* bytes of each window of resnet50" "^Well: nothing is in the way$"
echo never >/sys/kernel/mm/transparent_hugepage/enabled
doctor 0
says "^warn  huge pages of the hub"
command=$(fix "huge pages of the hub")
bash -c "${command#as root: }"
doctor 0
says "^Well: nothing is in the way$"

# The hub does without a NIC that is down, unless a flag names the NIC.
ip link set nic1 down
doctor 0
says "^warn  NIC rxe1 +port 1 DOWN" "the hub does not use this NIC" "rxe1 has no link: left out"
doctor 1 --nics =rxe0,rxe1
says "^FAIL  NIC rxe1 +port 1 DOWN" "expected an ACTIVE port" "^Not well: 1 failure \(NIC rxe1\)" \
    "^note  NIC rxe2 .*the list of NICs excludes it" "^pass  bytes over rxe0"
if grep "bytes over rxe[123]" /tmp/said; then exit 1; fi
command=$(fix "NIC rxe1")
echo "fix: ${command%;*}"
bash -c "${command%;*}"
until ibv_devinfo -v -d rxe1 | grep -q "10.77.1.1, RoCE v2"; do :; done
doctor 0 --nics =rxe0,rxe1
says "^pass  bytes over rxe1"

# The limits of a shell apply to a process that may not exceed them.
(
    ulimit -l 64
    exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
        phub-server doctor --listen 127.0.0.1:0 --workers 8
) | tee /tmp/said && echo "a limit of 64 KiB is no failure" && exit 1
says "^FAIL  memlock +resnet50 with 8 workers registers 16[3-9][0-9]{7} bytes .*RLIMIT_MEMLOCK is 65536 bytes .*no CAP_IPC_LOCK" \
    "fix: ulimit -l unlimited" "LimitMEMLOCK=infinity" "--ulimit memlock=-1" \
    "^FAIL  bytes over rxe0 +cannot register"

# The kernel pins as many bytes for a running hub as the doctor says. The model is one tensor of 1 MB.
header='{"w":{"dtype":"F32","shape":[250000],"data_offsets":[0,1000000]}}'
printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s" "$header" >/tmp/small.safetensors
truncate -s $((8 + ${#header} + 1000000)) /tmp/small.safetensors
doctor 0 --manifest /tmp/small.safetensors --workers 2
said=$(sed -n 's/.*with 2 workers registers \([0-9]*\) bytes.*/\1/p' /tmp/said)
phub-probe --transport verbs --manifest /tmp/small.safetensors --workers 2 --rounds 20 --json >/tmp/probe &
probe=$!
pinned=0
while kill -0 $probe 2>/dev/null; do
    # The hub pins the most, because workers pin only their own windows. A process may end while it is read.
    most=$({ cat /proc/[0-9]*/status 2>/dev/null || true; } |
        awk '$1 == "VmPin:" && $2 > most { most = $2 } END { print most + 0 }')
    if [ "$most" -gt "$pinned" ]; then pinned=$most; fi
done
wait $probe
echo "the doctor says $said bytes, the kernel has pinned $((pinned * 1024))"
[ "$said" = $((pinned * 1024)) ]
