#!/bin/bash
# A core that busy-polls makes no system call for a chunk but the driver's own: rxe's doorbell, a write for each call
# of ibv_post_send. Completions are polled and receive requests posted without any. Counted on the core's thread, from
# before a worker joins until it has left.
# guest: one
# build: bin phub-server
# build: bin phub-probe
# seconds: 90
set -eu -o pipefail
bash tools/rxe/model.sh /tmp/model 1000000
phub-server serve --cores 1 --idle busy-poll --transports verbs &>/tmp/hub &
hub=$!
trap 'kill $(jobs -p) 2>/dev/null || true; cat /tmp/hub' EXIT
bash tools/rxe/await.sh 127.0.0.1 7077
core=$(grep -l "^phub-core-" /proc/$hub/task/*/comm | cut -d/ -f5)
strace -c -p "$core" -o /tmp/calls 2>/tmp/strace &
strace=$!
bash tools/rxe/heard.sh /tmp/strace attached
phub-probe --hub 127.0.0.1:7077 --workers 1 --rank 0 --rounds 20 --manifest /tmp/model
chunks=$(bash tools/rxe/ask.sh 127.0.0.1 7077 | jq '[.cores[].chunks] | add')
kill -INT $strace
wait $strace || true
kill $hub
wait $hub
cat /tmp/calls
# Columns are the share, seconds, a call's microseconds, calls, errors where there are some, and the name. Reading the
# clock is no system call but where the guest's kernel does not trust its emulated processor's.
awk -v chunks="$chunks" '/^ *[0-9]/ && $NF != "total" { count[$NF == "write" || $NF == "clock_gettime" ? $NF : "other"] += $4 }
    END { printf "%d chunks: %d doorbells, %d other calls, and %d looks at a clock\n", chunks, count["write"], count["other"], count["clock_gettime"]
          exit !(chunks >= 2500 && count["write"] > 0 && count["write"] <= chunks + 20 && count["other"] <= 0.02 * chunks) }' /tmp/calls
