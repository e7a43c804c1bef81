//! A fixed sequence of requests to a hub, in which each kind of request occurs. Such a sequence is called a *life*.

use std::net::IpAddr;
use std::sync::Arc;

use pbox_core::control::{
    CheckpointReply, JoinRequest, LastRequest, Late, Latest, PartState, ReleaseRequest, WholeRounds,
};
use pbox_core::{
    Consistency, Front, JobTerms, Key, KeyId, Look, Numbers, NumbersByRound, Occasion, OnLoss, Optimizer,
    Piece, Round, Selection, Share, Tensor,
};

use super::*;
use crate::Found;
use crate::input::*;
use crate::{
    Asker, Blame, Cause, Change, Compared, CutAt, CutId, Effect, Files, JobSpec, Join, LastStepped, Made,
    Memory, Promise, Secret, Step, Stepped, Use,
};

/// A hub whose requests are recorded.
struct Life {
    hub: Hub,
    lines: Vec<String>,
    begun: Instant,
    at: Duration,
}

/// Returns the record of the life.
pub fn recorded() -> Vec<String> {
    let late = LateLimits { warning: Duration::from_secs(30), limit: Some(Duration::from_secs(60)) };
    let quotas =
        Quotas { jobs_per_address: Some(4), memory_per_address: None, memory_per_job: Some(1 << 30) };
    let settings = Settings { jobs_limit: 8, quotas, late };
    let lines = vec![head("a test", settings)];
    let mut life = Life { hub: Hub::new(settings), lines, begun: Instant::now(), at: Duration::ZERO };
    let job = life.makes_a_job("a");
    life.lets_all_in(job);
    life.makes_rounds(job);
    life.takes_a_snapshot(job);
    life.loses_links(job);
    life.fails_and_saves(job);
    let other = life.makes_a_job("b");
    life.lets_all_in(other);
    life.ask_as_other_hubs(other);
    life.ends_a_job(other);
    life.ends();
    life.lines.push(end("the hub stopped"));
    life.lines
}

fn terms() -> JobTerms {
    let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    let mut terms = JobTerms::new(2, vec![Key::f32("a", [16])], optimizer);
    (terms.on_loss, terms.level.consistency) = (OnLoss::Continue, Consistency::Bsp);
    terms
}

fn reply(round: u32) -> CheckpointReply {
    CheckpointReply { round: Round(round), bytes: 64, milliseconds: 1, error_before: None }
}

impl Life {
    fn ask<R: Request>(&mut self, request: R) -> R::Answer {
        self.at += Duration::from_millis(100);
        let input = request.clone().into();
        let answer = self.hub.ask(request, self.begun + self.at);
        self.lines.push(step(self.at, &input, &answer));
        answer
    }

    fn happens(&mut self, job: JobId, event: Event) -> Vec<Effect> {
        self.ask(Happened { job, event })
    }

    /// Takes all steps of a cut, as the driver does. The chunks have reached this round.
    fn cuts(&mut self, job: JobId, mut effects: Vec<Effect>, front: u32) {
        while let Some((cut, step)) = effects.iter().find_map(|effect| match effect {
            Effect::Cut(cut, step) if !matches!(step, Step::TakeSnapshot(..)) => Some((*cut, step.clone())),
            _ => None,
        }) {
            let stepped = match step {
                Step::Hold => Stepped::Held(Some(Round(front))),
                Step::Lines => Stepped::Lines([Some(Round(front)), Some(Round(front))].into()),
                Step::EndBefore(..) => Stepped::Ends,
                Step::Release { .. } => Stepped::Released,
                step => panic!("a job of one hub has no such step: {step:?}"),
            };
            effects = self.steps(job, cut, stepped);
        }
    }

    fn steps(&mut self, job: JobId, cut: CutId, stepped: Stepped) -> Vec<Effect> {
        self.happens(job, Event::Cut(cut, stepped))
    }

    fn makes_a_job(&mut self, name: &str) -> JobId {
        let (name, owner) = (name.to_owned(), Some(IpAddr::from([10, 0, 0, 1])));
        let memory = Some(Memory { room: 1 << 30, words: "there is 1 GB".into(), used: 0 });
        self.ask(PromiseJoin { bytes: 1000, memory: memory.clone() }).unwrap();
        self.ask(EndJoin { bytes: 1000 });
        self.ask(Reserve { name: "spare".into() });
        self.ask(Release { name: "spare".into() });
        let Found::Free(id) = self.ask(Find { name: name.clone(), owner }).unwrap() else { panic!("{name}") };
        self.ask(Promise::new(&name, &terms(), 1 << 40, memory.clone())).unwrap_err();
        self.ask(Promise::new(&name, &terms(), 4096, memory)).unwrap();
        self.ask(Release { name: name.clone() });
        let pieces = vec![Piece { key: KeyId(0), chunks: 0..1, elements: 0..16 }];
        let (secret, files) = (Secret([7; 16]), Files::default());
        let (share, names) = (Share::WHOLE, Vec::new());
        let hub = HubOf { share, names, pieces, secret, first_round: Round(0), files };
        let made = Made { cores: 1, owners: 1, owner, promised: 4096, ..Made::default() };
        let from = (Round(0), NumbersByRound::new(Numbers::new(terms().optimizer)));
        self.ask(Begin { spec: JobSpec { id, name, terms: Arc::new(terms()), made }, hub, from });
        id
    }

    /// Joins two workers, one of which brings a state. Refuses a third worker.
    fn lets_all_in(&mut self, job: JobId) {
        let name = self.hub.job(job).unwrap().spec.name.clone();
        let (address, counted) = (IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 1]));
        let from = Some(Asker { counted, address, host: Some("node7".into()) });
        for rank in [0, 1, 1] {
            let request = JoinRequest { relinks: true, ..JoinRequest::new(rank, terms()) };
            let token = Token([10 * job.0 as u8 + rank as u8; 16]);
            let join = Join { from: from.clone(), saves: true, ..Join::new(&name, &request, token) };
            let refused = self.ask(join).err().map(|refused| refused.why);
            self.ask(CountJoin { name: name.clone(), rank, from: from.clone(), refused });
        }
        self.ask(UndoJoin { member: MemberOf { job, rank: 1 }, token: Token([99; 16]) });
        assert!(self.ask(Offer { job, steps: vec![Some(3)] }).unwrap());
        self.ask(Wanted { job, before: Round(3), bytes: Some(64) }).unwrap();
        assert_eq!(self.ask(Comes { job }), Some((Round(3), 64)));
        let numbers = NumbersByRound::new(Numbers::new(terms().optimizer));
        self.ask(BeginWith { job, restored: Some((Round(3), numbers)) }).unwrap();
        let mut effects = Vec::new();
        for rank in [0, 1] {
            let (member, token) = (MemberOf { job, rank }, Token([10 * job.0 as u8 + rank as u8; 16]));
            self.ask(Connect { member, token }).unwrap();
            self.ask(Disconnect { member });
            self.ask(Connect { member, token }).unwrap();
            self.ask(Attach { member, transport: "tcp".into(), nics: vec!["eth0".into()] });
            effects = self.happens(job, Event::Attached(rank));
        }
        self.cuts(job, effects, 3);
        assert!(self.hub.job(job).unwrap().life.runs());
    }

    fn makes_rounds(&mut self, job: JobId) {
        let member = MemberOf { job, rank: 1 };
        let latest = Latest { path: vec![1], window: 8, last: 1, late_us: 1, waited_us: 0 };
        self.ask(Heard { member, latest: None }).unwrap();
        self.ask(Heard { member, latest: Some(latest) }).unwrap_err();
        self.ask(Crossed { job, links: vec![(1, 0, (64, 128))] });
        let look = Look { round: Round(4), done: 2, ..Look::default() };
        let above = vec![Late { rank: 1, who: "worker 1".into(), round: Round(4), chunks: 1, seconds: 40 }];
        self.ask(Judge { job, look, above });
        let (change, from) = (Change::Rate(0.25), Round(5));
        self.ask(ChangeNumbers { job, change, from, reset: vec![KeyId(0)] }).unwrap();
        let change = Change::All(Numbers::new(terms().optimizer));
        self.ask(ChangeNumbers { job, change, from, reset: vec![KeyId(1)] }).unwrap_err();
        self.ask(ForgetNumbers { job, oldest: Round(4) });
        let compared = Compared { round: Round(4), written: false };
        for rank in [0, 1] {
            self.ask(Compare { member: MemberOf { job, rank }, compared, digest: 7 }).unwrap();
        }
        self.ask(StoodStill);
        self.happens(job, Event::Swept(Duration::from_secs(10)));
    }

    fn takes_a_snapshot(&mut self, job: JobId) {
        let (purpose, limit) = (Use::File, Duration::from_secs(30));
        let (_, effects) = self.ask(WantState { job, purpose, at: CutAt::AllHubs, limit }).unwrap();
        self.cuts(job, effects, 5);
        let taken = |occasion, before, through, refused| Event::Taken {
            core: 0,
            occasion,
            before: Round(before),
            through,
            refused,
        };
        self.happens(job, taken(Occasion::Asked(1, Selection::All), 5, None, None));
        self.ask(BeginFile { job, before: Round(5) }).unwrap().unwrap();
        let (occasion, before) = (Occasion::Asked(1, Selection::All), Round(5));
        let (_, effects) = self.ask(EndFile { job, occasion, before, written: Ok(reply(5)) }).unwrap();
        assert!(matches!(effects[..], [Effect::Wanted(_, Ok(_))]), "{effects:?}");
        self.happens(job, Event::Freed(0));
        let follow = serde_json::from_str("1").unwrap();
        self.happens(job, Event::Part { follow, hub: 1, said: Ok((Vec::new(), PartState::Collecting)) });
        self.happens(job, taken(Occasion::Due(Round(6)), 6, Some(Round(7)), Some("the disk is slow".into())));
        self.ask(HasFiles { job, hub: 0, rounds: vec![Round(5)] });
        let weights = Selection::One(Tensor::Weights);
        let purpose = Use::Client(weights);
        let (want, _) = self.ask(WantState { job, purpose, at: CutAt::ThisHub, limit }).unwrap();
        self.happens(job, Event::Read(want));
        let (want, effects) =
            self.ask(WantState { job, purpose, at: CutAt::Before(Round(9)), limit }).unwrap();
        self.cuts(job, effects, 5);
        self.happens(
            job,
            taken(Occasion::Ahead(2, weights), 9, None, Some("another snapshot came before it".into())),
        );
        self.happens(job, Event::Read(want));
    }

    fn loses_links(&mut self, job: JobId) {
        let member = MemberOf { job, rank: 1 };
        let reason = "a cable".to_owned();
        self.happens(job, Event::LinkEnded { rank: 1, reason, by_itself: true });
        self.happens(job, Event::Dropped(1));
        self.ask(AskForLinks { member, why: "a cable".into() }).unwrap();
        let token = Token([100; 16]);
        assert!(self.ask(GrantLinks { member, token }).unwrap());
        self.ask(Connect { member, token }).unwrap();
        self.happens(job, Event::Attached(1));
        self.happens(job, Event::HungUp(1));
    }

    fn fails_and_saves(&mut self, job: JobId) {
        self.ask(Fail { job, reason: "a test".into(), blame: Blame::Job, saves: true }).unwrap();
        self.ask(AskToHold { job });
        let front = Front { lowest: Round(6), highest: Round(7) };
        self.happens(job, Event::Last(LastStepped::Held(Ok(vec![front]))));
        let (secret, whole) = (Secret([7; 16]).show(), WholeRounds::default());
        let request = LastRequest { secret, before: Round(7), ended: "nothing of it".into(), whole };
        assert!(self.ask(AskForPart { job, request }).is_none(), "hub 0 asks nobody else for its own part");
        self.happens(job, Event::Last(LastStepped::Written(Ok(reply(7)))));
        let name = self.hub.job(job).unwrap().spec.name.clone();
        self.ask(Release { name });
    }

    /// Sends the requests of other hubs, although the job has only one hub.
    fn ask_as_other_hubs(&mut self, job: JobId) {
        self.ask(Ready { member: MemberOf { job, rank: 0 }, reached: Some(Round(3)) }).unwrap();
        self.ask(MissMachines { job, machines: vec![2] }).unwrap();
        self.ask(MachinesReached { job, round: Round(3) }).unwrap();
        let whole = WholeRounds { rounds: vec![Round(3)], decided: Some(Round(3)) };
        let wait = Duration::from_secs(1);
        self.ask(AskForWritten { job, before: Round(0), whole, wait }).unwrap();
        self.ask(Arrived { job, hub: 1, worker: 1 }).unwrap();
        let request = ReleaseRequest {
            secret: Secret([7; 16]).show(),
            cut: 1,
            from: Round(3),
            admitted: vec![1],
            snapshot: false,
            ends: false,
        };
        self.ask(ReleasedByLead { job, request }).unwrap().unwrap_err();
        let (_, effects) = self.ask(HeldByLead { job, cut: 1 }).unwrap();
        self.cuts(job, effects, 3);
    }

    /// Loses one worker. Then the second worker leaves.
    fn ends_a_job(&mut self, job: JobId) {
        let member = MemberOf { job, rank: 1 };
        self.ask(Lose { member, cause: Cause::HubLost, reason: "a hub is gone".into() });
        self.happens(job, Event::Removed(1));
        let (member, token) = (MemberOf { job, rank: 0 }, Some(Token([10 * job.0 as u8; 16])));
        assert_eq!(
            self.ask(Leave { member, token, round: Round(9), behind: Vec::new() }),
            crate::Leave::Last
        );
        self.ask(TellAbove { job });
        self.ask(ToldAbove { job });
        self.ask(End { job }).unwrap();
    }

    fn ends(&mut self) {
        assert_eq!(self.ask(Drain), [""; 0]);
        let reason = || "a test".to_owned();
        self.ask(BeginStop { reason: reason(), has_files: true });
        self.ask(SavedAtStop { job: JobId(0), is_saved: true });
        self.ask(Stop { reason: reason() });
        self.ask(Told { member: MemberOf { job: JobId(0), rank: 0 } });
        self.ask(Sweep);
    }
}
