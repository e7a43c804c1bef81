//! The hub's settings: each declared once, with its default, its doc and its environment name.

mod idle_choice;
pub(crate) mod interface;
mod listen;
mod path_args;
mod words;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use authority::{Credential, CredentialError};
use clap::builder::BoolishValueParser;
use clap::{CommandFactory, Parser};
use coordinator::Quotas;
use fabric::any::Transport;
use fabric::tcp::Congestion;
use fabric::verbs::{NicList, RailMap, VerbsError};
use membership::PeerList;
use pbox_core::control::Machine;
use topology::{CoreChoice, CpuId};

use crate::checkpoint::{FileMode, KEEP};
use crate::error::HubError;
use crate::program::{self, LogFormat, Unusable};

pub use idle_choice::IdleChoice;
pub use path_args::PathArgs;

/// Settings of `phub-server serve`.
#[derive(Clone, Debug, Parser)]
pub struct HubSettings {
    /// Address of the control port: by default only this machine reaches the hub. Use 0.0.0.0:7077 for workers on other
    /// machines. Port 0 takes a free port and prints it.
    #[arg(long, env = "PHUB_LISTEN", default_value = "127.0.0.1:7077", value_name = "IP:PORT", value_parser = listen::address)]
    pub listen: SocketAddr,

    /// File with the cluster's secret, which the hubs and workers of a job must share. While the secret is changed, the file
    /// has a line for each secret (SIGHUP reads it again). `phub-server token` makes secrets, and tokens with a single right.
    /// Default: PHUB_TOKEN, the file PHUB_TOKEN_FILE, or this user's own file, ~/.config/phub/secret, which is created if it
    /// is missing.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Serve clients without a secret or token: everybody who reaches the ports can read all weights and end all jobs.
    #[arg(long, env = "PHUB_INSECURE", value_parser = BoolishValueParser::new())]
    pub insecure: bool,

    /// File with the certificate of the control port, in PEM, and after it the certificates that sign it. The control port
    /// then speaks only TLS. SIGHUP reads certificate and key again. `phub-server certificate` makes both. Default: no TLS.
    #[arg(long, env = "PHUB_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// File with the key of --tls-cert, in PEM.
    #[arg(long, env = "PHUB_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// File with certificates, in PEM: serve only clients whose certificate was signed by one of them. Workers and other hubs
    /// then need PHUB_TLS_CERT and PHUB_TLS_KEY. Default: clients need no certificate.
    #[arg(long, env = "PHUB_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// The credential that this hub shows to other hubs, and the secret that it demands. Default: as for
    /// `token_file`.
    #[arg(skip)]
    pub token: Option<Credential>,

    /// Transports that workers may use: shm (shared memory), verbs (RDMA), tcp. Each worker uses the best of them that
    /// reaches the hub. Default: all.
    #[arg(long, env = "PHUB_TRANSPORTS", value_delimiter = ',', value_name = "LIST")]
    pub transports: Option<Vec<Transport>>,

    /// Address for gradients and weights over TCP; the port after it is for RDMA's handshake. Set it behind a firewall if
    /// --listen has another port than 7077. Default: the control port's address, with ports 7078 and 7079 if the control port
    /// is 7077, else free ports.
    #[arg(long, env = "PHUB_DATA_LISTEN", value_name = "IP:PORT", value_parser = listen::address)]
    pub data_listen: Option<SocketAddr>,

    /// Put checksums of 64 bits on gradients and weights over TCP, whose own checksums have only 16 bits. If a NIC, a switch
    /// or memory alters bytes, the link ends with an error, and nobody trains on these bytes. A link has checksums if the
    /// worker or the hub asks for them. RDMA and shared memory have no such checksums.
    #[arg(long, env = "PHUB_CHECKSUM", value_parser = BoolishValueParser::new())]
    pub checksum: bool,

    /// TCP's congestion control of gradients and weights: `auto`, `system` for the kernel's default, or a name that the
    /// kernel knows, for example cubic. `auto` takes the kernel's default, unless that is BBR and the handshake took at most
    /// 10 ms. Then it takes cubic or reno, because they fill links between near machines. Workers read PHUB_TCP_CONGESTION
    /// for the bytes that they send.
    #[arg(long, env = "PHUB_TCP_CONGESTION", default_value_t, value_name = "NAME|system|auto")]
    pub tcp_congestion: Congestion,

    /// RDMA NICs of the hub, for example mlx5_0,mlx5_1:1@3 (after a colon the port, after an at sign the GID's index).
    /// A name selects all NICs that begin with it. With = before the list names are exact, with ^ before it the list is
    /// excluded. Without this setting NCCL_IB_HCA and NCCL_IB_GID_INDEX count. Default: every NIC with a link, except
    /// those that have at most an eighth of the fastest NIC's speed.
    #[arg(long, env = "PHUB_NICS", value_name = "LIST")]
    pub nics: Option<NicList>,

    /// Pairs of NICs for links to hubs above or to hubs of a mesh, for example mlx5_0=mlx5_2,mlx5_1=mlx5_3. Each pair
    /// has this hub's NIC, then the other hub's NIC. Workers read PHUB_RAILS, too. Default: pairs by subnet, name and
    /// place.
    #[arg(long, env = "PHUB_RAILS", value_name = "OWN=HUB")]
    pub rails: Option<RailMap>,

    /// The path settings of RDMA packets.
    #[command(flatten)]
    pub paths: PathArgs,

    /// Cores that sum and step: a number, a list of cpus like 0,2,4-7, or `half` of the physical cores. With `half`,
    /// workers on this machine have the other half. Default: one cpu of every physical core that this process may use.
    /// With RDMA NICs: two to four of these cpus for each NIC, so that all NICs carry equal shares.
    #[arg(long, env = "PHUB_CORES", value_name = "N|LIST|half")]
    pub cores: Option<CoreSelection>,

    /// How a core waits when nothing arrives. `sleep` leaves the cpu at once. `spin` keeps the cpu for some microseconds, and
    /// then sleeps. `busy-poll` never sleeps: use it for dedicated cores. `auto` spins if the hub leaves cpus to other
    /// programs, and sleeps if it uses all cpus.
    #[arg(long, env = "PHUB_IDLE", default_value = "auto", value_enum)]
    pub idle: IdleChoice,

    /// Count a worker as lost after this many seconds without a heartbeat. Raise the limit if worker processes may be stopped
    /// for longer, for example in a debugger.
    #[arg(long, env = "PHUB_HEARTBEAT_LIMIT_S", default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub heartbeat_limit_s: u64,

    /// Name the worker that delays a round, after this many seconds without progress. The log, GET /v1/hub and the other
    /// workers then have its rank. The worker's heartbeats still arrive: it lives, but does not push.
    #[arg(long, env = "PHUB_LATE_WARNING_S", default_value_t = 30, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub late_warning_s: u64,

    /// Count a worker that delays a round as lost after this many seconds, as if it had died. Set it above the longest pause
    /// of a healthy job; it must not be below --late-warning-s. In a job over several hubs the worker is only named. Default:
    /// the other workers wait.
    #[arg(long, env = "PHUB_LATE_LIMIT_S", value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub late_limit_s: Option<u64>,

    /// Directory of checkpoints. A new job continues from the checkpoint that has its name. The hub writes checkpoints at the
    /// end of a job, at a clean stop, and on request. Default: no checkpoints.
    #[arg(long, env = "PHUB_CHECKPOINTS", value_name = "DIRECTORY")]
    pub checkpoints: Option<PathBuf>,

    /// Write a checkpoint also each time this number of rounds has passed. Use this if the hub may be killed. It needs more
    /// memory: as much as the weights and the optimizer's state. Default: no periodic checkpoints.
    #[arg(long, env = "PHUB_CHECKPOINT_EVERY", value_name = "ROUNDS", requires = "checkpoints")]
    pub checkpoint_every: Option<NonZeroU32>,

    /// Keep this number of checkpoints of each job: the newest, and earlier checkpoints with their round in the name. A
    /// job continues from the newest checkpoint that is not damaged. Each checkpoint needs room on the disk. A job over
    /// several hubs keeps its last two checkpoints.
    #[arg(long, env = "PHUB_CHECKPOINT_KEEP", default_value_t = KEEP, value_name = "COUNT", requires = "checkpoints")]
    pub checkpoint_keep: NonZeroU32,

    /// Keep the files of only this number of jobs. When a job ends, files of the jobs that were saved longest ago are
    /// removed. Files of running jobs and of jobs over several hubs stay. Use this if many runs have no PHUB_JOB: each such
    /// run is a separate job. Default: all.
    #[arg(long, env = "PHUB_CHECKPOINT_JOBS", value_name = "COUNT", requires = "checkpoints")]
    pub checkpoint_jobs: Option<NonZeroU32>,

    /// Permissions of checkpoint files, for example 640 if a group may read them. Users who may read the files may also list a
    /// directory that the hub makes.
    #[arg(
        long,
        env = "PHUB_CHECKPOINT_MODE",
        default_value_t,
        value_name = "MODE",
        requires = "checkpoints"
    )]
    pub checkpoint_mode: FileMode,

    /// Hubs above this hub: host:port of each, with commas between them. This hub then sums its own workers' pushes, sends
    /// only the sums up, and passes the weights down. The hubs above step, keep the optimizer's state and write the
    /// checkpoints. A mesh needs no setting here: its workers ask for it. Default: this hub steps.
    #[arg(
        long,
        env = "PHUB_ABOVE",
        value_name = "HOSTS",
        requires = "machine",
        conflicts_with = "checkpoints"
    )]
    pub above: Option<String>,

    /// Number of this hub, from 0, and the count of all hubs below the same hubs, for example 1/4. Needed with --above.
    #[arg(long, env = "PHUB_MACHINE", value_name = "N/COUNT")]
    pub machine: Option<Machine>,

    /// Network interface by which the other hubs of a mesh reach this hub, for example eth1, in the form of --nics. Set it if
    /// the machine has several networks. Without this setting NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME count. Default: the
    /// address of --listen; if that is 0.0.0.0, the interface that leads to the first machine.
    #[arg(long, env = "PHUB_INTERFACE", value_name = "NAME")]
    pub interface: Option<NicList>,

    /// Hosts and networks to which this hub may send requests if a join or another hub names them, for example
    /// 10.0.0.0/8,hub-1.example. List the hubs of a mesh, and the other hubs of a job, but not the hubs of --above. Use
    /// this if you do not trust all clients. Default: all.
    #[arg(long, env = "PHUB_PEERS", value_name = "LIST")]
    pub peers: Option<PeerList>,

    /// How long the first worker of a job waits for hubs above, or for hubs of the mesh, that do not answer yet. Raise it if
    /// these hubs start late.
    #[arg(long, env = "PHUB_ABOVE_LIMIT_S", default_value_t = 30, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(..=86400))]
    pub above_limit_s: u64,

    /// The most jobs at a time. The hub refuses a further job until a running job ends.
    #[arg(long, env = "PHUB_JOBS_LIMIT", default_value_t = 256, value_name = "JOBS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs_limit: u32,

    /// The most jobs of one address, which is the address of the worker that made the job. Behind a gateway or a proxy all
    /// workers have the same address. Default: no limit except --jobs-limit.
    #[arg(long, env = "PHUB_JOBS_PER_ADDRESS", value_name = "JOBS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs_per_address: Option<u32>,

    /// The most memory, in megabytes, that the hub promises to all jobs of one address together. Default: all memory.
    #[arg(long, env = "PHUB_MEMORY_PER_ADDRESS", value_name = "MB")]
    pub memory_per_address: Option<NonZeroU32>,

    /// The most memory, in megabytes, that the hub promises to one job. It refuses a larger job. Default: all memory.
    #[arg(long, env = "PHUB_MEMORY_PER_JOB", value_name = "MB")]
    pub memory_per_job: Option<NonZeroU32>,

    /// Record a timeline of each core's work, and write the last rounds into this file when the hub stops. Open it in
    /// ui.perfetto.dev. GET /v1/trace sends the timeline at any time. Default: no timeline.
    #[arg(long, env = "PHUB_TRACE", value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Write each request and event that decides about jobs and workers into this file, with its time and its answer. Use
    /// this to report a bug: `phub-server replay FILE` repeats the record. The file has names and addresses, but no tokens.
    /// Default: no record.
    #[arg(long, env = "PHUB_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Size limit of the record, in megabytes. At the limit the record ends with a line that says so, and the hub continues.
    #[arg(long, env = "PHUB_RECORD_MB", value_name = "MB", default_value_t = 1000, requires = "record",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub record_mb: u32,

    /// Form of log lines: text for people, or json for programs: one object for each line, with its facts as fields [default:
    /// text] [env: PHUB_LOG_FORMAT=]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,

    /// TOML file with settings. Its keys are the flags without the dashes in front, for example `cores = 4`. Flags and
    /// variables override the file. Default: no file.
    #[arg(long, env = "PHUB_CONFIG", value_name = "FILE.toml")]
    pub config: Option<PathBuf>,

    /// End when the hub has had no job for this many seconds. Use this for a hub that serves one run. Default: run until a
    /// signal.
    #[arg(long, env = "PHUB_UNUSED_LIMIT_S", value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(..=31_536_000))]
    pub unused_limit_s: Option<u64>,
}

/// The settings of `phub-server serve` without arguments: the defaults above, unless the environment sets a
/// value.
impl Default for HubSettings {
    fn default() -> Self {
        program::parse(["phub-server".into()]).unwrap_or_else(|unusable: Unusable| unusable.exit())
    }
}

impl HubSettings {
    /// Parses the arguments of `phub-server serve` into settings, for callers in other languages.
    ///
    /// # Errors
    /// Returns an error in words if a setting does not exist, or if its value is not valid.
    pub fn of_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let all = std::iter::once("phub-server".into()).chain(arguments);
        program::parse(all).map_err(|unusable| unusable.in_words())
    }

    /// Returns a sentence for each flag that a text names and whose value comes from the environment, not from these
    /// arguments.
    pub fn variables_in(text: &str, arguments: &[OsString]) -> Vec<String> {
        program::variables_in(text, &Self::command(), arguments)
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    /// Returns the fault if the settings do not fit.
    pub fn check(&self) -> Result<(), HubError> {
        let wrong = |why: String| Err(HubError::Settings(why));
        if self.insecure && self.token_file.is_some() {
            return wrong(
                "--token-file names a secret, and --insecure serves everybody without a secret; leave out one of these flags".to_owned(),
            );
        }
        if let Some(limit) = self.late_limit_s.filter(|&limit| limit < self.late_warning_s) {
            return wrong(format!(
                "--late-limit-s is {limit}, and --late-warning-s {}: the warning must not come after the limit; give a limit that is not less, \
                 or a smaller warning",
                self.late_warning_s
            ));
        }
        let (control, data) = (self.listen, self.data_path(self.listen.ip()));
        let ports = [
            ("the data path", data, Transport::Tcp),
            ("RDMA's handshake", self.handshake(control.ip()), Transport::Verbs),
        ];
        for (what, address, transport) in ports {
            let meets =
                |one: IpAddr, other: IpAddr| one == other || one.is_unspecified() || other.is_unspecified();
            if self.offers(transport)
                && address.port() > 0
                && address.port() == control.port()
                && meets(address.ip(), control.ip())
            {
                return wrong(format!(
                    "--listen {control} and --data-listen {data} give the same port to the control port and to {what}, which is \
                     at {address}; change one of the two addresses"
                ));
            }
        }
        if self.machine.is_some() && self.above.is_none() {
            return Err(HubError::Alone);
        }
        self.above.as_deref().map(membership::hub_addresses).transpose()?;
        if self.offers(Transport::Verbs) {
            self.paths.0.traffic_class().map_err(VerbsError::from)?;
        }
        Ok(())
    }

    /// Returns the quotas of one address and of one job.
    pub(crate) fn quotas(&self) -> Quotas {
        let bytes = |megabytes: NonZeroU32| u64::from(megabytes.get()) * 1_000_000;
        Quotas {
            jobs_per_address: self.jobs_per_address,
            memory_per_address: self.memory_per_address.map(bytes),
            memory_per_job: self.memory_per_job.map(bytes),
        }
    }

    /// Whether workers may use this transport.
    pub fn offers(&self, transport: Transport) -> bool {
        self.transports.as_ref().is_none_or(|offered| offered.contains(&transport))
    }

    /// Returns the secret, or a token, of this hub.
    pub fn credential(&self) -> Result<Credential, CredentialError> {
        match (&self.token, &self.token_file) {
            (Some(given), _) => Ok(given.clone()),
            (None, Some(path)) => Credential::read(path),
            (None, None) => Credential::find(),
        }
    }

    /// Returns the address for gradients and weights over TCP. `control` is the address of the control port.
    pub fn data_path(&self, control: IpAddr) -> SocketAddr {
        // If the control port is not the default port, the data path gets a free port: this machine may have another
        // hub on the default ports.
        let port = if self.listen.port() == listen::CONTROL_PORT { listen::DATA_PORT } else { 0 };
        self.data_listen.unwrap_or(SocketAddr::new(control, port))
    }

    /// Returns the address of RDMA's handshake: the port after the port for TCP.
    pub fn handshake(&self, control: IpAddr) -> SocketAddr {
        let mut address = self.data_path(control);
        if address.port() > 0 {
            address.set_port(address.port().saturating_add(1));
        }
        address
    }
}

/// `--cores`: how many, or which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreSelection {
    /// Half of the physical cores, at least one.
    Half,
    /// This many cpus, chosen by the placement.
    Count(usize),
    /// Exactly these cpus.
    Cpus(Vec<CpuId>),
}

impl CoreSelection {
    /// Returns the request to the placement. `None` means: as many cores as the NICs with RDMA need, or every
    /// core if there is no such NIC.
    pub fn choice(selection: Option<&Self>) -> CoreChoice {
        match selection {
            None => CoreChoice::EvenOverNics,
            Some(CoreSelection::Half) => CoreChoice::HalfOfTheCores,
            Some(CoreSelection::Count(count)) => CoreChoice::Count(*count),
            Some(CoreSelection::Cpus(cpus)) => CoreChoice::Cpus(cpus.clone()),
        }
    }
}

impl FromStr for CoreSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            part.trim().parse::<u32>().map_err(|_| {
                format!("{part:?} is not a cpu number; give a count like 4, a list like 0,2,4-7, or half")
            })
        };
        if text == "half" {
            return Ok(CoreSelection::Half);
        }
        if !text.contains([',', '-']) {
            return Ok(CoreSelection::Count(number(text)? as usize));
        }
        let mut cpus = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if last < first || last - first > 4096 {
                return Err(format!(
                    "{part:?} is not a range of cpus; expected the lower number first, and at most 4097 cpus"
                ));
            }
            cpus.extend((first..=last).map(CpuId));
        }
        Ok(CoreSelection::Cpus(cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_that_has_a_variable_is_known_by_its_name() {
        let known: Vec<&str> = membership::known_variables().collect();
        let command = HubSettings::command();
        let names = command.get_arguments().filter_map(|flag| flag.get_env()?.to_str());
        let names: Vec<&str> = names.filter(|name| !known.contains(name)).collect();
        assert_eq!(names, [""; 0]);
    }

    #[test]
    fn cores_are_a_count_or_a_list() {
        assert_eq!("half".parse(), Ok(CoreSelection::Half));
        assert_eq!("4".parse(), Ok(CoreSelection::Count(4)));
        let cpus = [0, 2, 4, 5, 6].map(CpuId).to_vec();
        assert_eq!("0,2,4-6".parse(), Ok(CoreSelection::Cpus(cpus)));
        assert_eq!("3,".parse(), Ok(CoreSelection::Cpus(vec![CpuId(3)])));
        assert!("6-4".parse::<CoreSelection>().is_err());
        assert!("four".parse::<CoreSelection>().unwrap_err().contains("four"));
    }

    fn refused(arguments: &[&str]) -> String {
        let settings = HubSettings::of_arguments(arguments.iter().map(Into::into)).unwrap();
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        let late = refused(&["--late-limit-s", "5", "--late-warning-s", "30"]);
        assert!(late.contains("--late-limit-s is 5") && late.contains("not less"), "{late}");
        for ports in [
            ["--listen", "127.0.0.1:7100", "--data-listen", "127.0.0.1:7100"],
            ["--listen", "127.0.0.1:7100", "--data-listen", "0.0.0.0:7100"],
            ["--listen", "0.0.0.0:7101", "--data-listen", "10.0.0.1:7100"],
        ] {
            let one = refused(&ports);
            assert!(one.contains("the same port") && one.contains(ports[3]), "{one}");
        }
        let two = ["--listen", "10.0.0.1:7100", "--data-listen", "10.0.0.2:7100"];
        assert!(HubSettings::of_arguments(two.map(Into::into)).unwrap().check().is_ok());
    }

    #[test]
    fn a_size_of_a_record_needs_the_record() {
        let of = |arguments: &[&str]| HubSettings::of_arguments(arguments.iter().map(Into::into));
        let error = of(&["--record-mb", "10"]).unwrap_err().to_string();
        assert!(error.contains("--record <FILE>"), "{error}");
        assert_eq!(of(&["--record-mb", "10", "--record", "hub.record"]).unwrap().record_mb, 10);
        assert_eq!(of(&[]).unwrap().record_mb, 1000);
    }

    #[test]
    fn the_default_control_port_has_a_data_port_beside_it() {
        let of = |arguments: &[&str]| {
            let settings = HubSettings::of_arguments(arguments.iter().map(Into::into)).unwrap();
            let control = settings.listen.ip();
            [settings.data_path(control), settings.handshake(control)].map(|address| address.to_string())
        };
        assert_eq!(of(&[]), ["127.0.0.1:7078", "127.0.0.1:7079"]);
        assert_eq!(of(&["--listen", "0.0.0.0:7077"]), ["0.0.0.0:7078", "0.0.0.0:7079"]);
        assert_eq!(of(&["--listen", "10.0.0.1:8000"]), ["10.0.0.1:0", "10.0.0.1:0"]);
        assert_eq!(of(&["--data-listen", "10.0.0.1:9000"]), ["10.0.0.1:9000", "10.0.0.1:9001"]);
    }
}
