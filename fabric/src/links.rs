//! The links of a port, by id: every transport keeps its links in this table.
//!
//! The port's thread owns the table. The table notes what each link has reported, and whether the link was
//! posted to. This module does not depend on how the bytes cross.
//!
//! ```text
//!   Open --(the peer left, an error)--> Closing --(closed())--> Reported
//!     +---> Ending: arrivals are still to be shown ---^
//! ```

use crate::ids::{Imm, LinkId};
use crate::port::{Arrival, CloseReason, Closed, Posted};

/// The progress of a link, from open to reported as closed.
#[derive(Debug)]
pub(crate) enum LinkState {
    Open,
    /// The link closes when all earlier arrivals have been shown.
    Ending(CloseReason),
    /// The link is closed, and `closed` has not reported it yet.
    Closing(CloseReason),
    Reported,
}

/// A link in the table of its port.
#[derive(Debug)]
pub(crate) struct Attached<L> {
    pub link: L,
    pub state: LinkState,
    /// Whether a post was made since the last flush.
    dirty: bool,
}

impl<L> Attached<L> {
    pub fn is_open(&self) -> bool {
        matches!(self.state, LinkState::Open)
    }

    /// Whether `closed` must still report the link.
    pub fn is_closing(&self) -> bool {
        matches!(self.state, LinkState::Closing(_))
    }
}

/// The links of a port. A new link gets the lowest free id.
#[derive(Debug)]
pub(crate) struct Links<L> {
    slots: Vec<Option<Attached<L>>>,
    /// The links with a post since the last flush, each once.
    dirty: Vec<LinkId>,
    /// The slot that the next poll looks at first.
    first: usize,
}

impl<L> Default for Links<L> {
    fn default() -> Self {
        Links { slots: Vec::new(), dirty: Vec::new(), first: 0 }
    }
}

impl<L> Links<L> {
    /// Returns the id that the next [`insert`](Self::insert) gives.
    pub fn next_id(&self) -> LinkId {
        LinkId(self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len()) as u32)
    }

    /// Adds an open link, and returns its id.
    pub fn insert(&mut self, link: L) -> LinkId {
        let id = self.next_id();
        let attached = Some(Attached { link, state: LinkState::Open, dirty: false });
        match self.slots.get_mut(id.index()) {
            Some(free) => *free = attached,
            None => {
                self.slots.push(attached);
                self.dirty.reserve(self.slots.len());
            }
        }
        id
    }

    /// Removes a link. The id is free from then on.
    pub fn remove(&mut self, id: LinkId) -> Option<Attached<L>> {
        let attached = self.slots.get_mut(id.index()).and_then(Option::take)?;
        self.dirty.retain(|&dirty| dirty != id);
        Some(attached)
    }

    /// Returns the ids of all links.
    pub fn ids(&self) -> Vec<LinkId> {
        self.iter().map(|(id, _)| id).collect()
    }

    #[inline]
    pub fn get(&self, id: LinkId) -> Option<&Attached<L>> {
        self.slots.get(id.index())?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: LinkId) -> Option<&mut Attached<L>> {
        self.slots.get_mut(id.index())?.as_mut()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Returns all links, by id.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, &Attached<L>)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(index, slot)| Some((LinkId(index as u32), slot.as_ref()?)))
    }

    /// Returns all links, by id.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (LinkId, &mut Attached<L>)> {
        let numbered = self.slots.iter_mut().enumerate();
        numbered.filter_map(|(index, slot)| Some((LinkId(index as u32), slot.as_mut()?)))
    }

    /// Posts on an open link. If the link accepts the post, the next [`flush`](Self::flush) visits the link.
    #[inline]
    pub fn post<E>(
        &mut self,
        id: LinkId,
        post: impl FnOnce(&mut L) -> Result<Posted, E>,
    ) -> Result<Posted, E> {
        let Some(attached) = self.slots.get_mut(id.index()).and_then(Option::as_mut) else {
            return Ok(Posted::Closed);
        };
        if !attached.is_open() {
            return Ok(Posted::Closed);
        }
        let posted = post(&mut attached.link);
        if matches!(posted, Ok(Posted::Accepted)) && !attached.dirty {
            attached.dirty = true;
            self.dirty.push(id);
        }
        posted
    }

    /// Whether a flush has work.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Visits the links that were posted to since the last flush.
    #[inline]
    pub fn flush(&mut self, mut visit: impl FnMut(LinkId, &mut Attached<L>)) {
        for id in self.dirty.drain(..) {
            let Some(attached) = &mut self.slots[id.index()] else { continue };
            attached.dirty = false;
            visit(id, attached);
        }
    }

    /// Shows arrivals of all links. Each link gets an equal share of the room in `into`. A poll starts after
    /// the last link that showed something in the previous poll. So links for which there was no room come
    /// first.
    #[inline]
    pub fn poll(
        &mut self,
        into: &mut [Arrival],
        mut show: impl FnMut(&mut Attached<L>, &mut Room<'_>),
    ) -> usize {
        let links = self.slots.len();
        if links == 0 {
            return 0;
        }
        let share = into.len().div_ceil(links);
        let mut room = Room { into, filled: 0, end: 0, link: LinkId(0) };
        let first = self.first % links;
        for index in (first..links).chain(0..first) {
            let Some(attached) = &mut self.slots[index] else { continue };
            let before = room.filled;
            room.link = LinkId(index as u32);
            room.end = (before + share).min(room.into.len());
            show(attached, &mut room);
            if room.filled > before {
                self.first = index + 1;
                if room.filled == room.into.len() {
                    break;
                }
            }
        }
        room.filled
    }

    /// Returns the next link that closed and has not been reported.
    pub fn report_closed(&mut self) -> Option<Closed> {
        self.iter_mut().find_map(|(link, attached)| match &attached.state {
            LinkState::Closing(reason) => {
                let closed = Closed { link, reason: reason.clone() };
                attached.state = LinkState::Reported;
                Some(closed)
            }
            _ => None,
        })
    }
}

/// The room for arrivals of one link in a poll.
pub(crate) struct Room<'a> {
    into: &'a mut [Arrival],
    filled: usize,
    /// The index in `into` where this link's share ends.
    end: usize,
    link: LinkId,
}

impl Room<'_> {
    /// Returns how many arrivals the link may still show.
    #[inline]
    pub fn left(&self) -> usize {
        self.end - self.filled
    }

    /// Shows one arrival.
    #[inline]
    pub fn show(&mut self, imm: Imm) {
        self.into[self.filled] = Arrival { link: self.link, imm };
        self.filled += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Returns a table of links that are named by letters, with ids from 0 on.
    fn table(names: &str) -> Links<char> {
        let mut links = Links::default();
        for (index, name) in names.chars().enumerate() {
            assert_eq!(links.insert(name), LinkId(index as u32));
        }
        links
    }

    fn post(links: &mut Links<char>, id: u32, answer: Posted) -> Posted {
        let Ok(posted) = links.post::<Infallible>(LinkId(id), |_| Ok(answer));
        posted
    }

    fn flushed(links: &mut Links<char>) -> String {
        let mut visited = String::new();
        links.flush(|_, attached| visited.push(attached.link));
        visited
    }

    #[test]
    fn the_lowest_free_id_is_given_again() {
        let mut links = table("abc");
        assert_eq!(links.remove(LinkId(0)).unwrap().link, 'a');
        assert_eq!(links.remove(LinkId(1)).unwrap().link, 'b');
        assert!(links.remove(LinkId(1)).is_none() && links.remove(LinkId(7)).is_none());
        assert_eq!(links.next_id(), LinkId(0));
        assert_eq!([links.insert('d'), links.insert('e'), links.insert('f')].map(|id| id.0), [0, 1, 3]);
        let all: Vec<(u32, char)> = links.iter().map(|(id, attached)| (id.0, attached.link)).collect();
        assert_eq!(all, [(0, 'd'), (1, 'e'), (2, 'c'), (3, 'f')]);
        links.ids().into_iter().for_each(|id| drop(links.remove(id)));
        assert!(links.is_empty() && links.next_id() == LinkId(0));
    }

    #[test]
    fn a_flush_visits_each_link_that_accepted_once() {
        let mut links = table("abcd");
        for (id, answer) in [(2, Posted::Accepted), (0, Posted::Full), (3, Posted::Accepted)] {
            assert_eq!([post(&mut links, id, answer), post(&mut links, id, answer)], [answer; 2]);
        }
        links.remove(LinkId(3));
        links.insert('e');
        assert!(links.is_dirty());
        assert_eq!(flushed(&mut links), "c", "a new link is not dirty for the one before it");
        assert!(!links.is_dirty() && flushed(&mut links).is_empty());
        assert_eq!(post(&mut links, 2, Posted::Accepted), Posted::Accepted);
        assert_eq!(flushed(&mut links), "c");
    }

    #[test]
    fn a_link_that_is_not_open_takes_no_posts_and_is_reported_once() {
        let mut links = table("abc");
        links.get_mut(LinkId(0)).unwrap().state = LinkState::Ending(CloseReason::PeerGone);
        links.get_mut(LinkId(2)).unwrap().state = LinkState::Closing(CloseReason::PeerGone);
        for id in [0, 2, 3] {
            assert_eq!(post(&mut links, id, Posted::Accepted), Posted::Closed);
        }
        assert_eq!(links.report_closed(), Some(Closed { link: LinkId(2), reason: CloseReason::PeerGone }));
        assert_eq!(links.report_closed(), None, "the other link still has arrivals to show");
        links.get_mut(LinkId(0)).unwrap().state = LinkState::Closing(CloseReason::PeerGone);
        assert_eq!(links.report_closed().map(|closed| closed.link), Some(LinkId(0)));
    }

    #[test]
    fn room_is_shared_and_a_poll_begins_behind_the_last_link_that_showed_something() {
        let mut links = table("abc");
        links.remove(LinkId(1));
        let mut shown = [Arrival::default(); 5];
        let mut poll = |wanted: usize| {
            let count = links.poll(&mut shown, |_, room| {
                (0..room.left().min(wanted)).for_each(|imm| room.show(Imm(imm as u32)));
            });
            shown[..count].iter().map(|arrival| (arrival.link.0, arrival.imm.0)).collect::<Vec<_>>()
        };
        assert_eq!(poll(usize::MAX), [(0, 0), (0, 1), (2, 0), (2, 1)], "two of five places each");
        assert_eq!(poll(0), []);
        assert_eq!(poll(1), [(0, 0), (2, 0)]);
        assert_eq!(Links::<char>::default().poll(&mut [Arrival::default()], |_, _| ()), 0);
    }

    #[test]
    fn of_more_links_than_room_each_is_shown_once_before_any_is_shown_twice() {
        let mut links = table(&"x".repeat(100));
        let mut shown = [Arrival::default(); 64];
        let mut visits = 0;
        let mut seen = Vec::new();
        for _ in 0..25 {
            let count = links.poll(&mut shown, |_, room| {
                visits += 1;
                room.show(Imm(0));
            });
            seen.extend(shown[..count].iter().map(|arrival| arrival.link.0));
        }
        assert!(seen.iter().copied().eq((0..1600).map(|turn| turn % 100)), "16 times each, in turn");
        assert_eq!(visits, 1600, "a full poll visits no further link");
    }
}
