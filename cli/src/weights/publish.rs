//! `phub-server publish`: a job's weights as versions in a directory, as long as the job trains.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use subscription::{EachRounds, Fetched, HUB_WAIT, NoWeights, Source};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use versions::{Deltas, Origin, Published, Publisher, Rules, Weights};

use super::source::SourceArgs;
use super::spoken;
use crate::out::Out;

/// The time between two tries to get weights.
const PAUSE: Duration = Duration::from_secs(1);

/// Publish a job's weights while it trains, as versions in a directory that engines read.
///
/// Each version has the weights of one round, in a directory weight_v000001, weight_v000002, ... that appears when it
/// is complete. Most versions are deltas: they have exactly what changed since the previous version, in a zstd frame
/// for each tensor. SGLang, slime and miles read this layout. `phub-server versions` makes a safetensors file of any
/// version. No worker waits for a version. The hub needs memory for a copy of the weights while it sends them. After a
/// restart `publish` continues. It ends with the job, or by Ctrl-C.
#[derive(Clone, Debug, Parser)]
pub struct PublishArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Directory for the versions of this job. It is created if it is missing; the umask decides who may read it.
    #[arg(long, value_name = "DIRECTORY")]
    to: PathBuf,

    /// Publish a version each time this number of seconds has passed.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    every: u64,

    /// Publish by rounds, not by time: the weights before each multiple of this number of rounds. If the publisher is
    /// too slow for some multiples, it prints these multiples, and publishes before the next multiple.
    #[arg(long, value_name = "ROUNDS", conflicts_with_all = ["every", "once"])]
    each_rounds: Option<NonZeroU32>,

    /// How long to wait for a lost hub, or for its job after the hub's return. After this time `publish` ends with an error.
    #[arg(long, value_name = "SECONDS", default_value_t = HUB_WAIT.as_secs())]
    hub_wait: u64,

    /// Publish one version now, and end. Use this from a scheduler of your own.
    #[arg(long)]
    once: bool,

    /// Get from the hubs only the differences from the last version, and apply them to the last version. This needs memory for
    /// one more version here, and for up to two at the hubs. Use it if the network is slow.
    #[arg(long)]
    fetch_deltas: bool,

    /// Publish a whole version, not a delta, once in this number of versions. A new reader begins with a whole version.
    #[arg(long, value_name = "VERSIONS", default_value_t = Rules::default().whole_each)]
    whole_each: NonZeroU32,

    /// Keep this number of newest versions, and the older versions to which their deltas apply. Other versions are removed.
    #[arg(long, value_name = "VERSIONS", default_value_t = Rules::default().keep)]
    keep: NonZeroU32,

    /// Form of deltas: xor (old XOR new values), or overwrite (changed bytes with their positions). With smaller, each
    /// version is compressed in both forms and has the shorter one.
    #[arg(long, value_name = "FORM", default_value = "xor", value_parser = forms())]
    delta: Deltas,

    /// File to copy into each whole version, for example the model's config.json. May be given several times.
    #[arg(long, value_name = "FILE")]
    also: Vec<PathBuf>,
}

fn forms() -> impl TypedValueParser<Value = Deltas> {
    PossibleValuesParser::new(Deltas::NAMED.map(|(name, _)| name)).try_map(|name| name.parse::<Deltas>())
}

/// The end of publishing.
enum End {
    Asked,
    OfJob,
}

impl PublishArgs {
    /// Publishes until the job's end, or a signal.
    ///
    /// # Errors
    /// Returns an error if the directory is another publisher's or cannot be written, or if the hubs cannot give weights.
    pub fn run(&self) -> anyhow::Result<()> {
        let source = self.source.source(Duration::from_secs(self.hub_wait), self.fetch_deltas)?;
        let PublishArgs { whole_each, keep, delta: deltas, ref also, .. } = *self;
        let rules = Rules { whole_each, keep, deltas, also: also.clone(), ..Rules::default() };
        let publisher = Publisher::open(&self.to, rules)?;
        publisher.check_job(&self.source.job)?;
        let mut out = Out::default();
        if let Some(why) = publisher.unreadable() {
            out.line(format_args!(
                "the next version is whole and no delta, because the newest version cannot be read: {why}"
            ))?;
        }
        // A fetch waits for the hub on a thread of the runtime. The process ends without a wait for this
        // thread.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let rounds = self.each_rounds.map(EachRounds::new);
        let source = Some((source, rounds));
        let mut publishing = Publishing { publisher, source, out, said: String::new(), has_version: false };
        let end = publishing.run(&runtime, self);
        runtime.shutdown_background();
        match end? {
            End::OfJob => publishing.print_end(&self.source.job, &self.to),
            End::Asked => Ok(()),
        }
    }
}

/// A publisher at work.
struct Publishing {
    publisher: Publisher,
    /// The source, and the wanted rounds if versions are published by rounds and not by time. `None` while a thread uses them.
    source: Option<(Source, Option<EachRounds>)>,
    out: Out,
    /// The reason for waiting that was last printed.
    said: String,
    /// Whether this publisher has published a version, or has found it in the directory.
    has_version: bool,
}

impl Publishing {
    fn run(&mut self, runtime: &Runtime, args: &PublishArgs) -> anyhow::Result<End> {
        let _in_runtime = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
        let mut seen = false;
        loop {
            let begun = Instant::now();
            let Some(fetched) = runtime.block_on(unless(&mut interrupt, &mut terminate, self.fetch()))?
            else {
                return Ok(End::Asked);
            };
            let pause = match fetched {
                Ok(Fetched::Weights(origin, weights)) => {
                    seen = true;
                    self.publish(origin, weights, begun)?;
                    match args.each_rounds {
                        Some(_) => Duration::ZERO,
                        None => Duration::from_secs(args.every).saturating_sub(begun.elapsed()),
                    }
                }
                Ok(Fetched::Ahead) => {
                    seen = true;
                    PAUSE
                }
                Ok(Fetched::Passed(passed)) => {
                    seen = true;
                    self.out.line(passed)?;
                    Duration::ZERO
                }
                Err(why) if args.once => return Err(why.into()),
                Err(why @ (NoWeights::Lost(_) | NoWeights::Never(_))) => return Err(why.into()),
                Err(NoWeights::NoJob(_)) if seen => return Ok(End::OfJob),
                Err(why) => {
                    // A hub that is away may return with the job. So a missing job is the job's end only if
                    // the job was seen after the hub's return.
                    seen &= !matches!(why, NoWeights::Away(_));
                    self.print_wait(why.to_string())?;
                    PAUSE
                }
            };
            if args.once {
                return Ok(End::Asked);
            }
            let slept = async {
                tokio::time::sleep(pause).await;
                Ok(())
            };
            if runtime.block_on(unless(&mut interrupt, &mut terminate, slept))?.is_none() {
                return Ok(End::Asked);
            }
        }
    }

    /// Gets weights on a thread.
    async fn fetch(&mut self) -> anyhow::Result<Result<Fetched, NoWeights>> {
        let (mut source, mut rounds) = self.source.take().context("the fetch before was cancelled")?;
        let (source, fetched) = tokio::task::spawn_blocking(move || {
            let fetched = match &mut rounds {
                Some(rounds) => source.fetch_next(rounds),
                None => source.fetch().map(|(origin, weights)| Fetched::Weights(origin, weights)),
            };
            ((source, rounds), fetched)
        })
        .await?;
        self.source = Some(source);
        Ok(fetched)
    }

    fn publish(&mut self, origin: Origin, weights: Weights, begun: Instant) -> anyhow::Result<()> {
        self.said.clear();
        self.has_version = true;
        let (round, all, bytes_of_all) = (origin.round, weights.tensors(), spoken(weights.bytes()));
        if self.publisher.has(&origin, &weights) {
            return Ok(());
        }
        let Published { id, is_whole, tensors, bytes, removed, warnings } =
            self.publisher.publish(origin, weights)?;
        for why in warnings {
            self.out.line(format_args!("warning about version {id}, which is published: {why}"))?;
        }
        let what = if is_whole { "whole" } else { "delta" };
        let gone = if removed > 0 { format!(", {removed} old removed") } else { String::new() };
        self.out.line(format_args!(
            "version {id}, {what}, before round {round}: {} of {bytes_of_all}, {tensors} of {all} tensors, {:.1} s{gone}",
            spoken(bytes),
            begun.elapsed().as_secs_f64(),
        ))
    }

    /// Prints that the job has ended, with its last version.
    ///
    /// # Errors
    /// Returns an error if the directory has no version.
    fn print_end(&mut self, job: &str, to: &Path) -> anyhow::Result<()> {
        let Some(last) = self.publisher.last() else {
            anyhow::bail!(
                "job {job:?} has ended, and no version of it was published in {}: it ended before its first version was due; \
                 start the publisher before the job, or publish more often (--every, --each-rounds)",
                to.display()
            );
        };
        let of_whom = if self.has_version { "" } else { " of an earlier publisher" };
        self.out.line(format_args!(
            "job {job:?} has ended; the last version{of_whom} is before round {}",
            last.round
        ))
    }

    /// Prints the reason for waiting, once.
    fn print_wait(&mut self, why: String) -> anyhow::Result<()> {
        if self.said == why {
            return Ok(());
        }
        self.out.line(format_args!("waiting: {why}"))?;
        self.said = why;
        Ok(())
    }
}

/// Waits for a result, unless a signal comes first.
async fn unless<T>(
    interrupt: &mut Signal,
    terminate: &mut Signal,
    result: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    tokio::select! {
        result = result => result.map(Some),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
    }
}
