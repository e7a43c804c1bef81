//! Frames over TCP that do not say the span of their chunk: short, empty, too long, of another chunk's place. None counts as
//! a push: each costs its sender the link, and the error says what was expected.

use fabric::Span;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{config, hub, join_request, says};
use pbox_core::{ChunkId, Schedule};

use super::by_hand::{ByHand, JOB, attack};

const CHUNK: u32 = 3;

/// Posts chunk 3 for round 0 with the span that `wrong` makes of the right one. Returns the right one, and the error of the
/// other worker. A job beside has right bits.
fn error_after(schedule: Schedule, wrong: impl FnOnce(Span) -> Span) -> (Span, String) {
    let hub = hub(2);
    let address = hub.address().to_string();
    let beside = Training { rounds: 50, transport: |_| Some(Transport::Tcp), ..Training::small("beside") };
    let mut request = join_request(0, 2);
    request.terms.level.schedule = schedule;
    let victim = || {
        let mut config = config(&hub, JOB, 1, 2);
        config.terms.level.schedule = schedule;
        config
    };
    let mut right = None;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside.run(&address));
        let error = attack(&hub, &request, Transport::Tcp, victim, |attacker: &mut ByHand| {
            let place = *right.insert(attacker.wire.gradient_span(ChunkId(CHUNK)));
            attacker.post(attacker.owner(CHUNK), wrong(place), CHUNK, 0);
        });
        beside.join().expect("the job beside goes on");
        (right.expect("the attack was made"), error)
    })
}

#[test]
fn a_frame_is_exactly_its_chunk() {
    let _watchdog = Watchdog::start();
    let wrongs: [fn(Span) -> Span; 5] = [
        |right| Span { bytes: right.bytes - 4, ..right },
        |right| Span { bytes: 0, ..right },
        |_| Span { offset: 0, bytes: 0 },
        |right| Span { bytes: right.bytes + 64, ..right },
        |right| Span { offset: right.offset - 64, ..right },
    ];
    for wrong in wrongs {
        let (right, error) = error_after(Schedule::default(), wrong);
        let Span { offset, bytes } = wrong(right);
        let seen = format!("a frame of {bytes} bytes for offset {offset} with chunk {CHUNK}");
        let expected = format!("expected {} bytes for offset {}", right.bytes, right.offset);
        says(error, &["worker 0 is gone", &seen, &expected]);
    }
}

/// With this schedule frames without bytes are pulls. Only a notice asks for one.
#[test]
fn an_empty_push_is_no_pull() {
    let _watchdog = Watchdog::start();
    let (_, error) = error_after(Schedule::KvStore, |_| Span { offset: 0, bytes: 0 });
    says(error, &["worker 0 is gone", "a frame of 0 bytes for offset 0 with chunk 3"]);
}
