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
//! | `Making` | the member asks for links again | `Dropping` by all cores |
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

/// A worker that lives and has lost its link learns of the loss within this time.
const LIVES_WITHIN: Duration = Duration::from_secs(2);
/// The heartbeat of a worker that died ends within this time after its links. News would answer it.
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
    /// The late worker of a hub below, as it said last.
    pub latest: Option<Latest>,
    /// The transport of its links, once it has some.
    pub transport: Option<Transport>,
    /// The links, one for each core of the job.
    pub links: Vec<MemberLink>,
    /// The number of the worker at all hubs of the job.
    pub(crate) worker: u64,
    /// Whether the member makes its links again when they are lost.
    pub relinks: bool,
    /// The last heartbeat ended without an answer.
    pub hung_up: bool,
}

/// The state of a member.
#[derive(Debug)]
pub enum Standing {
    /// Has joined. A hub below is ready once all its own members have joined; a worker is always ready.
    Joined {
        /// Whether it has all that it needs besides its links.
        is_ready: bool,
    },
    /// Has connected to the data path. This many cores have its link.
    Connecting {
        /// Whether it has all that it needs besides its links.
        is_ready: bool,
        /// The number of cores.
        attached: usize,
    },
    /// Takes part. If its links were made again, this is the token of their connection.
    TakesPart {
        /// The token.
        relinked_by: Option<Token>,
    },
    /// Takes part, and its links are lost.
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
    /// Since when there are news of it.
    told: Option<Instant>,
    relink: Relink,
}

/// The path to other links.
#[derive(Debug)]
enum Relink {
    /// This many cores have not dropped the former links yet.
    Dropping { cores: usize },
    /// The member makes links by one connection with this token. This many cores have its link.
    Making { token: Token, is_connected: bool, attached: usize },
}

impl Member {
    /// Returns the place from which the member joined, for the log.
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

    /// Whether the member of a job that runs may make its links again now.
    pub(crate) fn may_relink(&self) -> bool {
        self.relinks && self.transport.is_some() && !self.hung_up && self.standing.takes_part()
    }

    /// Whether a member of a job that runs may make its links again, when one has ended by itself. Then it is not lost yet.
    pub(crate) fn waits_for_links(&self) -> bool {
        // A link on shared memory that its worker has not given up ends only by a death. One that makes its links again gives up
        // those to this hub, if it cannot have those to another.
        let lives = self.transport != Some(Transport::Shm) || self.standing.has_relinked();
        lives && self.may_relink()
    }

    /// Notes that its heartbeat ended without an answer. Returns why the member is lost, if its links are.
    pub(crate) fn hangs_up(&mut self) -> Option<String> {
        self.hung_up = true;
        self.standing.why_unlinked().map(str::to_owned)
    }
}

impl Standing {
    /// Notes a connection. False if the token is good for none now.
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

    /// Takes a connection back that led nowhere.
    pub(crate) fn disconnect(&mut self) {
        match self {
            Standing::Connecting { is_ready, .. } => *self = Standing::Joined { is_ready: *is_ready },
            Standing::Unlinked(Unlinked { relink: Relink::Making { is_connected, .. }, .. }) => {
                *is_connected = false;
            }
            _ => {}
        }
    }

    /// Notes that one of the job's `cores` has the member's link. True if lost links are made again.
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

    /// Notes that a hub below has all its members. False if that was known.
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

    /// Lets the member take part. False if it does not wait for that.
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

    /// Returns why the member is lost if it makes no links in place of those that it has lost.
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

    /// Whether the member has lost links since it takes part. If so, it has ended links by itself, or may do so.
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

    /// Notes that a core has removed the member. True after the last core.
    pub(crate) fn removed(&mut self) -> bool {
        let Standing::Leaving { cores } = self else { return false };
        *cores = cores.saturating_sub(1);
        *cores == 0
    }
}

impl Unlinked {
    /// Lets the member connect by a new token, once all cores have dropped the former links. Returns the token before, of a
    /// request that was made again.
    pub(crate) fn grant(&mut self, token: Token) -> Option<Token> {
        let (former, attached) = match self.relink {
            Relink::Dropping { .. } => (None, 0),
            Relink::Making { token, attached, .. } => (Some(token), attached),
        };
        self.relink = Relink::Making { token, is_connected: false, attached };
        former
    }

    /// Whether all cores have dropped the former links.
    pub fn is_dropped(&self) -> bool {
        !matches!(self.relink, Relink::Dropping { cores: 1.. })
    }

    /// Whether it is time for news, which a living member takes.
    pub(crate) fn is_to_be_told(&mut self, now: Instant) -> bool {
        let is_time = self.told.is_none() && now - self.since > DIES_WITHIN;
        self.told = self.told.or(is_time.then_some(now));
        is_time
    }

    /// Whether a member with its last message at that time does not live.
    pub fn is_dead(&self, heard: Instant, now: Instant) -> bool {
        self.told.is_some_and(|told| heard < told && now - told > LIVES_WITHIN)
    }
}
