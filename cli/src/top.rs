//! `phub-server top`: the progress of a hub's jobs, in a terminal.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, anyhow};
use authority::{ALL_JOBS, Credential, Right, Token};
use clap::Parser;
use pbox_core::control::{CoreReply, HubReply, JobReply, MemberReply};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::operate::address;
use crate::out;

/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The time between two requests.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of ranks of a job that are shown: the ranks for which the job waits most.
const RANKS: usize = 8;
/// The number of refusals that are shown, and for how long each is shown.
const REFUSALS: usize = 3;
const FRESH_S: u64 = 300;
/// The control sequence that moves the cursor to the upper left corner, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Settings of `phub-server top`.
///
/// Shows the progress of a hub's jobs, as the hub's page does. Each job has a verdict, and the ranks for which the hub waits
/// most. In a terminal the screen is drawn again each second until Ctrl-C. If stdout is a file or a pipe, each job gets a
/// line each second.
#[derive(Clone, Debug, Parser)]
pub struct TopArgs {
    /// The hub's control port.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT")]
    hub: String,

    /// Print one line for each job, and end. This takes a second: two requests measure the rounds a second.
    #[arg(long)]
    once: bool,
}

impl TopArgs {
    /// Shows the jobs until Ctrl-C.
    ///
    /// # Errors
    /// Returns an error if the hub does not answer the first request, or if a token exists that cannot be
    /// read.
    pub fn run(&self) -> anyhow::Result<()> {
        let credential = Credential::find_if_any().context("the token or secret to show to the hub")?;
        let token = credential.map(|credential| credential.token(Right::Read, ALL_JOBS));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.watch(token))
    }

    async fn watch(&self, token: Option<Token>) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
        let address = address(&self.hub)?;
        let in_terminal = std::io::stdout().is_terminal() && !self.once;
        let mut ticks = interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<HubReply> = None;
        loop {
            let asked = async {
                ticks.tick().await;
                address.get::<HubReply>("/v1/hub", token.clone(), PATIENCE).await
            };
            let answer = tokio::select! {
                answer = asked => answer,
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            };
            if !in_terminal && before.is_none() && answer.is_ok() {
                before = answer.ok();
                continue;
            }
            let text = match (&answer, &before) {
                (Ok(hub), _) if in_terminal => format!("{CLEAR}{}", screen(&self.hub, hub, before.as_ref())),
                (Ok(hub), _) => lines(hub),
                (Err(why), before) if before.is_none() || self.once => {
                    return Err(anyhow!("hub {}: {why}", self.hub));
                }
                (Err(why), _) => format!("the hub does not answer: {why}\n"),
            };
            out::all(text)?;
            if self.once {
                return Ok(());
            }
            before = answer.ok().or(before);
        }
    }
}

/// Returns a line for each job.
fn lines(hub: &HubReply) -> String {
    let line = |job: &&JobReply| format!("{}: {}\n", job.name, job.verdict);
    let text: String = sorted(hub).iter().map(line).collect();
    if text.is_empty() { "no job is here\n".to_owned() } else { text }
}

fn screen(address: &str, hub: &HubReply, before: Option<&HubReply>) -> String {
    let mut text = format!("hub {address}, {}, {} MiB\n", hub.version, hub.rss_bytes >> 20);
    let before = before.filter(|before| before.id == hub.id);
    for refusal in hub.refusals.iter().filter(|refusal| refusal.ago_s < FRESH_S).take(REFUSALS) {
        let _ = writeln!(text, "refused {refusal}");
    }
    let busy = hub.cores.iter().enumerate().map(|(number, core)| {
        let part = part_busy(core, before.and_then(|before| before.cores.get(number)));
        format!("cpu {} {:.0}%", core.cpu, 100.0 * part)
    });
    let _ = writeln!(text, "cores with work: {}", busy.collect::<Vec<_>>().join(", "));
    for job in sorted(hub) {
        let _ = writeln!(text, "\n{}: {}", job.name, job.verdict);
        let Some(rounds) = &job.rounds else { continue };
        let mut ranks = rounds.ranks.clone();
        ranks.sort_by_key(|rank| std::cmp::Reverse((rank.last, rank.greatest_us)));
        let _ = writeln!(
            text,
            "  {:>6} {:>9} {:>12} {:>10} {:>10}  where",
            "rank", "was last", "then late by", "median", "greatest"
        );
        for rank in ranks.iter().take(RANKS) {
            let part = format!("{}%", 100 * rank.last / rounds.window.max(1));
            let [late, median, greatest] = [rank.late_us, rank.median_us, rank.greatest_us]
                .map(|us| format!("{:.2} ms", us as f64 / 1e3));
            let awaited = if rounds.waits_for.contains(&rank.rank) { "  awaited" } else { "" };
            let member = job.members.iter().find(|member| member.rank == rank.rank);
            let place = member.map(MemberReply::place).unwrap_or_default();
            let _ = writeln!(
                text,
                "  {:>6} {part:>9} {late:>12} {median:>10} {greatest:>10}  {place}{awaited}",
                rank.rank
            );
        }
    }
    text
}

fn sorted(hub: &HubReply) -> Vec<&JobReply> {
    let mut jobs: Vec<&JobReply> = hub.jobs.iter().collect();
    jobs.sort_by_key(|job| &job.name);
    jobs
}

/// Returns the part of the time in which a core worked, since the last answer of the hub, or since its start.
fn part_busy(core: &CoreReply, before: Option<&CoreReply>) -> f64 {
    let (busy, waiting) = before.map_or((0, 0), |before| (before.busy_ns, before.waiting_ns));
    let (busy, waiting) = (core.busy_ns.saturating_sub(busy), core.waiting_ns.saturating_sub(waiting));
    if busy + waiting == 0 { 0.0 } else { busy as f64 / (busy + waiting) as f64 }
}
