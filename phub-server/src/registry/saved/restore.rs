//! The state that a new job continues from: its checkpoint, if the hub has one. For a job over several hubs, the
//! state's round is the latest round of which all hubs have a part.
//!
//! ```text
//!   hub 0: own rounds + GET parts of every other hub --> the latest whole round --> pass --> the other hubs
//!   another hub that has later rounds: hub 0 confirms the pass --> the later rounds no longer count
//! ```
//!
//! Runs on a thread for joins, or on a separate thread if it waits for other hubs.

use std::num::NonZeroU32;
use std::sync::Arc;

use coordinator::input::HubOf;
use coordinator::{Files, Secret};
use fabric::Slab;
use pbox_core::control::{BeginsRequest, JoinRequest, PartsReply, Pass, RefusalCode};
use pbox_core::{JobTerms, Layout, Numbers, Restored, RestoredKey, Round, Share};
use serde_json::Value;

use crate::checkpoint::{CheckpointError, CheckpointStore, Loaded, PartOf};
use crate::client::Address;
use crate::registry::hubs::Peers;
use crate::registry::members::join::new_token;
use crate::registry::{Because, Refusal, Registry};

/// The way in which a job over several hubs begins.
#[derive(Default)]
struct Beginning {
    round: Round,
    /// The rounds of the files of each hub that owns chunks. At hubs other than hub 0, only the rounds of the hub's
    /// own files.
    files: Files,
    /// The reason why `round` is not the newest round of the files. `None` if `round` is the newest round, or if there
    /// are no files.
    warning: Option<String>,
}

impl Registry {
    /// Returns the state with which a new job continues, if the job has a checkpoint. Also returns the hubs of the job,
    /// and the clients for requests to the other hubs.
    pub(crate) fn restore(
        &self,
        name: &str,
        request: &JoinRequest,
        layout: &Layout,
    ) -> Result<(Option<Loaded>, HubOf, Arc<Peers>), Refusal> {
        let conflict = |why: String| RefusalCode::CheckpointUnusable.because(format!("job {name:?}: {why}"));
        let (terms, schedule) = (&request.terms, request.terms.level.schedule);
        let share = Share::of_hub(terms, request.hub);
        let pieces = share.pieces(layout, schedule);
        // A trial has no checkpoints, and continues from no checkpoint.
        let store = self.store.as_ref().filter(|_| !request.trial);
        let owns = |hub| store.is_none() || !Share { hub, ..share }.pieces(layout, schedule).is_empty();
        let pass = request.peers.as_ref().and_then(|peers| peers.pass.as_ref());
        let named = request.peers.iter().flat_map(|peers| &peers.hubs);
        let peers = Arc::new(Peers {
            job: name.to_owned(),
            secret: match pass.and_then(|pass| Secret::parse(&pass.secret)) {
                Some(secret) => secret,
                None => Secret(new_token()?.0),
            },
            credential: self.up.for_outside.clone(),
            own: share.hub,
            addresses: Address::several(named, &self.up.outside()),
            owners: (0..share.hubs).map(owns).collect(),
            limit: self.heartbeat_limit,
        });
        let part = PartOf { job: name, share, pieces: &pieces };
        let beginning = match (store, pass) {
            _ if share.is_whole() => Ok(Beginning::default()),
            (store, Some(pass)) => self.follow(store, part, pass, &peers),
            (Some(store), None) => self.lead(store, part, &peers),
            (None, None) => Ok(Beginning::default()),
        };
        let Beginning { round: first_round, files, warning } = beginning.map_err(conflict)?;
        let restored = match store {
            Some(store) if share.is_whole() => store.load(name, &terms.keys, &terms.tensors()),
            Some(store) if first_round > Round(0) => {
                let restored = load(store, part, first_round, terms);
                restored.map(|restored| Some(Loaded { restored, warning }))
            }
            _ => Ok(None),
        };
        let restored = restored.map_err(|error| conflict(error.to_string()))?;
        if let Some(Loaded { restored, warning }) = &restored {
            if let Some(warning) = warning {
                tracing::warn!(job = name, warning, "the newest checkpoint cannot be used");
            }
            tracing::info!(
                job = name,
                round = restored.round().0,
                "the job continues from its checkpoint; to start from zero, remove the file or use another job name"
            );
        }
        let names = peers.addresses.iter().map(|hub| hub.name.clone()).collect();
        let hub = HubOf { share, names, pieces, secret: peers.secret.clone(), first_round, files };
        Ok((restored, hub, peers))
    }

    /// Decides at hub 0 with which round the job begins.
    fn lead(
        &self,
        store: &CheckpointStore,
        part: PartOf<'_>,
        peers: &Arc<Peers>,
    ) -> Result<Beginning, String> {
        let mut found = vec![(0, store.rounds(part.job, part.share)?)];
        found.extend(self.ask_for_rounds(peers)?);
        found.retain(|(hub, _)| *hub == 0 || peers.owners[*hub as usize]);
        let others: Vec<u32> = found.iter().map(|(hub, _)| *hub).filter(|&hub| hub != 0).collect();
        let (mut files, mut damaged) = (Files::new(found), Vec::new());
        let newest = files.newest();
        let whole = files.go_on(|round| {
            let found = self.damaged_parts(store, part, (peers, &others), round)?;
            let named = |(hub, why): &(u32, String)| format!("hub {hub}, at {}: {why}", peers.name(*hub));
            damaged.extend(found.iter().map(named));
            Ok::<_, String>(found.into_iter().map(|(hub, _)| hub).collect())
        })?;
        let damage = match damaged.is_empty() {
            true => String::new(),
            false => format!("; damaged is {}", damaged.join("; ")),
        };
        match (whole, newest) {
            (Some(round), Some(newest)) if newest > round => {
                let warning = format!(
                    "some hub has no undamaged part of the newest checkpoint, before round {}; the job continues from the \
                     checkpoint before round {}{damage}",
                    newest.0, round.0
                );
                Ok(Beginning { round, files, warning: Some(warning) })
            }
            (None, Some(_)) => {
                let have = files.of_hubs().map(|(hub, rounds)| {
                    let rounds: Vec<u32> = rounds.iter().map(|round| round.0).collect();
                    format!("hub {hub}, at {}, has rounds {rounds:?}", peers.name(hub))
                });
                Err(format!(
                    "its checkpoint is not complete, because no round has the parts of all hubs: {}{damage}; bring the missing files \
                     back, or move the other files away to start the job from zero",
                    have.collect::<Vec<_>>().join(", ")
                ))
            }
            _ => Ok(Beginning { round: whole.unwrap_or_default(), files, warning: None }),
        }
    }

    /// Makes all hubs that own chunks read their parts of a round. Returns the hubs with a damaged part, and the damage.
    fn damaged_parts(
        &self,
        store: &CheckpointStore,
        part: PartOf<'_>,
        (peers, others): (&Arc<Peers>, &[u32]),
        round: Round,
    ) -> Result<Vec<(u32, String)>, String> {
        let check = |peers: Arc<Peers>, hub| peers.check_part(hub, round);
        let replies = self.runtime.block_on(peers.at_once(others.iter().copied(), check));
        let own = if part.pieces.is_empty() { None } else { store.damage(part.job, part.share, round)? };
        let mut damaged: Vec<(u32, String)> = own.into_iter().map(|why| (0, why)).collect();
        for (&hub, reply) in others.iter().zip(replies) {
            damaged.extend(reply?.damage.map(|why| (hub, why)));
        }
        Ok(damaged)
    }

    /// Returns the rounds of every other hub's parts.
    fn ask_for_rounds(&self, peers: &Arc<Peers>) -> Result<Vec<(u32, Vec<Round>)>, String> {
        let replies = self.runtime.block_on(peers.at_once(peers.others(), Peers::parts));
        let here = self.checkpoint_every.map(NonZeroU32::get);
        let mut files = Vec::new();
        for (hub, reply) in peers.others().zip(replies) {
            let PartsReply { keeps, every, rounds, .. } = reply?;
            let at = peers.name(hub);
            if !keeps {
                return Err(format!(
                    "hub 0 writes checkpoints, and hub {hub}, at {at}, does not; start all hubs of the job with \
                     --checkpoints DIRECTORY, or none"
                ));
            }
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
            files.push((hub, rounds));
        }
        Ok(files)
    }

    /// Begins at another hub with the round that hub 0 has chosen.
    fn follow(
        &self,
        store: Option<&CheckpointStore>,
        part: PartOf<'_>,
        pass: &Pass,
        peers: &Arc<Peers>,
    ) -> Result<Beginning, String> {
        let PartOf { job, share, pieces } = part;
        if store.is_some() != pass.checkpoints {
            let (with, without) =
                if pass.checkpoints { ("hub 0", "this hub") } else { ("this hub", "hub 0") };
            return Err(format!(
                "{share}: {with} writes checkpoints, and {without} does not; start all hubs of the job with --checkpoints \
                 DIRECTORY, or none"
            ));
        }
        let rounds = store.map(|store| store.rounds(job, share)).transpose()?.unwrap_or_default();
        let first_round = pass.first_round;
        let has_part = pieces.is_empty() || rounds.contains(&first_round);
        let numbers = |rounds: &[Round]| rounds.iter().map(|round| round.0).collect::<Vec<_>>();
        if first_round > Round(0) && !has_part || first_round == Round(0) && !rounds.is_empty() {
            return Err(format!(
                "{share}: hub 0 begins with round {}, and this hub has checkpoints before rounds {:?}; join again",
                first_round.0,
                numbers(&rounds)
            ));
        }
        let later = &rounds[rounds.partition_point(|&round| round <= first_round)..];
        if !later.is_empty() {
            // Hub 0 must confirm the round of the pass. The pass may belong to a job that hub 0 no longer has, or that
            // has written later rounds since it began. A confirmed round remains valid: no later round is at all hubs,
            // and no later round can be complete without this hub.
            let request = BeginsRequest { secret: pass.secret.clone(), first_round };
            let asked =
                peers.ask::<Value>(0, "begins", "confirm the round that the job begins with", &request);
            self.runtime.block_on(asked).map_err(|why| {
                format!(
                    "{share}: the pass says that the job begins with round {}, and this hub keeps its checkpoints of rounds {:?}: \
                     {why}; join again",
                    first_round.0,
                    numbers(later)
                )
            })?;
        }
        let rounds = rounds.into_iter().filter(|&round| round <= first_round).collect();
        Ok(Beginning { round: first_round, files: Files::new([(share.hub, rounds)]), warning: None })
    }
}

fn load(
    store: &CheckpointStore,
    part: PartOf<'_>,
    round: Round,
    terms: &JobTerms,
) -> Result<Restored, CheckpointError> {
    let restored = if part.pieces.is_empty() {
        // A hub without chunks has no file, but begins with the other hubs.
        let nothing = vec![RestoredKey { elements: 0..0, starts: Vec::new() }; terms.keys.len()];
        let numbers = vec![(Round(0), Numbers::new(terms.optimizer))];
        let values = Slab::zeroed("a checkpoint", 0)
            .map_err(|error| CheckpointError::Memory { job: part.job.to_owned(), error })?;
        Restored::new(round, numbers, values, nothing)
    } else {
        store.load_part(part, round, &terms.keys, &terms.tensors())?
    };
    store.put_parts_aside(part.job, part.share, round)?;
    store.keep_parts(part.job, part.share, |kept| kept <= round)?;
    Ok(restored)
}
