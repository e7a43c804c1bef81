//! A state that a job begins with: weights and optimizer state from another place, brought by rank 0.
//!
//! Read on the thread that joins. Must not know where it comes from.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use membership::{Hub, MemberError};
use pbox_core::{Layout, Round, Share};

use super::{SessionConfig, SessionError};

/// Bytes of a state that are dealt to a hub at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Such pieces on their way to a hub.
const PIECES: usize = 2;

/// Weights and optimizer state before a round. Rank 0 may bring them instead of a broadcast
/// ([`Session::join_with`](crate::Session::join_with)).
pub struct State {
    /// The round that the job continues with: the number of steps so far, plus 1 for the broadcast. Adam counts its steps
    /// from it. With SSP and ASP a round has as many steps as there are workers.
    pub before: Round,
    /// f32, little endian: the weights of all keys in the order of the manifest, then their first optimizer state
    /// ([`state_names`](pbox_core::state_names)), then their second. Read once, and only if the job has no state.
    pub values: Box<dyn Read + Send>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("before", &self.before).finish_non_exhaustive()
    }
}

impl State {
    /// Brings it to the hubs that wait for it, each its share.
    pub(super) fn bring(
        mut self,
        hubs: &[Hub],
        config: &SessionConfig,
        layout: &Layout,
    ) -> Result<(), SessionError> {
        // Hubs of one job begin alike: all wait for a state, or none.
        let waiting: Option<Vec<(&Hub, u64)>> =
            hubs.iter().map(|hub| Some((hub, hub.state_bytes?))).collect();
        match waiting.as_deref() {
            None => Ok(()),
            Some(&[(hub, bytes)]) => Ok(hub.send_state(self.values, bytes)?),
            Some(waiting) => std::thread::scope(|scope| {
                let begun = waiting.iter().copied().map(|(hub, bytes)| {
                    let (pieces, dealt) = sync_channel(PIECES);
                    let dealt = Box::new(Dealt { dealt, piece: io::Cursor::default() });
                    (pieces, scope.spawn(move || hub.send_state(dealt, bytes)))
                });
                let (pieces, brought): (Vec<_>, Vec<_>) = begun.unzip();
                self.deal(&pieces, config, layout);
                drop(pieces);
                let ends =
                    brought.into_iter().map(|hub| hub.join().expect("bringing a state does not panic"));
                Ok(ends.fold(Ok(()), Result::<(), MemberError>::and)?)
            }),
        }
    }

    /// Deals the values to the hubs. A hub that gets too few, or too many, says so.
    fn deal(&mut self, hubs: &[SyncSender<io::Result<Vec<u8>>>], config: &SessionConfig, layout: &Layout) {
        let share = |hub| Share { hub, hubs: hubs.len() as u32, split_above: config.terms.split_above };
        let of_hub = |hub: u32| {
            let pieces = share(hub).pieces(layout, config.terms.level.schedule).into_iter();
            pieces.map(move |piece| (piece.chunks.start, piece.elements.len(), hub as usize))
        };
        let mut pieces: Vec<(u32, usize, usize)> = (0..hubs.len() as u32).flat_map(of_hub).collect();
        pieces.sort_unstable();
        for _ in 0..config.terms.optimizer.saved_per_element() {
            for &(_, elements, hub) in &pieces {
                let mut left = elements * size_of::<f32>();
                while left > 0 {
                    let mut piece = vec![0; left.min(PIECE_BYTES)];
                    left -= piece.len();
                    let read = self.values.read_exact(&mut piece).map(|()| piece);
                    // At the end of the values the hub's own are too short, too, and that is said there.
                    let is_short =
                        matches!(&read, Err(error) if error.kind() == io::ErrorKind::UnexpectedEof);
                    let failed = read.is_err();
                    if is_short || hubs[hub].send(read).is_err() || failed {
                        return;
                    }
                }
            }
        }
        if self.values.read(&mut [0]).is_ok_and(|more| more > 0) {
            let _ = hubs[0].send(Ok(vec![0]));
        }
    }
}

/// What is dealt to one hub.
struct Dealt {
    dealt: Receiver<io::Result<Vec<u8>>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Read for Dealt {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.piece.read(room)?;
            if count > 0 || room.is_empty() {
                return Ok(count);
            }
            match self.dealt.recv() {
                Ok(piece) => self.piece = io::Cursor::new(piece?),
                Err(_) => return Ok(0),
            }
        }
    }
}
