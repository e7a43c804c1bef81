#!/bin/bash
# Training by RDMA gives the same bits as training by shared memory, TCP and a mixture of them. A worker that is killed is
# named. With every codec, compressed jobs have the bits of a plain model. Jobs with Slim-DP (seeded or with keys), and jobs
# that pull weights in batches, have the same bits as over shared memory.
#
# Other tests are about the bytes that are sent, workers that join and leave, workers that send wrong frames, and a hub that is
# restarted.
# guest: one
# build: test together
# seconds: 240
# ci
filters=(bits::compressed::by_rdma bits::slim::the_bits_are_the_same_by_every_transport membership::compressed:: hostile::frames::
    resources::traffic:: order::pulls::the_bits_are_the_same_in_batches
    faults::returns::a_hub_that_is_started_again_costs_nothing)
# One test is skipped, because it does not use RDMA and moves half a gigabyte.
together --test-threads 1 --nocapture bits::transports:: "${filters[@]}" --skip large_chunks 2>&1 | tee /tmp/tests
if grep "skipped:" /tmp/tests; then exit 1; fi
# A filter that matches no test would also pass.
for filter in bits::transports:: "${filters[@]}"; do grep -q "^test $filter" /tmp/tests; done
