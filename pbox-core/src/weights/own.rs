//! Raw replies to each worker separately. Each worker has its own weights window, into which the hub writes the weights
//! for each answer.

use fabric::{Span, Spans};

use super::chunks::Chunk;
use super::{Reply, To};
use crate::kernels::Kernels;

/// The weights windows of the workers, by rank.
#[derive(Debug)]
pub(crate) struct OwnWindows {
    windows: Vec<Option<Spans>>,
}

impl OwnWindows {
    pub fn new(workers: u32) -> Self {
        OwnWindows { windows: (0..workers).map(|_| None).collect() }
    }

    /// Adds a worker's window.
    ///
    /// # Panics
    /// Panics if there is no window, or if it does not have one span per chunk.
    pub fn add(&mut self, chunks: &[Chunk], rank: u32, own: Option<Spans>) -> &mut Spans {
        let own = own.expect("each worker has a weights window of its own");
        assert_eq!(own.len(), chunks.len(), "one span a chunk");
        self.windows[rank as usize].insert(own)
    }

    /// Copies the content of a worker's former window into its new window.
    pub fn take_over(&mut self, rank: u32, former: &Spans) {
        let Some(own) = self.of(rank) else { return };
        let copy = |place| own.elements_mut::<u8>(place).copy_from_slice(former.elements(place));
        (0..former.len()).for_each(copy);
    }

    /// Removes a worker's window.
    pub fn remove(&mut self, rank: u32) -> Option<Spans> {
        self.windows[rank as usize].take()
    }

    /// Returns a worker's window.
    pub fn of(&mut self, rank: u32) -> Option<&mut Spans> {
        self.windows[rank as usize].as_mut()
    }

    /// Returns all windows.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Spans> {
        self.windows.iter_mut().flatten()
    }
}

/// The reply that copies the weights to each worker's window.
#[derive(Debug)]
pub(crate) struct RawForEach {
    own: OwnWindows,
}

impl RawForEach {
    pub fn new(workers: u32) -> Self {
        RawForEach { own: OwnWindows::new(workers) }
    }
}

impl<R> Reply<R, Spans> for RawForEach {
    #[inline]
    fn answer(&mut self, _: &Kernels, chunk: &Chunk, place: usize, weights: &Spans, to: To) -> Span {
        if let Some(own) = self.own.of(to.rank) {
            own.elements_mut::<u8>(place).copy_from_slice(weights.elements(place));
        }
        chunk.span
    }

    fn add_worker(&mut self, chunks: &[Chunk], _: &Spans, rank: u32, own: Option<Spans>) {
        self.own.add(chunks, rank, own);
    }

    fn remove_worker(&mut self, rank: u32) -> Option<Spans> {
        self.own.remove(rank)
    }
}
