#!/bin/bash
# Compressed jobs by RDMA: the bits of a plain model with every codec, of shared memory with Slim-DP, seeded and with
# keys, and with weights pulled in batches; the bytes that cross; workers that come and go, and some whose frames lie.
# guest: one
# build: test together
# seconds: 120
set -eu -o pipefail
together --test-threads 1 --nocapture compressed::by_rdma compressed::fewer_bytes_cross \
    compressed::workers_come_and_go compressed::workers_whose_frames_lie \
    slim::the_bits_are_the_same_by_every_way slim::alpha_of_the_model \
    pulls::the_bits_are_the_same_in_batches 2>&1 | tee /tmp/compressed
if grep "skipped:" /tmp/compressed; then exit 1; fi
# A filter that fits nothing would pass, too.
[ "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' /tmp/compressed)" = 7 ]
