//! Members that arrive: they connect, and the cores get their links. The job begins once no rank is missing.

use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::ArrivedRequest;

use super::{Ranks, Standing};
use crate::job::{Effect, Gathering, Job, Life, News, Purpose, StateOffer};

/// The consequence of a new link at a core.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// No effect: another member, or another link of this member, is missing.
    Waiting,
    /// All workers have joined this hub, and the job can begin.
    Complete(Arc<[u32]>),
    /// The job runs, and this worker wants to take part.
    Newcomer(u32),
    /// The worker takes part, and has reconnected.
    Relinked(u32),
}

impl Job {
    /// Notes that a core has a worker's link.
    pub(crate) fn attached(&mut self, rank: u32) -> Arrival {
        match self.members.attach(rank) {
            true => Arrival::Relinked(rank),
            false => self.life.arrived(rank, &self.members, &mut self.news),
        }
    }

    /// Returns the effects of an arrival.
    pub(crate) fn follows(&mut self, arrival: Arrival, now: Instant) -> Vec<Effect> {
        match arrival {
            Arrival::Waiting => Vec::new(),
            Arrival::Complete(ranks) => {
                let workers = ranks.iter().filter_map(|&rank| self.members.worker(rank)).collect();
                self.cut(Purpose::Admit(workers), now).1
            }
            Arrival::Relinked(rank) => vec![Effect::Relinked(rank)],
            Arrival::Newcomer(rank) => {
                let Some(worker) = self.members.worker(rank) else { return Vec::new() };
                let (hub, secret) = (self.hubs.share.hub, self.hubs.secret.show());
                match self.hubs.leads() {
                    true => self.arrived_at(hub, worker, now),
                    false => vec![Effect::TellArrived(ArrivedRequest { secret, hub, worker })],
                }
            }
        }
    }

    /// Notes, at hub 0, that a hub has all links of a newcomer. Once all hubs have its links, begins a cut that lets the
    /// newcomer take part.
    pub(crate) fn arrived_at(&mut self, hub: u32, worker: u64, now: Instant) -> Vec<Effect> {
        let hubs = self.hubs.share.hubs;
        let is_member = self.members.rank(worker).is_some() && hub < hubs && self.hubs.leads();
        match is_member && self.hubs.arrivals.note(worker, hub, hubs) {
            true => self.cut(Purpose::Admit([worker].into()), now).1,
            false => Vec::new(),
        }
    }
}

impl Life {
    /// Notes that a hub below is ready, because all its own members have joined.
    pub(crate) fn ready(&mut self, rank: u32, members: &mut Ranks, news: &mut News) -> Arrival {
        match members.standing(rank).is_some_and(Standing::make_ready) {
            true => self.arrived(rank, members, news),
            false => Arrival::Waiting, // a repeated request, whose first answer was lost
        }
    }

    /// Returns the consequence of an event after which a member may be ready to take part.
    pub(in crate::job) fn arrived(&mut self, rank: u32, members: &Ranks, news: &mut News) -> Arrival {
        if !members.waits_for_cut(rank) {
            return Arrival::Waiting;
        }
        match self {
            Life::Running => Arrival::Newcomer(rank),
            Life::Failed { .. } => Arrival::Waiting,
            Life::Gathering(_) => self.gathered(members, news),
        }
    }

    /// Reports to the members of a job that has not begun which ranks are still missing. If no rank is missing, the job
    /// can begin.
    pub(in crate::job) fn gathered(&mut self, members: &Ranks, news: &mut News) -> Arrival {
        let waits_for_state = self.gathering().is_some_and(|gathering| gathering.offer != StateOffer::None);
        let there = |rank: u32| (rank > 0 || !waits_for_state) && members.waits_for_cut(rank);
        let missing: Vec<u32> = (0..members.count()).filter(|&rank| !there(rank)).collect();
        let complete = missing.is_empty();
        self.wait_for(missing, Vec::new(), news);
        if complete { Arrival::Complete((0..members.count()).collect()) } else { Arrival::Waiting }
    }

    /// Reports to the members that all workers have joined this hub, and which machines are still missing at the hubs
    /// above.
    pub(crate) fn wait_for_machines(&mut self, machines: Vec<u32>, news: &mut News) {
        let differs = |now: &Gathering| !now.missing.is_empty() || now.machines != machines;
        if self.gathering().is_some_and(differs) {
            self.wait_for(Vec::new(), machines, news);
        }
    }

    fn wait_for(&mut self, missing: Vec<u32>, machines: Vec<u32>, news: &mut News) {
        let Some(gathering) = self.gathering_mut() else { return };
        (gathering.missing, gathering.machines) = (missing, machines);
        news.tell(self, |_| {});
    }
}
