//! `phub-server serve`: the hub, until a signal.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use phub_server::{Hub, HubSettings, raise_open_files};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::out::Out;

/// The time after the start of a stop in which further signals are ignored, except a second SIGINT. The program
/// `timeout` sends SIGTERM to its child, and then to the child's group. After Ctrl-C many launchers send SIGTERM, too.
const ONE_END: Duration = Duration::from_secs(2);

/// The reason why a hub ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A signal came, or the hub had no job for a long time.
    Stopped,
    /// The hub was drained, and its last job has ended.
    Drained,
}

/// Runs a hub until a signal comes, its last job ends after a drain, or it has had no job for a long time.
///
/// # Errors
/// Returns an error if the hub cannot start, or if a second signal ends it early. Also returns an error if a last checkpoint
/// cannot be written.
pub fn serve(settings: &HubSettings) -> anyhow::Result<End> {
    raise_open_files();
    fabric::few_heaps();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Signals are caught before the hub starts, so that none is lost.
    let _in_runtime = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("catching SIGHUP")?;
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let hub = Hub::start(settings)?;
    // The caller may have closed stdout.
    let address = format_args!("phub-server: control port {}://{}", hub.scheme(), hub.address());
    if let Err(error) = Out::default().line(address) {
        tracing::warn!("cannot print the address of the control port: {error:#}");
    }
    let mut drain = signal(SignalKind::user_defined1()).context("catching SIGUSR1")?;
    let (reload_secret, reload_certificate) = (hub.reload_secret(), hub.reload_certificate());
    let reload = || {
        let certificate = reload_certificate.as_ref().map(|reload| ("certificate", reload()));
        for (what, reloaded) in [("secret", reload_secret())].into_iter().chain(certificate) {
            match reloaded {
                Ok(()) => tracing::info!("SIGHUP: the {what} was read again"),
                Err(error) => {
                    tracing::error!(%error, "SIGHUP: cannot read the {what} again; the hub keeps the {what} that it has")
                }
            }
        }
    };
    let mut next_signal = async || {
        loop {
            tokio::select! {
                _ = interrupt.recv() => return "SIGINT",
                _ = terminate.recv() => return "SIGTERM",
                _ = hangup.recv() => reload(),
            }
        }
    };
    let unused = async || match settings.unused_limit_s {
        None => std::future::pending().await,
        Some(limit) => {
            hub.unused_for(Duration::from_secs(limit)).await;
            format!("no job for {limit} s")
        }
    };
    let mut drained = async || {
        loop {
            tokio::select! {
                _ = drain.recv() => hub.drain("SIGUSR1"),
                () = hub.drained() => return,
            }
        }
    };
    let mut broke = false;
    let (why, end) = runtime.block_on(async {
        tokio::select! {
            signal = next_signal() => (signal.to_owned(), End::Stopped),
            why = unused() => (why, End::Stopped),
            () = drained() => ("the end of the last job after a drain".to_owned(), End::Drained),
            what = hub.broken() => {
                broke = true;
                (what, End::Stopped)
            }
        }
    });
    let ended_at = Instant::now();
    tracing::info!("{why}: the hub stops once checkpoints are written; another signal ends the hub at once");
    let unsaved = hub.unsaved();
    let (done, stopped) = oneshot::channel();
    let bug = broke.then(|| anyhow!("{why}"));
    let first = why.clone();
    let reason = if broke { why } else { format!("the hub was stopped by {why}") };
    let stop = move || drop(done.send(hub.stop(&reason)));
    std::thread::Builder::new().name("phub-stop".into()).spawn(stop).context("stopping the hub")?;
    let mut another_signal = async || {
        loop {
            let signal = next_signal().await;
            if (signal, &*first) == ("SIGINT", "SIGINT") || ended_at.elapsed() > ONE_END {
                return signal;
            }
        }
    };
    let lost = runtime.block_on(async {
        tokio::select! {
            stopped = stopped => stopped.context("stopping the hub failed; see the log"),
            signal = another_signal() => Err(cut_short(signal, &unsaved.borrow())),
        }
    })?;
    match bug {
        Some(bug) => Err(bug),
        None if !lost.is_empty() => Err(anyhow!(lost.join("\n  "))),
        None => Ok(end),
    }
}

/// Returns the error of a hub that a second signal ended at once. The error names the lost checkpoints.
fn cut_short(signal: &str, unsaved: &[String]) -> anyhow::Error {
    if unsaved.is_empty() {
        return anyhow!("the hub was ended at once by {signal}; the hub had no checkpoint left to write");
    }
    anyhow!(
        "the hub was ended at once by {signal}, and did not write the last checkpoints of jobs {unsaved:?}; these jobs continue from their earlier checkpoints, if there are any"
    )
}
