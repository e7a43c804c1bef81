#!/bin/bash
# Two wires between two machines share no subnet, and three lanes use two NICs. Each lane uses only its own wire, because NICs
# are paired by their names. The completions of each lane, and of each worker, have a completion vector of their own. If a map
# of rails crosses the wires, hub and worker follow the map, and so the job fails.
# guest: pair --nics 2 --cpus 3
# build: bin phub-server
# build: bin phub-probe
# build: interposer libibverbs.so.1
# seconds: 120
# ci
for nic in 0 1; do
    own=10.77.$nic.$PHUB_RXE_SIDE other=10.77.$nic.$((3 - PHUB_RXE_SIDE))
    ip address flush dev nic$nic scope global
    ip address add "$own/32" dev nic$nic
    ip route replace "$other/32" dev nic$nic src "$own"
    has_address() { ibv_devinfo -v -d "rxe$1" | grep -q "$2, RoCE v2"; }
    within 20 has_address $nic "$own"
done
like_hardware
vectors() { sed -n 's/^queue vector=\([0-9]*\) .*/\1/p' "$LIKE_LOG" | sort -u | xargs; }
if [ "$PHUB_RXE_SIDE" = 1 ]; then
    serve --listen 0.0.0.0:7077 --cores 3 --transports verbs
    within 90 grep -qF "all workers left" /tmp/hub
    [ "$(vectors)" = "0 1 2" ]
    end_hub
    exit
fi
within 60 listens "$PHUB_RXE_PEER" 7077
model 400000 17
run=(phub-probe --hub "$PHUB_RXE_PEER:7077" --rounds 3 --manifest /tmp/model --json)
if PHUB_RAILS=rxe0=rxe1,rxe1=rxe0 "${run[@]}" --job crossed --workers 1 --rank 0 &>/tmp/worker.crossed; then exit 1; fi
: >"$LIKE_LOG"
"${run[@]}" --workers 2 --rank 0 >/tmp/report.0 2>/tmp/worker.0 &
other=$!
"${run[@]}" --workers 2 --rank 1 >/tmp/report.1 2>/tmp/worker.1
wait $other
jq -e '.transport == "verbs" and .checked' /tmp/report.0 /tmp/report.1
jq -e '[.per_core[].nic] == ["rxe0", "rxe0", "rxe1"]' /tmp/report.0
[ "$(vectors)" = "0 1" ]
