//! The reasons why a hub does not start.

use std::net::SocketAddr;
use std::path::PathBuf;

use authority::{CredentialError, TlsError};
use fabric::any::ConnectError;
use fabric::tcp;
use fabric::verbs::VerbsError;
use rustix::io::Errno;

use crate::checkpoint::CheckpointError;

/// The reason why the hub did not start.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The machine cannot be read.
    #[error("reading this machine's topology: {0}")]
    Topology(#[from] topology::HostError),
    /// The requested cores are not available.
    #[error("choosing cores (--cores): {0}")]
    Place(#[from] topology::PlaceError),
    /// Two settings exclude each other.
    #[error("{0}")]
    Settings(String),
    /// The system does not give the hub its threads.
    #[error(
        "this hub needs {needed} threads, but only {made} can be made: {error}; allow more (ulimit -u, TasksMax= of a unit, pids.max of \
         a container), or use fewer --cores"
    )]
    Threads {
        /// The number of threads that the hub needs.
        needed: usize,
        /// The number of threads that could be made.
        made: usize,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// The control port cannot be opened.
    #[error(
        "cannot listen on {listen} for the control port: {error}; choose another address with --listen (port 0 takes a free port)"
    )]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// There is no secret.
    #[error(
        "{0}; workers must show the hub a secret: set PHUB_TOKEN or --token-file, or serve everybody with --insecure"
    )]
    Secret(#[from] CredentialError),
    /// The certificate of the control port cannot be used.
    #[error("--tls-cert, --tls-key, --tls-client-ca: {0}")]
    Certificate(#[from] TlsError),
    /// The directory of checkpoints cannot be used.
    #[error("--checkpoints: {0}")]
    Checkpoints(#[from] CheckpointError),
    /// The record cannot be begun.
    #[error("--record {}: {error}; name a file in an existing directory that this user may write", file.display())]
    Record {
        /// The file.
        file: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// The file of the timeline cannot be written.
    #[error("--trace: {0}")]
    Trace(#[from] timeline::TraceError),
    /// The list of hubs above cannot be used.
    #[error("--above: {0}")]
    Above(#[from] membership::MemberError),
    /// `--machine` is set without `--above`.
    #[error(
        "--machine needs --above, which says where the hubs above are; add --above, or leave --machine out"
    )]
    Alone,
    /// No network interface has this name.
    #[error(
        "--interface names no interface that has an address; this machine has: {}",
        .there_are.join(", ")
    )]
    NoInterface {
        /// The interfaces of this machine.
        there_are: Vec<String>,
    },
    /// The data path cannot be opened.
    #[error("opening the data path (--data-listen): {0}")]
    DataPath(#[from] ConnectError),
    /// RDMA was requested and is not available.
    #[error("RDMA: {0}")]
    Rdma(#[from] VerbsError),
    /// NCCL's variable turns RDMA off, and no setting of this hub asks for RDMA.
    #[error("NCCL_IB_DISABLE turns RDMA off; --transports or --nics turns RDMA on again")]
    Disabled,
    /// The hub's own list names NICs that this machine does not have.
    #[error(
        "--nics names {}, which this machine does not have; its RDMA devices: {}",
        .absent.join(", "), if .there_are.is_empty() { "none".to_owned() } else { .there_are.join(", ") }
    )]
    AbsentNics {
        /// The names in the list.
        absent: Vec<String>,
        /// The RDMA devices of this machine.
        there_are: Vec<String>,
    },
    /// The list of NICs leaves no NIC.
    #[error(
        "RDMA: there is no NIC that the hub may use; this machine's RDMA devices: {}; see --nics",
        if .there_are.is_empty() { "none".to_owned() } else { .there_are.join(", ") }
    )]
    NoNic {
        /// The RDMA devices of this machine.
        there_are: Vec<String>,
    },
    /// A setting asks for RDMA, and the machine has no RDMA.
    #[error("{setting} asks for RDMA, and this hub has none: {error}")]
    Asked {
        /// The flag.
        setting: &'static str,
        /// The reason why there is no RDMA.
        error: Box<HubError>,
    },
    /// Workers would have no transport to the hub.
    #[error(
        "--transports names no transport: no worker could reach the hub; leave the flag out to offer all"
    )]
    NoTransport,
    /// Threads or descriptors ran out.
    #[error("starting the hub: {}{}", .0, advice(.0))]
    System(#[from] std::io::Error),
}

impl HubError {
    /// Whether a setting is wrong whatever the state of the machine, or two settings exclude each other.
    pub fn is_of_settings(&self) -> bool {
        use HubError::{
            Above, AbsentNics, Alone, Certificate, DataPath, NoInterface, NoTransport, Place, Secret,
            Settings,
        };
        matches!(
            self,
            Above(_)
                | DataPath(ConnectError::Tcp(tcp::ConnectError::Congestion(_)))
                | AbsentNics { .. }
                | Alone
                | Certificate(_)
                | NoInterface { .. }
                | NoTransport
                | Place(_)
                | Secret(_)
                | Settings(_)
        )
    }
}

/// Returns the advice for an error of the system, if there is any.
fn advice(error: &std::io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => "; raise the number of open files (ulimit -n)",
        Some(Errno::AGAIN) => "; raise the number of threads (ulimit -u, or the pids of its control group)",
        Some(Errno::NOMEM) => "; free memory, or raise the limit of its control group",
        _ => "",
    }
}
