//! A hub, its jobs and its names, with events in any order.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[derive(Clone, Debug)]
enum Event {
    /// A worker of an address comes to a name.
    Comes(&'static str, Option<IpAddr>),
    /// A job that is being made needs so many gigabytes.
    Needs(Index, u64),
    /// A job is made.
    Made(Index),
    /// It could not be made; or the last state of a failed one is saved.
    Released(Index),
    Joins(&'static str, u32),
    /// All ranks of a job are there, and it begins.
    Runs(&'static str),
    /// The member with one of the tokens leaves, is lost, or is told that its job failed.
    Leaves(Index),
    Lost(Index),
    Told(Index),
    /// A job fails. Its last state may be saved.
    Fails(&'static str, bool),
    /// A join is being read, which needs so many gigabytes, or is read.
    Reads(u64),
    IsRead(Index),
    /// Some seconds are over.
    Swept(u64),
    Drained,
    Closed,
    Stopped,
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
        1 => Just(Event::Closed),
        2 => Just(Event::Stopped),
    ]
}

/// A job that is being made, with its owner and its promise.
type Making = (JobId, Option<IpAddr>, u64);

/// A hub, and what its driver knows of it.
struct Driven {
    hub: Hub,
    now: Instant,
    /// Reserved names. Of the others, the last state is being saved.
    reserved: BTreeMap<&'static str, Option<Making>>,
    /// All tokens, with the job's name, and the member.
    given: Vec<(Token, &'static str, (JobId, u32))>,
    reads: Vec<u64>,
    /// The number of the last job.
    last: Option<JobId>,
}

impl Driven {
    fn new() -> Self {
        let quotas = Quotas {
            jobs_per_address: Some(2),
            memory_per_address: Some(50 * GB),
            memory_per_job: Some(30 * GB),
        };
        Driven {
            hub: Hub::new(JOBS_LIMIT, quotas),
            now: Instant::now(),
            reserved: BTreeMap::new(),
            given: Vec::new(),
            reads: Vec::new(),
            last: None,
        }
    }

    fn happens(&mut self, event: Event) {
        let (hub, now) = (&mut self.hub, self.now);
        match event {
            Event::Comes(name, owner) => self.comes(name, owner),
            Event::Needs(at, gigabytes) => {
                let made = self.reserved.iter_mut().filter_map(|(&name, made)| Some((name, made.as_mut()?)));
                let Some((name, (_, _, promise))) = pick(at, made.collect()) else { return };
                let promised = hub.promise(name, &terms(), gigabytes * GB, room(100, 0));
                *promise = promised.map_or(0, |()| gigabytes * GB);
            }
            Event::Made(at) => {
                let made = self.reserved.iter().filter_map(|(&name, &made)| Some((name, made?)));
                let Some((name, (id, owner, promise))) = pick(at, made.collect()) else { return };
                self.reserved.remove(name);
                hub.names.release(name);
                if !hub.is_closed() {
                    hub.begin(job((id, name), owner, promise));
                }
            }
            Event::Released(at) => {
                let Some(name) = pick(at, self.reserved.keys().copied().collect()) else { return };
                self.reserved.remove(name);
                hub.names.release(name);
            }
            Event::Joins(name, rank) => {
                let token = (self.given.len() as u128).to_le_bytes();
                if let Ok(id) = join(hub, name, rank, token, now) {
                    self.given.push((token, name, (id, rank)));
                }
            }
            Event::Runs(name) => {
                let Some(job) = hub.names.job(name).and_then(|id| hub.job_mut(id)) else { return };
                if job.gathers() && (0..WORKERS).all(|rank| job.has(rank)) {
                    run(job);
                }
            }
            Event::Leaves(at) => self.leaves(at),
            Event::Lost(at) => {
                let Some((_, _, (id, rank))) = pick(at, self.given.clone()) else { return };
                let Some(job) = hub.job_mut(id) else { return };
                for effect in job.lose(rank, Cause::Other, "a test") {
                    hub.note(id, &effect, now);
                    if let Effect::Fail(..) = effect {
                        fail(hub, id, now);
                    }
                }
            }
            Event::Told(at) => {
                let Some((token, name, _)) = pick(at, self.given.clone()) else { return };
                hub.told(name, &authority::hex(&token));
            }
            Event::Fails(name, saves) => {
                let Some(id) = hub.names.job(name) else { return };
                fail(hub, id, now);
                if saves {
                    hub.names.keep(name);
                    self.reserved.insert(name, None);
                }
            }
            Event::Reads(gigabytes) => {
                let promised = hub.promise_join(gigabytes * GB, room(100, 0));
                self.reads.extend(promised.is_ok().then_some(gigabytes * GB));
            }
            Event::IsRead(at) if !self.reads.is_empty() => {
                let read = self.reads.swap_remove(at.index(self.reads.len()));
                hub.end_join(read);
            }
            Event::IsRead(_) => {}
            Event::Swept(seconds) => {
                self.now += Duration::from_secs(seconds);
                hub.sweep(self.now);
                let failed = hub.jobs().count() - hub.living().count();
                assert!(failed <= JOBS_LIMIT, "{failed} failed jobs are kept");
            }
            Event::Drained => drop(hub.drain()),
            Event::Closed => hub.close(),
            Event::Stopped => self.stops(),
        }
    }

    fn comes(&mut self, name: &'static str, owner: Option<IpAddr>) {
        let (is_reserved, job) = (self.reserved.contains_key(name), self.hub.names.job(name));
        match self.hub.find_or_reserve(name, owner) {
            Ok(Found::Reserved) => assert!(is_reserved),
            Ok(Found::Job) => assert!(job.is_some() && !is_reserved && !self.hub.is_closed()),
            Ok(Found::Free(id)) => {
                assert!(job.is_none() && !is_reserved && !self.hub.is_closed() && !self.hub.drains());
                assert!(Some(id) > self.last, "numbers are never used again");
                self.last = Some(id);
                self.reserved.insert(name, Some((id, owner, 0)));
            }
            Err(_) => assert!(!is_reserved, "who comes to a reserved name waits"),
        }
    }

    fn leaves(&mut self, at: Index) {
        let Some((token, name, member)) = pick(at, self.given.clone()) else { return };
        if self.hub.member(name, &authority::hex(&token)).is_err() {
            return;
        }
        match self.hub.leave(member, Some(token), Round(9), self.now) {
            Leave::Nothing => {}
            Leave::Fails(_) => fail(&mut self.hub, member.0, self.now),
            Leave::Left => assert_eq!(self.hub.tokens.owner(token), Err(Unserved::Left)),
            Leave::Last => drop(self.hub.end(member.0, self.now)),
        }
    }

    /// The hub stops, and all its jobs fail.
    fn stops(&mut self) {
        self.hub.close();
        for id in self.hub.stop() {
            fail(&mut self.hub, id, self.now);
        }
        assert_eq!(self.hub.living().count(), 0);
    }

    fn check(&self) {
        let hub = &self.hub;
        for job in hub.living() {
            assert_eq!(hub.names.job(&job.name), Some(job.id), "job {:?} has its name", job.name);
            assert!(!self.reserved.contains_key(job.name.as_str()), "{:?} has one owner", job.name);
        }
        assert_eq!(hub.names.len(), hub.living().count() + self.reserved.len());
        assert!(hub.names.len() <= JOBS_LIMIT, "there are {} jobs", hub.names.len());
        assert_eq!(hub.is_used(), !hub.names.is_empty());
        let of_making = self.reserved.values().flatten().map(|&(_, _, promise)| promise);
        let of_jobs = hub.living().map(|job| job.made.promised);
        let promised: u64 = of_making.chain(of_jobs).chain(self.reads.iter().copied()).sum();
        assert_eq!(hub.promised(), promised);
        assert!(promised <= 100 * GB);
        for &(token, _, member) in &self.given {
            match hub.tokens.owner(token) {
                Ok(owner) => assert!(owner == member && hub.job(member.0).is_some(), "{member:?} is there"),
                Err(_) => assert!(!hub.untold.contains(&member), "{member:?} can be told"),
            }
        }
    }

    /// Everybody is told, all that is reserved and read ends, and time passes.
    fn comes_to_rest(&mut self) {
        for (token, name, _) in &self.given {
            self.hub.told(name, &authority::hex(token));
        }
        assert!(!self.hub.has_untold(), "all are told");
        self.reserved.keys().for_each(|name| self.hub.names.release(name));
        self.reads.iter().for_each(|&read| self.hub.end_join(read));
        self.now += KEEP_FAILED;
        self.hub.sweep(self.now);
        assert!(self.hub.jobs.is_empty() && !self.hub.is_used() && self.hub.promised() == 0);
        let knows = |token| self.hub.tokens.owner(token) != Err(Unserved::Unknown);
        assert!(!self.given.iter().any(|&(token, ..)| knows(token)), "no token is kept for ever");
    }
}

/// Returns one of several, if there are any.
fn pick<T>(at: Index, mut all: Vec<T>) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(at.index(all.len())))
}

proptest! {
    #[test]
    fn names_promises_and_tokens_stay_true(events in proptest::collection::vec(event(), 1..200)) {
        let mut driven = Driven::new();
        for event in events {
            driven.happens(event);
            driven.check();
        }
        driven.stops();
        driven.check();
        driven.comes_to_rest();
    }
}
