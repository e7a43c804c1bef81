//! A member of a job: its state, and every transition between two states.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | (a free rank) | a join | `Joined` |
//! | `Joined` | the member connects to the data path | `Connecting` |
//! | `Joined`, in a job that has not begun and has other members | the client hung up before the answer | the rank is free |
//! | `Connecting` | the connection fails | `Joined` |
//! | `Connecting` | a core has the member's link | `Connecting`, with one core more |
//! | `Connecting` | a cut lets the member take part | `TakesPart` |
//! | `TakesPart` | a link ends | `Unlinked`: all cores are `Dropping` the links |
//! | `Dropping` | a core has dropped the member's link | `Dropping`, with one core less |
//! | `Dropping`, and no core is left | the member asks for links | `Making`, with a new token |
//! | `Making` | the member connects by the token | `Making`, connected |
//! | `Making` | a core has the member's link | `Making`; after the last core `TakesPart` |
//! | `Making` | the member asks for new links | `Dropping`, by all cores |
//! | each of these states | the member is lost, or leaves a job that continues without its rank | `Leaving` |
//! | each of these states | the member leaves a job that keeps its rank taken | `Left` |
//! | `Leaving` | a core has removed the member | `Leaving`; after the last core the rank is free |
//!
//! Every other event changes nothing, because a core's report may be late. Owned by the job. Does not depend on jobs,
//! cores or news.

use std::time::{Duration, Instant};

use fabric::any::Transport;
use pbox_core::control::{Latest, MemberReply};

use crate::asker::Asker;
use crate::links::{MemberLink, by_nic};
use crate::tokens::Token;

/// The time within which a living worker without links sends a heartbeat. The time begins at the hub's news, or at the end of
/// the previous heartbeat.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(2);
/// The longest time from the end of a dying worker's links to the end of its heartbeat request. The hub sends no news
/// within this time, because news would answer the heartbeat.
const HANG_UP_WITHIN: Duration = Duration::from_millis(100);

/// A worker, or a hub below, that has joined.
#[derive(Debug)]
pub struct Member {
    /// The state.
    pub standing: Standing,
    /// The client that joined.
    pub(crate) from: Option<Asker>,
    /// The time of the member's last heartbeat.
    pub last_heartbeat: Instant,
    /// The late worker below this member, from the member's last report, if the member is a hub.
    pub latest: Option<Latest>,
    /// The transport of the member's links, once it has links.
    pub transport: Option<Transport>,
    /// The member's links, one for each core of the job.
    pub links: Vec<MemberLink>,
    /// The number of the worker at all hubs of the job.
    pub(crate) worker: u64,
    /// Whether the member reconnects when it loses its links.
    pub relinks: bool,
    /// The time at which the member's last heartbeat request ended, if it ended without an answer.
    pub hung_up: Option<Instant>,
}

/// The state of a member.
#[derive(Debug)]
pub enum Standing {
    /// The member has joined. A hub below is ready once all its own members have joined; a worker is always ready.
    Joined {
        /// Whether the member lacks nothing but links.
        is_ready: bool,
    },
    /// The member has connected to the data path.
    Connecting {
        /// Whether the member lacks nothing but links.
        is_ready: bool,
        /// The number of cores that have the member's link.
        attached: usize,
    },
    /// The member takes part.
    TakesPart {
        /// The token of the connection that replaced the member's links, if they were replaced.
        relinked_by: Option<Token>,
    },
    /// The member takes part, and its links are lost.
    Unlinked(Unlinked),
    /// The member left normally a job that does not continue without its rank. The rank stays taken.
    Left,
    /// The member was lost or left, and the job continues.
    Leaving {
        /// The number of cores that have not removed the member yet.
        cores: usize,
    },
}

/// The lost links of a member that takes part.
#[derive(Debug)]
pub struct Unlinked {
    /// The reason for the member's loss, if it does not reconnect.
    pub why: String,
    since: Instant,
    /// The time at which the hub sent the member news, to see whether the member is alive.
    notified: Option<Instant>,
    relink: Relink,
}

/// The steps to new links.
#[derive(Debug)]
enum Relink {
    /// The number of cores that have not dropped the old links yet.
    Dropping { cores: usize },
    /// The member connects again by this token. `attached` cores have its new link.
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
            silent_ms: (now - self.last_heartbeat).as_millis() as u64,
            address: self.from.as_ref().map(|from| from.address.to_string()),
            host: self.from.as_ref().and_then(|from| from.host.as_deref().map(str::to_owned)),
            transport: self.transport.map(|transport| transport.to_string()),
            links: by_nic(&self.links),
            latest: self.latest.clone(),
        }
    }

    /// Whether a member of a running job may reconnect now.
    pub(crate) fn may_relink(&self) -> bool {
        self.relinks && self.transport.is_some() && self.hung_up.is_none() && self.standing.takes_part()
    }

    /// Whether a member of a running job may reconnect after a link ended by itself, and so is not lost yet.
    pub(crate) fn waits_for_links(&self) -> bool {
        // A link on shared memory ends only if the worker dies or closes the link. A worker that has reconnected closes its
        // links to this hub if it gets no links to another hub.
        let lives = self.transport != Some(Transport::Shm) || self.standing.has_relinked();
        lives && self.may_relink()
    }

    /// Notes that the member's heartbeat ended without an answer. If the member has no links, returns why it is lost.
    pub(crate) fn note_hang_up(&mut self, now: Instant) -> Option<String> {
        self.hung_up = Some(now);
        self.standing.why_unlinked().map(str::to_owned)
    }

    /// Whether the member has joined, and has not connected to the data path.
    pub(crate) fn has_not_connected(&self) -> bool {
        matches!(self.standing, Standing::Joined { .. })
    }

    /// Whether the member died before it connected: a heartbeat ended without an answer, and the member has sent no heartbeat
    /// since. If the hub was suspended, the time counts from the end of the suspension.
    pub(crate) fn is_dead_before_links(&self, now: Instant) -> bool {
        let is_due = |hung_up: Instant| now - hung_up.max(self.last_heartbeat) > HEARTBEAT_WITHIN;
        self.has_not_connected() && self.hung_up.is_some_and(is_due)
    }
}

impl Standing {
    /// Notes a connection. Returns false if the token is not valid for a connection now.
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

    /// Notes that the member's connection failed, so that the member may connect again.
    pub(crate) fn disconnect(&mut self) {
        match self {
            Standing::Connecting { is_ready, .. } => *self = Standing::Joined { is_ready: *is_ready },
            Standing::Unlinked(Unlinked { relink: Relink::Making { is_connected, .. }, .. }) => {
                *is_connected = false;
            }
            _ => {}
        }
    }

    /// Notes that one of the job's `cores` has the member's link. Returns true after the last link of a member that
    /// reconnects.
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

    /// Notes that all members of a hub below have joined. Returns false if this had been noted before.
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

    /// Lets the member take part. Returns false if the member did not wait to take part.
    pub(crate) fn let_take_part(&mut self) -> bool {
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

    /// Whether the member still belongs to the job: it has not left and is not lost.
    pub fn is_member(&self) -> bool {
        !matches!(self, Standing::Left | Standing::Leaving { .. })
    }

    /// Whether the member has left a job that does not continue without its rank.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self, Standing::Left)
    }

    /// Notes that a member has lost its links. All `cores` must drop these links. If the member had reconnected,
    /// returns the token of the new connection, which is also lost.
    pub(crate) fn unlink(&mut self, cores: usize, why: &str, now: Instant) -> Option<Token> {
        let token = match self {
            Standing::TakesPart { relinked_by } => *relinked_by,
            Standing::Unlinked(Unlinked { relink: Relink::Making { token, .. }, .. }) => Some(*token),
            _ => return None,
        };
        let relink = Relink::Dropping { cores };
        *self = Standing::Unlinked(Unlinked { why: why.to_owned(), since: now, notified: None, relink });
        token
    }

    pub(crate) fn note_dropped(&mut self) {
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

    /// Returns the reason for the member's loss, if it has no links and does not reconnect.
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

    /// Whether the member has lost links since it began to take part. Such a member may close links by itself.
    pub fn has_relinked(&self) -> bool {
        matches!(self, Standing::Unlinked(_) | Standing::TakesPart { relinked_by: Some(_) })
    }

    /// Whether a member that has lost its links cannot connect yet, because cores are dropping the links, or because
    /// the member has no token.
    pub fn is_dropping(&self) -> bool {
        matches!(self, Standing::Unlinked(Unlinked { relink: Relink::Dropping { .. }, .. }))
    }

    /// Begins the removal of a member from a job that continues. All `cores` must remove the member.
    pub(crate) fn lose(&mut self, cores: usize) {
        *self = Standing::Leaving { cores };
    }

    /// Notes that a core has removed the member. Returns true after the last core.
    pub(crate) fn note_removed(&mut self) -> bool {
        let Standing::Leaving { cores } = self else { return false };
        *cores = cores.saturating_sub(1);
        *cores == 0
    }
}

impl Unlinked {
    /// Lets the member connect by a new token. All cores must have dropped the old links. If the member had got a token
    /// already, returns that former token.
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

    /// Notes that the hub sends news now, which a living member answers. Returns false if the news is not due yet, or was
    /// sent before.
    pub(crate) fn notify_if_due(&mut self, now: Instant) -> bool {
        let is_time = self.notified.is_none() && now - self.since > HANG_UP_WITHIN;
        self.notified = self.notified.or(is_time.then_some(now));
        is_time
    }

    /// Whether a member without links is dead: it has sent no heartbeat since the hub sent news. `last_heartbeat` is the
    /// time of the member's last heartbeat.
    pub fn is_dead(&self, last_heartbeat: Instant, now: Instant) -> bool {
        self.notified.is_some_and(|notified| last_heartbeat < notified && now - notified > HEARTBEAT_WITHIN)
    }
}
