//! `phub-server status`, `stop` and `drain`: requests of an operator to a hub.

use std::fmt::Write as _;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use authority::{ALL_JOBS, Credential, Right, Token};
use clap::Parser;
use membership::Named;
use pbox_core::control::{
    Answer, ClockReply, DrainReply, HubReply, JobReply, StopReply, check_address, check_job_name,
};
use phub_server::client::Address;
use phub_server::program::say;
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::out::line;

/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The timeout of a stop, which first writes a checkpoint.
const UNTIL_SAVED: Duration = Duration::from_secs(300);
/// The time after which a command prints that it waits, and the interval at which it repeats this line.
const FIRST_WORD: Duration = Duration::from_secs(5);
const NEXT_WORD: Duration = Duration::from_secs(30);
/// The maximum number of members of a job that are shown, and of refusals.
const SHOWN: usize = 64;

/// Settings of `phub-server status`.
#[derive(Clone, Debug, Parser)]
pub struct StatusArgs {
    /// The hub's control port.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT")]
    hub: String,

    /// Print JSON for programs: the whole answer of GET /v1/hub.
    #[arg(long)]
    json: bool,
}

/// Settings of `phub-server stop`.
///
/// A hub itself ends by SIGTERM (`systemctl stop phub-server`), or with its last job after `phub-server drain`.
#[derive(Clone, Debug, Parser)]
pub struct StopArgs {
    /// Name of the job, as `phub-server status` prints it.
    #[arg(value_name = "JOB")]
    job: String,

    /// The hub's control port.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT")]
    hub: String,
}

/// Settings of `phub-server drain`.
#[derive(Clone, Debug, Parser)]
pub struct DrainArgs {
    /// The hub's control port.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT")]
    hub: String,
}

impl StatusArgs {
    /// Prints the state of the hub.
    ///
    /// # Errors
    /// Returns an error if the hub does not answer.
    pub fn run(&self) -> anyhow::Result<()> {
        let hub: HubReply = ask(&self.hub, None, "/v1/hub", Right::Read, ALL_JOBS, PATIENCE)?;
        if self.json {
            return line(serde_json::to_string(&hub)?);
        }
        line(described(bare(&self.hub), &hub).trim_end())
    }
}

impl StopArgs {
    /// Stops the job.
    ///
    /// # Errors
    /// Returns an error if the hub does not answer, or refuses, or the job's checkpoint was not written.
    pub fn run(&self) -> anyhow::Result<()> {
        check_job_name(&self.job)?;
        let path = format!("/v1/jobs/{}/stop", self.job);
        let reply: StopReply = ask(&self.hub, Some(()), &path, Right::Operate, &self.job, UNTIL_SAVED)?;
        if let Some(why) = reply.checkpoint_error {
            return Err(anyhow!("job {:?} was stopped, and its checkpoint was not written: {why}", self.job));
        }
        let saved =
            reply.checkpoint.map(|saved| format!("; its checkpoint is before round {}", saved.round.0));
        line(format_args!("job {:?} was stopped{}", self.job, saved.unwrap_or_default()))
    }
}

impl DrainArgs {
    /// Drains the hub.
    ///
    /// # Errors
    /// Returns an error if the hub does not answer, or refuses.
    pub fn run(&self) -> anyhow::Result<()> {
        let DrainReply { jobs } = ask(&self.hub, Some(()), "/v1/drain", Right::Operate, ALL_JOBS, PATIENCE)?;
        match jobs.as_slice() {
            [] => line("the hub takes no more jobs; it has no job, and ends now"),
            jobs => line(format_args!(
                "the hub takes no more jobs, and ends when these jobs have ended: {}",
                jobs.join(", ")
            )),
        }
    }
}

/// Returns a hub's address for requests, without the scheme that a browser's address has.
pub(crate) fn bare(hub: &str) -> &str {
    let hub = hub.trim();
    hub.strip_prefix("http://").or(hub.strip_prefix("https://")).unwrap_or(hub).trim_end_matches('/')
}

/// Parses the address of a hub, for requests.
///
/// # Errors
/// Returns an error if `hub` is not the address of a control port.
pub(crate) fn address(hub: &str) -> anyhow::Result<Address> {
    check_address(bare(hub)).with_context(|| format!("hub {hub}"))?;
    Ok(Address::new(bare(hub), Named::Here))
}

/// Sends a hub a GET request for a path, or a POST request if `posts` is set. Returns the answer.
fn ask<R: Answer>(
    hub: &str,
    posts: Option<()>,
    path: &str,
    right: Right,
    job: &str,
    limit: Duration,
) -> anyhow::Result<R> {
    let credential = Credential::find_if_any().context("the token or secret to show to the hub")?;
    let reads = credential.as_ref().map(|credential| credential.token(Right::Read, ALL_JOBS));
    let token = credential.map(|credential| credential.token(right, job));
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let address = address(hub)?;
    let answer = async {
        match posts {
            None => address.get(path, token, limit).await,
            Some(()) => address.order(path, token, limit).await,
        }
    };
    let answer = runtime.block_on(with_words((&address, reads), limit, answer));
    answer.map_err(|why| anyhow!("hub {hub}: {why}"))
}

/// Waits for an answer of a hub, and now and then prints to stderr what the hub does meanwhile.
async fn with_words<R>(
    (address, reads): (&Address, Option<Token>),
    limit: Duration,
    answer: impl Future<Output = R>,
) -> R {
    let (begun, mut pause, mut answer) = (Instant::now(), FIRST_WORD, pin!(answer));
    loop {
        if let Ok(answer) = timeout(pause, &mut answer).await {
            return answer;
        }
        pause = NEXT_WORD;
        let does = match address.get::<ClockReply>("/v1/clock", reads.clone(), PATIENCE).await {
            Ok(_) => "the hub is alive, and ends a round or writes the checkpoint".to_owned(),
            Err(why) => format!("asked for the time, {why}"),
        };
        let (waited, limit) = (begun.elapsed().as_secs(), limit.as_secs());
        say(format_args!(
            "phub-server: hub {} has not answered for {waited} s, of at most {limit} s: {does}",
            address.name
        ));
    }
}

fn described(address: &str, hub: &HubReply) -> String {
    let mut text = format!("hub {address}: version {}, {} MiB", hub.version, hub.rss_bytes >> 20);
    let ways: Vec<String> = hub.transports.iter().map(|way| way.transport().to_string()).collect();
    let _ = writeln!(text, ", {} cores, by {}", hub.cores.len(), ways.join(", "));
    if hub.draining {
        let _ = writeln!(text, "the hub takes no more jobs, and ends with its last job");
    }
    let counts = &hub.counts;
    let _ = writeln!(
        text,
        "since its start: {} joins, {} refused, {} jobs failed",
        counts.joins, counts.refused_joins, counts.failed_jobs
    );
    let mut jobs: Vec<&JobReply> = hub.jobs.iter().collect();
    jobs.sort_by_key(|job| &job.name);
    for job in jobs {
        let _ = writeln!(text, "\njob {}: {}", job.name, job.verdict);
        if let Some(checkpoint) = &job.checkpoint {
            let _ = writeln!(text, "  checkpoint before round {}", checkpoint.round.0);
        }
        if let Some(why) = &job.checkpoint_error {
            let _ = writeln!(text, "  the last attempt at a checkpoint failed: {why}");
        }
        for member in job.members.iter().take(SHOWN) {
            let silent = member.silent_ms as f64 / 1e3;
            let way = member.transport.as_deref().unwrap_or("no links yet");
            let _ = writeln!(
                text,
                "  rank {:>4}  {}  {way}, last heartbeat {silent:.1} s ago",
                member.rank,
                member.place()
            );
        }
    }
    if !hub.refusals.is_empty() {
        let _ = writeln!(text, "\nrefused of late:");
    }
    for refusal in hub.refusals.iter().take(SHOWN) {
        let _ = writeln!(text, "  {refusal}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browsers_address_is_a_hubs() {
        for hub in ["10.0.0.1:7077", "http://10.0.0.1:7077", "https://10.0.0.1:7077/", " 10.0.0.1:7077 "] {
            assert_eq!(bare(hub), "10.0.0.1:7077");
        }
    }
}
