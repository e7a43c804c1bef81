//! Workers of a compressed job that send wrong frames. Each loses its link, and the job's error names the
//! fault of the frame. If `PHUB_TEST_DEVICE` names devices, RDMA is tested, too.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{config, copying_transports, hub, join_request, says};
use pbox_core::frame::{HEADER_BYTES, Kind, write_header};
use pbox_core::{ChunkId, Compression, Frames};
use worker_shim::WeightsMode;

use super::by_hand::{ByHand, JOB, attack};

fn compression() -> Option<Compression> {
    Some("topk:0.25".parse().unwrap())
}

/// Posts a frame of this kind. `write` makes the frame from the frames of a chunk.
fn post(liar: &mut ByHand, kind: Kind, chunk: u32, round: u32, write: impl FnOnce(&Frames, &mut [u8])) {
    let id = ChunkId(chunk);
    let frames = *liar.wire.framing().expect("the job is compressed").frames(id);
    write(&frames, liar.gradient.elements_mut(id.index()));
    let payload = match kind {
        Kind::Raw => frames.value_bytes(),
        Kind::Coded => frames.coded_bytes - HEADER_BYTES,
    };
    liar.post(liar.owner(chunk), frames.frame(kind, payload), chunk, round);
}

/// Sends a correct broadcast.
fn broadcast(liar: &mut ByHand) {
    let chunks = liar.chunks();
    let zeros = |frames: &Frames, bytes: &mut [u8]| frames.begin_raw(bytes).fill(0);
    (0..chunks).for_each(|chunk| post(liar, Kind::Raw, chunk, 0, zeros));
    let mut answers = 0;
    while answers < chunks as usize {
        answers += liar.poll();
        liar.wait();
    }
}

/// Sends a wrong frame with `lie`. Returns the error of the other worker.
fn error_after(transport: Transport, lie: impl FnOnce(&mut ByHand)) -> String {
    let hub = hub(2);
    let mut request = join_request(0, 2);
    request.terms.level.compression = compression();
    let victim = || {
        let mut config = config(&hub, JOB, 1, 2);
        (config.terms.level.compression, config.weights) = (compression(), WeightsMode::Private);
        config
    };
    let error = attack(&hub, &request, transport, victim, lie);
    // The cores still work.
    Training::small("after").run(&hub.address().to_string());
    error
}

#[test]
fn workers_whose_frames_lie_lose_their_links() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm].into_iter().chain(copying_transports()) {
        let error = error_after(transport, |liar| {
            post(liar, Kind::Coded, 3, 0, |_, bytes| write_header(bytes, Kind::Coded, 4));
        });
        match transport {
            Transport::Shm => {
                says(error, &["pushed chunk 3 for round 0", "neither raw nor coded", "expected raw"])
            }
            // The worker takes no byte of the frame.
            _ => says(error, &["a frame of weights of 64 bytes", "with chunk 3: expected 72 bytes"]),
        }
        let error = error_after(transport, |liar| {
            post(liar, Kind::Raw, 3, 0, |frames, bytes| {
                frames.begin_raw(bytes);
                write_header(&mut bytes[frames.coded_bytes..], Kind::Raw, 63);
            });
        });
        says(error, &["pushed chunk 3 for round 0", "63 bytes of payload, where the chunk has 64"]);
        let error = error_after(transport, |liar| {
            broadcast(liar);
            post(liar, Kind::Coded, 5, 1, |_, bytes| write_header(bytes, Kind::Coded, usize::from(u16::MAX)));
        });
        says(error, &["pushed chunk 5 for round 1", "65535 bytes of payload, where there is room for"]);
        let error = error_after(transport, |liar| {
            broadcast(liar);
            post(liar, Kind::Coded, 5, 1, |_, bytes| {
                write_header(bytes, Kind::Coded, 20);
                bytes[HEADER_BYTES..][..20].fill(0xff);
            });
        });
        says(error, &["pushed chunk 5 for round 1", "its frame is invalid"]);
    }
}
