//! The control port: HTTP with JSON, for workers and for people with `curl`.

mod body;
mod crowd;
mod encryption;
mod guard;
mod limits;
mod metrics;
mod page;
mod peers;
mod serve;
mod shown;

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use authority::unhex;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt, Full};
use pbox_core::control::{
    BASE_HEADER, ClockReply, CompareRequest, DELTAS_HEADER, ErrorReply, HeartbeatRequest, JobState,
    LearningRateRequest, LeaveRequest, MEMORY_HEADER, MEMORY_PORT_HEADER, NicReply, OfferRequest,
    OptimizerRequest, PrioritiesRequest, ReadyRequest, RefusalCode, RelinkRequest, StateQuery, parse,
    parse_join, parse_versioned,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use timeline::Clock;
use tokio::sync::Semaphore;

use crate::refusals::Refusals;
use crate::registry::{Because, Instead, Offer, Refusal, Registry, Sent, Wish, on_thread};
use body::{Parts, Received};
use coordinator::Asker;
use crowd::ClientAddress;
use guard::Sees;
use shown::member_of;

pub(crate) use encryption::Encryption;
pub(crate) use guard::Guard;
pub use limits::ControlLimits;
use serve::ClientConnection;
pub(crate) use serve::serve;

const INDEX: &str = "phub-server control port, JSON over HTTP (docs/protocol/README.md)

GET  /v1/health                     ok while workers can join
GET  /v1/hub                        version, cores with their work and waiting, jobs
GET  /                              a page for browsers; this list for other clients
GET  /v1/events                     what GET /v1/hub says, each second, as server-sent events
GET  /v1/trace                      a timeline of the last rounds, if the hub has --trace
GET  /v1/clock                      the hub's clock, for timelines of several machines
GET  /v1/topology                   the hub's machine with its cores and NICs, as SVG
GET  /metrics                       the figures of GET /v1/hub, for Prometheus
POST /v1/jobs/{job}/join            a worker asks to take part
POST /v1/jobs/{job}/heartbeat       a worker lives, and gets the news
POST /v1/jobs/{job}/relink          a worker has lost its links, and makes new links
POST /v1/jobs/{job}/learning-rate   a new step size from a round on
POST /v1/jobs/{job}/optimizer       other hyperparameters of the optimizer from a round on
POST /v1/jobs/{job}/priorities      the order in which a worker needs its keys
POST /v1/jobs/{job}/compare         compare a worker's weights with the other workers' weights, by digests
POST /v1/jobs/{job}/checkpoint      write the job's state to its file now (no body)
GET  /v1/jobs/{job}/state           the job's state, as a checkpoint file; ?only=weights or ?only=averages, with them &dtype=bf16 or f16; ?before=ROUND
POST /v1/jobs/{job}/offer           rank 0 has a state for a new job
POST /v1/jobs/{job}/state           rank 0 brings the state that a new job begins with
POST /v1/jobs/{job}/meet            the hubs of a mesh learn each other's addresses
POST /v1/jobs/{job}/ready           all members of a hub below have joined
POST /v1/jobs/{job}/leave           a worker is done
POST /v1/jobs/{job}/stop            stop the job, after its checkpoint (no body)
POST /v1/drain                      take no more jobs, and end with the last job (no body)
GET  /v1/jobs/{job}/parts/{hub}/{hubs}   the rounds whose checkpoint this hub has a part of
GET  /v1/jobs/{job}/parts/{hub}/{hubs}/{round}   the same, and whether the part of a round is damaged
POST /v1/jobs/{job}/peers/{verb}    the other hubs of a job
";

/// The most timelines that are recorded at the same time. Each may take tens of megabytes.
const TRACES: usize = 2;

/// The state that each handler needs.
#[derive(Clone, Debug)]
struct Desk {
    registry: Arc<Registry>,
    refusals: Arc<Refusals>,
    limits: ControlLimits,
    /// A permit for each byte that all bodies together may still use.
    room: Arc<Semaphore>,
    /// A permit for each further listener to the events.
    listeners: Arc<Semaphore>,
    /// A permit for each further timeline.
    traces: Arc<Semaphore>,
    /// The permit to ask NICs for their counters. Only one request at a time has this permit.
    nics: Arc<Semaphore>,
    /// The permit to report which checkpoints this hub has. Only one request at a time has this permit. Each request
    /// has a thread, and may read a whole file.
    parts: Arc<Semaphore>,
}

impl Desk {
    async fn read(&self, limit: usize, request: Request) -> Result<Received, Refusal> {
        body::read(request, limit, &self.limits, &self.room).await
    }

    /// Reads and parses a request that may have hyperparameters for each key of a job.
    async fn by_key<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        job: &str,
        request: Request,
    ) -> Result<T, Refusal> {
        let limit = self.limits.small_bytes + self.limits.key_bytes * self.registry.keys_of(job);
        let received = self.read(limit, request).await?;
        if received.bytes.len() <= self.limits.small_bytes {
            return Ok(parse(what, &received.bytes)?);
        }
        // The text may have megabytes, so another thread parses it: the control thread answers all
        // heartbeats.
        let parsed = on_thread("phub-numbers", move || parse(what, &received.bytes)).await;
        Ok(parsed??)
    }

    /// Reads and parses a request of a few fields.
    async fn small<T: DeserializeOwned>(&self, what: &'static str, request: Request) -> Result<T, Refusal> {
        Ok(parse(what, &self.read(self.limits.small_bytes, request).await?.bytes)?)
    }
}

/// Builds the routes. `picture` shows the hub's machine as SVG.
pub(crate) fn router(
    registry: Arc<Registry>,
    guard: Arc<Guard>,
    limits: ControlLimits,
    picture: String,
) -> Router {
    let room = Arc::new(Semaphore::new(limits.bodies_bytes));
    let listeners = Arc::new(Semaphore::new(page::LISTENERS));
    let traces = Arc::new(Semaphore::new(TRACES));
    let nics = Arc::new(Semaphore::new(1));
    let parts = Arc::new(Semaphore::new(1));
    let picture = Bytes::from(picture);
    let refusals = Arc::clone(&guard.refusals);
    Router::new()
        .route("/", get(async |headers: HeaderMap| page::page(&headers)))
        .route("/v1/health", get(health))
        .route("/v1/hub", get(hub))
        .route("/v1/events", get(events))
        .route("/v1/trace", get(trace))
        .route("/v1/clock", get(async || done(&ClockReply { id: Clock::id(), ns: Clock::now_ns() })))
        .route("/v1/topology", get(async || ([(CONTENT_TYPE, "image/svg+xml")], picture)))
        .route("/metrics", get(figures))
        .route("/v1/jobs/{job}/join", post(join))
        .route("/v1/jobs/{job}/heartbeat", post(heartbeat))
        .route("/v1/jobs/{job}/relink", post(relink))
        .route("/v1/jobs/{job}/learning-rate", post(learning_rate))
        .route("/v1/jobs/{job}/optimizer", post(optimizer))
        .route("/v1/jobs/{job}/priorities", post(priorities))
        .route("/v1/jobs/{job}/compare", post(compare))
        .route("/v1/jobs/{job}/checkpoint", post(checkpoint))
        .route("/v1/jobs/{job}/state", get(state).post(bring_state))
        .route("/v1/jobs/{job}/offer", post(offer))
        .route("/v1/jobs/{job}/meet", post(meet))
        .route("/v1/jobs/{job}/ready", post(ready))
        .route("/v1/jobs/{job}/leave", post(leave))
        .route("/v1/jobs/{job}/stop", post(stop))
        .route("/v1/drain", post(drain))
        .merge(peers::routes())
        .route_layer(from_fn_with_state((guard, Arc::clone(&registry)), guard::admit))
        .fallback(async || no_such_page())
        .method_not_allowed_fallback(async || no_such_method())
        .with_state(Desk { registry, refusals, limits, room, listeners, traces, nics, parts })
}

type Answer = Result<Response, Refusal>;

fn done(reply: &impl Serialize) -> Answer {
    Ok(json(StatusCode::OK, reply))
}

/// Returns a reply without content.
fn nothing(result: Result<(), Refusal>) -> Answer {
    result?;
    done(&serde_json::json!({}))
}

fn no_such_page() -> Answer {
    Err(RefusalCode::PageUnknown.because("no such page; GET / lists all pages"))
}

fn no_such_method() -> Response {
    refused(
        RefusalCode::OtherMethod
            .because("this page needs another method; GET / lists all pages with their methods"),
    )
}

/// Carries out a request to its end, even if the client hangs up. Otherwise a job could stay paused.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let ended = tokio::spawn(work).await;
    ended.unwrap_or_else(|_| Err(Refusal::internal()))
}

async fn hub(State(desk): State<Desk>, Extension(sees): Extension<Sees>) -> Answer {
    desk.registry.look_at_waits().await;
    let mut hub = desk.registry.describe();
    hub.jobs.retain(|job| sees.job(&job.name));
    hub.refusals = desk.refusals.replies(|job| sees.job_or_all(job));
    // The `recent` lists are by far the largest part of the reply, and only the picture on the page at `GET /` needs
    // them.
    for job in &mut hub.jobs {
        job.rounds.iter_mut().for_each(|rounds| rounds.recent.clear());
        job.gradients.iter_mut().for_each(|gradients| gradients.recent.clear());
    }
    hub.nics = nics(&desk).await;
    done(&hub)
}

/// Asks NICs for their counters, on a thread of its own. A driver may be slow, so the control thread must not wait for
/// it. The threads for joins do not ask either, because they may be busy for seconds.
async fn nics(desk: &Desk) -> Vec<NicReply> {
    let registry = Arc::clone(&desk.registry);
    if !registry.has_nics() {
        return Vec::new();
    }
    let _one_at_a_time = desk.nics.acquire().await;
    on_thread("phub-nics", move || registry.nics()).await.unwrap_or_default()
}

async fn events(State(desk): State<Desk>, Extension(sees): Extension<Sees>) -> Answer {
    page::events(&desk.registry, &desk.refusals, &desk.listeners, sees)
}

async fn figures(State(desk): State<Desk>, Extension(sees): Extension<Sees>) -> Response {
    desk.registry.look_at_waits().await;
    let mut hub = desk.registry.describe();
    hub.jobs.retain(|job| sees.job(&job.name));
    hub.nics = nics(&desk).await;
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::page(&hub)).into_response()
}

async fn trace(State(desk): State<Desk>, Extension(sees): Extension<Sees>) -> Answer {
    let permit = desk.traces.try_acquire_owned().map_err(|_| {
        RefusalCode::Busy.because(format!(
            "{TRACES} timelines are already being recorded, which is the maximum; try again later"
        ))
    })?;
    let text = desk.registry.trace(move |job| sees.job(job)).await?;
    let name = "attachment; filename=\"phub-trace.json\"";
    let body = Full::new(Bytes::from(text)).map_frame(move |frame| {
        let _until_it_is_sent = &permit;
        frame
    });
    let about = [(CONTENT_TYPE, "application/json"), (CONTENT_DISPOSITION, name)];
    Ok((about, Body::new(body)).into_response())
}

async fn join(
    State(desk): State<Desk>,
    Extension(client): Extension<ClientAddress>,
    Path(job): Path<String>,
    request: Request,
) -> Answer {
    let from = client.asker(request.headers());
    let joined = join_of(&desk, &from, &job, request).await;
    if let Err(refusal) = &joined {
        desk.refusals.add(Some(&from), Some(&job), &refusal.why);
    }
    joined
}

async fn join_of(desk: &Desk, from: &Asker, job: &str, request: Request) -> Answer {
    let received = desk.read(desk.limits.join_bytes, request).await?;
    // Only a large join needs a promise of memory: most joins are small, and many arrive at once.
    let is_small = received.bytes.len() <= desk.limits.small_bytes;
    let promise = (!is_small).then(|| desk.registry.promise_join(received.bytes.len())).transpose()?;
    // Another thread parses the join: a manifest may have 64 MiB, and the control thread answers all
    // heartbeats.
    let parsing = tokio::task::spawn_blocking(move || parse_join(&received.bytes));
    let request = parsing.await.map_err(|_| Refusal::internal())??;
    let joined = desk.registry.join_from(job.to_owned(), request, Some(from.clone())).await?;
    drop(promise);
    done(&joined.answer())
}

async fn heartbeat(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let token = member_of(&request);
    let HeartbeatRequest { seen, latest, .. } = desk.small("heartbeat", request).await?;
    let (mut news, hold) = desk.registry.heartbeat(&job, &token, latest)?;
    let mut waiting = Waiting { registry: &desk.registry, job: &job, token: &token, is_answered: false };
    // The wait for news and the wait for more news both end early when the job's last worker leaves.
    if tokio::time::timeout(hold, news.wait_for(|news| news.is_after(seen))).await.is_ok() {
        let collect = news.borrow().collects_for().min(hold / 2);
        let _ =
            tokio::time::timeout(collect, news.wait_for(|news| news.has_turned_after(seen))).await.is_ok();
    }
    waiting.is_answered = true;
    let reply = news.borrow().now().clone();
    if matches!(reply.state, JobState::Failed { .. }) {
        desk.registry.note_notified(&job, &token);
    }
    done(&reply)
}

/// A heartbeat whose answer waits for news. If the worker's process ends, its connection ends. This value is
/// then dropped before there is an answer.
struct Waiting<'a> {
    registry: &'a Arc<Registry>,
    job: &'a str,
    token: &'a str,
    is_answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.registry.hung_up(self.job, self.token);
        }
    }
}

async fn relink(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request = RelinkRequest { token: member_of(&request), ..desk.small("relink", request).await? };
    done(&desk.registry.relink(&job, request).await?)
}

async fn learning_rate(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request =
        LearningRateRequest { token: member_of(&request), ..desk.small("learning-rate", request).await? };
    nothing(desk.registry.set_learning_rate(&job, request).await)
}

async fn optimizer(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request =
        OptimizerRequest { token: member_of(&request), ..desk.by_key("optimizer", &job, request).await? };
    nothing(desk.registry.set_optimizer(&job, request).await)
}

async fn priorities(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request =
        PrioritiesRequest { token: member_of(&request), ..desk.by_key("priorities", &job, request).await? };
    nothing(desk.registry.set_priorities(&job, request).await)
}

async fn compare(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request = CompareRequest { token: member_of(&request), ..desk.small("compare", request).await? };
    nothing(desk.registry.compare(&job, request).await)
}

async fn checkpoint(State(desk): State<Desk>, Path(job): Path<String>) -> Answer {
    done(&to_its_end(async move { desk.registry.checkpoint(&job).await }).await?)
}

async fn state(
    State(desk): State<Desk>,
    Extension(client): Extension<ClientAddress>,
    Extension(connection): Extension<ClientConnection>,
    Path(job): Path<String>,
    request: Request,
) -> Answer {
    let query = StateQuery::parse(request.uri().query().unwrap_or_default())?;
    let reader = client.reader(request.headers());
    let wish = wish(client, request.headers());
    let cut_off = move || connection.close();
    let sent = to_its_end(async move { desk.registry.state(&job, query, (reader, wish), cut_off).await });
    let Some(Sent { bytes, instead, pieces }) = sent.await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let about = [(CONTENT_TYPE, "application/octet-stream".to_owned()), (CONTENT_LENGTH, bytes.to_string())];
    let mut answer = (about, Body::new(pieces)).into_response();
    let instead = match instead {
        None => None,
        Some(Instead::InMemory(bytes)) => Some((MEMORY_HEADER, bytes.to_string())),
        Some(Instead::Deltas { count, of_file }) => Some((DELTAS_HEADER, format!("{count},{of_file}"))),
    };
    if let Some((name, value)) = instead {
        answer.headers_mut().insert(name, HeaderValue::try_from(value).expect("digits"));
    }
    Ok(answer)
}

/// Returns the form in which a reader wants the values of a state.
fn wish(client: ClientAddress, headers: &HeaderMap) -> Wish {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let rdma = header(MEMORY_PORT_HEADER).and_then(|port| Some(client.at(port.parse().ok()?)));
    match (header(MEMORY_HEADER).and_then(unhex), header(BASE_HEADER)) {
        (Some(token), _) => Wish::InMemory(Offer { token, rdma }),
        (None, Some(base)) => Wish::Deltas(base.as_bytes().try_into().ok()),
        (None, None) => Wish::InFile,
    }
}

async fn offer(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request = OfferRequest { token: member_of(&request), ..desk.by_key("offer", &job, request).await? };
    done(&to_its_end(async move { desk.registry.offer(&job, request).await }).await?)
}

async fn bring_state(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let Desk { registry, limits, .. } = desk;
    let token = member_of(&request);
    let mut coming = registry.receive_state(&job, &token)?;
    let mut parts = Parts::new(request, coming.bytes(), &limits)?;
    while let Some(part) = parts.next().await? {
        coming.append(part).await?;
    }
    done(&registry.begin_with(coming).await?)
}

async fn meet(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let received = desk.read(desk.limits.small_bytes, request).await?;
    done(&desk.registry.meet(&job, parse_versioned("meet", &received.bytes)?).await?)
}

async fn ready(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let token = member_of(&request);
    let ReadyRequest { reached, .. } = desk.small("ready", request).await?;
    nothing(desk.registry.ready(&job, &token, reached))
}

async fn health(State(desk): State<Desk>) -> Answer {
    desk.registry.check_health(Instant::now())?;
    Ok("ok\n".into_response())
}

async fn leave(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let request = LeaveRequest { token: member_of(&request), ..desk.small("leave", request).await? };
    done(&to_its_end(async move { desk.registry.leave(&job, request).await }).await?)
}

async fn stop(
    State(desk): State<Desk>,
    Extension(client): Extension<ClientAddress>,
    Path(job): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let by = client.asker(&headers).to_string();
    done(&to_its_end(async move { desk.registry.stop_job(&job, &by).await }).await?)
}

async fn drain(
    State(desk): State<Desk>,
    Extension(client): Extension<ClientAddress>,
    headers: HeaderMap,
) -> Answer {
    done(&desk.registry.drain(&client.asker(&headers).to_string()))
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = serde_json::to_string(body).expect("replies are plain data");
    text.push('\n');
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

/// Returns the reply to a request that is refused.
fn refused(Refusal { code, why: error, round }: Refusal) -> Response {
    let status = StatusCode::from_u16(code.status()).expect("codes have statuses");
    let mut response = json(status, &ErrorReply { code, error, round });
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        refused(self)
    }
}
