#!/bin/bash
# A port over verbs keeps its contract on a device: the conformance suite, hostile peers and handshakes, forks, limits of locked
# memory, and a port that goes down. No test may be skipped for lack of a device.
# guest: one
# build: test conformance_verbs
# build: test verbs_handshake
# build: lib fabric
# seconds: 150
# ci
# The tests run one after the other, because one of them sets the interface down.
export PHUB_TEST_LINK_DOWN=nic0
conformance_verbs --test-threads 1 --nocapture 2>&1 | tee /tmp/conformance
verbs_handshake --nocapture 2>&1 | tee -a /tmp/conformance
fabric verbs:: --test-threads 1 --nocapture 2>&1 | tee -a /tmp/conformance
if grep "skipped:" /tmp/conformance; then
    echo "a test was skipped, on a machine with a device"
    exit 1
fi
# A filter without a match would pass, too, so count the tests.
[ "$(grep -c "^test result: ok. [1-9]" /tmp/conformance)" = 3 ]
