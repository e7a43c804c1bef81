//! The bytes that have crossed the links of members. Each core measures its links when it carries out the command. The
//! hub takes the figures when all cores have answered.

use std::collections::HashMap;

use coordinator::input::Crossed;
use fabric::sim;
use pbox_core::Core;

use super::{Command, Control};

/// The bytes sent and received.
type Bytes = (u64, u64);

/// The figures of a hub's links.
#[derive(Debug, Default)]
pub struct CrossedHere {
    /// The figures of the measurement in progress: the rank, the core, and the bytes.
    links: Vec<(u32, usize, Bytes)>,
    /// The number of cores that have not yet reported their figures.
    answers: usize,
    /// The number of figures so far. The figures are not measured: each is made from this number, so no two figures are
    /// equal.
    figures: u64,
    /// The figures that the hub has, by rank and core.
    known: HashMap<(u32, usize), Bytes>,
}

impl Control {
    /// Makes all cores measure their links, unless a measurement is in progress.
    pub fn measures(&mut self) {
        if self.crossed.answers == 0 && self.failed.is_none() {
            self.crossed.answers = self.commands.len();
            self.command(|| Command::Measure);
        }
    }

    /// Notes a core's figures. Gives the hub the figures of all cores after the last answer.
    pub(super) fn measured(&mut self, place: usize, core: &Core<sim::Port>) {
        let CrossedHere { links, answers, figures, .. } = &mut self.crossed;
        for (rank, _) in core.links(self.id) {
            *figures += 1;
            links.push((rank, place, (*figures, 2 * *figures)));
        }
        *answers -= 1;
        if *answers > 0 {
            return;
        }
        let links = std::mem::take(links);
        let has_links =
            |rank: u32| self.job().members.get(rank).is_some_and(|member| !member.links.is_empty());
        let known = links.iter().filter(|(rank, ..)| has_links(*rank));
        let known = Vec::from_iter(known.map(|&(rank, core, bytes)| ((rank, core), bytes)));
        self.crossed.known.extend(known);
        self.ask(Crossed { job: self.id, links });
        self.check_crossed();
    }

    /// Notes that a member has new links, over which no byte has crossed.
    pub(super) fn note_new_links(&mut self, rank: u32) {
        self.crossed.known.retain(|(of, _), _| *of != rank);
        self.check_crossed();
    }

    /// Checks that each link has the figures that were measured last for its member and core. A link without
    /// measurements has none.
    fn check_crossed(&self) {
        for (rank, member) in self.job().members.present() {
            for (core, link) in member.links.iter().enumerate() {
                let bytes = link.crossed.map(|crossed| (crossed.sent, crossed.received));
                let known = self.crossed.known.get(&(rank, core)).copied();
                assert_eq!(bytes, known, "the bytes of rank {rank} at core {core}");
            }
        }
    }
}
