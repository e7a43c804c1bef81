//! The present of a job whose hub was lost: this worker's weights, kept from the moment in which it saw the loss, and brought to
//! the hub that is back if they are the furthest of a key.
//!
//! On the caller's thread. The hub decides which worker brings what.

use std::io::{Cursor, Read};
use std::sync::Arc;

use half::{bf16, f16};
use membership::MemberError;
use pbox_core::control::{Holds, Present, PresentReply, Stand};
use pbox_core::{Dtype, KeyId, Piece, Round, Share};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::error::SessionError;
use super::hold::Stood;
use super::numbers::LastSet;
use super::session::Session;

/// A worker's weights when it lost its hub: with links to another hub, the same addresses may be that hub's memory.
#[derive(Debug)]
pub(super) struct Kept {
    weights: Vec<(Dtype, Vec<u8>)>,
    stands: Vec<Stand>,
}

impl Kept {
    /// What the worker says of them in its join.
    pub fn present(&self, lost: u32, LastSet { numbers, rate }: &LastSet) -> Present {
        let (numbers, learning_rate) = (numbers.clone(), *rate);
        let counted = |stand: &Stand| Stand { round: Round(stand.round.0 + lost), ..*stand };
        Present { lost, learning_rate, numbers, keys: self.stands.iter().map(counted).collect() }
    }

    /// A piece of a key in f32, little endian.
    fn in_f32(&self, Piece { key, elements, .. }: &Piece) -> Vec<u8> {
        let (dtype, bytes) = &self.weights[key.index()];
        let size = dtype.bytes();
        let bytes = &bytes[elements.start * size..elements.end * size];
        let halves = || bytes.chunks_exact(2).map(|half| [half[0], half[1]]);
        match dtype {
            Dtype::F32 => bytes.to_vec(),
            Dtype::F16 => halves().flat_map(|half| f16::from_le_bytes(half).to_f32().to_le_bytes()).collect(),
            Dtype::BF16 => {
                halves().flat_map(|half| bf16::from_le_bytes(half).to_f32().to_le_bytes()).collect()
            }
        }
    }
}

/// Pieces of keys, one after the other, for the request that brings them.
struct Pieces {
    kept: Arc<Kept>,
    left: std::vec::IntoIter<Piece>,
    piece: Cursor<Vec<u8>>,
}

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let read = self.piece.read(room)?;
            if read > 0 || room.is_empty() {
                return Ok(read);
            }
            let Some(piece) = self.left.next() else { return Ok(0) };
            self.piece = Cursor::new(self.kept.in_f32(&piece));
        }
    }
}

impl Session {
    /// Keeps the weights. The hub is lost, and keys stood so.
    pub(super) fn keep(&self, stood: &[Stood]) -> Arc<Kept> {
        let layout = self.exchange.layout();
        let weights: Vec<(Dtype, Vec<u8>)> = self
            .keys()
            .map(|key| (layout.keys()[key.index()].dtype, self.exchange.bytes_of_weights(key).to_vec()))
            .collect();
        let stand = |(key, stood): (KeyId, &Stood)| Stand {
            round: stood.round,
            weights: match stood.under_way {
                false => Holds::Whole,
                true if self.exchange.is_untouched(key) => Holds::Before,
                true => Holds::Mixed,
            },
            digest: xxh3_64_with_seed(&weights[key.index()].1, u64::from(key.0)),
        };
        let stands = self.keys().zip(stood).map(stand).collect();
        Arc::new(Kept { weights, stands })
    }

    /// Checks that no hub says that workers have different weights.
    pub(super) fn check_present(&self) -> Result<(), SessionError> {
        let differ = self.hubs.iter().find_map(|hub| hub.present()?.differ);
        let job = || self.config.job.clone();
        differ.map_or(Ok(()), |why| Err(SessionError::PresentDiffers { job: job(), why }))
    }

    /// Brings each hub that waits for the present what this worker has of it, or says that it brings nothing.
    pub(super) fn bring_present(&mut self) -> Result<(), SessionError> {
        for number in 0..self.hubs.len() {
            if self.brought[number].is_some() {
                continue;
            }
            let Some(present) = self.hubs[number].present() else { continue };
            self.bring_to(number, &present)?;
            self.brought[number] = Some(present);
        }
        Ok(())
    }

    fn bring_to(&self, number: usize, present: &PresentReply) -> Result<(), SessionError> {
        let (hub, terms, layout) = (&self.hubs[number], &self.config.terms, self.exchange.layout());
        let rank = self.config.rank;
        let nonsense = |saw: String| {
            let hub = hub.address().to_owned();
            Err(MemberError::Nonsense { hub, what: "say with what keys begin", saw }.into())
        };
        if present.keys.len() != layout.keys().len() {
            return nonsense(format!("{} keys of {}", present.keys.len(), layout.keys().len()));
        }
        let pieces = Share::of_hub(terms, number as u32).pieces(layout, terms.level.schedule);
        let ours = pieces.into_iter().filter(|piece| present.keys[piece.key.index()].from == Some(rank));
        let ours: Vec<Piece> = ours.collect();
        let bytes = ours.iter().map(|piece| 4 * piece.elements.len() as u64).sum();
        let values: Box<dyn Read + Send> = match &self.kept {
            Some(kept) => {
                let piece = Cursor::default();
                Box::new(Pieces { kept: Arc::clone(kept), left: ours.into_iter(), piece })
            }
            None if bytes > 0 => return nonsense(format!("{bytes} bytes from rank {rank}, which has none")),
            None => Box::new(std::io::empty()),
        };
        Ok(hub.send_state(values, bytes)?)
    }

    /// Notes and says what is not as it was before the hub was lost.
    pub(super) fn came_to_the_present(&mut self, present: &PresentReply) {
        let terms = &self.config.terms;
        let in_part: Vec<&str> = self
            .keys()
            .filter(|key| present.keys[key.index()].in_part)
            .map(|key| terms.keys[key.index()].name.as_str())
            .collect();
        let has_state = |key: &pbox_core::Key| terms.optimizer.kept_per_element(key.dtype) > 0;
        let state_rounds = match terms.keys.iter().any(has_state) {
            // Round 0 is the broadcast, which leaves none.
            true => u64::from(self.first.0.saturating_sub(present.state_before.0.max(1))),
            false => 0,
        };
        self.returns.lost_in_part += in_part.len() as u64;
        self.returns.lost_state_rounds += state_rounds;
        if !in_part.is_empty() {
            tracing::warn!(
                keys = in_part.join(", "),
                "of these keys, the round under way is lost, wholly or in part"
            );
        }
        if state_rounds > 0 {
            tracing::warn!(
                state_rounds,
                "the optimizer's state is older than the weights, by so many rounds"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_keys_are_brought_in_f32_one_after_the_other() {
        let halves = [0.5, -2.0, 3.0].map(f16::from_f32).map(f16::to_le_bytes).concat();
        let bf16s = [1.0, 0.25].map(bf16::from_f32).map(bf16::to_le_bytes).concat();
        let weights = vec![
            (Dtype::F32, [7.0f32, 8.0, 9.0].map(f32::to_le_bytes).concat()),
            (Dtype::F16, halves),
            (Dtype::BF16, bf16s),
        ];
        let piece = |key, elements| Piece { key: KeyId(key), chunks: 0..1, elements };
        let pieces = vec![piece(0, 1..3), piece(1, 0..2), piece(2, 1..2)];
        let kept = Arc::new(Kept { weights, stands: Vec::new() });
        let mut read = Vec::new();
        let left = pieces.into_iter();
        Pieces { kept, left, piece: Cursor::default() }.read_to_end(&mut read).unwrap();
        assert_eq!(read, [8.0f32, 9.0, 0.5, -2.0, 0.25].map(f32::to_le_bytes).concat());
    }
}
