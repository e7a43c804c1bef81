//! A member of a job: its state, and every transition between two states.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | (a free rank) | a join | `Joined` |
//! | `Joined` | the member connects to the data path | `Connecting` |
//! | `Connecting` | the connection leads nowhere | `Joined` |
//! | `Connecting` | a core has the member's link | `Connecting`, with one core more |
//! | `Connecting` | a cut lets the member take part | `TakesPart` |
//! | `TakesPart` | a link ends | `Unlinked`, `Dropping` by all cores |
//! | `Dropping` | a core has dropped its link | `Dropping` by one core less |
//! | `Dropping` by no core | the member asks for links | `Making`, by a new token |
//! | `Making` | the member connects by the token | `Making`, connected |
//! | `Making` | a core has the member's link | `Making`; after the last core `TakesPart` |
//! | `Making` | the member asks for new links | `Dropping` by all cores |
//! | all of these | the member is lost, or leaves a job that continues | `Leaving` |
//! | all of these | the member leaves a job that stops without it | `Left` |
//! | `Leaving` | a core has removed the member | `Leaving`; after the last core a free rank |
//!
//! Every other event changes nothing: a core's report may be late. Owned by the job. Knows no job, no core and no news.

use std::time::{Duration, Instant};

use fabric::any::Transport;
use pbox_core::control::{Latest, MemberReply};

use crate::asker::Asker;
use crate::links::{MemberLink, by_nic};
use crate::tokens::Token;

/// A living worker notices the loss of its link within this time.
const LIVES_WITHIN: Duration = Duration::from_secs(2);
/// The heartbeat of a worker that dies ends within this time after the worker's links. News would answer the heartbeat
/// earlier.
const DIES_WITHIN: Duration = Duration::from_millis(100);

/// A worker, or a hub below, that joined.
#[derive(Debug)]
pub struct Member {
    /// The state.
    pub standing: Standing,
    /// The party that joined.
    pub(crate) from: Option<Asker>,
    /// The time of its last heartbeat.
    pub heard: Instant,
    /// The late worker of a hub below, by the hub's last report.
    pub latest: Option<Latest>,
    /// The transport of its links, once it has some.
    pub transport: Option<Transport>,
    /// The links, one for each core of the job.
    pub links: Vec<MemberLink>,
    /// The number of the worker at all hubs of the job.
    pub(crate) worker: u64,
    /// Whether the member makes new links when links are lost.
    pub relinks: bool,
    /// The last heartbeat ended without an answer.
    pub hung_up: bool,
}

/// The state of a member.
#[derive(Debug)]
pub enum Standing {
    /// Has joined. A hub below is ready once all its own members have joined; a worker is always ready.
    Joined {
        /// Whether the member needs nothing but links.
        is_ready: bool,
    },
    /// Has connected to the data path. This many cores have its link.
    Connecting {
        /// Whether the member needs nothing but links.
        is_ready: bool,
        /// The number of cores.
        attached: usize,
    },
    /// The member takes part. If its links were replaced, this is the token of their connection.
    TakesPart {
        /// The token.
        relinked_by: Option<Token>,
    },
    /// The member takes part, and its links are lost.
    Unlinked(Unlinked),
    /// Left normally, in a job that does not continue without its ranks. The rank stays taken.
    Left,
    /// Was lost or left, and the job continues. This many cores have not removed the member yet.
    Leaving {
        /// The number of cores.
        cores: usize,
    },
}

/// The lost links of a member that takes part.
#[derive(Debug)]
pub struct Unlinked {
    /// The reason why the member is lost if it makes no new links.
    pub why: String,
    since: Instant,
    /// The time since which news of the loss wait for the member.
    told: Option<Instant>,
    relink: Relink,
}

/// The path to other links.
#[derive(Debug)]
enum Relink {
    /// The number of cores that have not dropped the old links yet.
    Dropping { cores: usize },
    /// The member makes new links by a connection with this token. `attached` cores have its link.
    Making { token: Token, is_connected: bool, attached: usize },
}

impl Member {
    /// Returns the address from which the member joined, for the log.
    pub fn place(&self) -> Option<String> {
        self.from.as_ref().map(Asker::to_string)
    }

    /// Describes the member of a rank.
    pub(super) fn describe(&self, rank: u32, now: Instant) -> MemberReply {
        MemberReply {
            rank,
            silent_ms: (now - self.heard).as_millis() as u64,
            address: self.from.as_ref().map(|from| from.address.to_string()),
            host: self.from.as_ref().and_then(|from| from.host.as_deref().map(str::to_owned)),
            transport: self.transport.map(|transport| transport.to_string()),
            links: by_nic(&self.links),
            latest: self.latest.clone(),
        }
    }

    /// Whether a member of a running job may make new links now.
    pub(crate) fn may_relink(&self) -> bool {
        self.relinks && self.transport.is_some() && !self.hung_up && self.standing.takes_part()
    }

    /// Whether a member of a running job may make new links after a link ended by itself. If so, it is not lost yet.
    pub(crate) fn waits_for_links(&self) -> bool {
        // A link on shared memory ends only by the worker's death, unless the worker gives it up. A worker that makes new links
        // gives up its links to this hub if it gets none to another hub.
        let lives = self.transport != Some(Transport::Shm) || self.standing.has_relinked();
        lives && self.may_relink()
    }

    /// Notes that the member's heartbeat ended without an answer. If its links are lost, returns why the member is lost.
    pub(crate) fn hangs_up(&mut self) -> Option<String> {
        self.hung_up = true;
        self.standing.why_unlinked().map(str::to_owned)
    }
}

impl Standing {
    /// Notes a connection. Returns false if the token is not valid for one now.
    pub(crate) fn connect(&mut self, by: Token) -> bool {
        match self {
            Standing::Joined { is_ready } => {
                *self = Standing::Connecting { is_ready: *is_ready, attached: 0 };
                true
            }
            Standing::Unlinked(Unlinked { relink: Relink::Making { token, is_connected, .. }, .. }) => {
                *token == by && !std::mem::replace(is_connected, true)
            }
            _ => false,
        }
    }

    /// Notes that the member's connection failed: the member may connect again.
    pub(crate) fn disconnect(&mut self) {
        match self {
            Standing::Connecting { is_ready, .. } => *self = Standing::Joined { is_ready: *is_ready },
            Standing::Unlinked(Unlinked { relink: Relink::Making { is_connected, .. }, .. }) => {
                *is_connected = false;
            }
            _ => {}
        }
    }

    /// Notes that one of the job's `cores` has the member's link. Returns true if lost links are being replaced.
    pub(crate) fn attach(&mut self, cores: usize) -> bool {
        match self {
            Standing::Connecting { attached, .. } => *attached += 1,
            Standing::Unlinked(Unlinked { relink: Relink::Making { token, attached, .. }, .. }) => {
                *attached += 1;
                if *attached >= cores {
                    *self = Standing::TakesPart { relinked_by: Some(*token) };
                    return true;
                }
            }
            _ => {}
        }
        false
    }

    /// Notes that a hub below has all its members. Returns false if that was known.
    pub(crate) fn make_ready(&mut self) -> bool {
        match self {
            Standing::Joined { is_ready } | Standing::Connecting { is_ready, .. } => {
                !std::mem::replace(is_ready, true)
            }
            _ => false,
        }
    }

    /// Whether the member is ready and all `cores` have its link, so that a cut may let it take part.
    pub fn waits_for_cut(&self, cores: usize) -> bool {
        matches!(self, Standing::Connecting { is_ready: true, attached } if *attached >= cores)
    }

    /// Lets the member take part. Returns false if it does not wait for that.
    pub(crate) fn take_part(&mut self) -> bool {
        let waits = matches!(self, Standing::Connecting { .. });
        if waits {
            *self = Standing::TakesPart { relinked_by: None };
        }
        waits
    }

    /// Whether the member takes part, with or without links.
    pub fn takes_part(&self) -> bool {
        matches!(self, Standing::TakesPart { .. } | Standing::Unlinked(_))
    }

    /// Whether the member is still there: it has not left and is not lost.
    pub fn is_member(&self) -> bool {
        !matches!(self, Standing::Left | Standing::Leaving { .. })
    }

    /// Whether the member has left a job that does not continue without its ranks.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self, Standing::Left)
    }

    /// Notes the loss of a member's links: all `cores` drop them. Returns the token of a connection that is lost, too.
    pub(crate) fn unlink(&mut self, cores: usize, why: &str, now: Instant) -> Option<Token> {
        let token = match self {
            Standing::TakesPart { relinked_by } => *relinked_by,
            Standing::Unlinked(Unlinked { relink: Relink::Making { token, .. }, .. }) => Some(*token),
            _ => return None,
        };
        let relink = Relink::Dropping { cores };
        *self = Standing::Unlinked(Unlinked { why: why.to_owned(), since: now, told: None, relink });
        token
    }

    /// Notes that a core has dropped its lost link.
    pub(crate) fn dropped(&mut self) {
        if let Standing::Unlinked(Unlinked { relink: Relink::Dropping { cores }, .. }) = self {
            *cores = cores.saturating_sub(1);
        }
    }

    /// Returns the record of the lost links.
    pub(crate) fn unlinked(&mut self) -> Option<&mut Unlinked> {
        match self {
            Standing::Unlinked(unlinked) => Some(unlinked),
            _ => None,
        }
    }

    /// Returns why the member is lost unless it makes new links.
    pub fn why_unlinked(&self) -> Option<&str> {
        match self {
            Standing::Unlinked(unlinked) => Some(&unlinked.why),
            _ => None,
        }
    }

    /// Whether all cores have dropped the links that the member has lost.
    pub fn has_dropped(&self) -> bool {
        matches!(self, Standing::Unlinked(unlinked) if unlinked.is_dropped())
    }

    /// Whether the member has lost links since it began to take part. If so, it has ended links by itself, or may do so.
    pub fn has_relinked(&self) -> bool {
        matches!(self, Standing::Unlinked(_) | Standing::TakesPart { relinked_by: Some(_) })
    }

    /// Whether the cores drop lost links, and the member has no token for new ones.
    pub fn is_dropping(&self) -> bool {
        matches!(self, Standing::Unlinked(Unlinked { relink: Relink::Dropping { .. }, .. }))
    }

    /// Begins the end of a member of a job that continues: all `cores` remove it.
    pub(crate) fn lose(&mut self, cores: usize) {
        *self = Standing::Leaving { cores };
    }

    /// Notes that a core has removed the member. Returns true after the last core.
    pub(crate) fn removed(&mut self) -> bool {
        let Standing::Leaving { cores } = self else { return false };
        *cores = cores.saturating_sub(1);
        *cores == 0
    }
}

impl Unlinked {
    /// Lets the member connect by a new token, once all cores have dropped the old links. Returns the old token, if the request
    /// was repeated.
    pub(crate) fn grant(&mut self, token: Token) -> Option<Token> {
        let (former, attached) = match self.relink {
            Relink::Dropping { .. } => (None, 0),
            Relink::Making { token, attached, .. } => (Some(token), attached),
        };
        self.relink = Relink::Making { token, is_connected: false, attached };
        former
    }

    /// Whether all cores have dropped the old links.
    pub fn is_dropped(&self) -> bool {
        !matches!(self.relink, Relink::Dropping { cores: 1.. })
    }

    /// Whether it is time for news, which a living member answers.
    pub(crate) fn is_to_be_told(&mut self, now: Instant) -> bool {
        let is_time = self.told.is_none() && now - self.since > DIES_WITHIN;
        self.told = self.told.or(is_time.then_some(now));
        is_time
    }

    /// Whether a member without links is dead. News waited for it, and it has sent no heartbeat since; `heard` is the time of
    /// its last.
    pub fn is_dead(&self, heard: Instant, now: Instant) -> bool {
        self.told.is_some_and(|told| heard < told && now - told > LIVES_WITHIN)
    }
}
