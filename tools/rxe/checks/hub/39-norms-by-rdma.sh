#!/bin/bash
# Steps that wait for a norm have the same bits by RDMA as by shared memory: clip_norm at one hub and over three hubs,
# clip_norm_last, skipped rounds, LARS and LAMB.
# guest: one
# build: test together
# seconds: 480
filters=(bits::clipped::the_bits_are_the_same bits::clipped::a_round bits::by_key::the_bits_are_the_same)
together --test-threads 1 --nocapture "${filters[@]}" 2>&1 | tee /tmp/tests
if grep "skipped:" /tmp/tests; then exit 1; fi
# A filter without a match would pass, too, so check that tests have run.
for filter in "${filters[@]}"; do grep -q "^test $filter" /tmp/tests; done
