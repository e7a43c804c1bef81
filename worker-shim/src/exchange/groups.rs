//! Groups of small keys. If a caller puts (pushes without a flush) all keys of a group in a row, one post carries all
//! of them.
//!
//! The layout decides which keys form a group. The hub's core treats a group as the pushes of its chunks.

use std::ops::Range;

use fabric::{LinkId, Port};
use pbox_core::{ChunkId, Content, Immediate, KeyId, Layout, Round, Slice, Slices};

use super::error::ExchangeError;
use super::exchange::{Awaited, Exchange, KeyState};

/// The groups, and the group of which the caller has put (pushed without a flush) some keys.
pub(super) struct Groups {
    /// The groups, by number. This table is used for speed: with many small keys it fits into a cache, but the tables
    /// by key do not.
    of: Vec<Group>,
    /// The incomplete group: the caller has put some of its keys (pushed them without a flush).
    begun: Begun,
    /// The keys that were put, and wait here for the rest of their group. Empty if no group is incomplete.
    members: Vec<KeyId>,
}

/// A group whose keys go to one core.
#[derive(Clone, Default)]
struct Group {
    slice: u32,
    core: u32,
    /// The keys of the group. `first_chunk` is the chunk of the first key. Empty if the keys go to several
    /// cores.
    keys: Range<u32>,
    first_chunk: u32,
    /// The number of the group's keys that are in flight.
    open: u32,
}

/// The properties that keys must share to be sent in one post.
#[derive(Default)]
struct Begun {
    number: u32,
    /// All keys of the group. `first_chunk` is the chunk of the first key. Empty if no key waits here.
    keys: Range<u32>,
    first_chunk: u32,
    round: Round,
    /// The content that the caller asked for, and the content that is sent in this round.
    content: (Content, Content),
}

impl Groups {
    pub fn new(layout: &Layout, slices: &Slices) -> Self {
        let group = |(number, slice): (usize, &Option<u32>)| {
            let Some(slice) = *slice else { return Group::default() };
            let (chunks, Slice { key: KeyId(key), core, .. }) =
                (&layout.groups()[number], slices.slice(slice));
            Group {
                slice,
                core: *core as u32,
                keys: *key..key + chunks.len() as u32,
                first_chunk: chunks.start,
                open: 0,
            }
        };
        let of = slices.of_group().iter().enumerate().map(group).collect();
        Groups { of, begun: Begun::default(), members: Vec::new() }
    }

    /// Returns the keys of each group.
    pub fn keys(&self) -> impl Iterator<Item = &Range<u32>> {
        self.of.iter().map(|group| &group.keys).filter(|keys| !keys.is_empty())
    }

    /// Returns the slice of the group, if the caller has put all its keys.
    #[inline]
    pub fn whole(&self) -> Option<u32> {
        let Begun { number, keys, .. } = &self.begun;
        (self.members.len() == keys.len()).then(|| self.of[*number as usize].slice)
    }

    /// Forgets the incomplete group. The caller of this method then sends its keys one by one.
    pub fn leave_apart(&mut self) {
        self.begun = Begun::default();
        self.members.clear();
    }

    /// Notes that a key of a group is in flight. Returns the group's core if no other key of the group is in
    /// flight.
    pub fn open(&mut self, group: u32) -> Option<usize> {
        let Group { open, core, .. } = &mut self.of[group as usize];
        *open += 1;
        (*open == 1).then_some(*core as usize)
    }

    /// Notes that a key of a group has its answer. Returns whether this was the group's last key in flight.
    pub fn close(&mut self, group: u32) -> bool {
        let open = &mut self.of[group as usize].open;
        *open -= 1;
        *open == 0
    }
}

impl<P: Port> Exchange<P> {
    /// Begins a group with its first key, which waits here. One post carries the group if the caller puts all its keys
    /// one after another, for the same round and content.
    pub(super) fn begin_group(&mut self, key: KeyId, number: u32, asked: Content) {
        self.queue_members();
        let KeyState { round, content, .. } = self.keys[key.index()];
        let Groups { of, begun, members } = &mut self.groups;
        let Group { keys, first_chunk, .. } = &of[number as usize];
        *begun =
            Begun { number, keys: keys.clone(), first_chunk: *first_chunk, round, content: (asked, content) };
        members.push(key);
    }

    /// Adds a key to the incomplete group. Returns false if the key has another group, round or content than the keys
    /// before it. For speed, reads only the tables that it changes. If the group is then [whole](Groups::whole), the
    /// caller [queues](Self::queue_group) it.
    #[inline]
    pub(super) fn put_beside(&mut self, key: KeyId, content: Content) -> bool {
        let Groups { of, begun, members } = &mut self.groups;
        if !begun.keys.contains(&key.0) {
            return false;
        }
        let state = &mut self.keys[key.index()];
        if state.outstanding > 0 || state.round != begun.round || content != begun.content.0 {
            return false;
        }
        state.outstanding = 1 + self.hand_outs;
        (state.content, state.left_alone) = (begun.content.1, true);
        self.awaited[(begun.first_chunk + key.0 - begun.keys.start) as usize] = self.first_awaited;
        members.push(key);
        of[begun.number as usize].open += 1;
        true
    }

    /// Queues a group to be sent in one post, because the caller has put all its keys. `slice` is the group's slice.
    pub(super) fn queue_group(&mut self, slice: u32) {
        self.groups.begun = Begun::default();
        self.groups.members.clear();
        self.queue(slice);
    }

    /// Handles the answer of a group as the answer of each of its keys. For speed, reads only the tables that it
    /// changes.
    pub(super) fn take_group(
        &mut self,
        link: LinkId,
        arrival: Immediate,
        chunks: Range<u32>,
    ) -> Result<(), ExchangeError> {
        let group = &mut self.groups.of[arrival.chunk.index() - self.layout.chunks().len()];
        let (core, keys) = (group.core as usize, group.keys.start as usize..group.keys.end as usize);
        let awaited = &mut self.awaited[chunks.start as usize..chunks.end as usize];
        let answers = |key: &KeyState| key.round.low_bits() == arrival.round_bits && key.outstanding == 1;
        let is_whole = !keys.is_empty()
            && arrival.content == Content::Gradient
            && !self.windows.has_copy()
            && link == self.outboxes[core].link
            && awaited.iter().all(|&awaited| awaited == Awaited::Answer)
            && self.keys[keys.clone()].iter().all(answers);
        if !is_whole {
            let mut chunks = chunks.map(ChunkId);
            return chunks.try_for_each(|chunk| self.take_arrival(link, Immediate { chunk, ..arrival }));
        }
        awaited.fill(Awaited::Nothing);
        group.open -= keys.len() as u32;
        if group.open == 0 {
            self.outstanding[core] -= 1;
        }
        self.received += self.layout.span(arrival.chunk).bytes as u64;
        for key in &mut self.keys[keys.clone()] {
            *key = KeyState { left_alone: false, ..key.next() };
        }
        let keys = keys.map(|key| KeyId(key as u32));
        self.answered.iter_mut().for_each(|answered| answered.extend(keys.clone()));
        Ok(())
    }

    /// Queues the keys of the incomplete group one by one. Returns whether there were any keys.
    pub(super) fn queue_members(&mut self) -> bool {
        self.groups.begun = Begun::default();
        let mut members = std::mem::take(&mut self.groups.members);
        let any = !members.is_empty();
        members.drain(..).for_each(|key| self.queue_key(key));
        self.groups.members = members;
        any
    }
}
