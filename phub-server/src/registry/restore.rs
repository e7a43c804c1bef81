//! What a new job goes on from: its checkpoint, where the hub has one. Of a job over several hubs, the latest round that
//! all hubs have a part of.
//!
//! ```text
//!   hub 0: own rounds + GET parts of every other hub --> the latest whole round --> pass --> the other hubs
//! ```
//!
//! On a thread for joins: it waits for the disk, and for other hubs.

use std::num::NonZeroU32;

use fabric::Slab;
use pbox_core::control::{JoinRequest, PartsReply, Pass};
use pbox_core::{JobTerms, Layout, Restored, RestoredKey, Round, Share};

use super::hubs::agreement::Files;
use super::hubs::{self, Beginning, Hubs, Secret};
use super::join::new_token;
use super::{Refusal, Registry};
use crate::checkpoint::{CheckpointError, CheckpointStore, PartOf};
use crate::client::Address;

impl Registry {
    /// The state that a new job goes on with, if it has a checkpoint; and its hubs, if it has several.
    pub(super) fn restore(
        &self,
        name: &str,
        request: &JoinRequest,
        layout: &Layout,
    ) -> Result<(Option<Restored>, Option<Hubs>), Refusal> {
        let conflict = |why: String| Refusal::Conflict(format!("job {name:?}: {why}"));
        let JoinRequest { terms, hub, peers, .. } = request;
        let Some(peers) = peers else {
            let loaded = self.store.as_ref().map(|store| store.load(name, &terms.keys, &terms.optimizer));
            let restored = loaded.transpose().map_err(|error| conflict(error.to_string()))?.flatten();
            restored.iter().for_each(|restored| say_from(name, restored));
            return Ok((restored, None));
        };
        let share = Share::of_hub(terms, *hub);
        let schedule = terms.level.schedule;
        let pieces = share.pieces(layout, schedule);
        let addresses = hubs::addresses(peers);
        let owners: Vec<bool> = match &self.store {
            None => vec![true; addresses.len()],
            Some(_) => {
                let of_hub = |hub| Share { hub, ..share };
                let owns = |hub| !of_hub(hub).pieces(layout, schedule).is_empty();
                (0..share.hubs).map(owns).collect()
            }
        };
        let part = PartOf { job: name, share, pieces: &pieces };
        let begin = || match &peers.pass {
            None => self.lead(part, &addresses, &owners),
            Some(pass) => self.follow(part, pass),
        };
        let mut beginning = begin().map_err(conflict)?;
        let first_round = beginning.first_round;
        let mut restored = None;
        if let Some(store) = self.store.as_ref().filter(|_| first_round > Round(0)) {
            let loaded = load(store, part, first_round, terms);
            let loaded = loaded.map_err(|error| conflict(error.to_string()))?;
            say_from(name, &loaded);
            restored = Some(loaded);
            // No later round is whole; the job writes these rounds again.
            beginning.files.iter_mut().for_each(|(_, rounds)| rounds.retain(|&round| round <= first_round));
            let kept = store.keep_parts(name, share, |round| round <= first_round);
            kept.map_err(|error| conflict(error.to_string()))?;
        }
        Ok((restored, Some(Hubs::new(share, pieces, owners, addresses, beginning))))
    }

    /// Hub 0 decides with which round the job begins.
    fn lead(&self, part: PartOf<'_>, addresses: &[Address], owners: &[bool]) -> Result<Beginning, String> {
        let secret = Secret::new(new_token().map_err(|_| "no random bytes for its secret")?);
        let Some(store) = &self.store else {
            return Ok(Beginning { secret, first_round: Round(0), files: Vec::new() });
        };
        let own = store.rounds(part.job, part.share).map_err(|error| error.to_string())?;
        let mut files = vec![(0, own)];
        for (hub, rounds) in self.ask_for_rounds(part, addresses)? {
            if owners[hub as usize] {
                files.push((hub, rounds));
            }
        }
        let first_round = Files::new(files.clone()).whole().rounds.last().copied();
        let newest = files.iter().flat_map(|(_, rounds)| rounds).max().copied();
        match (first_round, newest) {
            (Some(first), Some(newest)) if newest > first => {
                tracing::warn!(
                    job = part.job,
                    round = first.0,
                    newest = newest.0,
                    "not all hubs have a part of the newest checkpoint; the job goes on from the one before"
                );
            }
            (None, Some(_)) => {
                let have = files.iter().map(|(hub, rounds)| {
                    let rounds: Vec<u32> = rounds.iter().map(|round| round.0).collect();
                    format!("hub {hub}, at {}, has rounds {rounds:?}", addresses[*hub as usize].name)
                });
                return Err(format!(
                    "its checkpoint is not whole, because no round is at all hubs: {}; bring the missing files back, or \
                     move these away to start the job anew",
                    have.collect::<Vec<_>>().join(", ")
                ));
            }
            _ => {}
        }
        Ok(Beginning { secret, first_round: first_round.unwrap_or_default(), files })
    }

    /// The rounds that every other hub has a part of.
    fn ask_for_rounds(
        &self,
        part: PartOf<'_>,
        addresses: &[Address],
    ) -> Result<Vec<(u32, Vec<Round>)>, String> {
        let runtime = self.runtime.get().ok_or("the hub is not up yet")?;
        let hubs = part.share.hubs;
        let ask = |hub: u32| {
            let address = addresses[hub as usize].clone();
            let path = format!("/v1/jobs/{}/parts/{hub}/{hubs}", part.job);
            let limit = self.heartbeat_limit;
            runtime.spawn(async move {
                let reply = address.get::<PartsReply>(&path, limit).await;
                let what = "say which checkpoints it has";
                reply.map_err(|error| hubs::unanswered(hub, &address.name, what, &error))
            })
        };
        let asked: Vec<_> = (1..hubs).map(|hub| (hub, ask(hub))).collect();
        let mut rounds = Vec::new();
        for (hub, answer) in asked {
            let answer = runtime.block_on(answer).map_err(|_| "the hub is stopping")?;
            let PartsReply { keeps, every, rounds: of_hub } = answer?;
            let at = &addresses[hub as usize].name;
            if !keeps {
                return Err(format!(
                    "hub 0 writes checkpoints, and hub {hub}, at {at}, does not; start all hubs of the job with \
                     --checkpoints DIRECTORY, or none"
                ));
            }
            let here = self.checkpoint_every.map(NonZeroU32::get);
            if every != here {
                let said = |every: Option<u32>| {
                    every.map_or("at no round".into(), |every| format!("every {every} rounds"))
                };
                return Err(format!(
                    "hub 0 writes a checkpoint {}, and hub {hub}, at {at}, {}; give all hubs of the job the same \
                     --checkpoint-every",
                    said(here),
                    said(every)
                ));
            }
            rounds.push((hub, of_hub));
        }
        Ok(rounds)
    }

    /// Another hub begins with the round that hub 0 has chosen.
    fn follow(&self, part: PartOf<'_>, pass: &Pass) -> Result<Beginning, String> {
        let secret = Secret::parse(&pass.secret).ok_or("the pass has no secret")?;
        let PartOf { job, share, pieces } = part;
        if self.store.is_some() != pass.checkpoints {
            let (with, without) =
                if pass.checkpoints { ("hub 0", "this hub") } else { ("this hub", "hub 0") };
            return Err(format!(
                "{share}: {with} writes checkpoints, and {without} does not; start all hubs of the job with --checkpoints \
                 DIRECTORY, or none"
            ));
        }
        let rounds = self.store.as_ref().map(|store| store.rounds(job, share)).transpose();
        let rounds = rounds.map_err(|error| error.to_string())?.unwrap_or_default();
        let first_round = pass.first_round;
        let has_part = pieces.is_empty() || rounds.contains(&first_round);
        if first_round > Round(0) && !has_part || first_round == Round(0) && !rounds.is_empty() {
            let rounds: Vec<u32> = rounds.iter().map(|round| round.0).collect();
            return Err(format!(
                "{share}: hub 0 begins with round {}, and this hub has checkpoints of rounds {rounds:?}; join again",
                first_round.0
            ));
        }
        Ok(Beginning { secret, first_round, files: vec![(share.hub, rounds)] })
    }
}

fn say_from(job: &str, restored: &Restored) {
    let round = restored.round().0;
    tracing::info!(
        job,
        round,
        "goes on from its checkpoint; to start anew, remove the file or use another job name"
    );
}

fn load(
    store: &CheckpointStore,
    part: PartOf<'_>,
    round: Round,
    terms: &JobTerms,
) -> Result<Restored, CheckpointError> {
    if !part.pieces.is_empty() {
        return store.load_part(part, round, &terms.keys, &terms.optimizer);
    }
    // A hub without chunks has no file, and begins with the others all the same.
    let nothing = vec![RestoredKey { elements: 0..0, starts: Vec::new() }; terms.keys.len()];
    let rates = vec![(Round(0), terms.optimizer.learning_rate())];
    let values = Slab::zeroed("a checkpoint", 0).map_err(|error| {
        let error = std::io::Error::other(error.to_string());
        store.failed("making room for a hub without chunks", error)
    })?;
    Ok(Restored::new(round, rates, values, nothing))
}
