//! A state that a job begins with: weights and optimizer state from another place, brought by rank 0.
//!
//! Read on the thread that joins. Must not know where it comes from.

use std::io::{self, PipeWriter, Read, Write};

use membership::{Hub, MemberError};
use pbox_core::{Layout, Round, Share};

use super::{SessionConfig, SessionError};

/// Bytes of a state that are dealt to a hub at a time.
const PIECE_BYTES: usize = 1 << 20;

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
                let (mut pipes, mut threads) = (Vec::new(), Vec::new());
                for &(hub, bytes) in waiting {
                    let (dealt, pipe) = io::pipe()?;
                    pipes.push(pipe);
                    threads.push(scope.spawn(move || hub.send_state(Box::new(dealt), bytes)));
                }
                let dealt = self.deal(pipes, config, layout);
                let brought =
                    threads.into_iter().map(|hub| hub.join().expect("bringing a state does not panic"));
                let brought = brought.fold(Ok(()), Result::<(), MemberError>::and);
                let unread = |error| MemberError::State {
                    job: config.job.clone(),
                    why: format!("cannot be read: {error}"),
                    bytes: waiting.iter().map(|(_, bytes)| bytes).sum(),
                };
                Ok(dealt.map_err(unread).and(brought)?)
            }),
        }
    }

    /// Deals the values to the hubs. A hub that gets too few, or too many, says so.
    ///
    /// # Errors
    /// When the values cannot be read.
    fn deal(&mut self, mut hubs: Vec<PipeWriter>, config: &SessionConfig, layout: &Layout) -> io::Result<()> {
        let count = hubs.len() as u32;
        let share = |hub| Share { hub, hubs: count, split_above: config.terms.split_above };
        let of_hub = |hub: u32| {
            let pieces = share(hub).pieces(layout, config.terms.level.schedule).into_iter();
            pieces.map(move |piece| (piece.chunks.start, piece.elements.len(), hub as usize))
        };
        let mut pieces: Vec<(u32, usize, usize)> = (0..count).flat_map(of_hub).collect();
        pieces.sort_unstable();
        let mut piece = vec![0; PIECE_BYTES];
        for _ in 0..config.terms.optimizer.saved_per_element() {
            for &(_, elements, hub) in &pieces {
                let mut left = elements * size_of::<f32>();
                while left > 0 {
                    let piece = &mut piece[..left.min(PIECE_BYTES)];
                    left -= piece.len();
                    match self.values.read_exact(piece) {
                        // The hubs' own values are too short, too, and that is said there.
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                        read => read?,
                    }
                    if hubs[hub].write_all(piece).is_err() {
                        return Ok(()); // the hub does not read on, and says why
                    }
                }
            }
        }
        if self.values.read(&mut [0]).is_ok_and(|more| more > 0) {
            let _ = hubs[0].write_all(&[0]);
        }
        Ok(())
    }
}
