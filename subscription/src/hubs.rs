//! The hubs of a job. Each hub gives a part of the job's weights, and all parts are of one round.
//!
//! ```text
//!   all hubs: the state now --> one round? --yes--> parts
//!                                   | no: the furthest round
//!                                   v
//!   all hubs: the state before a round ahead --passed--> further ahead, a few times
//! ```
//!
//! Each request has a thread, so that no hub waits for another one.

use std::thread;
use std::time::Duration;

use authority::{ABOVE_SUFFIX, Credential};
use checkpoint_file::{Base, DecodeError, Decoded, ValuesFrom, decode_as};
use membership::{LoanNics, MemberError, Values, describe, fetch_state, hub_addresses};
use pbox_core::control::{JobReply, JobState, Only, RefusalCode, StateQuery};
use pbox_core::manifest::MAX_HEADER_BYTES;
use pbox_core::{Dtype, Round};

use crate::error::{NoWeights, SourceError};
use crate::whole::whole_keys;

/// The time that a hub has to describe its jobs.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(10);

/// The distances from the furthest hub's round to the round for which all hubs are asked, one distance for each try. A
/// hub accepts at most 1024.
const MARGINS: [u32; 4] = [4, 32, 256, 512];

/// The most levels of hubs that a job may have.
const MAX_DEPTH: usize = 16;

/// The request for each hub.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub job: String,
    pub credential: Option<Credential>,
    pub only: Only,
    /// The wanted element type.
    pub dtype: Dtype,
    /// Whether each hub should send only the differences from the last part that it sent.
    pub fetch_deltas: bool,
}

/// All hubs of a job.
#[derive(Debug)]
pub(crate) struct Hubs {
    /// The addresses of the hubs that the user names.
    named: Vec<String>,
    /// The hubs with the job's state: the named hubs, or the hubs at the top of the levels above the named hubs.
    all: Vec<HubOf>,
    /// The job's name at the hubs in `all`. `None` until a named hub has the job.
    found: Option<String>,
    /// The index in [`MARGINS`] with which the next fetch begins, and the round of the last fetch. `None` if
    /// all hubs gave one round at once.
    known: Option<(usize, Round)>,
}

/// A hub.
#[derive(Debug)]
struct HubOf {
    address: String,
    /// The hub's id, which changes when the hub is restarted. Empty before the first answer.
    start: String,
    /// The number of the job's keys in the last answer.
    keys: usize,
    /// Whether the job ran according to the last answer.
    runs: bool,
    /// The last part, if the hub may send the next part as differences from it.
    last: Option<Base>,
    /// The hub's number among the hubs of the job.
    number: u32,
    /// The NICs by which the hub can write weights into this process's memory. `None` before the first fetch from a hub with
    /// NICs.
    nics: Option<LoanNics>,
}

/// The reason why a hub gives no part now.
enum NoPart {
    Because(NoWeights),
    /// The parts of the hubs, or a part and the description of the job, do not belong together.
    Unlike(SourceError),
    /// The job will not reach the named round soon, or is too far from it.
    Far(String),
    /// The job has passed the named round, and is in this round.
    Passed(Round),
}

impl From<NoWeights> for NoPart {
    fn from(why: NoWeights) -> Self {
        NoPart::Because(why)
    }
}

impl NoPart {
    /// Returns the order of the reason among the reasons of several hubs. The user sees the reason with the lowest number.
    fn place(&self) -> u8 {
        match self {
            NoPart::Because(NoWeights::Never(_) | NoWeights::Lost(_)) | NoPart::Unlike(_) => 0,
            NoPart::Because(NoWeights::Away(_)) => 1,
            NoPart::Because(NoWeights::NotYet(_)) => 2,
            NoPart::Because(NoWeights::NoJob(_)) => 3,
            NoPart::Far(_) => 4,
            NoPart::Passed(_) => 5,
        }
    }
}

impl Hubs {
    /// Parses `HOST:PORT,HOST:PORT,...`.
    ///
    /// # Errors
    /// Returns an error if an address is missing, invalid or listed twice.
    pub fn new(addresses: &str) -> Result<Self, MemberError> {
        let named: Vec<String> = hub_addresses(addresses)?.into_iter().map(str::to_owned).collect();
        Ok(Hubs { all: hubs_of(&named), named, found: None, known: None })
    }

    /// Forgets the hubs above, and begins again with the hubs that the user named: the job may have other hubs above now.
    pub fn start_over(&mut self, ask: &Ask) {
        if self.found.as_ref().is_some_and(|job| *job != ask.job) {
            self.all = hubs_of(&self.named);
            (self.found, self.known) = (None, None);
        }
    }

    /// Finds the hubs with the job's state. Returns the request for them.
    fn find(&mut self, ask: &Ask) -> Result<Ask, NoWeights> {
        let mut ask = ask.clone();
        if let Some(job) = &self.found {
            ask.job.clone_from(job);
            return Ok(ask);
        }
        let mut above: Vec<String> = Vec::new();
        for _ in 0..MAX_DEPTH {
            let address = above.first().unwrap_or(&self.all[0].address);
            let hub = describe(address, DESCRIBE_LIMIT, ask.credential.as_ref()).map_err(no_weights)?;
            match hub.job(&ask.job) {
                Some(job) if !job.above.is_empty() => {
                    above.clone_from(&job.above);
                    ask.job.push_str(ABOVE_SUFFIX);
                }
                // The named hub does not have the job, or the job has failed. Nothing is kept in `found`. A hub without
                // the job refuses the request with its own message. After a failed job, the next job of the same name
                // may have hubs above.
                job if above.is_empty() && job.is_none_or(JobReply::has_failed) => return Ok(ask),
                None => {
                    let why = format!("the hub at {address} does not have job {:?} yet", ask.job);
                    return Err(NoWeights::NotYet(why));
                }
                Some(_) => {
                    if !above.is_empty() {
                        self.all = hubs_of(&above);
                    }
                    self.found = Some(ask.job.clone());
                    return Ok(ask);
                }
            }
        }
        Err(SourceError::Levels { job: ask.job, most: MAX_DEPTH }.into())
    }

    /// Whether the job runs at all hubs, according to the last answer of each hub.
    pub fn all_run(&self) -> bool {
        self.all.iter().all(|hub| hub.runs)
    }

    /// Returns the round of the furthest hub. The round may be a few seconds old, because a hub looks at its
    /// jobs now and then. `None` if the job does not run at all hubs.
    pub fn round(&mut self, ask: &Ask) -> Result<Option<Round>, NoWeights> {
        let ask = self.find(ask)?;
        let mut furthest = None;
        for hub in &mut self.all {
            let (_, job) = hub.look(&ask)?;
            furthest = furthest.max(job.map(|job| job.round));
        }
        Ok(furthest.filter(|_| self.all_run()))
    }

    /// Returns the parts of all hubs with the weights before this round. If a hub has passed this round, returns the
    /// round of the furthest hub as the inner error.
    pub fn fetch_before(
        &mut self,
        ask: &Ask,
        before: Round,
    ) -> Result<Result<Vec<Decoded>, Round>, NoWeights> {
        let ask = self.find(ask)?;
        match self.parts(&ask, Some(before)) {
            Ok(parts) => Ok(Ok(parts)),
            Err(NoPart::Passed(front)) => Ok(Err(front)),
            Err(NoPart::Far(why)) => Err(NoWeights::NotYet(why)),
            Err(NoPart::Unlike(why)) => Err(why.into()),
            Err(NoPart::Because(why)) => Err(why),
        }
    }

    /// Returns the parts of all hubs, which are of one round.
    pub fn fetch(&mut self, ask: &Ask) -> Result<(Round, Vec<Decoded>), NoWeights> {
        let ask = &self.find(ask)?;
        let mut margin = self.known.map_or(0, |(margin, _)| margin);
        let mut before = self.known.take().map(|(margin, last)| add_rounds(last, MARGINS[margin]));
        loop {
            let front = match self.parts(ask, before) {
                Ok(parts) => match one_round(&parts) {
                    Ok(round) => {
                        self.known = before.map(|round| (margin.saturating_sub(1), round));
                        return Ok((round, parts));
                    }
                    Err(furthest) => furthest,
                },
                Err(NoPart::Because(why)) => return Err(why),
                Err(NoPart::Unlike(why)) => return Err(why.into()),
                Err(NoPart::Passed(front)) => front,
                // The job does not reach the round ahead, because its workers push nothing. So all hubs stay in
                // one round, and the next try asks for the current state.
                Err(NoPart::Far(_)) if before.take().is_some() => continue,
                Err(NoPart::Far(why)) => return Err(NoWeights::NotYet(why)),
            };
            let Some(&ahead) = MARGINS.get(margin) else {
                return Err(NoWeights::NotYet(format!(
                    "the hubs of job {:?} did not all give the state of one round in {} tries, even for a round {} rounds ahead of the job; try again",
                    ask.job,
                    MARGINS.len() + 1,
                    MARGINS[MARGINS.len() - 1]
                )));
            };
            (before, margin) = (Some(add_rounds(front, ahead)), margin + 1);
        }
    }

    /// Returns the parts of all hubs, with the weights before a round or with the current weights. If the parts do not
    /// belong together, asks once more: a new job may have begun between the answers of two hubs.
    fn parts(&mut self, ask: &Ask, before: Option<Round>) -> Result<Vec<Decoded>, NoPart> {
        match self.ask_all(ask, before) {
            Err(NoPart::Unlike(_)) => self.ask_all(ask, before),
            answer => answer,
        }
    }

    /// Asks all hubs at once for their parts, with the weights before a round or with the current weights.
    fn ask_all(&mut self, ask: &Ask, before: Option<Round>) -> Result<Vec<Decoded>, NoPart> {
        let answers: Vec<Result<Option<Decoded>, NoPart>> = thread::scope(|scope| {
            let threads: Vec<_> =
                self.all.iter_mut().map(|hub| scope.spawn(move || hub.fetch(ask, before))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a fetch does not panic")).collect()
        });
        let (mut parts, mut missing) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(part) => parts.push(part),
                Err(why) => missing.push(why),
            }
        }
        let furthest = missing
            .iter()
            .filter_map(|why| if let NoPart::Passed(front) = why { Some(*front) } else { None });
        match (furthest.max(), missing.into_iter().min_by_key(NoPart::place)) {
            (Some(front), Some(NoPart::Passed(_))) => Err(NoPart::Passed(front)),
            (_, Some(why)) => Err(why),
            (_, None) => {
                self.check(&ask.job, &parts).map_err(NoPart::Unlike)?;
                let parts: Vec<Decoded> = parts.into_iter().flatten().collect();
                self.check_keys(ask, &parts).map_err(NoPart::Unlike)?;
                Ok(parts)
            }
        }
    }

    /// Checks that the parts come from the hubs of one job, and that each hub gave one part.
    fn check(&self, job: &str, parts: &[Option<Decoded>]) -> Result<(), SourceError> {
        let given = self.all.len();
        let mut seen: Vec<(u32, Option<&str>, &str)> = Vec::new();
        for (HubOf { address, .. }, part) in self.all.iter().zip(parts) {
            let Some(part) = part else { continue };
            let (number, hubs) = part.place().unwrap_or((0, 1));
            let job = job.to_owned();
            if hubs as usize != given {
                return Err(SourceError::HubCount { job, given, hubs });
            }
            for &(other, run, before) in &seen {
                let (first, second) = (before.to_owned(), address.clone());
                if other == number {
                    return Err(SourceError::SameHub { job, first, second, number, hubs });
                }
                if run != part.run() {
                    return Err(SourceError::OtherJobs { job, first, second });
                }
            }
            seen.push((number, part.run(), address));
        }
        if seen.is_empty() {
            let hubs = self.all.iter().map(|hub| hub.address.as_str()).collect::<Vec<_>>().join(",");
            return Err(SourceError::NoPart { job: job.to_owned(), hubs });
        }
        Ok(())
    }

    /// Checks that the parts have all keys of the job.
    fn check_keys(&self, Ask { job, only, .. }: &Ask, parts: &[Decoded]) -> Result<(), SourceError> {
        let keys = self.all.iter().map(|hub| hub.keys).max().unwrap_or(0);
        let job = job.clone();
        match whole_keys(parts, *only)?.len() {
            0 => Err(SourceError::NoTensor { job }),
            given if given != keys => Err(SourceError::Keys { job, keys, given }),
            _ => Ok(()),
        }
    }
}

/// Returns the round of all parts. If they differ, returns the furthest round as an error.
fn one_round(parts: &[Decoded]) -> Result<Round, Round> {
    let rounds = || parts.iter().map(Decoded::round);
    let (first, last) = (rounds().min().unwrap_or_default(), rounds().max().unwrap_or_default());
    if first == last { Ok(last) } else { Err(last) }
}

fn add_rounds(round: Round, rounds: u32) -> Round {
    Round(round.0.saturating_add(rounds))
}

fn hubs_of(addresses: &[String]) -> Vec<HubOf> {
    (0..).zip(addresses).map(|(number, address)| HubOf::new(number, address)).collect()
}

impl HubOf {
    fn new(number: u32, address: &str) -> Self {
        let address = address.to_owned();
        HubOf { address, start: String::new(), keys: 0, runs: false, last: None, number, nics: None }
    }

    fn fetch(&mut self, ask: &Ask, before: Option<Round>) -> Result<Option<Decoded>, NoPart> {
        let part = match self.fetch_from(ask, before, self.last.clone())? {
            // The differences do not fit the last part, perhaps because the program has written into its memory. So the
            // whole part is fetched.
            Err(_) if self.last.take().is_some() => self.fetch_from(ask, before, None)?,
            part => part,
        };
        // A fetch that fails here may succeed later, because a hub that ended during the fetch may return.
        let part =
            part.map_err(|error| NoWeights::NotYet(format!("the state of job {:?}: {error}", ask.job)))?;
        let Some(part) = part else { return Ok(None) };
        self.last = ask.fetch_deltas.then(|| part.base());
        match before {
            Some(round) if part.round() != round => {
                let (hub, job, seen) = (self.address.clone(), ask.job.clone(), part.round().0);
                Err(NoWeights::from(SourceError::Round { hub, job, seen, expected: round.0 }).into())
            }
            _ => Ok(Some(part)),
        }
    }

    /// Fetches this hub's part, or the differences from the last part. Returns nothing if the hub has no part.
    fn fetch_from(
        &mut self,
        ask: &Ask,
        before: Option<Round>,
        last: Option<Base>,
    ) -> Result<Result<Option<Decoded>, DecodeError>, NoPart> {
        let (most, Ask { job, credential, only, dtype, fetch_deltas }) = (self.most_bytes(ask)?, ask);
        let query = StateQuery { only: Some(*only), before, dtype: *dtype };
        let values = match fetch_deltas {
            true => Values::Changed(last.as_ref().map(Base::digest)),
            false => Values::InMemory(self.nics.as_mut()),
        };
        let state = fetch_state(&self.address, job, query, (values, most), credential.as_ref());
        let Some(mut state) = state.map_err(|error| no_part(error, before))? else { return Ok(Ok(None)) };
        let (hub, of) = (self.address.clone(), job.clone());
        let Some(bytes) = state.bytes() else {
            return Err(NoWeights::from(SourceError::NoLength { hub }).into());
        };
        if bytes > most {
            return Err(NoPart::Unlike(SourceError::Length { hub, job: of, only: *only, bytes, most }));
        }
        let values = match (state.take_values(), state.deltas(), last) {
            (Some(values), ..) => ValuesFrom::Memory(values),
            (None, Some(count), Some(last)) => ValuesFrom::Deltas(last, count),
            (None, ..) => ValuesFrom::File,
        };
        Ok(decode_as(state, bytes, *dtype, values).map(Some))
    }

    /// Returns the length of the longest possible file of the job's weights. This length bounds the memory that this
    /// process reserves.
    fn most_bytes(&mut self, ask: &Ask) -> Result<u64, NoWeights> {
        let (start, job) = self.look(ask)?;
        let before = std::mem::replace(&mut self.start, start);
        if !before.is_empty() && before != self.start {
            return Err(NoWeights::Away(format!("the hub at {} was started again", self.address)));
        }
        self.keys = job.as_ref().map_or(0, |job| job.keys);
        // If the hub lacks the job, the hub refuses the request with its own message.
        Ok(job.as_ref().map_or(0, of_weights) + MAX_HEADER_BYTES)
    }

    /// Returns the hub's id, which changes when the hub is restarted, and the job if the hub has it.
    fn look(&mut self, ask: &Ask) -> Result<(String, Option<JobReply>), NoWeights> {
        self.runs = false;
        let hub = describe(&self.address, DESCRIBE_LIMIT, ask.credential.as_ref()).map_err(no_weights)?;
        let job = hub.job(&ask.job).cloned();
        self.runs = job.as_ref().is_some_and(|job| job.state == JobState::Running);
        if self.nics.is_none() && !ask.fetch_deltas && !hub.nics.is_empty() {
            self.nics = Some(LoanNics::open(&self.address, self.number));
        }
        Ok((hub.id, job))
    }
}

/// Returns a bound for the length of a job's weights as f32. A model in 16 bits has half of that length.
fn of_weights(job: &JobReply) -> u64 {
    2 * job.model_bytes
}

fn no_part(error: MemberError, before: Option<Round>) -> NoPart {
    match error {
        MemberError::Refused { code: RefusalCode::RoundPassed, round: Some(front), .. } => {
            NoPart::Passed(front)
        }
        MemberError::Refused { code: RefusalCode::RoundFar | RefusalCode::NoState, .. }
            if before.is_some() =>
        {
            NoPart::Far(error.to_string())
        }
        error => NoPart::Because(no_weights(error)),
    }
}

fn no_weights(error: MemberError) -> NoWeights {
    let why = error.to_string();
    match error {
        MemberError::Refused { code: RefusalCode::JobUnknown, .. } => NoWeights::NoJob(why),
        MemberError::Refused { code: RefusalCode::BadRequest | RefusalCode::NeverState, .. } => {
            SourceError::from(error).into()
        }
        MemberError::Refused { .. } => NoWeights::NotYet(why),
        MemberError::Unreachable { .. } => NoWeights::Away(why),
        error => SourceError::from(error).into(),
    }
}
