//! The board on which the cores of a hub select the significant set together. Each core counts the elements of its own
//! chunks. The last core to hand in its part merges all parts.
//!
//! ```text
//!   each core    sums of |w|, |g|     counts by the upper bits     counts by the lower bits
//!                      \                  /         \                /            \
//!   the board           mean |w| / mean |g|         the bucket of the edge        the least significance in the set
//! ```
//!
//! All cores share the board, which has a lock. The code that handles pushes does not use the board. Each core hands in a
//! part three times per selection, and rounds continue meanwhile (`docs/design/codecs-and-slim-dp.md#slim-dp`).

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::SlimDp;
use super::significance::{BUCKETS, Sums, balance};

/// A result that the board has found. A selection has all three results, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// The factor `c` of the gradient in the significance `|w| + c |g|`.
    Coefficient(f32),
    /// The upper bits of the significance at the lower edge of the significant set.
    Upper(u32),
    /// All bits of the least significance in the significant set.
    Least(u32),
}

/// The place where the cores of a hub meet to select the significant set.
#[derive(Debug)]
pub struct Board {
    /// The number of cores that take part.
    parts: usize,
    /// The largest number of elements that the significant set may have.
    room: u64,
    c: Option<f32>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    wakers: Vec<Waker>,
    /// The number of cores that have handed in their part of the next result.
    given: usize,
    /// The sums of each chunk of the job. They are added by chunk, so that the result does not depend on the number of
    /// cores.
    sums: Vec<Sums>,
    histogram: Vec<u64>,
    /// The number of elements in the buckets above the bucket with the edge.
    above: u64,
    /// The last result.
    found: Option<Found>,
    /// The number of results since the board was made.
    findings: u64,
}

impl Board {
    /// Creates a board for `parts` cores that together own `elements` elements, of a job with this many chunks.
    pub fn new(slim: &SlimDp, parts: usize, chunks: usize, elements: u64) -> Self {
        let inner = Inner {
            wakers: Vec::new(),
            given: 0,
            sums: vec![Sums::default(); chunks],
            histogram: vec![0; BUCKETS],
            above: 0,
            found: None,
            findings: 0,
        };
        let room = (f64::from(slim.beta) * elements as f64) as u64;
        Board { parts, room, c: slim.c, inner: Mutex::new(inner) }
    }

    /// Adds the waker of a core. Each result wakes the core.
    pub fn wake(&self, waker: Waker) {
        self.lock().wakers.push(waker);
    }

    /// Receives the sums of one core's chunks, by chunk id.
    #[cold]
    #[inline(never)] // it takes a lock, and the round path takes none
    pub fn give_sums(&self, sums: impl Iterator<Item = (usize, Sums)>) {
        let mut inner = self.lock();
        sums.for_each(|(chunk, sum)| inner.sums[chunk] = sum);
        if inner.count_part(self.parts) {
            let c = self.c.unwrap_or_else(|| balance(inner.sums.iter().copied()));
            inner.find(Found::Coefficient(c));
        }
    }

    /// Receives one core's counts of elements by significance. In the first call they are by the upper bits, in the
    /// second call by the lower bits at the edge.
    #[cold]
    #[inline(never)] // it takes a lock, and the round path takes none
    pub fn give_counts(&self, counts: &[u32]) {
        let mut inner = self.lock();
        inner.histogram.iter_mut().zip(counts).for_each(|(all, &count)| *all += u64::from(count));
        if !inner.count_part(self.parts) {
            return;
        }
        let found = match inner.found {
            Some(Found::Upper(upper)) => {
                let (at, _) = edge(&inner.histogram, inner.above, self.room);
                Found::Least((upper << 16) + at as u32)
            }
            _ => {
                let (at, above) = edge(&inner.histogram, 0, self.room);
                // If all elements fit, `at` is 0.
                let upper = at.saturating_sub(1);
                inner.above = if at == 0 { above - inner.histogram[0] } else { above };
                Found::Upper(upper as u32)
            }
        };
        inner.histogram.fill(0);
        inner.find(found);
    }

    /// Returns result number `finding`, counted from 1 since the board was made. `None` until the board has it.
    #[cold]
    #[inline(never)] // it takes a lock, and the round path takes none
    pub fn found(&self, finding: u64) -> Option<Found> {
        let inner = self.lock();
        inner.found.filter(|_| inner.findings == finding)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // If the lock is poisoned, a core of the same hub has panicked, and the hub ends.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Counts the part of a core. Returns true for the last part.
    fn count_part(&mut self, parts: usize) -> bool {
        self.given += 1;
        self.given == parts
    }

    fn find(&mut self, found: Found) {
        self.given = 0;
        self.found = Some(found);
        self.findings += 1;
        self.wakers.iter().for_each(Waker::wake_by_ref);
    }
}

/// Returns the lowest bucket for which `above` plus the number of elements in this bucket and in all higher buckets is
/// at most `room`. Also returns this sum.
fn edge(histogram: &[u64], mut above: u64, room: u64) -> (usize, u64) {
    for (bucket, &count) in histogram.iter().enumerate().rev() {
        if above + count > room {
            return (bucket + 1, above);
        }
        above += count;
    }
    (0, above)
}
