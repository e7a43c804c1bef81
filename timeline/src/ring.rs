//! The last events, in memory whose size is fixed at the start.

/// Keeps the last events. An event beyond the capacity takes the place of the oldest.
#[derive(Debug)]
pub struct Ring<E> {
    events: Vec<E>,
    capacity: usize,
    noted: u64,
}

impl<E: Copy> Ring<E> {
    /// A ring for so many events, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Ring { events: Vec::with_capacity(capacity), capacity, noted: 0 }
    }

    /// Notes an event.
    #[inline]
    pub fn note(&mut self, event: E) {
        match self.events.len() < self.capacity {
            true => self.events.push(event), // there is room: nothing is allocated
            false => self.events[(self.noted % self.capacity as u64) as usize] = event,
        }
        self.noted += 1;
    }

    /// The events, the oldest first.
    pub fn events(&self) -> Vec<E> {
        let oldest =
            if self.events.len() < self.capacity { 0 } else { (self.noted % self.capacity as u64) as usize };
        let (newer, older) = self.events.split_at(oldest);
        [older, newer].concat()
    }

    /// Events that others took the place of.
    pub fn lost(&self) -> u64 {
        self.noted - self.events.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_stay_in_order() {
        let mut ring = Ring::new(4);
        (0..3).for_each(|event| ring.note(event));
        assert_eq!((ring.events(), ring.lost()), (vec![0, 1, 2], 0));
        let memory = ring.events.as_ptr();
        (3..11).for_each(|event| ring.note(event));
        assert_eq!((ring.events(), ring.lost()), (vec![7, 8, 9, 10], 7));
        assert_eq!(ring.events.as_ptr(), memory, "nothing was allocated");
    }
}
