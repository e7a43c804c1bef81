//! The transfer of a state from a member to the hubs of a new job. Each hub gets its share.
//!
//! ```text
//!   values --> | key 0 of hub 0 | key 0 of hub 1 | key 1 of hub 1 | ... --pipe--> a request to each hub
//! ```
//!
//! Runs on the thread that brings the state, and on one more thread for each hub. Must not depend on the source of the
//! values.

use std::io::{self, PipeWriter, Read, Write};

use pbox_core::{Layout, Schedule, Share};

use crate::error::MemberError;
use crate::hub::Hub;

/// The number of bytes of a state that are given to a hub at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A part of a key: the first chunk, the number of elements, and the number of the hub that owns the part.
type Part = (u32, usize, usize);

/// Returns the length of the state that all hubs of a job want together, in bytes. `None` if they want no state. Either
/// all hubs want a state, or no hub does.
///
/// # Errors
/// Returns the first error.
pub fn all_of(
    wanted: impl IntoIterator<Item = Result<Option<u64>, MemberError>>,
) -> Result<Option<u64>, MemberError> {
    wanted.into_iter().collect::<Result<Vec<Option<u64>>, _>>().map(|wanted| wanted.into_iter().sum())
}

/// Brings a state to all hubs of a job, which wait for it. `split_above` and the schedule give the placement at the
/// hubs. The state is f32, little endian: the weights of all keys, then the first optimizer state of all keys, then the
/// second optimizer state of all keys. The state is never in memory as a whole.
///
/// # Errors
/// Returns an error if the values cannot be read, or if their length is not the length that the hubs want. Returns an
/// error if a hub refuses or is lost.
pub fn bring(
    hubs: &[Hub],
    values: Box<dyn Read + Send>,
    layout: &Layout,
    (schedule, split_above): (Schedule, u64),
    tensors: usize,
) -> Result<(), MemberError> {
    let parts = parts(hubs.len() as u32, layout, schedule, split_above);
    let bytes_of = |hub: usize| {
        let elements = parts.iter().filter(|&&(_, _, of)| of == hub).map(|&(_, elements, _)| elements as u64);
        elements.sum::<u64>() * (size_of::<f32>() * tensors) as u64
    };
    if let [hub] = hubs {
        return hub.send_state(values, bytes_of(0));
    }
    std::thread::scope(|scope| {
        let (mut pipes, mut threads) = (Vec::new(), Vec::new());
        for (number, hub) in hubs.iter().enumerate() {
            let (dealt, pipe) = io::pipe()?;
            let bytes = bytes_of(number);
            pipes.push(pipe);
            threads.push(scope.spawn(move || hub.send_state(Box::new(dealt), bytes)));
        }
        let dealt = deal(values, pipes, &parts, tensors);
        let brought = threads.into_iter().map(|hub| hub.join().expect("bringing a state does not panic"));
        let brought = brought.fold(Ok(()), Result::<(), MemberError>::and);
        let unread = |error| MemberError::State {
            job: hubs[0].control.job.clone(),
            why: format!("cannot be read: {error}"),
            bytes: (0..hubs.len()).map(bytes_of).sum(),
        };
        dealt.map_err(unread).and(brought)
    })
}

/// Returns the parts of all keys. A key has one part for each hub that has some of its elements. The parts are in the
/// order in which a state has the elements.
fn parts(hubs: u32, layout: &Layout, schedule: Schedule, split_above: u64) -> Vec<Part> {
    let of_hub = |hub: u32| {
        let share = Share { hub, hubs, split_above };
        let pieces = share.pieces(layout, schedule).into_iter();
        pieces.map(move |piece| (piece.chunks.start, piece.elements.len(), hub as usize))
    };
    let mut parts: Vec<Part> = (0..hubs).flat_map(of_hub).collect();
    parts.sort_unstable();
    parts
}

/// Distributes the values to the hubs. A hub that gets too few or too many values answers with an error.
///
/// # Errors
/// Returns an error if the values cannot be read.
fn deal(
    mut values: Box<dyn Read + Send>,
    mut hubs: Vec<PipeWriter>,
    parts: &[Part],
    tensors: usize,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    for _ in 0..tensors {
        for &(_, elements, hub) in parts {
            let mut left = elements * size_of::<f32>();
            while left > 0 {
                let piece = &mut piece[..left.min(PIECE_BYTES)];
                left -= piece.len();
                match values.read_exact(piece) {
                    // The caller's state is too short. This function returns no error: the requests to the hubs end too
                    // early, and each hub answers with an error.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                    read => read?,
                }
                if hubs[hub].write_all(piece).is_err() {
                    return Ok(()); // the hub has stopped reading, and its answer says why
                }
            }
        }
    }
    if values.read(&mut [0]).is_ok_and(|more| more > 0) {
        let _ = hubs[0].write_all(&[0]);
    }
    Ok(())
}
