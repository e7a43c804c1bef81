#!/bin/bash
# A core that busy-polls makes only one kind of system call, the doorbell of rxe's driver: a write for each call of
# ibv_post_send. It polls completions and posts receive requests without system calls. The answers of a turn are sent with one
# doorbell for each of four workers. Each chunk has four answers, and there are fewer doorbells than chunks.
#
# The calls of the core's thread are counted from before the workers join until they have left.
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
# The columns are: share, seconds, microseconds a call, calls, errors if there are any, name. Reading the
# clock is a system call only if the guest's kernel does not trust the clock of its emulated processor.
awk -v chunks="$chunks" '/^ *[0-9]/ && $NF != "total" { count[$NF == "write" || $NF == "clock_gettime" ? $NF : "other"] += $4 }
    END { printf "%d chunks: %d doorbells, %d other calls, and %d looks at a clock\n", chunks, count["write"], count["other"], count["clock_gettime"]
          exit !(chunks >= 2500 && count["write"] > 0 && count["write"] <= chunks && count["other"] <= 0.02 * chunks) }' /tmp/calls
