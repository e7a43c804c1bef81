#!/bin/bash
# Training by RDMA gives the same bits as by shared memory, TCP and a mixture of them, and a worker that is killed is named.
# Compressed jobs have the bits of a simple model of each codec. With Slim-DP (seeded and with keys), and with weights pulled in
# batches, the bits are those of shared memory. Other tests are of the bytes that cross, workers that join and leave, frames with
# wrong headers, and a hub that is started again.
# guest: one
# build: test together
# seconds: 240
# ci
filters=(bits::compressed::by_rdma bits::slim::the_bits_are_the_same_by_every_transport membership::compressed:: hostile::frames::
    resources::traffic:: order::pulls::the_bits_are_the_same_in_batches
    faults::returns::a_hub_that_is_started_again_costs_nothing)
# The skipped test does not use RDMA and moves half a gigabyte.
together --test-threads 1 --nocapture bits::transports:: "${filters[@]}" --skip large_chunks 2>&1 | tee /tmp/tests
if grep "skipped:" /tmp/tests; then exit 1; fi
# A filter without a match would pass, too, so check that each has run a test.
for filter in bits::transports:: "${filters[@]}"; do grep -q "^test $filter" /tmp/tests; done
