#!/bin/bash
# Gradients in a dma-buf cross by RDMA. A worker with such gradients and one with gradients in host memory
# have the bits of a plain model. The bits are the same after a worker has lost a NIC and
# reconnected. Each of two NICs registers only the ranges that it carries. The error for a device that takes no
# dma-buf names the device and the range, and gives advice.
#
# The guests' kernel makes no udmabufs, so a video driver without hardware (vivid) provides the dma-buf. Soft-RoCE takes no
# dma-bufs. So the interposer registers the dma-buf in place of soft-RoCE; without the interposer the join fails.
# guest: one --nics 2
# build: bin phub-server
# build: test together
# build: interposer libibverbs.so.1
# seconds: 150
modprobe -d "${PHUB_RXE_DIR:-target/rxe}/kernel" vivid n_devs=1 node_types=1
within 20 test -c /dev/video0
export PHUB_TEST_VIDEO=/dev/video0 PHUB_TEST_HUB=127.0.0.1:7077
serve --listen 127.0.0.1:7077 --cores 2 --transports verbs,tcp
# run TEST...: runs these tests of gradients in dma-bufs. No test may be skipped.
run() {
    together --test-threads 1 --nocapture "$@" 2>&1 | tee /tmp/tests
    ! grep "skipped:" /tmp/tests || exit 1
    grep -q "^test result: ok. [1-9]" /tmp/tests
}
run bits::dma_buf::a_device_that_takes_no_dma_buf_is_named
grep -E "cannot register [0-9]+ bytes of the window that this end writes with rxe[01] \(ibv_reg_dmabuf_mr, from byte 12480 of its dma-buf: Operation not supported" /tmp/tests
grep -F "this device's driver takes no dma-bufs" /tmp/tests

phub-server doctor --transports verbs --listen 127.0.0.1:0 | tee /tmp/doctor
grep -E "^note  dma-bufs with rxe0 +none: ibv_reg_dmabuf_mr: Operation not supported" /tmp/doctor
like_hardware
phub-server doctor --transports verbs --listen 127.0.0.1:0 | tee /tmp/doctor
grep -E "^note  dma-bufs with rxe1 +its driver accepts dma-bufs" /tmp/doctor

echo ibv_reg_dmabuf_mr fail 12 >/tmp/faults
LIKE_FAULTS=/tmp/faults run bits::dma_buf::a_device_that_takes_no_dma_buf_is_named
grep -F "from byte 12480 of its dma-buf: Cannot allocate memory" /tmp/tests

: >"$LIKE_LOG"
run bits::dma_buf::gradients_leave_from_a_dma_buf
# The model has 200,000 + 60,000 + 840 bytes. Each byte is registered once, and the ranges of the two NICs do
# not overlap.
grep -F "dma-buf of=" "$LIKE_LOG"
sed -n 's/^dma-buf of="\(.*\)" offset=\([0-9]*\) bytes=\([0-9]*\) iova=\([0-9]*\) access=0$/\2 \3 \4 \1/p' "$LIKE_LOG" | sort -n | awk '
    $1 != $3 || $1 < end { exit wrong = 1 }
    { end = $1 + $2; sum += $2; seen[$4] = 1 }
    END { exit wrong || sum < 260840 || sum > 266000 || !seen["rxe0"] || !seen["rxe1"] }'

: >"$LIKE_LOG"
export LIKE_EVENTS=/tmp/events LIKE_EVENTS_OF=rxe1
rm -f $LIKE_EVENTS
mkfifo $LIKE_EVENTS
run bits::dma_buf::links_that_are_lost_are_made_again_to_a_dma_buf
grep -F "dma-buf of=" "$LIKE_LOG"
unset LIKE_EVENTS LIKE_EVENTS_OF
end_hub
