//! Groups of small keys: keys that are put one after another leave in one post, if they are all of their group.
//!
//! Which keys are a group is the layout's business, and what it means to the hub the core's: it takes a group as the pushes
//! of its chunks.

use std::ops::Range;

use fabric::{LinkId, Port};
use pbox_core::{ChunkId, Immediate, KeyId, Round, Slices};

use super::error::ExchangeError;
use super::exchange::{Awaited, Exchange, KeyState};

/// The groups that are under way.
pub(super) struct Groups {
    /// The group of which some keys are put.
    begun: Begun,
    /// These keys. Empty if there is no such group.
    members: Vec<KeyId>,
    /// By slice: keys of the group that have no answer.
    open: Vec<u32>,
}

/// What the keys of a group have in common that are put one after another.
#[derive(Default)]
struct Begun {
    slice: u32,
    /// All keys of the group, and the first one's chunk. Empty if no key is put.
    keys: Range<u32>,
    first_chunk: u32,
    round: Round,
}

impl Groups {
    pub fn new(slices: &Slices) -> Self {
        Groups { begun: Begun::default(), members: Vec::new(), open: vec![0; slices.count()] }
    }

    /// Whether keys wait for others of their group.
    pub fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// A key is under way. Whether it is the first of its group, or in none.
    pub fn opens(&mut self, group: Option<u32>) -> bool {
        let Some(group) = group else { return true };
        let open = &mut self.open[group as usize];
        *open += 1;
        *open == 1
    }

    /// So many keys of a group have their answers. Whether they are the last.
    fn close(&mut self, group: u32, keys: usize) -> bool {
        let open = &mut self.open[group as usize];
        *open -= keys as u32;
        *open == 0
    }

    /// A key has its answer. Whether it is the last of its group, or in none.
    pub fn closes(&mut self, group: Option<u32>) -> bool {
        group.is_none_or(|group| self.close(group, 1))
    }
}

impl<P: Port> Exchange<P> {
    /// A key of a group that leaves as one when all its keys are put, one after another and for the same round: the first
    /// of them.
    pub(super) fn begin_group(&mut self, key: KeyId, slice: u32) {
        self.queue_members();
        let chunks = self.layout.group(self.slices.chunks(slice)[0]).expect("its slice is a group's");
        let KeyId(first) = self.slices.slice(slice).key;
        let (keys, round) = (first..first + chunks.len() as u32, self.round(key));
        self.groups.begun = Begun { slice, keys, first_chunk: chunks.start, round };
        self.groups.members.push(key);
    }

    /// Puts a key that is to leave with those that are put before it, if it is of their group and round. With many small
    /// keys the tables by key are more than a cache has, so only those are used that change.
    #[inline]
    pub(super) fn put_beside(&mut self, key: KeyId) -> bool {
        let Groups { begun, members, open } = &mut self.groups;
        if !begun.keys.contains(&key.0) {
            return false;
        }
        let state = &mut self.keys[key.index()];
        if state.outstanding > 0 || state.round != begun.round {
            return false;
        }
        state.outstanding = 1 + self.hand_outs;
        self.awaited[(begun.first_chunk + key.0 - begun.keys.start) as usize] = self.first_awaited;
        open[begun.slice as usize] += 1;
        members.push(key);
        if members.len() == begun.keys.len() {
            members.clear();
            let Begun { slice, .. } = std::mem::take(begun);
            self.queue(slice);
        }
        true
    }

    /// The answer of a group is that of each of its keys. With many small keys the tables by key are more than a cache has,
    /// so only those are used that change.
    pub(super) fn take_group(
        &mut self,
        link: LinkId,
        arrival: Immediate,
        chunks: Range<u32>,
    ) -> Result<(), ExchangeError> {
        let first = ChunkId(chunks.start);
        let (KeyId(first_key), core) = (self.layout.chunk(first).key, self.slices.core_of(first));
        let keys = first_key as usize..first_key as usize + chunks.len();
        let awaited = &mut self.awaited[chunks.start as usize..chunks.end as usize];
        let answers = |key: &KeyState| key.round.low_bits() == arrival.round_bits && key.outstanding == 1;
        let group = self.slices.group(KeyId(first_key)).filter(|_| {
            !self.windows.has_copy()
                && link == self.outboxes[core].link
                && awaited.iter().all(|&awaited| awaited == Awaited::Answer)
                && self.keys[keys.clone()].iter().all(answers)
        });
        let Some(group) = group else {
            let mut chunks = chunks.map(ChunkId);
            return chunks.try_for_each(|chunk| self.take_arrival(link, Immediate { chunk, ..arrival }));
        };
        awaited.fill(Awaited::Nothing);
        for key in &mut self.keys[keys] {
            *key = KeyState { round: key.round.next(), outstanding: 0 };
        }
        self.received += self.layout.span(arrival.chunk).bytes as u64;
        if self.groups.close(group, chunks.len()) {
            self.outstanding[core] -= 1;
        }
        Ok(())
    }

    /// The keys of a group that is not whole leave one by one. Whether there were any.
    pub(super) fn queue_members(&mut self) -> bool {
        self.groups.begun = Begun::default();
        let mut members = std::mem::take(&mut self.groups.members);
        let any = !members.is_empty();
        members.drain(..).for_each(|key| self.queue_key(key));
        self.groups.members = members;
        any
    }
}
