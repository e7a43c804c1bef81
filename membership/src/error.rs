//! The errors between a member of a job and its hubs, with one variant for each cause.

use std::time::Duration;

use authority::{CredentialError, TlsError};
use fabric::any::ConnectError;
use pbox_core::Round;
use pbox_core::control::{RefusalCode, Versions};

/// The error of a failed join, or of a membership that ended.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The list of hubs cannot be used.
    #[error(
        "hubs {seen:?}: {why}; expected host:port, or 2 to {} different addresses with commas between them",
        pbox_core::MAX_HUBS
    )]
    Hubs {
        /// The text that was given.
        seen: String,
        /// The fault.
        why: String,
    },
    /// The control port could not be reached.
    #[error(
        "cannot reach the hub's control port at {hub}: {cause}; is phub-server running there, and is the address right?"
    )]
    Unreachable {
        /// The address.
        hub: String,
        /// The reason.
        cause: String,
    },
    /// The hub refused a request.
    #[error("the hub at {hub} refused to {what}: {why}")]
    Refused {
        /// The address.
        hub: String,
        /// The request.
        what: &'static str,
        /// The code, from which programs decide what to do.
        code: RefusalCode,
        /// The hub's reason.
        why: String,
        /// The round that the job has reached at the hub, if the request named another round.
        round: Option<Round>,
    },
    /// The hub does not allow this process to make this request.
    #[error("the hub at {hub} does not let this process {what}: {why} (this process showed {shown})")]
    NotAllowed {
        /// The address.
        hub: String,
        /// The request.
        what: &'static str,
        /// The code, from which programs decide what to do.
        code: RefusalCode,
        /// The hub's reason.
        why: String,
        /// The source of the secret or token that this process showed.
        shown: String,
    },
    /// This process has no usable secret or token.
    #[error("the token or secret of this process cannot be used: {0}")]
    Credential(#[from] CredentialError),
    /// The hub uses a version of the protocol that this member does not speak.
    #[error(
        "the hub at {hub} admits this process with protocol {used}, and this process speaks {ours}; install \
         the same version at both ends"
    )]
    Protocol {
        /// The address.
        hub: String,
        /// The version that the hub uses.
        used: u32,
        /// The versions that this member speaks.
        ours: Versions,
    },
    /// The certificates with which this process checks hubs cannot be used.
    #[error("the TLS settings of this process cannot be used: {0}")]
    Trust(Box<TlsError>),
    /// The other end does not speak TLS, or this process does not trust it.
    #[error("no TLS with the hub's control port at {hub}: {why}")]
    NoTls {
        /// The address.
        hub: String,
        /// The reason.
        why: String,
    },
    /// The reply is not a reply that a hub can send.
    #[error(
        "the hub at {hub} answered to {what} with {saw}; expected protocol {}: is it a phub-server of this version?",
        pbox_core::control::PROTOCOL
    )]
    Nonsense {
        /// The address.
        hub: String,
        /// The request.
        what: &'static str,
        /// The reply.
        saw: String,
    },
    /// The ports of this member could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The data path to the hub could not be made.
    #[error("no data path to the hub at {hub}: {error}{}", before.as_ref().map_or(String::new(), |before| format!("; before that, {before}")))]
    DataPath {
        /// The address.
        hub: String,
        /// The error of the connection.
        error: Box<ConnectError>,
        /// The error of the transport that was tried before.
        before: Option<String>,
    },
    /// None of the transports that this member may use reaches the hub.
    #[error("no transport reaches the data path of the hub at {hub}:{}", list(.tried))]
    NoTransport {
        /// The hub's address.
        hub: String,
        /// Each tried transport, with the reason why it failed.
        tried: Vec<String>,
    },
    /// The job failed, because a member died or broke the protocol.
    #[error("job {job:?} failed: {reason}")]
    JobFailed {
        /// The job.
        job: String,
        /// The hub's reason.
        reason: String,
        /// Whether the job failed because a hub of the job stops or is lost.
        hub_stops: bool,
    },
    /// The hub died, or its network failed.
    #[error("job {job:?}: lost the hub at {hub}: {cause}")]
    HubLost {
        /// The job.
        job: String,
        /// The address.
        hub: String,
        /// The reason why the hub counts as lost.
        cause: String,
    },
    /// The state for the hub has the wrong length, or cannot be read.
    #[error(
        "job {job:?}: the state that this member brings {why}; expected {bytes} bytes: as f32 the weights of all keys, then the values of the optimizer"
    )]
    State {
        /// The job.
        job: String,
        /// The fault.
        why: String,
        /// The required length, in bytes.
        bytes: u64,
    },
    /// The worker has left, but the hub could not save the trained state.
    #[error(
        "job {job:?}: this worker has left, but the hub at {hub} did not write the last checkpoint: {why}; the job continues \
         from its earlier checkpoint, if there is one"
    )]
    CheckpointLost {
        /// The job.
        job: String,
        /// The address.
        hub: String,
        /// The hub's reason.
        why: String,
    },
    /// The operating system has no more threads or descriptors.
    #[error("this member of the job: {0}")]
    System(#[from] std::io::Error),
}

impl MemberError {
    /// Whether a hub of the job is lost or stops. The job may continue after the hub was restarted.
    pub fn is_loss_of_hub(&self) -> bool {
        matches!(self, MemberError::HubLost { .. } | MemberError::JobFailed { hub_stops: true, .. })
    }

    /// Returns the code of a hub's refusal.
    pub fn code(&self) -> Option<RefusalCode> {
        match self {
            MemberError::Refused { code, .. } | MemberError::NotAllowed { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Adds `more` to the text of this error, if it is about a lost hub.
    pub fn with_more(mut self, more: &str) -> Self {
        if let MemberError::HubLost { cause: text, .. } | MemberError::JobFailed { reason: text, .. } =
            &mut self
        {
            *text += more;
        }
        self
    }

    /// Adds the number of tries and their total time to this error.
    pub(crate) fn after(mut self, tries: u32, time: Duration) -> Self {
        if tries > 1
            && let MemberError::Unreachable { cause: text, .. }
            | MemberError::Refused { why: text, .. }
            | MemberError::Nonsense { saw: text, .. } = &mut self
        {
            *text += &format!(" (tried {tries} times in {:.1} s)", time.as_secs_f64());
        }
        self
    }
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n    {line}")).collect()
}
