#!/bin/bash
# Compressed jobs by RDMA have the bits of a plain model with every codec, and the bits of shared memory with Slim-DP (seeded
# and with keys) and with weights pulled in batches; the bytes that cross; workers that come and go, and workers whose
# frames lie.
# guest: one
# build: test together
# seconds: 120
set -eu -o pipefail
together --test-threads 1 --nocapture bits::compressed::by_rdma bits::slim::the_bits_are_the_same_by_every_transport \
    membership::compressed:: hostile::frames:: resources::traffic:: order::pulls::the_bits_are_the_same_in_batches 2>&1 | tee /tmp/compressed
if grep "skipped:" /tmp/compressed; then exit 1; fi
# A filter that matches nothing would pass, too.
[ "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' /tmp/compressed)" = 7 ]
