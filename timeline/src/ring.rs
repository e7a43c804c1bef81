//! The last events of a process, in memory whose size is fixed at the start.

/// A ring that keeps the last events. If it is full, a new event replaces the oldest one.
#[derive(Debug)]
pub struct Ring<E> {
    events: Box<[E]>,
    /// The index of the next event.
    next: usize,
    /// The number of times that the ring was filled.
    laps: u64,
}

impl<E: Copy> Ring<E> {
    /// Creates a ring for `capacity` events, at least one. `filler` is the value of unused entries, so that all memory is
    /// allocated at the start.
    pub fn new(capacity: usize, filler: E) -> Self {
        Ring { events: vec![filler; capacity.max(1)].into(), next: 0, laps: 0 }
    }

    /// Adds an event.
    #[inline]
    pub fn note(&mut self, event: E) {
        self.events[self.next] = event;
        self.next += 1;
        if self.next == self.events.len() {
            (self.next, self.laps) = (0, self.laps + 1);
        }
    }

    /// Returns the events, the oldest first.
    pub fn events(&self) -> Vec<E> {
        let (newer, older) = self.events.split_at(self.next);
        if self.laps == 0 { newer.to_vec() } else { [older, newer].concat() }
    }

    /// Returns the number of events that were replaced by newer ones.
    pub fn lost(&self) -> u64 {
        match self.laps {
            0 => 0,
            laps => (laps - 1) * self.events.len() as u64 + self.next as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_stay_in_order() {
        let mut ring = Ring::new(4, 99);
        assert_eq!((ring.events(), ring.lost()), (vec![], 0));
        (0..3).for_each(|event| ring.note(event));
        assert_eq!((ring.events(), ring.lost()), (vec![0, 1, 2], 0));
        ring.note(3);
        assert_eq!((ring.events(), ring.lost()), (vec![0, 1, 2, 3], 0));
        (4..11).for_each(|event| ring.note(event));
        assert_eq!((ring.events(), ring.lost()), (vec![7, 8, 9, 10], 7));
    }
}
