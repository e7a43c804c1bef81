//! Losses of links to hubs above. Workers and hubs of a tree lose these links at any moment, and make new links some
//! steps later.

use std::collections::BTreeMap;

use super::{Levels, Member};
use crate::trouble::Dice;

/// The losses of links in a run.
#[derive(Debug, Default)]
pub struct Losses {
    /// The number of losses still to come.
    pub left: u32,
    /// The members whose links are lost, each with the number of steps until it makes new links.
    unlinked: BTreeMap<Member, u64>,
}

impl Losses {
    /// Creates `count` losses.
    pub fn of(left: u32) -> Self {
        Losses { left, unlinked: BTreeMap::new() }
    }

    /// Whether all lost links were replaced by new links.
    pub fn are_mended(&self) -> bool {
        self.unlinked.is_empty()
    }

    /// Loses links at random.
    pub fn lose(&mut self, job: &mut Levels, dice: &mut Dice) {
        if self.left == 0 || dice.below(6) > 0 {
            return;
        }
        let member = match dice.below((job.workers.len() + job.nodes.len()) as u64) as usize {
            worker if worker < job.workers.len() => Member::Worker(worker),
            hub => Member::Hub(hub - job.workers.len()),
        };
        let is_linked = match member {
            Member::Worker(worker) => job.is_alive(worker),
            Member::Hub(hub) => job.above(hub).is_some() && !self.unlinked.contains_key(&member),
        };
        if is_linked {
            self.left -= 1;
            match member {
                Member::Worker(worker) => job.unlink(worker),
                Member::Hub(hub) => job.unlink_hub(hub, dice.below(4)),
            }
            self.unlinked.insert(member, dice.below(30));
        }
    }

    /// Makes new links for members that have waited long enough, if the old links are dropped.
    pub fn mend(&mut self, job: &mut Levels) {
        self.unlinked.retain(|member, left| {
            let is_mended = *left == 0
                && match *member {
                    Member::Worker(worker) => job.relink(worker).unwrap(),
                    Member::Hub(hub) => job.relink_hub(hub).unwrap(),
                };
            *left = left.saturating_sub(1);
            !is_mended
        });
    }
}
