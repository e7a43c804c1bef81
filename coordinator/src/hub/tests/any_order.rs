//! Tests of a hub with its jobs and names, by events in any order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pbox_core::OnLoss;
use pbox_core::control::LostReply;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::input::{
    self, BeginStop, Connect, Drain, End, EndJoin, Fail, Find, Happened, Lose, PromiseJoin, Release,
    SavedAtStop, Stop, Sweep, Told,
};
use crate::{LastStepped, MemberOf, Request, SAVED_WITHIN, Stepped, StopStep, job, record};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[derive(Clone, Debug)]
enum Event {
    /// A worker with this address asks for the job of this name.
    Comes(&'static str, Option<IpAddr>),
    /// A job that is being made needs this number of gigabytes.
    Needs(Index, u64),
    /// A job that is being made begins.
    Made(Index),
    /// A job could not be made, or the last state of a failed job is saved.
    Released(Index),
    Joins(&'static str, u32),
    /// All ranks of a job have connected, and it begins.
    Runs(&'static str),
    /// The member with one of the tokens leaves, is lost, or is notified that its job failed.
    Leaves(Index),
    Lost(Index),
    Told(Index),
    /// A job fails. The flag says whether its last state is saved.
    Fails(&'static str, bool),
    /// A join that needs this number of gigabytes is being read, or has been read.
    Reads(u64),
    IsRead(Index),
    /// This number of seconds passes.
    Swept(u64),
    Drained,
    /// The hub begins to stop, or stops at once.
    Stops,
    Stopped,
    /// A job is saved at the stop, or cannot be saved.
    Saved(Index, bool),
    /// A stop takes too long.
    TooLong,
}

fn event() -> impl Strategy<Value = Event> {
    let name = || proptest::sample::select(&NAMES[..]);
    let owner = prop_oneof![Just(None), Just(ONE), Just(OTHER)];
    prop_oneof![
        120 => (name(), owner).prop_map(|(name, owner)| Event::Comes(name, owner)),
        60 => (any::<Index>(), 0..40u64).prop_map(|(at, bytes)| Event::Needs(at, bytes)),
        80 => any::<Index>().prop_map(Event::Made),
        20 => any::<Index>().prop_map(Event::Released),
        120 => (name(), 0..WORKERS).prop_map(|(name, rank)| Event::Joins(name, rank)),
        60 => name().prop_map(Event::Runs),
        30 => any::<Index>().prop_map(Event::Leaves),
        20 => any::<Index>().prop_map(Event::Lost),
        20 => any::<Index>().prop_map(Event::Told),
        20 => (name(), any::<bool>()).prop_map(|(name, saves)| Event::Fails(name, saves)),
        20 => (0..40u64).prop_map(Event::Reads),
        20 => any::<Index>().prop_map(Event::IsRead),
        40 => (0..40u64).prop_map(Event::Swept),
        1 => Just(Event::Drained),
        3 => Just(Event::Stops),
        2 => Just(Event::Stopped),
        20 => (any::<Index>(), any::<bool>()).prop_map(|(at, is_saved)| Event::Saved(at, is_saved)),
        1 => Just(Event::TooLong),
    ]
}

/// A job that is being made, with its owner and its promise.
type Making = (JobId, Option<IpAddr>, u64);

/// A hub of the test, and what its driver knows about it.
struct Driven {
    hub: Hub,
    begun: Instant,
    now: Instant,
    /// The record of all inputs.
    record: Vec<String>,
    /// The reserved names, each with the job that is being made. `None` means that the last state of a failed job with
    /// this name is being saved.
    reserved: BTreeMap<&'static str, Option<Making>>,
    /// All tokens, each with the name of its job, and its member.
    given: Vec<(Token, &'static str, MemberOf)>,
    reads: Vec<u64>,
    /// The members that were lost.
    lost: u64,
    /// The number of the last job.
    last: Option<JobId>,
    /// The jobs for which the hub waits at its stop.
    stopping: Vec<JobId>,
}

impl Driven {
    fn new() -> Self {
        let quotas = Quotas {
            jobs_per_address: Some(2),
            memory_per_address: Some(50 * GB),
            memory_per_job: Some(30 * GB),
        };
        let now = Instant::now();
        Driven {
            hub: of_quotas(quotas),
            begun: now,
            now,
            record: vec![record::head("a test", settings(quotas))],
            reserved: BTreeMap::new(),
            given: Vec::new(),
            reads: Vec::new(),
            lost: 0,
            last: None,
            stopping: Vec::new(),
        }
    }

    fn ask<R: Request>(&mut self, request: R) -> R::Answer {
        let input = request.clone().into();
        let answer = self.hub.ask(request, self.now);
        self.record.push(record::step(self.now - self.begun, &input, &answer));
        answer
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Comes(name, owner) => self.comes(name, owner),
            Event::Needs(at, gigabytes) => {
                let made = self.reserved.iter().filter_map(|(&name, made)| Some((name, (*made)?)));
                let Some((name, (id, owner, _))) = pick(at, made.collect()) else { return };
                let promised = self.ask(Promise::new(name, &terms(), gigabytes * GB, room(100, 0)));
                let promise = promised.map_or(0, |()| gigabytes * GB);
                self.reserved.insert(name, Some((id, owner, promise)));
            }
            Event::Made(at) => {
                let made = self.reserved.iter().filter_map(|(&name, &made)| Some((name, made?)));
                let Some((name, (id, owner, promise))) = pick(at, made.collect()) else { return };
                self.release(name);
                if !self.hub.end.is_closed() {
                    let mut begin = begin((id, name), owner, promise);
                    if name >= "d" {
                        Arc::make_mut(&mut begin.spec.terms).on_loss = OnLoss::Continue;
                    }
                    self.ask(begin);
                }
            }
            Event::Released(at) => {
                let Some(name) = pick(at, self.reserved.keys().copied().collect()) else { return };
                self.release(name);
            }
            Event::Joins(name, rank) => {
                let token = Token((self.given.len() as u128).to_le_bytes());
                let joined = self.ask(Join::new(name, &JoinRequest::new(rank, terms()), token));
                let member = joined.map(|(job, _)| MemberOf { job, rank });
                self.given.extend(member.map(|member| (token, name, member)));
            }
            Event::Runs(name) => self.runs(name),
            Event::Leaves(at) => self.leaves(at),
            Event::Lost(at) => {
                let Some((_, _, member)) = pick(at, self.given.clone()) else { return };
                let effects = self.ask(Lose { member, cause: Cause::Other, reason: "a test".to_owned() });
                self.follows(member.job, effects);
            }
            Event::Told(at) => {
                let Some((_, _, member)) = pick(at, self.given.clone()) else { return };
                self.ask(Told { member });
            }
            Event::Fails(name, saves) => {
                let Some(id) = self.hub.names().job(name) else { return };
                if self.fails(id, saves).is_some_and(|failed| failed.is_being_saved) {
                    self.reserved.insert(name, None);
                }
            }
            Event::Reads(gigabytes) => {
                let promised = self.ask(PromiseJoin { bytes: gigabytes * GB, memory: room(100, 0) });
                self.reads.extend(promised.is_ok().then_some(gigabytes * GB));
            }
            Event::IsRead(at) if !self.reads.is_empty() => {
                let bytes = self.reads.swap_remove(at.index(self.reads.len()));
                self.ask(EndJoin { bytes });
            }
            Event::IsRead(_) => {}
            Event::Swept(seconds) => {
                self.now += Duration::from_secs(seconds);
                for job in Vec::from_iter(self.hub.jobs().map(|job| job.spec.id)) {
                    let event = job::Event::Swept(Duration::from_secs(30));
                    let effects = self.ask(Happened { job, event });
                    self.follows(job, effects);
                }
                let steps = self.ask(Sweep).stop;
                assert_eq!(steps, [], "a stop has time");
                let failed = self.hub.jobs().filter(|job| !job.is_kept()).count();
                assert!(failed <= JOBS_LIMIT, "{failed} failed jobs are kept");
            }
            Event::Drained => drop(self.ask(Drain)),
            Event::Stops => {
                let steps = self.ask(BeginStop { reason: "a test".into(), has_files: true });
                self.stops(steps);
            }
            Event::Stopped => {
                let steps = self.ask(Stop { reason: "a test".into() });
                self.stops(steps);
                self.stopping.clear();
                assert_eq!(self.hub.living().count(), 0);
            }
            Event::Saved(at, is_saved) => {
                let Some(job) = pick(at, self.stopping.clone()) else { return };
                self.stopping.retain(|of| *of != job);
                let steps = self.ask(SavedAtStop { job, is_saved });
                assert_eq!(!steps.is_empty(), self.stopping.is_empty(), "the last answer stops the hub");
                self.stops(steps);
            }
            Event::TooLong => {
                self.now += 2 * SAVED_WITHIN;
                let steps = self.ask(Sweep).stop;
                let (was_saving, had_failed) = (!self.stopping.is_empty(), self.hub.end.stops());
                self.stops(steps);
                self.stopping.clear();
                assert!(!was_saving || self.hub.end.stops(), "jobs that are not saved fail");
                assert!(!had_failed || self.hub.has_stopped(), "nobody waits for a last state any more");
            }
        }
    }

    fn comes(&mut self, name: &'static str, owner: Option<IpAddr>) {
        let (is_reserved, job) = (self.reserved.contains_key(name), self.hub.names.job(name));
        match self.ask(Find { name: name.to_owned(), owner }) {
            Ok(Found::Reserved) => assert!(is_reserved),
            Ok(Found::Job) => assert!(job.is_some() && !is_reserved && !self.hub.end.is_closed()),
            Ok(Found::Free(id)) => {
                assert!(job.is_none() && !is_reserved && !self.hub.end.is_closed() && !self.hub.end.drains());
                assert!(Some(id) > self.last, "numbers are never used again");
                self.last = Some(id);
                self.reserved.insert(name, Some((id, owner, 0)));
            }
            Err(_) => assert!(!is_reserved, "who comes to a reserved name waits"),
        }
    }

    /// Frees a reserved name. If a failed job still has the name, first makes the saving of its last state fail.
    fn release(&mut self, name: &'static str) {
        if self.reserved.remove(name) == Some(None) {
            let saved = self
                .hub
                .jobs()
                .find(|job| job.spec.name == name && job.last.is_being_saved())
                .unwrap()
                .spec
                .id;
            let event = job::Event::Last(LastStepped::Held(Err("a test".to_owned())));
            self.ask(Happened { job: saved, event });
        }
        self.ask(Release { name: name.to_owned() });
    }

    fn runs(&mut self, name: &str) {
        let Some(job) = self.hub.named(name) else { return };
        let id = job.spec.id;
        if !job.life.gathers() || !(0..WORKERS).all(|rank| job.members.has(rank)) {
            return;
        }
        let mut effects = Vec::new();
        for rank in 0..WORKERS {
            self.ask(Connect { member: MemberOf { job: id, rank }, token: Token([0; 16]) }).unwrap();
            effects = self.ask(Happened { job: id, event: job::Event::Attached(rank) });
        }
        let [Effect::Cut(cut, _)] = effects[..] else { panic!("all are here") };
        for stepped in [Stepped::Held(None), Stepped::Released] {
            self.ask(Happened { job: id, event: job::Event::Cut(cut, stepped) });
        }
        assert!(self.hub.job(id).unwrap().life.runs());
    }

    fn leaves(&mut self, at: Index) {
        let Some((token, name, member)) = pick(at, self.given.clone()) else { return };
        if self.hub.member(name, &authority::hex(&token.0)).is_err() {
            return;
        }
        match self.ask(input::Leave { member, token: Some(token), round: Round(9), behind: Vec::new() }) {
            Leave::Nothing => {}
            Leave::Refused(why) => unreachable!("{why}: no key is behind"),
            Leave::Fails(_) => drop(self.fails(member.job, false)),
            Leave::Left => {
                assert_eq!(self.hub.tokens.owner(token), Err(Unserved::Left));
                let (job, event) = (member.job, job::Event::Removed(member.rank));
                self.ask(Happened { job, event });
            }
            Leave::Last => drop(self.ask(End { job: member.job })),
        }
    }

    fn fails(&mut self, job: JobId, saves: bool) -> Option<Failed> {
        self.ask(Fail { job, reason: "a test".to_owned(), blame: Blame::Job, saves })
    }

    /// Carries out the effects of a job.
    fn follows(&mut self, job: JobId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Fail(..) => drop(self.fails(job, false)),
                Effect::Lost { .. } => self.lost += 1,
                Effect::RemoveWorker(rank) => {
                    self.ask(Happened { job, event: job::Event::Removed(rank) });
                }
                Effect::Forget(rank, why) => {
                    let of_lost = |&&(_, _, member): &&(Token, _, _)| member == MemberOf { job, rank };
                    for (token, ..) in self.given.iter().filter(of_lost) {
                        let owner = self.hub.tokens.owner(*token);
                        assert!(owner.is_err(), "{why}: {owner:?}");
                    }
                }
                _ => {}
            }
        }
    }

    /// Carries out the steps of a stop.
    fn stops(&mut self, steps: Vec<StopStep>) {
        for step in steps {
            match step {
                StopStep::Save { job, .. } => self.stopping.push(job),
                StopStep::TooLate(_) => {}
                StopStep::Fail(jobs, _) => {
                    jobs.into_iter().for_each(|id| drop(self.fails(id, false)));
                    assert_eq!(self.hub.living().count(), 0);
                }
            }
        }
    }

    fn check(&self) {
        let hub = &self.hub;
        for job in hub.living() {
            assert_eq!(
                hub.names.job(&job.spec.name),
                Some(job.spec.id),
                "job {:?} has its name",
                job.spec.name
            );
            assert!(!self.reserved.contains_key(job.spec.name.as_str()), "{:?} has one owner", job.spec.name);
        }
        assert_eq!(hub.names.len(), hub.living().count() + self.reserved.len());
        assert!(hub.names.len() <= JOBS_LIMIT, "there are {} jobs", hub.names.len());
        assert_eq!(!hub.names.is_empty(), !hub.names.is_empty());
        let of_making = self.reserved.values().flatten().map(|&(_, _, promise)| promise);
        let of_jobs = hub.living().map(|job| job.spec.made.promised);
        let promised: u64 = of_making.chain(of_jobs).chain(self.reads.iter().copied()).sum();
        assert_eq!(hub.promised(), promised);
        assert!(promised <= 100 * GB);
        let LostReply { link, silent, late, other } = hub.counts.lost;
        assert_eq!(link + silent + late + other, self.lost);
        let serves = |&(token, ..): &(Token, _, _)| hub.tokens.owner(token).is_ok();
        for &(token, _, member) in &self.given {
            let of_member = |&&(_, _, of): &&(Token, _, _)| of == member;
            let is_served = self.given.iter().filter(of_member).any(serves);
            let member = (member.job, member.rank);
            assert!(is_served || !hub.end.unnotified.contains(&member), "{member:?} can be told");
            if let Ok(owner) = hub.tokens.owner(token) {
                assert!(owner == member && hub.job(member.0).is_some(), "{member:?} is there");
            }
        }
    }

    /// Notifies all members, ends everything that is reserved or being read, and lets time pass.
    fn comes_to_rest(&mut self) {
        for (_, _, member) in self.given.clone() {
            self.ask(Told { member });
        }
        assert!(!self.hub.end.has_unnotified(), "all are told");
        Vec::from_iter(self.reserved.keys().copied()).into_iter().for_each(|name| self.release(name));
        std::mem::take(&mut self.reads).into_iter().for_each(|bytes| self.ask(EndJoin { bytes }));
        assert!(self.hub.has_stopped(), "nothing is left to be saved");
        self.now += KEEP_FAILED;
        self.ask(Sweep);
        assert!(self.hub.jobs.is_empty() && self.hub.names.is_empty() && self.hub.promised() == 0);
        let knows = |token| self.hub.tokens.owner(token) != Err(Unserved::Unknown);
        assert!(!self.given.iter().any(|&(token, ..)| knows(token)), "no token is kept for ever");
    }
}

/// Returns one of the values in `all`; `None` if there are no values.
fn pick<T>(at: Index, mut all: Vec<T>) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(at.index(all.len())))
}

proptest! {
    #[test]
    fn names_promises_and_tokens_stay_true_and_a_replay_has_the_same_answers(events in proptest::collection::vec(event(), 1..200)) {
        let mut driven = Driven::new();
        for event in events {
            driven.happens(event);
            driven.check();
        }
        driven.happens(Event::Stops);
        for job in driven.stopping.clone() {
            prop_assert!(!driven.hub.end.stops() && driven.hub.end.is_closed(), "it waits for {:?}", job);
            let steps = driven.ask(SavedAtStop { job, is_saved: true });
            driven.stops(steps);
        }
        prop_assert!(driven.hub.end.stops());
        driven.check();
        driven.comes_to_rest();
        let inputs = driven.record.len() - 1;
        let replayed = record::replay(driven.record.into_iter().map(Ok::<_, String>), Instant::now()).unwrap();
        prop_assert_eq!(replayed.inputs, inputs);
        prop_assert_eq!(replayed.time, driven.now - driven.begun);
    }
}
