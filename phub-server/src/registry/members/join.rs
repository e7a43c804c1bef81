//! Joins: the checks of a request, tokens, and the connection of the data path.

use std::sync::{Arc, Weak};

use authority::{hex, random};
use coordinator::input::{Attach, Connect, CountJoin, Disconnect, Find, UndoJoin};
use coordinator::{Asker, Cause, Differs, Found, Join, MemberOf, Secret, Token, Unserved};
use fabric::{Ranges, RecvWindow, SendWindow, Span, Spans, any};
use hub_threads::near::Near;
use hub_threads::{Carried, Command};
use pbox_core::control::{
    JobState, JoinReply, JoinRequest, PROTOCOL, RefusalCode, Versions, check_address, check_job_name,
};
use pbox_core::{ChunkId, JobId, JobTerms, Share, Wire};

use crate::registry::above::MAX_DEPTH;
use crate::registry::job::{Cores, Job};
use crate::registry::members::links::links_by;
use crate::registry::{Because, Inner, Refusal, Registry, on_thread};

/// The number of members that a refusal names.
const SPOKEN: usize = 3;
const UNKNOWN_TOKEN: &str = "the token is not one of this hub's; join first";

/// The parts that a connection of the data path needs, after its token was checked.
#[derive(Debug)]
pub(crate) struct Admission {
    token: Token,
    pub job: JobId,
    pub rank: u32,
    /// Whether the worker makes new links when links are lost.
    pub relinks: bool,
    pub weights: Arc<SendWindow>,
    /// The part of the weights that each core writes; empty unless the worker has its own weights window.
    own: Vec<Spans>,
    pub wire: Wire,
    /// The hub's cores that have chunks of the job.
    pub cores: Arc<Cores>,
}

/// The answer to a join that the client does not have yet. If the client hangs up, this value is dropped, and the join does not
/// count: nobody else knows the token.
#[derive(Debug)]
pub(crate) struct Unanswered {
    registry: Weak<Registry>,
    member: MemberOf,
    token: Token,
    reply: Option<JoinReply>,
}

impl Unanswered {
    /// Returns the answer, which the client gets now.
    pub fn answer(mut self) -> JoinReply {
        self.reply.take().expect("there is one answer, and this value ends with it")
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.end_join(self.member, self.reply.is_some().then_some(self.token));
        }
    }
}

impl Registry {
    /// Lets a worker join; `from` is its address. The first worker of a job's name makes the job. A worker
    /// that restarts may join before the hub has noticed the loss of its former process. If the job continues
    /// without lost workers, the join waits until the hub has noticed the loss.
    pub async fn join_from(
        self: &Arc<Self>,
        name: String,
        request: JoinRequest,
        from: Option<Asker>,
    ) -> Result<Unanswered, Refusal> {
        let (rank, who, job) = (request.rank, from.clone(), name.clone());
        let joined = self.wait_to_join(name, request, from).await;
        let refused = joined.as_ref().err().map(|refusal| refusal.why.clone());
        self.lock().ask(CountJoin { name: job, rank, from: who, refused });
        joined
    }

    async fn wait_to_join(
        self: &Arc<Self>,
        name: String,
        request: JoinRequest,
        from: Option<Asker>,
    ) -> Result<Unanswered, Refusal> {
        check_request(&name, &request).map_err(Refusal::bad)?;
        let relays = self.up.relays(&request);
        if relays && request.through.contains(&self.id) {
            return Err(RefusalCode::Circle.because(format!(
                "the hubs above form a circle: job {name:?} has passed this hub already (hubs on its way: {}); \
             start the hub at the top without --above",
                request.through.len()
            )));
        }
        let waits_for_hubs = relays || request.peers.is_some();
        let asked = Arc::new((name, request, from));
        let limit = tokio::time::Instant::now() + self.heartbeat_limit;
        loop {
            let freed = self.freed.notified(); // before `try_join`, so that no wake-up is missed
            // The reason for a refusal may disappear when a rank is free or a job has ended, here or at the hubs above.
            let tells_above = relays && self.tells_above(&asked.0);
            let may_pass = |refusal: &Refusal| match refusal.code {
                RefusalCode::RankBusy | RefusalCode::JobDiffers => true,
                RefusalCode::RefusedAbove => tells_above,
                _ => false,
            };
            // The join runs on another thread: making a job reads its checkpoint and lays out its memory.
            let (registry, asked) = (Arc::clone(self), Arc::clone(&asked));
            let joining = move || registry.try_join(&asked.0, &asked.1, asked.2.as_ref());
            let answer = match waits_for_hubs {
                // There are few threads for joins. This join waits for answers of other hubs, which may
                // need a thread for joins here. So this join gets its own thread.
                true => on_thread("phub-above", joining).await.unwrap_or_else(|why| Err(why.into())),
                false => {
                    tokio::task::spawn_blocking(joining).await.unwrap_or_else(|_| Err(Refusal::internal()))
                }
            };
            match answer {
                // The thread that makes the job wakes this task. The worker's own time limit bounds the wait.
                Ok(None) => freed.await,
                Ok(Some(reply)) => return Ok(reply),
                Err(refusal) if may_pass(&refusal) && tokio::time::timeout_at(limit, freed).await.is_ok() => {
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Whether the hubs above still have a job of this name that has failed here, and are being notified.
    fn tells_above(&self, name: &str) -> bool {
        let inner = self.lock();
        let hub = inner.hub();
        hub.jobs().any(|job| job.spec.name == name && hub.end().tells_above(job.spec.id))
    }

    /// Admits a worker whose address is not known.
    #[cfg(test)]
    pub async fn join(self: &Arc<Self>, name: String, request: JoinRequest) -> Result<JoinReply, Refusal> {
        Ok(self.join_from(name, request, None).await?.answer())
    }

    /// Tries to join; returns `None` while another thread makes the job.
    fn try_join(
        self: &Arc<Self>,
        name: &str,
        request: &JoinRequest,
        from: Option<&Asker>,
    ) -> Result<Option<Unanswered>, Refusal> {
        let mut inner = self.lock();
        let owner = from.map(|from| from.counted);
        match inner.ask(Find { name: name.to_owned(), owner })? {
            Found::Reserved => return Ok(None),
            Found::Job => {}
            Found::Free(id) => {
                drop(inner);
                let making = self.making(id, name, owner);
                let made = self.make(&making, name, request);
                inner = self.lock();
                making.end(&mut inner);
                let made = made?;
                if !inner.hub().end().is_closed() {
                    self.begin(&mut inner, made);
                }
            }
        }
        // The comparison runs without the lock: there may be a quarter of a million keys, and under the lock all
        // other requests would wait.
        let mut compared: Option<(Arc<JobTerms>, Option<Differs>)> = None;
        loop {
            inner.hub().end().check_open(RefusalCode::HubStops)?;
            let Some(terms) = inner.hub().named(name).map(|job| &job.spec.terms) else {
                return Ok(None); // the job ended meanwhile, and another one begins
            };
            match &compared {
                Some((with, differs)) if Arc::ptr_eq(with, terms) => {
                    let (differs, from, saves) = (differs.clone(), from.cloned(), self.store.is_some());
                    let join = Join { differs, from, saves, ..Join::new(name, request, new_token()?) };
                    return self.add_worker(&mut inner, request, join).map(Some);
                }
                _ => {
                    let terms = Arc::clone(terms);
                    drop(inner);
                    let difference = terms.first_difference(&request.terms);
                    compared = Some((terms, difference.as_ref().map(Differs::from)));
                    inner = self.lock();
                }
            }
        }
    }

    /// Adds a worker to an existing job.
    fn add_worker(
        &self,
        inner: &mut Inner,
        request: &JoinRequest,
        join: Join,
    ) -> Result<Unanswered, Refusal> {
        let (rank, token, at) = (join.rank, join.token, join.from.as_ref().map(Asker::to_string));
        let name = join.name.clone();
        if let Some((_, job)) = inner.hub().names().job(&name).and_then(|id| inner.job(id)) {
            check_speeds(job, request.versions())?;
        }
        let (id, pass) = inner.ask(join).map_err(|why| {
            let Some(id) = inner.hub().names().job(&name) else { return why.into() };
            // The worker that makes a job is added a moment after the job.
            let has_none = inner
                .job(id)
                .is_some_and(|(job, _)| job.life.gathers() && job.members.present().next().is_none());
            match has_none || inner.unanswered.contains(&(id, rank)) {
                true => may_be_interrupted(&name, rank, why.into()),
                false => self.with_members(inner.job(id).map(|(state, _)| state), why.into()),
            }
        })?;
        let (state, job) = inner.running(id)?;
        tracing::info!(job = job.name, rank, workers = state.spec.terms.workers, from = at, "worker joined");
        let protocol = request.versions().common(Versions::OURS).unwrap_or(PROTOCOL);
        let pass = Some(pass).filter(|_| state.hubs.leads() && !state.hubs.share.is_whole());
        let relinks = state.members.get(rank).is_some_and(|member| member.relinks);
        let reply = JoinReply { pass, relinks, ..self.answer_of_join(state, job, token, protocol) };
        let (registry, member) = (self.me.clone(), MemberOf { job: id, rank });
        inner.unanswered.insert((id, rank));
        Ok(Unanswered { registry, member, token, reply: Some(reply) })
    }

    /// Adds the members of the job to the refusal of a worker with other terms. These members may be left from an
    /// earlier start of the worker's script.
    fn with_members(&self, job: Option<&coordinator::Job>, refusal: Refusal) -> Refusal {
        let Some(job) = job.filter(|_| refusal.code == RefusalCode::TermsDiffer) else { return refusal };
        let member = |(rank, member): (u32, &coordinator::Member)| {
            let place = member.place().map_or_else(String::new, |place| format!(" at {place}"));
            format!("{}{place}", job.spec.spoken(rank))
        };
        let members: Vec<String> = job.members.present().take(SPOKEN).map(member).collect();
        if members.is_empty() {
            return refusal;
        }
        let why = format!(
            "{}. The job has {}. If an earlier start of this script has left it, end the processes of that start, or run \
             `phub-server stop {}`; the job of a dead worker ends by itself within {:.1} s",
            refusal.why,
            members.join(", "),
            job.spec.name,
            self.heartbeat_limit.as_secs_f64()
        );
        refusal.code.because(why)
    }

    /// Notes that the client of a join gets its answer. If the client hung up before, cancels the join; `unknown` is
    /// then the member's token. In both cases wakes the joins that wait for the end of this join.
    fn end_join(self: &Arc<Self>, member: MemberOf, unknown: Option<Token>) {
        let (mut inner, MemberOf { job: id, rank }) = (self.lock(), member);
        inner.unanswered.remove(&(id, rank));
        if let Some(token) = unknown {
            if let Some((_, job)) = inner.job(id) {
                tracing::warn!(job = job.name, rank, "a client hung up before it had the answer to its join");
            }
            let effects = inner.ask(UndoJoin { member, token });
            self.carry_out(&mut inner, id, effects);
        }
        self.freed.notify_waiters();
    }

    /// Returns the reply to a join: the addresses of the job's data path, and the worker's token.
    pub(in crate::registry) fn answer_of_join(
        &self,
        state: &coordinator::Job,
        job: &Job,
        token: Token,
        protocol: u32,
    ) -> JoinReply {
        JoinReply {
            protocol,
            token: hex(&token.0),
            cores: job.cores.numbers.iter().map(|&core| core as u32).collect(),
            nodes: Some(&job.cores.job_cores).filter(|cores| !cores.are_alike()).cloned(),
            placement: job.cores.placement.digest(),
            above: job.above.as_ref().map(|above| above.placed.clone()),
            ports: self.cores.len() as u32,
            transports: self.transports.clone(),
            heartbeat_limit_ms: self.heartbeat_limit.as_millis() as u64,
            pass: None,
            relinks: false,
            answers_ahead: job.above.is_none() && state.spec.terms.has_answers_ahead(),
        }
    }

    /// Returns the token to which a hello refers by this name.
    pub fn token_named(&self, name: [u8; 16]) -> Option<Token> {
        self.lock().hub().tokens().named(name)
    }

    /// Returns the owner of a token, whether or not its worker is connected already.
    pub fn expects(&self, token: Token) -> Result<(JobId, u32), String> {
        self.lock().hub().tokens().owner(token).map_err(|_| UNKNOWN_TOKEN.into())
    }

    /// Whether a member has this token.
    pub fn has_member(&self, token: &str) -> bool {
        self.lock().hub().tokens().owner_by_digits(token).is_ok()
    }

    /// Checks that the token is of a member of the job. The member may have left.
    pub fn check_member(&self, job: &str, token: &str) -> Result<(), Refusal> {
        let mut inner = self.lock();
        match inner.hub().tokens().owner_by_digits(token) {
            Err(Unserved::Left) => Ok(()),
            _ => Ok(inner.member(job, token).map(drop)?),
        }
    }

    /// Returns the admission of a connection with this token. A token is valid for one connection.
    pub fn admission(self: &Arc<Self>, token: Token) -> Result<Admission, String> {
        let mut admission = self.shared_admission(token)?;
        if admission.wire.has_own_weights() {
            // This step runs without the lock, because it takes long: the window is as large as the model.
            let own = admission.cores.placement.weights_window(&admission.wire).map_err(|error| {
                let reason = format!("worker {} has no weights window: {error}", admission.rank);
                // The worker cannot connect again: the token was valid for one connection.
                self.lose(&mut self.lock(), admission.job, admission.rank, Cause::Other, &reason);
                reason
            })?;
            (admission.weights, admission.own) = own;
            self.touch_own(&mut admission);
        }
        Ok(admission)
    }

    /// Makes the token valid again after its connection failed. The worker knows about the failure, and
    /// connects by another transport.
    pub fn readmit(&self, &Admission { token, rank, .. }: &Admission) {
        let mut inner = self.lock();
        let Ok((job, _)) = inner.hub().tokens().owner(token) else { return };
        inner.ask(Disconnect { member: MemberOf { job, rank } });
    }

    /// Allocates a worker's window, if it is memory of the hub. Each page is on the NUMA node of the core that will
    /// read the page. For this, the handshake's thread moves from node to node.
    pub fn populate(&self, admission: &Admission, window: &RecvWindow) {
        let collapse = |nodes: &[Ranges], go_to: &mut dyn FnMut(usize)| window.collapse_by_node(nodes, go_to);
        self.by_core(admission, Wire::gradient_span, collapse, |span, _| window.populate(span));
    }

    /// Maps all pages of a worker's gradients into this process, so that no core waits for the kernel during
    /// a round.
    pub fn touch(&self, admission: &Admission, window: &RecvWindow) {
        let collapse = |nodes: &[Ranges], go_to: &mut dyn FnMut(usize)| match window.is_local() {
            true => 0, // `populate` has run, and the worker may write already
            false => window.collapse_by_node(nodes, go_to),
        };
        self.by_core(admission, Wire::gradient_span, collapse, |span, _| window.touch(span));
    }

    /// Touches the worker's own weights, before a NIC registers them.
    fn touch_own(&self, admission: &mut Admission) {
        let (weights, mut own) = (Arc::clone(&admission.weights), std::mem::take(&mut admission.own));
        let collapse =
            |nodes: &[Ranges], go_to: &mut dyn FnMut(usize)| weights.collapse_by_node(nodes, go_to);
        self.by_core(admission, Wire::weights_span, collapse, |_, (core, place)| {
            own[core].elements_mut::<u8>(place).fill(0);
        });
        admission.own = own;
    }

    /// Calls `collapse`, and then `work` for each chunk of a window, on the NUMA node of the chunk's core.
    /// `work` gets the chunk's `span`, the index of its core in the placement, and the index of the chunk at
    /// that core.
    fn by_core(
        &self,
        admission: &Admission,
        span: impl Fn(&Wire, ChunkId) -> Span,
        collapse: impl FnOnce(&[Ranges], &mut dyn FnMut(usize)) -> usize,
        mut work: impl FnMut(Span, (usize, usize)),
    ) {
        let near = Near::begin();
        let Cores { numbers, placement, .. } = &*admission.cores;
        let by_core = placement.spans_by_core(|chunk| span(&admission.wire, chunk));
        let cpus = numbers.iter().map(|&number| self.cores[number].lane.cpu);
        near.huge_pages(cpus.clone().zip(by_core.iter().cloned()), collapse);
        for (core, (cpu, spans)) in cpus.zip(by_core).enumerate() {
            near.go_to(cpu);
            spans.into_iter().enumerate().for_each(|(place, span)| work(span, (core, place)));
        }
    }

    /// Returns an admission with the job's shared weights. If the worker needs its own weights, the caller
    /// replaces them.
    fn shared_admission(&self, token: Token) -> Result<Admission, String> {
        let mut inner = self.lock();
        let (id, rank) = inner.hub().tokens().owner(token).map_err(|_| UNKNOWN_TOKEN)?;
        let (state, job) = inner.job(id).expect("tokens name jobs that exist");
        let weights = job.weights.clone().ok_or_else(|| match &state.news.now().state {
            JobState::Failed { reason, .. } => format!("job {:?} failed: {reason}", job.name),
            _ => format!("job {:?} has ended", job.name),
        })?;
        let (wire, cores) = (job.wire.clone(), Arc::clone(&job.cores));
        let relinks = state.members.get(rank).is_some_and(|member| member.relinks);
        inner.ask(Connect { member: MemberOf { job: id, rank }, token })?;
        Ok(Admission { token, job: id, rank, relinks, weights, own: Vec::new(), wire, cores })
    }

    /// Gives the links of a connected worker to the cores, unless its job has continued without the worker.
    pub fn attach(&self, admission: Admission, gradients: Arc<RecvWindow>, endpoints: Vec<any::Endpoint>) {
        let nics = links_by(&endpoints);
        // The lock is held, so that a command to remove the worker can only come after the command that adds
        // its links.
        let mut inner = self.lock();
        let Ok((id, _)) = inner.hub().tokens().owner(admission.token) else { return };
        let member = MemberOf { job: id, rank: admission.rank };
        if let Some(endpoint) = endpoints.first() {
            inner.ask(Attach { member, transport: endpoint.transport().to_string(), nics });
        }
        let Some((_, job)) = inner.job(id) else { return };
        let mut own = admission.own.into_iter();
        for (&core, endpoint) in job.cores.numbers.iter().zip(endpoints) {
            let (gradients, weights) = (Carried(Arc::clone(&gradients)), Carried(own.next()));
            let (job, rank, link) = (admission.job, admission.rank, Box::new(endpoint));
            self.cores[core].tell(Command::AddWorker { job, rank, gradients, weights, link });
        }
    }
}

/// Returns the refusal of a join whose rank is taken by a join without an answer. The client of that join may have hung up: the
/// hub notices this only when it has made the job.
fn may_be_interrupted(name: &str, rank: u32, refusal: Refusal) -> Refusal {
    match refusal.code {
        RefusalCode::RankTaken | RefusalCode::TermsDiffer => RefusalCode::RankBusy.because(format!(
            "rank {rank} of job {name:?} is not free yet: another join of this rank has no answer yet; try again, or give each worker its own rank"
        )),
        _ => refusal,
    }
}

fn check_request(name: &str, request: &JoinRequest) -> Result<(), String> {
    check_job_name(name).map_err(|error| error.to_string())?;
    let JoinRequest { rank, hub, ref terms, .. } = *request;
    terms.check().map_err(|error| error.to_string())?;
    if rank >= terms.workers {
        let last = terms.workers - 1;
        return Err(format!("rank {rank} of {} workers: ranks go from 0 to {last}", terms.workers));
    }
    if hub >= terms.hubs {
        return Err(format!("hub {hub} of {}: hubs are numbered from 0", terms.hubs));
    }
    check_peers(request)?;
    if request.through.len() > MAX_DEPTH {
        return Err(format!(
            "the job reached this hub through {} hubs; at most {MAX_DEPTH} are allowed",
            request.through.len()
        ));
    }
    Ok(())
}

/// Checks that a worker of a job over several hubs gives the addresses by which the hubs reach each other.
fn check_peers(request: &JoinRequest) -> Result<(), String> {
    let (share, peers) = (Share::of_hub(&request.terms, request.hub), &request.peers);
    let Some(peers) = peers else {
        return match share.is_whole() {
            true => Ok(()),
            false => {
                Err(format!("{share}: peers is missing: expected the control ports of all hubs of the job"))
            }
        };
    };
    if let Some(error) = peers.hubs.iter().find_map(|hub| check_address(hub).err()) {
        return Err(format!("{share}: peers: {error}"));
    }
    if share.is_whole() || peers.hubs.len() != share.hubs as usize {
        let named = peers.hubs.len();
        return Err(format!(
            "{share}: peers names {named} hubs; expected all hubs of the job, or no peers if the job has one hub"
        ));
    }
    match (share.hub, &peers.pass) {
        (0, Some(_)) => Err("a join to hub 0 has a pass, but only hub 0 gives passes; leave the pass out".into()),
        (1.., None) => Err(format!("{share}: the pass is missing; join hub 0 first, and send its pass with this join")),
        (1.., Some(pass)) if Secret::parse(&pass.secret).is_none() => {
            Err("the secret in the pass is not 32 hexadecimal digits in small letters; send the pass as hub 0 gave it".into())
        }
        _ => Ok(()),
    }
}

pub(in crate::registry) fn new_token() -> Result<Token, Refusal> {
    random()
        .map(Token)
        .map_err(|error| RefusalCode::NoResource.because(format!("no random bytes for a token: {error}")))
}

/// Checks that a worker of these versions can place the job's chunks. Older workers expect that all cores are equally fast.
fn check_speeds(job: &Job, versions: Versions) -> Result<(), Refusal> {
    let above = job.above.as_ref().is_none_or(|above| above.placed.are_equally_fast());
    if versions.know_speeds() || above && job.cores.job_cores.are_equally_fast() {
        return Ok(());
    }
    Err(RefusalCode::ProtocolDiffers.because(format!(
        "job {:?} has cores of different speeds, because other threads use some of their cpus, and a worker of protocol {versions} \
         cannot place chunks on them: expected protocol {} or newer; update this worker, or start all workers again with this worker first",
        job.name,
        Versions::SPEEDS
    )))
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use pbox_core::control::{JoinRequest, PROTOCOL, RefusalCode, Versions};
    use pbox_core::{Layout, Placement};

    use crate::registry::test_bed::{registry, registry_of, request, runtime};

    #[test]
    fn a_client_that_hangs_up_before_the_answer_leaves_its_rank_free() {
        let (registry, _core) = registry();
        let mut request = request();
        request.terms.workers = 2;
        runtime().block_on(async {
            registry.join("job".into(), request.clone()).await.unwrap();
            request.rank = 1;
            for _ in 0..2 {
                drop(registry.join_from("job".into(), request.clone(), None).await.unwrap());
            }
            registry.join("job".into(), request).await.unwrap();
            assert_eq!(registry.describe().jobs.len(), 1, "the job gathers on");
        });
    }

    #[test]
    fn a_core_that_others_use_gets_fewer_chunks() {
        let (registry, _cores) = registry_of(&[0.9, 0.3]);
        let mut request = request();
        request.terms.workers = 3;
        request.terms.keys[0].shape = vec![16 * 110];
        runtime().block_on(async {
            let reply = registry.join("job".into(), request.clone()).await.unwrap();
            let cores = reply.nodes.expect("speeds differ");
            assert_eq!(cores.speeds().collect::<Vec<_>>(), [8, 3]);
            let layout = Layout::new(request.terms.keys.clone(), 64).unwrap();
            let placement = Placement::new(&layout, cores);
            assert_eq!((placement.capacities(), placement.digest()), (vec![80, 30], reply.placement));

            (request.rank, request.protocol) = (1, Versions::SPEEDS - 1);
            let refusal = registry.join("job".into(), request.clone()).await.unwrap_err();
            assert_eq!(refusal.code, RefusalCode::ProtocolDiffers);
            assert!(refusal.why.contains("job \"job\" has cores of different speeds"), "{}", refusal.why);

            request.rank = 0;
            let reached = Some(pbox_core::Round(3));
            let returns = JoinRequest { reached, protocol: PROTOCOL, ..request.clone() };
            assert_eq!(registry.join("returns".into(), returns).await.unwrap().nodes, None);
            let reply = registry.join("older".into(), request.clone()).await.unwrap();
            assert_eq!(reply.nodes, None);
            assert_eq!(reply.placement, Placement::new(&layout, 2).digest());
            (request.rank, request.protocol) = (1, PROTOCOL);
            registry.join("older".into(), request).await.unwrap();
        });
    }

    /// Formerly, a script that was started again at once got "rank taken", or with other settings "the job has seed 0".
    #[test]
    fn a_join_waits_for_an_interrupted_join_of_its_rank() {
        for (workers, seed) in [(1, 0), (2, 0), (1, 7)] {
            let (registry, _core) = registry();
            let mut request = request();
            request.terms.workers = workers;
            runtime().block_on(async {
                let interrupted = registry.join_from("job".into(), request.clone(), None).await.unwrap();
                request.terms.seed = seed;
                let begin = || registry.join_from("job".into(), request.clone(), None);
                let refusal = registry.try_join("job", &request, None).map(drop).unwrap_err();
                assert_eq!(refusal.code, RefusalCode::RankBusy, "{refusal:?}");
                let mut again = pin!(begin());
                let mut look = Context::from_waker(Waker::noop());
                assert!(matches!(again.as_mut().poll(&mut look), Poll::Pending));
                drop(interrupted); // the client had hung up
                again.await.unwrap().answer();
                let refusal = begin().await.unwrap_err();
                assert_eq!(refusal.code, RefusalCode::RankTaken, "{refusal:?}");
            });
        }
    }
}
