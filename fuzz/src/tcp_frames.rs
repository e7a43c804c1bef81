//! The bytes of a TCP link: frames that a peer sends whole, incomplete, too long, or not at all.

use std::io::Write;
use std::os::unix::net::UnixStream;

use fabric::tcp::Frames;
use fabric::tcp::fuzzing::{Receiver, summed};
use fabric::{Arrival, CloseReason, Imm, Span};

const WINDOW: usize = 1 << 10;
const HEADER: usize = 16;

/// The result of a simple parser that sees the whole stream.
struct Reading {
    shown: Vec<Imm>,
    window: Vec<u8>,
    corrupt: bool,
    /// Whether the stream ends at the end of a frame.
    whole: bool,
}

/// Sends a stream. The first byte says how many bytes are sent at a time, and the remaining bytes are the
/// stream. Offsets and lengths are reduced modulo a little more than the window, so that streams get past
/// their first header.
pub fn run(bytes: &[u8]) {
    fabric::tcp::fuzzing::decode(bytes);
    let Some((&at_a_time, stream)) = bytes.split_first() else { return };
    let (plain, reading) = parse_stream(stream);
    let (shown, window, reason) = receive(Frames::Plain, &plain, at_a_time);
    assert_eq!(matches!(reason, CloseReason::Corrupt(_)), reading.corrupt, "{reason}");
    assert_eq!(shown, reading.shown);
    // Any part of an incomplete frame may have been written to the window.
    if reading.whole {
        assert!(window == reading.window);
    }
    // Checksums are no secret, so a stream may have correct ones. But no changed bit of a correct peer's
    // stream may pass.
    receive(Frames::Summed, stream, at_a_time);
    if let [first, second, payload @ ..] = stream {
        let payload = &payload[..payload.len().min(WINDOW)];
        let span = Span { offset: 0, bytes: payload.len() };
        let mut frame = summed(span, Imm(7), payload);
        let (shown, window, _) = receive(Frames::Summed, &frame, at_a_time);
        assert_eq!(shown, [Imm(7)]);
        assert!(window[..payload.len()] == *payload);
        let bit = usize::from(u16::from_le_bytes([*first, *second])) % (8 * frame.len());
        frame[bit / 8] ^= 1 << (bit % 8);
        let (shown, _, reason) = receive(Frames::Summed, &frame, at_a_time);
        assert!(shown.is_empty() && reason.to_string().contains("has checksum"), "bit {bit}: {reason}");
    }
}

/// Sends a stream to a port in pieces. Returns the immediates that the port shows, the bytes of its window, and the
/// reason why the link closes.
fn receive(frames: Frames, stream: &[u8], at_a_time: u8) -> (Vec<Imm>, Vec<u8>, CloseReason) {
    let (peer, ours) = UnixStream::pair().expect("descriptors for a pair");
    ours.set_nonblocking(true).expect("our own socket");
    let mut receiver = Receiver::new(ours.into(), WINDOW, frames);
    let mut shown = Vec::new();
    let mut poll_all = |receiver: &mut Receiver| {
        let mut arrivals = [Arrival::default(); 3];
        loop {
            let count = receiver.poll(&mut arrivals);
            shown.extend(arrivals[..count].iter().map(|arrival| arrival.imm));
            if count == 0 {
                return;
            }
        }
    };
    let mut peer = Some(peer);
    for piece in stream.chunks(usize::from(at_a_time) + 1) {
        // A closed link receives no more bytes.
        if peer.as_mut().is_some_and(|peer| peer.write_all(piece).is_err()) {
            break;
        }
        poll_all(&mut receiver);
    }
    peer.take();
    let closed = (0..1000).find_map(|_| {
        poll_all(&mut receiver);
        receiver.closed()
    });
    let closed = closed.expect("the link closes at the end of the stream");
    (shown, receiver.into_contents(), closed.reason)
}

/// Returns the stream with reduced offsets and lengths, and the `Reading` that a correct receiver must give.
fn parse_stream(stream: &[u8]) -> (Vec<u8>, Reading) {
    let mut sent = Vec::new();
    let mut reading = Reading { shown: Vec::new(), window: vec![0; WINDOW], corrupt: false, whole: true };
    let mut rest = stream;
    while let Some((header, after)) = rest.split_at_checked(HEADER) {
        let offset = u64::from_le_bytes(header[..8].try_into().expect("8 bytes")) % (WINDOW as u64 + 8);
        let bytes = u32::from_le_bytes(header[8..12].try_into().expect("4 bytes")) % (WINDOW as u32 + 8);
        sent.extend(offset.to_le_bytes());
        sent.extend(bytes.to_le_bytes());
        sent.extend(&header[12..]);
        if offset + u64::from(bytes) > WINDOW as u64 {
            reading.corrupt = true;
            sent.extend(after);
            return (sent, reading);
        }
        let Some((span, after)) = after.split_at_checked(bytes as usize) else {
            reading.whole = false;
            sent.extend(after);
            return (sent, reading);
        };
        sent.extend(span);
        reading.window[offset as usize..][..span.len()].copy_from_slice(span);
        reading.shown.push(Imm(u32::from_le_bytes(header[12..].try_into().expect("4 bytes"))));
        rest = after;
    }
    sent.extend(rest);
    (sent, reading)
}
