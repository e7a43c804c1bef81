#!/bin/bash
# Training gives the same bits by shared memory, TCP, RDMA, and a mixture of them; a worker that is killed is named.
# guest: one
# build: test together
# seconds: 120
set -eu -o pipefail
# The skipped test does not use RDMA and moves half a gigabyte.
together bits::transports:: --skip large_chunks --test-threads 1 --nocapture 2>&1 | tee /tmp/training
if grep "skipped:" /tmp/training; then exit 1; fi
