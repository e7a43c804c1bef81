//! `phub-server demo`: a hub, and workers that train a small network. One of the workers becomes slow.

mod spirals;
mod team;

use std::io::IsTerminal;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use authority::{ALL_JOBS, Credential, Right, Secret, Token};
use clap::Parser;
use membership::Named;
use pbox_core::control::HubReply;
use phub_server::client::Address;
use phub_server::{Hub, HubSettings, raise_open_files};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::out::line;
use spirals::Task;
use team::{JOB, SLOW, Team};

/// The timeout of each answer of the hub, and of the wait until all workers have ended.
const PATIENCE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);

/// Settings of `phub-server demo`.
///
/// Starts a hub and workers on this machine, without a GPU. The workers train a small network to tell two spirals apart. A
/// line each second shows their progress, and the hub's verdict. After --slow-after seconds the last worker becomes slow: the
/// verdict and the page name this worker. Ctrl-C ends the demo and all processes that it has started.
#[derive(Clone, Debug, Parser)]
pub struct DemoArgs {
    /// Number of worker processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=16))]
    workers: u32,

    /// Seconds until the demo ends.
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Seconds until the last worker becomes slow.
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
    slow_after: u64,

    /// Do not open the page in a browser.
    #[arg(long)]
    no_browser: bool,
}

/// The signals that end the demo.
struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl DemoArgs {
    /// Runs the demo.
    ///
    /// # Errors
    /// Returns an error if a hub cannot start here, or a worker fails.
    pub fn run(&self) -> anyhow::Result<()> {
        raise_open_files();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let _in_runtime = runtime.enter();
        let mut stops = Stops {
            interrupt: signal(SignalKind::interrupt()).context("catching SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("catching SIGTERM")?,
        };
        let secret = Secret::random()?;
        let credential = Credential::parse(secret.reveal(), "the demo")?;
        let settings = HubSettings::of_arguments(["--listen", "127.0.0.1:0", "--cores", "1"].map(Into::into));
        let settings = settings.map_err(|why| anyhow!("the demo's hub: {why}"))?;
        let hub = Hub::start(&HubSettings { token: Some(credential.clone()), ..settings })?;
        let token = secret.token(Right::Read, ALL_JOBS);
        let page = format!("{}://{}/#token={token}", hub.scheme(), hub.address());
        line(format_args!(
            "A hub and {} workers train a network to tell two spirals apart, until Ctrl-C or for {} s.\nThe page: {page}\n",
            self.workers, self.seconds
        ))?;
        if !self.no_browser && std::io::stdout().is_terminal() {
            open(&page);
        }
        let task = Arc::new(Task::new(self.workers)?);
        let address = hub.address().to_string();
        let mut team = Team::start(&task, &address, &credential)?;
        let shown = runtime.block_on(self.show(&task, &mut team, &address, &token, &mut stops));
        // A worker that leaves after this call finds that the hub is gone.
        hub.stop("the demo is over");
        let named = shown?;
        if let Some(seen) = team.seen() {
            line(format_args!("\nWhat the network has learnt:\n\n{}", task.picture(&seen.weights)))?;
            line(self.summary(seen.round, named))?;
        }
        Ok(())
    }

    /// Prints a line each second until the end. Returns the second in which the verdict named the slow worker.
    async fn show(
        &self,
        task: &Task,
        team: &mut Team,
        hub: &str,
        token: &Token,
        stops: &mut Stops,
    ) -> anyhow::Result<Option<u64>> {
        let hub = Address::new(hub, Named::Here);
        let (begun, slow_rank) = (Instant::now(), self.workers - 1);
        let (mut is_slow, mut named) = (false, None);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                _ = ticks.tick() => (),
                () = stops.next() => break,
                ended = team.next_end() => {
                    return Err(anyhow!("worker {:?} has left before the end", ended?));
                }
            }
            let second = begun.elapsed().as_secs();
            if second >= self.seconds {
                break;
            }
            if !is_slow && second >= self.slow_after {
                is_slow = true;
                team.slow_down();
                line(format_args!(
                    "{second:>5} s  from now on worker {slow_rank} sleeps {} ms in each round",
                    SLOW.as_millis()
                ))?;
            }
            let answer = hub.get::<HubReply>("/v1/hub", Some(token.clone()), PATIENCE).await;
            let answer = answer.map_err(|why| anyhow!("the demo's hub: {why}"))?;
            let verdict = answer.job(JOB).map(|job| &*job.verdict);
            let verdict = verdict.unwrap_or("the workers join");
            let state = team.seen().map_or(String::new(), |seen| {
                format!("loss {:.4}, {:.1}% right   ", seen.loss, 100.0 * task.accuracy(&seen.weights))
            });
            line(format_args!("{second:>5} s  {state}{verdict}"))?;
            if is_slow && named.is_none() && verdict.contains(&format!("waiting for rank {slow_rank}:")) {
                named = Some(second);
            }
        }
        team.end();
        let left = async {
            while team.next_end().await?.is_some() {}
            Ok(())
        };
        timeout(PATIENCE, left).await.unwrap_or(Ok(())).map(|()| named)
    }

    fn summary(&self, rounds: u32, named: Option<u64>) -> String {
        let Self { workers, slow_after, .. } = self;
        let named = named.map_or(String::new(), |second| {
            format!(" Worker {} was slow from second {slow_after} on, and the verdict named it in second {second}.", workers - 1)
        });
        format!(
            "{workers} workers made {rounds} rounds.{named}\n\
             Next: `phub-server doctor` checks this machine, `phub-server serve` runs a hub for your own workers."
        )
    }
}

impl Stops {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }
}

/// Opens a page, if there is a screen.
fn open(page: &str) {
    if ["DISPLAY", "WAYLAND_DISPLAY"].iter().all(|name| std::env::var_os(name).is_none()) {
        return;
    }
    let mut browser = Command::new("xdg-open");
    browser.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = browser.spawn() {
        tracing::debug!(%error, "no browser was opened");
    }
}
