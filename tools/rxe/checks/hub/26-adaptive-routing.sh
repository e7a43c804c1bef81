#!/bin/bash
# With PHUB_RDMA_ADAPTIVE_ROUTING each post is two requests: a write, and an empty write with the immediate. The conformance suite
# passes, and counts two requests for a post. A job has exact results if only its hub has the setting.
# guest: one
# build: test conformance_verbs
# build: lib fabric
# build: bin phub-server
# build: bin phub-probe
# seconds: 150
model 300000
export PHUB_RDMA_ADAPTIVE_ROUTING=1
fabric --exact verbs::tests::a_chunk_is_one_send_and_one_receive_request | tee /tmp/counted
# The test that takes a link down is left out; check 23 has one.
conformance_verbs --test-threads 1 --nocapture --skip a_port_that_comes_back 2>&1 | tee -a /tmp/counted
[ "$(grep -c "^test result: ok. [1-9]" /tmp/counted)" = 2 ]
if grep "skipped:" /tmp/counted; then exit 1; fi
serve --transports verbs
unset PHUB_RDMA_ADAPTIVE_ROUTING
grep -F "adaptive routing 1" /tmp/hub
phub-probe --hub 127.0.0.1:7077 --transport verbs --manifest /tmp/model --workers 1 --rank 0 --rounds 3 --json >/tmp/report 2>/tmp/worker.0
jq -e '.checked and .transport == "verbs"' /tmp/report
end_hub
