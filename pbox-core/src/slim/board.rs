//! The selection of a core by all of a hub's cores together: each counts what it owns, the last one in merges.
//!
//! ```text
//!   each core    sums of |w|, |g|     counts by the upper bits     counts by the lower bits
//!                      \                  /         \                /            \
//!   the board           mean |w| / mean |g|         the bucket of the edge        the least significance of the core
//! ```
//!
//! Shared by the cores of a hub, and apart from the path of chunks: it is met three times in a selection, and rounds
//! go on meanwhile (`docs/decisions/0021-slim-dp.md`).

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::SlimDp;
use super::significance::{BUCKETS, Sums, balance};

/// What the board has found, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// How much a gradient counts beside a weight.
    Coefficient(f32),
    /// The upper bits of the significance at the edge of the core.
    Upper(u32),
    /// The bits of the least significance in the core.
    Least(u32),
}

/// Where the cores of a hub meet to select.
#[derive(Debug)]
pub struct Board {
    /// Cores that take part.
    parts: usize,
    /// Elements that the core may have.
    room: u64,
    c: Option<f32>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    wakers: Vec<Waker>,
    /// Parts that have given what is asked for now.
    given: usize,
    /// By chunk of the job, so that they are added in one order however many cores there are.
    sums: Vec<Sums>,
    histogram: Vec<u64>,
    /// Elements above the bucket of the edge.
    above: u64,
    /// What was found last, and how many times anything was.
    found: Option<Found>,
    findings: u64,
}

impl Board {
    /// For `parts` cores that own together `elements` elements, of a job with so many chunks.
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

    /// A core is to be woken when something is found.
    pub fn wake(&self, waker: Waker) {
        self.lock().wakers.push(waker);
    }

    /// One part's sums by chunk id.
    #[cold]
    #[inline(never)] // a lock, which the round path does not have
    pub fn give_sums(&self, sums: impl Iterator<Item = (usize, Sums)>) {
        let mut inner = self.lock();
        sums.for_each(|(chunk, sum)| inner.sums[chunk] = sum);
        if inner.is_last(self.parts) {
            let c = self.c.unwrap_or_else(|| balance(inner.sums.iter().copied()));
            inner.find(Found::Coefficient(c));
        }
    }

    /// One part's counts of significances: by upper bits after the coefficient is found, by lower ones after that.
    #[cold]
    #[inline(never)] // a lock, which the round path does not have
    pub fn give_counts(&self, counts: &[u32]) {
        let mut inner = self.lock();
        inner.histogram.iter_mut().zip(counts).for_each(|(all, &count)| *all += u64::from(count));
        if !inner.is_last(self.parts) {
            return;
        }
        let found = match inner.found {
            Some(Found::Upper(upper)) => {
                let (at, _) = edge(&inner.histogram, inner.above, self.room);
                Found::Least((upper << 16) + at as u32)
            }
            _ => {
                let (at, above) = edge(&inner.histogram, 0, self.room);
                // Where all fit, the edge is in the lowest bucket all the same.
                let upper = at.saturating_sub(1);
                inner.above = if at == 0 { above - inner.histogram[0] } else { above };
                Found::Upper(upper as u32)
            }
        };
        inner.histogram.fill(0);
        inner.find(found);
    }

    /// What was found as the so-manieth finding since the board was made, from 1; `None` as long as it is not.
    #[cold]
    #[inline(never)] // a lock, which the round path does not have
    pub fn found(&self, finding: u64) -> Option<Found> {
        let inner = self.lock();
        inner.found.filter(|_| inner.findings == finding)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Whoever panicked is a core of the same hub, which ends for it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn is_last(&mut self, parts: usize) -> bool {
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

/// The first bucket from which on all fit in `room` beside those `above`; and how many these then are.
fn edge(histogram: &[u64], mut above: u64, room: u64) -> (usize, u64) {
    for (bucket, &count) in histogram.iter().enumerate().rev() {
        if above + count > room {
            return (bucket + 1, above);
        }
        above += count;
    }
    (0, above)
}
