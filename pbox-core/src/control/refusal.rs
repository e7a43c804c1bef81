//! Refusals: the body of each reply that reports an error, and the codes by which programs distinguish refusals.
//!
//! The text is for people, and may change with each version. A program decides only by the code.
//! `docs/protocol/control-port.md` has the list of the codes. This module must depend on nothing of HTTP except the
//! number of a status.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::layout::Round;

/// The body of every reply that reports an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// The code, from which programs decide what to do. Hubs of older versions send no code.
    #[serde(default, skip_serializing_if = "RefusalCode::is_other")]
    pub code: RefusalCode,
    /// The text: the fault, the expected value, and the next step.
    pub error: String,
    /// The round that the job has reached at this hub. Only with `round_passed` and `round_far`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<Round>,
}

/// Declares the codes. Each has a word on the wire, and an HTTP status.
macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident = $word:literal, $status:literal;)*) => {
        /// The reason why a hub refuses a request, if clients need to distinguish it from other reasons.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum RefusalCode {
            $($(#[doc = $doc])+ $code,)*
            /// A code that this program does not know, or no code at all.
            #[default]
            Other,
        }

        impl RefusalCode {
            /// All codes that this program knows.
            pub const ALL: &[RefusalCode] = &[$(RefusalCode::$code,)*];

            /// Returns the word on the wire.
            pub fn word(self) -> &'static str {
                match self {
                    $(RefusalCode::$code => $word,)*
                    RefusalCode::Other => "other",
                }
            }

            /// Returns the HTTP status of a reply with this code.
            pub fn status(self) -> u16 {
                match self {
                    $(RefusalCode::$code => $status,)*
                    RefusalCode::Other => 500,
                }
            }
        }
    };
}

codes! {
    /// The request itself is wrong.
    BadRequest = "bad_request", 400;
    /// The hub speaks only TLS.
    TlsWanted = "tls_wanted", 400;
    /// The request shows no token.
    TokenMissing = "token_missing", 401;
    /// The token was not made from this hub's secret.
    TokenForeign = "token_foreign", 401;
    /// The token has expired.
    TokenExpired = "token_expired", 401;
    /// The token does not allow this request.
    NotAllowed = "not_allowed", 403;
    /// A web page of another site sent the request.
    WebPage = "web_page", 403;
    /// The hub has no page at this path.
    PageUnknown = "page_unknown", 404;
    /// The page exists, but not for this HTTP method.
    OtherMethod = "other_method", 405;
    /// The hub has no job of this name, or the job of this name has another secret.
    JobUnknown = "job_unknown", 404;
    /// No worker of the job has this token: the worker left, or its job ended.
    TokenUnknown = "token_unknown", 404;
    /// The job continued without this worker.
    WorkerLost = "worker_lost", 404;
    /// The job ended while the hub handled the request.
    JobEnded = "job_ended", 404;
    /// The hub stops, and admits no worker.
    HubStops = "hub_stops", 404;
    /// A part of the hub failed. The hub's log has the reason.
    Internal = "internal", 404;
    /// The body of the request arrived too slowly.
    Stalled = "stalled", 408;
    /// The two ends have no common version of the protocol.
    ProtocolDiffers = "protocol_differs", 409;
    /// The worker's terms are not those of the job.
    TermsDiffer = "terms_differ", 409;
    /// Another worker has the rank, or another hub has the machine's number.
    RankTaken = "rank_taken", 409;
    /// The worker reports that it has reached a round that it cannot have reached.
    ReachedDiffers = "reached_differs", 409;
    /// The job has failed.
    JobFailed = "job_failed", 409;
    /// The worker cannot reconnect.
    NoRelink = "no_relink", 409;
    /// The job neither sends nor accepts a state at this hub now.
    NoState = "no_state", 409;
    /// The job never has a state at this hub: the hubs above have the state, or only the workers.
    NeverState = "never_state", 409;
    /// The job has passed the round before which a state is wanted.
    RoundPassed = "round_passed", 409;
    /// The round before which a state is wanted is too far ahead.
    RoundFar = "round_far", 409;
    /// The hub writes no checkpoints of the job.
    NoCheckpoints = "no_checkpoints", 409;
    /// The job's checkpoint cannot be used.
    CheckpointUnusable = "checkpoint_unusable", 409;
    /// Another hub's request is for a cut (a pause between two rounds) that is over.
    CutStale = "cut_stale", 409;
    /// The hubs form a circle: a hub is above itself.
    Circle = "circle", 409;
    /// The hubs of a mesh cannot meet at this hub.
    NoMesh = "no_mesh", 409;
    /// The hubs of some machines did not meet in time.
    MachinesMissing = "machines_missing", 409;
    /// A hub above this hub refuses the request.
    RefusedAbove = "refused_above", 409;
    /// The hub takes no new jobs, and ends together with its current jobs.
    Draining = "draining", 409;
    /// The body of the request is too long.
    TooLarge = "too_large", 413;
    /// The body has a type that web forms send.
    WebForm = "web_form", 415;
    /// The rank is not free yet. The worker may try again.
    RankBusy = "rank_busy", 503;
    /// Hub 0 has another job with this name. The worker may try again.
    JobDiffers = "job_differs", 503;
    /// Other clients use everything that the hub reserves for requests of this kind. The client may try again.
    Busy = "busy", 503;
    /// The hub has no free connection. The client may try again.
    NoConnection = "no_connection", 503;
    /// The hub is not healthy, or is stopping. Workers cannot join now.
    NotReady = "not_ready", 503;
    /// The hub does not have enough memory.
    NoMemory = "no_memory", 507;
    /// The hub does not have enough threads, or lacks another resource of the system.
    NoResource = "no_resource", 507;
    /// The hub has reached its limit of jobs.
    JobsLimit = "jobs_limit", 507;
    /// An address or a job has reached its quota.
    Quota = "quota", 507;
    /// The checkpoint was not written.
    NotSaved = "not_saved", 507;
    /// A core of the hub did not answer in time.
    CoreSilent = "core_silent", 507;
    /// The hubs above cannot be reached.
    NoneAbove = "none_above", 507;
}

impl RefusalCode {
    /// Whether the code is missing, or unknown to this program.
    pub fn is_other(&self) -> bool {
        *self == RefusalCode::Other
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Serialize for RefusalCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for RefusalCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let known = Self::ALL.iter().find(|code| code.word() == word);
        Ok(known.copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> ErrorReply {
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn a_code_is_read_as_it_was_written() {
        for &code in RefusalCode::ALL {
            let body = serde_json::to_string(&ErrorReply { code, error: "no".into(), round: None }).unwrap();
            assert_eq!(body, format!(r#"{{"code":"{code}","error":"no"}}"#));
            assert_eq!(read(&body).code, code);
        }
    }

    #[test]
    fn a_hub_of_another_version_may_say_no_code_or_a_new_one() {
        for body in [r#"{"error":"no"}"#, r#"{"error":"no","code":"of_tomorrow"}"#] {
            assert_eq!(read(body), ErrorReply { code: RefusalCode::Other, error: "no".into(), round: None });
        }
    }

    #[test]
    fn the_page_has_all_codes_with_their_statuses() {
        let page = include_str!("../../../docs/protocol/control-port.md");
        let list = page.split("\nThe codes, by status:\n").nth(1).expect("a list of codes");
        let mut status = "";
        let mut codes = Vec::new();
        for line in list.lines().take_while(|line| !line.starts_with('#')) {
            status = line.strip_prefix("**").and_then(|line| line.strip_suffix("**")).unwrap_or(status);
            codes.extend(
                line.strip_prefix("- `").map(|line| format!("{status} {}", line.split('`').next().unwrap())),
            );
        }
        let mut expected: Vec<_> =
            RefusalCode::ALL.iter().map(|code| format!("{} {code}", code.status())).collect();
        codes.sort();
        expected.sort();
        assert_eq!(codes, expected);
    }
}
