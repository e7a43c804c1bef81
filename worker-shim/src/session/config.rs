//! The settings of a session, each declared once, with its default.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use fabric::any::Transport;
use fabric::tcp::{Congestion, ParseCongestionError};
use fabric::{DmaBuf, IdlePolicy, SendWindow};
use membership::{Credential, NicSettings};
use pbox_core::control::Mesh;
use pbox_core::{JobTerms, Key, OnLoss, Optimizer, Wire};

use crate::exchange::WeightsMode;
use crate::pull::{Pull, PullError};

const CHECKSUM: &str = "PHUB_CHECKSUM";
const TCP_CONGESTION: &str = "PHUB_TCP_CONGESTION";

/// The longest time that a setting may have: ten years. Later deadlines may be too large for the clock's type.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Settings of a [`Session`](crate::Session).
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The hub's control port as `host:port`. For a job over several hubs, the control ports of all hubs, with commas
    /// between them. All workers must name the same hubs in the same order.
    pub hub: String,
    /// The mesh of this worker, if each worker pushes to the hub on its own machine. `rank` and the number of
    /// workers then count only the workers of this machine. Default: no mesh.
    pub mesh: Option<Mesh>,
    /// Name of the job; workers with the same name train together.
    pub job: String,
    /// The number of this worker, from 0.
    pub rank: u32,
    /// The terms that all ends of the job agree on. The join sets `hubs` to the number of addresses in `hub`. With
    /// compression, weights are always read from private memory.
    pub terms: JobTerms,
    /// Pulls of weights in batches of layers, with [`Schedule::KvStore`](pbox_core::Schedule::KvStore). The
    /// caller must then push all keys of a round before it waits for a key. A key has arrived when its whole
    /// batch has arrived. A worker that joins a job with weights pulls these weights in batches, too, and
    /// waits for them in its first round. Default: each key is pulled as soon as possible.
    pub pull: Option<Pull>,
    /// The credential that this worker shows to the hubs: the cluster's secret, or a token of the job. Default:
    /// [`Credential::find`].
    pub token: Option<Credential>,
    /// The transport to the hub. Default: the best transport that the hub offers and that reaches it.
    pub transport: Option<Transport>,
    /// The RDMA NICs of this worker, and the hub's NIC that each of them connects to.
    pub nics: NicSettings,
    /// Whether to put checksums on gradients and weights over TCP, in both directions; TCP's own checksums have only 16
    /// bits. The hub can also request checksums. Default: whether `PHUB_CHECKSUM` is on: 1, true, yes or on.
    pub checksum: bool,
    /// The kernel's congestion control for this worker's connections over TCP. Default: the value of
    /// `PHUB_TCP_CONGESTION`, else by [rule](Congestion::Auto).
    pub tcp_congestion: Congestion,
    /// Whether the job is a trial, such as a probe's job. The hub neither reads nor writes checkpoints of a
    /// trial. All workers of a job must have the same value. Default: false.
    pub trial: bool,
    /// The memory that weights are read from. Default: shared.
    pub weights: WeightsMode,
    /// The dma-buf of the gradients, if another party than this process writes them, such as a GPU. NICs read the
    /// dma-buf. Each key's gradient is at the key's span of the [layout](pbox_core::Layout), and must not change from
    /// the push to the wait. Needs RDMA, and excludes compression. Default: memory that the session allocates.
    pub dma_buf: Option<DmaBuf>,
    /// Time limit of the join: of the wait for the other workers, and of the wait for each reply of the hub. A reply
    /// may take 2 s more for each gigabyte that the hub reads or makes for the job. Default 60 s.
    pub join_limit: Duration,
    /// The longest time for which a join waits for a hub that is not up, and a session waits for a lost hub. When the
    /// hub is back, the session continues from the hub's checkpoint, in the same memory;
    /// [`Session::returns`](crate::Session::returns) has the number of lost rounds. 0: a lost hub ends the session.
    /// Default 60 s.
    pub hub_wait: Duration,
    /// The time limit of a wait for a key, if all workers are alive but some do not push. Default 30 min.
    pub wait_limit: Duration,
    /// The file for a timeline of the session's last rounds, for <https://ui.perfetto.dev>. It is written at
    /// the session's end. The rank is added before the extension: `run.json` becomes `run.rank3.json`.
    /// Default: the value of `PHUB_TRACE`, otherwise no timeline.
    pub trace: Option<PathBuf>,
    /// The way in which the calling thread waits. Default: the thread spins if the machine has more than two cores for
    /// each worker on it.
    pub idle: IdlePolicy,
}

/// A setting whose text is not a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting {name:?}, {value:?}: {why}")]
pub struct InvalidSetting {
    name: String,
    value: String,
    why: String,
}

impl InvalidSetting {
    pub(super) fn new(name: &str, value: impl Display, why: &str) -> Self {
        InvalidSetting { name: name.to_owned(), value: value.to_string(), why: why.to_owned() }
    }
}

fn seconds(value: f64) -> Result<Duration, String> {
    let time = Duration::try_from_secs_f64(value).ok().filter(|&time| time <= LONGEST);
    time.ok_or_else(|| format!("expected seconds, from 0 to {}", LONGEST.as_secs()))
}

fn seconds_above_0(value: f64) -> Result<Duration, String> {
    let time = seconds(value).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| format!("expected seconds, more than 0 and at most {}", LONGEST.as_secs()))
}

/// Reads a value whose parser gives an error text for the user.
fn read<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

fn whole<T: FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("expected a whole number, from 0 to 2^{} - 1", 8 * size_of::<T>()))
}

fn number<T: FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| "expected a number".into())
}

fn on_or_off(value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| "expected true or false".into())
}

/// Reads a value that a session need not have. The text `none` stands for no value.
fn unless_none<T>(value: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if value == "none" { Ok(None) } else { read(value).map(Some) }
}

/// Reads the congestion control from the environment. An empty variable counts as not set.
fn congestion_of_environment() -> Result<Congestion, ParseCongestionError> {
    let text = std::env::var(TCP_CONGESTION).unwrap_or_default();
    if text.is_empty() { Ok(Congestion::Auto) } else { text.parse() }
}

impl SessionConfig {
    /// Checks the settings of sessions in the environment, and logs a warning for unknown names.
    pub(super) fn check_environment() -> Result<(), InvalidSetting> {
        membership::warn_of_environment();
        let refused =
            |name, why: String| Err(InvalidSetting::new(name, std::env::var(name).unwrap_or_default(), &why));
        if let Err(why) = membership::boolean(CHECKSUM) {
            return refused(CHECKSUM, why.to_string());
        }
        congestion_of_environment().map_or_else(|why| refused(TCP_CONGESTION, why.to_string()), |_| Ok(()))
    }

    /// Changes a setting that has a default. The setting is given by its name, and the value as text, as on a command
    /// line. Meant for callers in other languages. Time limits are in seconds.
    ///
    /// # Errors
    /// Returns an error if there is no such setting, or if the text is not a valid value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), InvalidSetting> {
        let changed = self.try_to_set(name, value);
        // Even an invalid token may be nearly right, and so a secret. Errors do not show it.
        let shown = if name == "token" { "..." } else { value };
        changed.map_err(|why| InvalidSetting { name: name.to_owned(), value: shown.to_owned(), why })
    }

    fn try_to_set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let terms = &mut self.terms;
        match name {
            "chunk_bytes" => terms.chunk_bytes = whole(value)?,
            "clip_norm" => terms.clip_norm = unless_none(value, number)?,
            "clip_norm_last" => terms.clip_norm_last = unless_none(value, number)?,
            "ema" => terms.ema = unless_none(value, number)?,
            "skip_nonfinite" => terms.skip_nonfinite = on_or_off(value)?,
            "skip_spikes" => terms.skip_spikes = unless_none(value, number)?,
            "maximize" => terms.maximize = on_or_off(value)?,
            "compare_every" => terms.compare_every = whole(value)?,
            "answers_ahead" => terms.answers_ahead = on_or_off(value)?,
            "schedule" => terms.level.schedule = read(value)?,
            "slice_bytes" => terms.level.slice_bytes = unless_none(value, whole)?,
            "credit" => terms.level.credit = Some(read(value)?),
            "compression" => terms.level.compression = unless_none(value, read)?,
            "consistency" => terms.level.consistency = read(value)?,
            "seed" => terms.seed = whole(value)?,
            "cores" => terms.cores = unless_none(value, whole)?,
            "on_loss" => {
                terms.on_loss = match value {
                    "stop" => OnLoss::Stop,
                    "continue" => OnLoss::Continue,
                    _ => return Err("expected stop or continue".into()),
                }
            }
            "weights" => {
                self.weights = match value {
                    "shared" => WeightsMode::Shared,
                    "private" => WeightsMode::Private,
                    _ => return Err("expected shared or private".into()),
                }
            }
            "mesh" => self.mesh = unless_none(value, read)?,
            "token" => {
                let given =
                    Credential::parse(value, "the setting `token`").map_err(|error| error.to_string());
                self.token = Some(given?);
            }
            "dma_buf" => self.dma_buf = unless_none(value, read)?,
            "pull" => self.pull = unless_none(value, read)?.map(Pull::new),
            "transport" => self.transport = unless_none(value, read)?,
            "checksum" => self.checksum = on_or_off(value)?,
            "tcp_congestion" => self.tcp_congestion = read(value)?,
            "nics" => self.nics.list = unless_none(value, read)?,
            "rails" => self.nics.rails = unless_none(value, read)?,
            "trace" => self.trace = unless_none(value, read)?,
            "join_limit" => self.join_limit = seconds_above_0(number(value)?)?,
            "hub_wait" => self.hub_wait = seconds(number(value)?)?,
            "wait_limit" => self.wait_limit = seconds_above_0(number(value)?)?,
            _ => {
                return Err("there are chunk_bytes, clip_norm, clip_norm_last, skip_nonfinite, skip_spikes, ema, maximize, answers_ahead, schedule, slice_bytes, credit, compression, consistency, seed, cores, on_loss, weights, mesh, token, dma_buf, compare_every, pull, transport, checksum, tcp_congestion, nics, rails, trace, join_limit, hub_wait, wait_limit".into());
            }
        }
        Ok(())
    }

    /// Checks the limits of waits, which a program may have set itself.
    pub(super) fn check_limits(&self) -> Result<(), InvalidSetting> {
        for (name, time) in [("join_limit", self.join_limit), ("wait_limit", self.wait_limit)] {
            let time = time.as_secs_f64();
            seconds_above_0(time).map_err(|why| InvalidSetting::new(name, time, &why))?;
        }
        let wait = self.hub_wait.as_secs_f64();
        seconds(wait).map(drop).map_err(|why| InvalidSetting::new("hub_wait", wait, &why))
    }

    /// Returns the same settings with other terms of the job.
    pub fn with_terms(mut self, change: impl FnOnce(&mut JobTerms)) -> Self {
        change(&mut self.terms);
        self
    }

    /// Checks the settings of pulls in batches.
    pub(crate) fn check_pull(&self) -> Result<(), PullError> {
        let Some(pull) = &self.pull else { return Ok(()) };
        if !self.terms.level.schedule.pulls() {
            let (batching, schedule) = (pull.batching, self.terms.level.schedule);
            return Err(PullError::Nothing { batching, schedule });
        }
        pull.layers(self.terms.keys.len()).map(|_| ())
    }

    /// Checks that the gradients can be in the dma-buf, if there is one. RDMA is then the only transport.
    pub(crate) fn check_dma_buf(&mut self, wire: &Wire) -> Result<(), InvalidSetting> {
        let Some(dma_buf) = &self.dma_buf else { return Ok(()) };
        let refused = |why: &str| Err(InvalidSetting::new("dma_buf", dma_buf, why));
        if wire.framing().is_some() {
            return refused(
                "compression reads gradients from host memory; leave out dma_buf or the compression",
            );
        }
        if wire.passes_on() {
            return refused(
                "norms of several hubs pass through host memory; use one hub, or leave out dma_buf or the norms",
            );
        }
        if self.transport.is_some_and(|wanted| wanted != Transport::Verbs) {
            return refused(
                "gradients in a dma-buf are sent by RDMA alone; ask for the transport verbs, or name no transport",
            );
        }
        if let Err(error) = SendWindow::in_dma_buf(dma_buf, wire.gradient_window_bytes()) {
            return refused(&error.to_string());
        }
        self.transport = Some(Transport::Verbs);
        Ok(())
    }

    /// Creates settings with defaults for everything else.
    pub fn new(
        hub: impl Into<String>,
        job: impl Into<String>,
        rank: u32,
        workers: u32,
        keys: Vec<Key>,
        optimizer: Optimizer,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let here = membership::workers_here(workers, |name| std::env::var(name).ok());
        SessionConfig {
            hub: hub.into(),
            mesh: None,
            token: None,
            job: job.into(),
            rank,
            terms: JobTerms::new(workers, keys, optimizer),
            pull: None,
            transport: None,
            nics: NicSettings::default(),
            checksum: membership::boolean(CHECKSUM).ok().flatten().unwrap_or(false),
            tcp_congestion: congestion_of_environment().unwrap_or_default(),
            trial: false,
            weights: WeightsMode::Shared,
            dma_buf: None,
            join_limit: Duration::from_secs(60),
            hub_wait: Duration::from_secs(60),
            wait_limit: Duration::from_secs(30 * 60),
            trace: std::env::var_os("PHUB_TRACE").filter(|path| !path.is_empty()).map(PathBuf::from),
            // A worker that spins on a core that the hub or another worker needs delays its own answers.
            idle: if cores > 2 * here as usize { IdlePolicy::DEDICATED } else { IdlePolicy::SHARED },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Session, SessionError};

    fn config() -> SessionConfig {
        let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
        SessionConfig::new("127.0.0.1:1", "job", 0, 1, vec![Key::f32("a", [1])], optimizer)
    }

    #[test]
    fn none_removes_a_value() {
        let optional = [
            ("clip_norm", "1"),
            ("slice_bytes", "64"),
            ("cores", "1"),
            ("compression", "f16"),
            ("pull", "all"),
            ("transport", "tcp"),
            ("nics", "mlx5_0"),
            ("rails", "mlx5_0=mlx5_1"),
            ("trace", "run.json"),
        ];
        for (name, value) in optional {
            let mut changed = config();
            changed.set(name, value).unwrap();
            let with = format!("{changed:?}");
            changed.set(name, "none").unwrap();
            let without = SessionConfig { trace: None, ..config() };
            assert_eq!(format!("{changed:?}"), format!("{without:?}"), "{name}");
            assert_ne!(with, format!("{without:?}"), "{name}");
        }
    }

    #[test]
    fn a_number_and_a_switch_say_what_they_expect() {
        for (name, expected) in [
            ("cores", "a whole number, from 0 to 2^32 - 1"),
            ("seed", "a whole number, from 0 to 2^64 - 1"),
            ("clip_norm", "a number"),
            ("join_limit", "a number"),
            ("checksum", "true or false"),
        ] {
            let error = config().set(name, "1x").unwrap_err().to_string();
            assert_eq!(error, format!("setting {name:?}, \"1x\": expected {expected}"));
        }
    }

    /// A test against a bug: a limit of -1 s was used as a limit of one millisecond.
    #[test]
    fn a_limit_is_a_time_that_passes() {
        for name in ["join_limit", "wait_limit", "hub_wait"] {
            for value in ["-1", "NaN", "inf", "1e18", "soon"] {
                let error = config().set(name, value).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains(value), "{error}");
            }
            config().set(name, "0.5").unwrap();
            assert_eq!(config().set(name, "0").is_ok(), name == "hub_wait", "{name}");
        }
        let never = Duration::MAX;
        for wrong in [
            SessionConfig { join_limit: Duration::ZERO, ..config() },
            SessionConfig { wait_limit: Duration::ZERO, ..config() },
            SessionConfig { join_limit: never, ..config() },
            SessionConfig { hub_wait: never, ..config() },
        ] {
            let error = Session::join(wrong).err().expect("no session has this limit");
            assert!(matches!(error, SessionError::Setting(_)), "{error}");
        }
    }
}
