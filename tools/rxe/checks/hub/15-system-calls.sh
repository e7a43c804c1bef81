#!/bin/bash
# A core that busy-polls makes no system call except the driver's: rxe's doorbell, a write for each call of ibv_post_send. The
# core polls completions and posts receive requests without system calls. All answers of a turn to a worker leave with one
# doorbell. So there are fewer doorbells than chunks, although each chunk has four answers. The calls of the core's thread are
# counted from before the workers join until they have left.
# guest: one
# build: bin phub-server
# build: bin phub-probe
# seconds: 120
model 1000000
serve --cores 1 --idle busy-poll --transports verbs
core=$(grep -l "^phub-core-" /proc/$hub/task/*/comm | cut -d/ -f5)
strace -c -p "$core" -o /tmp/calls 2>/tmp/strace &
strace=$!
within 60 grep -sqF attached /tmp/strace
run=(phub-probe --hub 127.0.0.1:7077 --workers 4 --rounds 20 --manifest /tmp/model)
for rank in 1 2 3; do "${run[@]}" --rank $rank &>/tmp/worker.$rank & done
"${run[@]}" --rank 0
chunks=$(chunks 127.0.0.1 7077)
kill -INT $strace
wait $strace || true
end_hub
cat /tmp/calls
# The columns of strace are share, seconds, microseconds for a call, calls, errors if there are any, and name. A read of the clock
# is a system call only if the guest's kernel does not trust the clock of its emulated processor.
awk -v chunks="$chunks" '/^ *[0-9]/ && $NF != "total" { count[$NF == "write" || $NF == "clock_gettime" ? $NF : "other"] += $4 }
    END { printf "%d chunks: %d doorbells, %d other calls, and %d looks at a clock\n", chunks, count["write"], count["other"], count["clock_gettime"]
          exit !(chunks >= 2500 && count["write"] > 0 && count["write"] <= chunks && count["other"] <= 0.02 * chunks) }' /tmp/calls
