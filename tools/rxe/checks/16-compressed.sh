#!/bin/bash
# Compressed jobs by RDMA: the bits of a plain model with every codec, of shared memory with Slim-DP, seeded and with
# keys, and with weights pulled in batches; the bytes that cross; workers that come and go, and some whose frames lie.
# guest: one
# build: test benches compressed
# build: test benches slim
# build: test benches pulls
# seconds: 120
set -eu -o pipefail
{
    compressed --test-threads 1 --nocapture by_rdma fewer_bytes_cross workers_come_and_go frames_lie
    slim --test-threads 1 --nocapture the_same_by_every_way alpha_of_the_model
    pulls --test-threads 1 --nocapture the_same_in_batches
} 2>&1 | tee /tmp/compressed
if grep "skipped:" /tmp/compressed; then exit 1; fi
# A filter that fits nothing would pass, too.
[ "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' /tmp/compressed | xargs)" = "4 2 1" ]
