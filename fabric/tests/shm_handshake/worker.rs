//! Hubs that are absent, die, send nonsense or offer bad memory, to a worker that connects over shared
//! memory. Each causes a clear error in bounded time.

use std::os::fd::AsFd;

use super::raw_peer::{
    BELL_BYTES, GOOD, LONG, RINGS_BYTES, RawPeer, SHORT, TOKEN, WINDOW, event, join, memfd, new_address,
    welcome_bytes,
};
use fabric::conformance::Watchdog;
use fabric::shm::ConnectError;
use rustix::fs::SealFlags;

#[test]
fn no_hub_or_a_deaf_one_is_named() {
    let _watchdog = Watchdog::start();
    let address = new_address();
    let error = join(&address, TOKEN, LONG).unwrap_err().to_string();
    assert!(error.contains("connecting at shared-memory address") && error.contains(&address), "{error}");

    let _listens = RawPeer::listen(&address, 0);
    let deaf = |doing: &str, seen: &str| {
        let error = join(&address, TOKEN, SHORT).unwrap_err().to_string();
        assert!(error.contains(doing) && error.contains(seen), "{error}");
    };
    deaf("waiting for the welcome", "said nothing for 30ms");
    // The connection of the worker that gave up still fills the queue, which has room for one connection.
    deaf("connecting", "accepted no connection for 30ms");
    assert!(join(&"x".repeat(200), TOKEN, SHORT).unwrap_err().to_string().contains("naming the hub"));
}

#[test]
fn a_hub_that_dies_between_hello_and_welcome_is_seen() {
    let error = answered(drop);
    let ConnectError::Socket { doing: "waiting for the welcome", .. } = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("hung up during the handshake"), "{error}");
}

#[test]
fn an_answer_that_no_hub_of_this_version_gives_is_nonsense() {
    let other_version = [b"phubshm0".as_slice(), &welcome_bytes(1)[8..]].concat();
    let cases: [(&[u8], &str); 6] = [
        (&other_version, "expected the handshake \"phubshm4\", saw \"phubshm0\""),
        (b"phubshm4\x07", "unknown reply kind 7"),
        (b"phubshm4", "too short"),
        (&welcome_bytes(1)[..20], "too short"),
        (&[welcome_bytes(1), vec![1, 2]].concat(), "2 bytes too many"),
        (&welcome_bytes(0), "the message has 0 ports; expected 1 to 4096"),
    ];
    for (bytes, expected) in cases {
        let error = answered(|hub| {
            let (window, bells) = (memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD));
            let fds = [window, bells, memfd(RINGS_BYTES, GOOD), event()];
            hub.send(bytes, &fds.each_ref().map(AsFd::as_fd));
        });
        assert!(matches!(error, ConnectError::Nonsense(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
    }
    for count in [0, 1, 2, 3, 5] {
        let error = answered(|hub| {
            let fd = memfd(WINDOW as u64, GOOD);
            hub.send(&welcome_bytes(1), &vec![fd.as_fd(); count]);
        });
        assert!(error.to_string().contains("expected 4 descriptors"), "{count}: {error}");
    }
}

#[test]
fn descriptors_that_a_hub_must_not_offer_are_refused() {
    let (window, bells, rings) = (WINDOW as u64, BELL_BYTES, RINGS_BYTES);
    let cases = [
        (
            [memfd(window - 1, GOOD), memfd(bells, GOOD), memfd(rings, GOOD)],
            "has 4095 bytes where the layout",
        ),
        ([memfd(window, SealFlags::GROW), memfd(bells, GOOD), memfd(rings, GOOD)], "lacks the seal"),
        ([memfd(window, GOOD), memfd(bells * 2, GOOD), memfd(rings, GOOD)], "the hub's bells: expected"),
        (
            [memfd(window, GOOD), memfd(bells, SealFlags::GROW), memfd(rings, GOOD)],
            "the hub's bells: expected",
        ),
        (
            [memfd(window, GOOD), memfd(bells, GOOD), memfd(rings - 4, GOOD)],
            "rings: expected a memfd of 1024 bytes",
        ),
        (
            [memfd(window, GOOD), memfd(bells, GOOD), memfd(rings * 2, GOOD)],
            "rings: expected a memfd of 1024 bytes",
        ),
        ([memfd(window, GOOD), memfd(bells, GOOD), memfd(rings, SealFlags::GROW)], "rings: expected"),
    ];
    for (memory, expected) in cases {
        let event = event();
        let fds: Vec<_> = memory.iter().chain([&event]).map(AsFd::as_fd).collect();
        let error = answered(|hub| hub.send(&welcome_bytes(1), &fds));
        assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
    }
}

/// Returns a worker's error for a hub that answers its hello in this way.
fn answered(answer: impl FnOnce(RawPeer)) -> ConnectError {
    let _watchdog = Watchdog::start();
    let address = new_address();
    let listens = RawPeer::listen(&address, 8);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| join(&address, TOKEN, LONG));
        let hub = listens.accept();
        assert_eq!(hub.receive()[..8], *b"phubshm4");
        answer(hub);
        worker.join().unwrap().unwrap_err()
    })
}
