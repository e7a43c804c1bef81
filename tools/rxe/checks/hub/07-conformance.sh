#!/bin/bash
# The contract of a port over verbs, on a real device. The check runs the conformance suite, and tests of
# hostile peers and handshakes, forks, limits on locked memory, a port that goes down, and loans. No test may skip
# for lack of a device.
# guest: one
# build: test conformance_verbs
# build: test verbs_handshake
# build: lib fabric
# seconds: 150
# ci
# The tests run one after another, because one of them sets the interface down.
export PHUB_TEST_LINK_DOWN=nic0
conformance_verbs --test-threads 1 --nocapture 2>&1 | tee /tmp/conformance
verbs_handshake --nocapture 2>&1 | tee -a /tmp/conformance
fabric verbs:: loan:: --test-threads 1 --nocapture 2>&1 | tee -a /tmp/conformance
if grep "skipped:" /tmp/conformance; then
    echo "a test was skipped, on a machine with a device"
    exit 1
fi
# A filter that matches no test would also pass.
[ "$(grep -c "^test result: ok. [1-9]" /tmp/conformance)" = 3 ]
