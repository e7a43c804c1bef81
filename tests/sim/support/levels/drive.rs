//! Drives the controls of the hubs of a tree, at once or late, as the threads of real hubs do.

use anyhow::Result;
use coordinator::Blame;
use membership::End;
use pbox_core::{Notice, OnLoss};

use super::{Levels, Member, Node};

impl Levels {
    /// Handles some of the messages that wait in the controls, or all of them if nothing is late.
    pub(super) fn control(&mut self) -> Result<()> {
        if self.terms.late.is_none() {
            return self.control_all();
        }
        for node in 0..self.nodes.len() {
            for place in 0..self.nodes[node].cores.len() {
                if self.dice.below(4) == 0 {
                    self.obey(node, place)?;
                }
            }
            if self.dice.below(2) == 0 {
                self.work(node)?;
            }
        }
        self.look_above();
        Ok(())
    }

    /// Handles all messages that wait in the controls.
    pub(super) fn control_all(&mut self) -> Result<()> {
        while self.look_above() || self.are_controls_busy() {
            for node in 0..self.nodes.len() {
                (0..self.nodes[node].cores.len()).try_for_each(|place| self.obey(node, place))?;
                self.work(node)?;
            }
        }
        Ok(())
    }

    /// Handles all messages that wait in the controls, unless the terms make the controls late.
    pub(super) fn control_at_once(&mut self) -> Result<()> {
        if self.terms.late.is_none() { self.control_all() } else { Ok(()) }
    }

    /// Makes turns until `is_so` returns true.
    pub(super) fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        loop {
            self.control()?;
            if is_so(self) {
                return Ok(());
            }
            let is_busy = self.are_controls_busy();
            anyhow::ensure!(self.turn()? || is_busy, "somebody waits, and nothing is under way");
        }
    }

    pub(super) fn are_controls_busy(&self) -> bool {
        self.nodes.iter().any(|node| node.alive && node.control.is_busy())
    }

    fn obey(&mut self, node: usize, place: usize) -> Result<()> {
        let (Levels { nodes, cores, .. }, mut notices) = (&mut *self, Vec::new());
        let of_node = &mut nodes[node];
        if of_node.alive {
            of_node.control.obey(place, cores[of_node.cores[place]].as_mut(), &mut notices)?;
        }
        self.notices.extend(notices.into_iter().map(|notice| (node, notice)));
        self.end_failed(node);
        Ok(())
    }

    /// Lets a node take in the next report. Workers that take part after this report begin.
    fn work(&mut self, node: usize) -> Result<()> {
        let Some(of_node) = self.nodes.get_mut(node).filter(|node| node.alive) else { return Ok(()) };
        of_node.control.work();
        for (rank, from) in of_node.control.begun() {
            if let Member::Worker(worker) = of_node.members[rank as usize] {
                self.workers[worker].exchange.begin(from)?;
            }
        }
        self.end_failed(node);
        Ok(())
    }

    /// Lets nodes that wait for the hubs above look whether they take part there now, from the leaves to the root.
    /// Returns whether any of these nodes now takes part.
    fn look_above(&mut self) -> bool {
        let mut begins = false;
        for node in (1..self.nodes.len()).rev() {
            let Node { control, above, .. } = &self.nodes[node];
            let Some((parent, rank)) = above.filter(|_| control.waits_above()) else { continue };
            // Each look repeats the request, as a hub does whose answer was lost.
            let reached = control.last_news().reached;
            if let Some(first) = self.nodes[parent].control.ready(rank, reached) {
                let furthest = self.nodes[parent].control.last_news().reached;
                self.nodes[node].control.begins_above(first, furthest);
                begins = true;
            } else {
                let above = self.nodes[parent].control.last_news().state.clone();
                self.nodes[node].control.misses_machines(&above);
            }
        }
        begins
    }

    /// Gives a node's control a notice of one of the node's cores. `place` is the index of the core.
    pub(super) fn handle_notice(&mut self, node: usize, place: usize, notice: Notice) {
        if self.nodes[node].alive {
            self.nodes[node].control.handle_notice(place, &notice);
        }
        self.notices.push((node, notice));
        self.end_failed(node);
    }

    /// Ends the job of a hub that has lost its links to the hub above and cannot make new ones. For this hub,
    /// the hub above is lost.
    pub fn gives_up_above(&mut self, node: usize) {
        self.nodes[node].control.fails("no hub above answers".to_owned(), Blame::Hub);
        self.end_failed(node);
    }

    /// Ends a job that has failed at a hub. Its cores close all links, and the hub above gets the reason.
    pub(super) fn end_failed(&mut self, node: usize) {
        let Some(why) = self.nodes[node].control.failed.clone().filter(|_| self.nodes[node].alive) else {
            return;
        };
        let job = self.nodes[node].job;
        self.cores_of(node).for_each(|core| drop(core.remove_job(job)));
        self.note_gone(node);
        if let Some((parent, rank)) = self.nodes[node].above.filter(|&(parent, _)| self.nodes[parent].alive) {
            // A machine whose hub is lost may come back.
            let end = self.nodes[node].control.failure().map(|(_, end)| end);
            let above = &mut self.nodes[parent].control;
            match end {
                Some(End::HubLost) => above.loses_hub(rank, &why),
                _ => above.lose(rank, &why),
            }
            self.nodes[node].control.note_notified_above();
            self.end_failed(parent);
        }
        // If a hub at the top stops, the hubs below it see that their links end.
        let is_lost_root = node == 0 && self.nodes[0].control.is_closed();
        if self.terms.job.on_loss == OnLoss::Continue && !is_lost_root {
            // The workers below this hub are killed, because they cannot continue at another hub.
            self.kill_below(node);
        }
    }
}
