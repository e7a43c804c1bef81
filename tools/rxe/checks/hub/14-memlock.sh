#!/bin/bash
# With a limit of 64 KiB of locked memory, at the hub and then at the worker, the worker fails. Its error has the bytes, the limit
# and what to do. The hub continues, and a job over another transport runs.
# guest: one --nics 2
# build: bin phub-server
# build: bin phub-probe
# ci
model 300000
# Root may lock all memory, unless it gives up the capability for it permanently.
limited=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=65536:65536)
run=(phub-probe --manifest /tmp/model --hub 127.0.0.1:7077 --workers 1 --rank 0 --rounds 3)
for side in hub worker; do
    hub_by=() worker_by=()
    if [ $side = hub ]; then hub_by=("${limited[@]}"); else worker_by=("${limited[@]}"); fi
    serve
    if "${worker_by[@]}" "${run[@]}" --transport verbs --job limited &>/tmp/worker.$side; then
        echo "the limit had no effect at the $side"
        exit 1
    fi
    # Each NIC carries about half of the model's 1.2 MB, or all of it if the other NIC is down.
    grep -qE "cannot register ([56][0-9]{5}|1200000) bytes" /tmp/worker.$side || { echo "the worker does not say how many bytes" && exit 1; }
    for said in "65536 bytes (RLIMIT_MEMLOCK)" "ulimit -l unlimited" "LimitMEMLOCK=infinity"; do
        grep -qF "$said" /tmp/worker.$side || { echo "the worker does not say '$said' of the $side" && exit 1; }
    done
    if [ $side = hub ]; then grep -qF "65536 bytes (RLIMIT_MEMLOCK)" /tmp/hub; fi
    "${run[@]}" --job next --transport shm --json >/tmp/worker.next.$side
    jq -e .checked /tmp/worker.next.$side
    end_hub
done
