#!/bin/bash
# Compares the probe over RDMA with perftest, on the loop-back of one device in one boot: `tools/rxe/speed.sh [REPETITIONS]`
# (3). Both directions count. Each repetition runs `ib_write_bw -b` with the size of a chunk, the whole probe, and the probe
# "ablated", with a hub that neither sums nor steps. The script prints the median, lowest and highest of the ratios within a
# repetition. The whole probe is also compared with a sum of two times: perftest's time, and the time of the hub's summing and
# stepping alone over private memory, which the probe measures as its limit. The guest's processors have to do both kinds of
# work. They are emulated, and other work may share them, so only ratios count.
set -eu -o pipefail
if [ -z "${PHUB_RXE_SIDE:-}" ]; then
    here=$(cd "$(dirname "$0")" && pwd)
    probe=$(bash "$here/binary.sh" bin phub-probe)
    cd "$here/../.."
    exec env "PATH=$(dirname "$probe"):$PATH" bash "$here/bed/guest.sh" --timeout 600 -- bash "$here/speed.sh" "$@"
fi
. tools/rxe/steps.sh
# perftest has a processor for each of its two ends. The probe also has two processors: one for its hub's only core, one for its
# worker. If the hub's core only moves bytes, it busy-polls, as perftest does. If the core also sums and steps, it sleeps
# between turns, which leaves the worker more of the two processors.
probe=(phub-probe --transport verbs --workers 1 --cores 1 --rounds 20 --manifest /tmp/model --json)

# perftest: prints gigabytes a second, of both directions together.
perftest() {
    ib_write_bw -b -d rxe0 -s 32768 -n 600 -F --report_gbits &>/tmp/server &
    local server=$!
    write_bw -b -d rxe0 -s 32768 -n 600 -F --report_gbits 127.0.0.1 >/tmp/client
    wait $server
    awk '$1 == 32768 && $2 == 600 { print $4 / 8 }' /tmp/client
}
probed() {
    "${probe[@]}" "$@" >/tmp/report
    jq -r '[.goodput_gb_per_s, .limit_gb_per_s // empty] | map(2 * .) | join(" ")' /tmp/report
}
# ratio EXPRESSION: prints the median, lowest and highest value of an awk expression over the rows. The columns are the values
# of perftest, of the ablated probe, of the whole probe, and of the kernels.
ratio() { awk "{ print $1 }" /tmp/rows | sort -n | awk '{ r[NR] = $1 }
    END { printf "%.2f (%.2f to %.2f)", r[int((NR + 1) / 2)], r[1], r[NR] }'; }

model 1000000
: >/tmp/rows
echo "GB/s, both ways: perftest, the probe ablated, the probe whole, the kernels"
for ((repetition = 0; repetition < ${1:-3}; repetition++)); do
    echo "$(perftest) $(probed --idle busy-poll --ablate aggregate,optimize) $(probed --idle sleep)" | tee -a /tmp/rows
done
echo "of perftest: ablated $(ratio '$2 / $1'), whole $(ratio '$3 / $1')"
echo "of perftest and then the kernels: whole $(ratio '$3 * (1 / $1 + 1 / $4)')"
