//! Congestion control: which of the kernel's algorithms a connection of the data path has.
//!
//! Each end chooses the algorithm for the bytes that it sends, once per connection, at the handshake. This
//! module depends on sockets, but not on the meaning of their bytes.
//!
//! Between the machines of a rack, many connections share the queue of one switch port. Algorithms that pace
//! by a model of the path (BBR) leave a part of such a link unused. Algorithms that send faster until a
//! packet is lost fill the link. Over long paths, BBR is the better choice.

use std::fmt;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use super::io::round_trip;

/// The longest round trip of a short path, measured in the handshake. Within a data centre a round trip takes
/// less than 1 ms, within a region 2 ms.
const SHORT: Duration = Duration::from_millis(10);
/// Algorithms that fill a link between near machines, best first. Every kernel has `reno`.
const LOSS_BASED: [&str; 2] = ["cubic", "reno"];
/// The common prefix of the names of the algorithms that a [`LOSS_BASED`] algorithm replaces on short paths.
const PACED: &str = "bbr";
/// The longest name that the kernel stores, in bytes.
const NAME_BYTES: usize = 15;

/// The requested congestion control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// The system's algorithm. On a short path, a loss-based algorithm that this process may use replaces BBR.
    #[default]
    Auto,
    /// The system's algorithm.
    System,
    /// The algorithm of this name.
    Named(String),
}

impl Congestion {
    /// Sets the algorithm for a connection after its handshake, which has measured the round trip.
    pub(super) fn control(&self, socket: &TcpStream) -> Result<Controlled, CongestionError> {
        let own =
            sockopt::tcp_congestion(socket).map_err(|errno| CongestionError::new("of the system", errno))?;
        let is_near = || round_trip(socket.as_fd()).is_ok_and(is_short);
        self.choose(own, is_near, |name| sockopt::set_tcp_congestion(socket, name))
    }

    /// Sets the algorithm for the connections that a listening socket will accept. With `Auto`, each
    /// connection chooses its own algorithm later. Returns the algorithm of connections over short paths, for
    /// the log.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the requested algorithm.
    pub(super) fn control_all(&self, socket: BorrowedFd) -> Result<Controlled, CongestionError> {
        let own =
            sockopt::tcp_congestion(socket).map_err(|errno| CongestionError::new("of the system", errno))?;
        let chosen = self.choose(own.clone(), || true, |name| sockopt::set_tcp_congestion(socket, name));
        if *self == Congestion::Auto {
            let _ = sockopt::set_tcp_congestion(socket, &own);
        }
        chosen
    }

    fn choose(
        &self,
        own: String,
        is_near: impl FnOnce() -> bool,
        set: impl Fn(&str) -> Result<(), Errno>,
    ) -> Result<Controlled, CongestionError> {
        match self {
            Congestion::Named(name) => {
                set(name).map_err(|errno| CongestionError::new(name, errno))?;
                Ok(Controlled { name: name.clone(), why: "as set".into() })
            }
            Congestion::System => Ok(Controlled { name: own, why: "the system's own, as set".into() }),
            Congestion::Auto if !own.starts_with(PACED) => {
                Ok(Controlled { name: own, why: "the system's own".into() })
            }
            Congestion::Auto if !is_near() => {
                Ok(Controlled { name: own, why: "the system's own, over a long path".into() })
            }
            Congestion::Auto => match LOSS_BASED.into_iter().find(|name| set(name).is_ok()) {
                Some(name) => {
                    let why = format!("over a short path, in place of the system's {own}");
                    Ok(Controlled { name: name.into(), why })
                }
                None => {
                    let why = format!(
                        "the system's own; over this path {} would be faster, but this process may not use them, \
                         see net.ipv4.tcp_allowed_congestion_control",
                        LOSS_BASED.join(" or ")
                    );
                    Ok(Controlled { name: own, why })
                }
            },
        }
    }
}

/// Whether the round trip of a handshake is as short as between near machines. A round trip of zero is
/// unknown, because a packet was lost.
fn is_short(round_trip: Duration) -> bool {
    !round_trip.is_zero() && round_trip <= SHORT
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Congestion::Auto => "auto",
            Congestion::System => "system",
            Congestion::Named(name) => name,
        })
    }
}

/// The error of a text that does not name a congestion control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a congestion control; expected auto, system, or a name of the kernel's, like cubic")]
pub struct ParseCongestionError(String);

impl FromStr for Congestion {
    type Err = ParseCongestionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        match text {
            "auto" => Ok(Congestion::Auto),
            "system" => Ok(Congestion::System),
            name if (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(is_of_a_name) => {
                Ok(Congestion::Named(name.to_owned()))
            }
            _ => Err(ParseCongestionError(text.to_owned())),
        }
    }
}

/// The congestion control of a connection. Logs show it as words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controlled {
    /// The algorithm's name.
    pub name: String,
    /// The reason for this choice.
    pub why: String,
}

impl Controlled {
    /// Whether the algorithm paces by a model of the path. Such an algorithm leaves a part of the links
    /// between near machines unused.
    pub fn is_paced(&self) -> bool {
        self.name.starts_with(PACED)
    }
}

impl fmt::Display for Controlled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "congestion control {} ({})", self.name, self.why)
    }
}

/// The error of a congestion control that is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "TCP's congestion control {name}: {}; this kernel has {} and lets every process have {}; choose an allowed algorithm \
     (--tcp-congestion, PHUB_TCP_CONGESTION), load the module of {name}, or as root add {name} to net.ipv4.tcp_allowed_congestion_control",
    why(*.errno), words(.rules.available.as_deref()), words(.rules.allowed.as_deref())
)]
pub struct CongestionError {
    name: String,
    errno: Errno,
    rules: CongestionRules,
}

impl CongestionError {
    fn new(name: &str, errno: Errno) -> Self {
        CongestionError { name: name.to_owned(), errno, rules: CongestionRules::read() }
    }
}

fn why(errno: Errno) -> String {
    match errno {
        Errno::NOENT => "the kernel does not have it".into(),
        Errno::PERM => "this process may not use it".into(),
        other => other.to_string(),
    }
}

fn words(names: Option<&str>) -> &str {
    names.unwrap_or("(unknown)")
}

/// The congestion controls of the kernel. Each list has names with spaces between them, and is `None` if the
/// kernel does not show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CongestionRules {
    /// The algorithm that new connections get.
    pub own: Option<String>,
    /// The algorithms that the kernel has loaded.
    pub available: Option<String>,
    /// The algorithms that a process without privileges may use.
    pub allowed: Option<String>,
}

impl CongestionRules {
    /// Reads the settings of this process's network namespace.
    pub fn read() -> Self {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}congestion_control"));
            Some(text.ok()?.trim().to_owned())
        };
        CongestionRules { own: read(""), available: read("available_"), allowed: read("allowed_") }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::TcpListener;

    use super::*;

    /// Returns what `choose` returns on a kernel with these `allowed` algorithms, and the names that it set.
    fn chosen(asked: &str, own: &str, near: bool, allowed: &[&str]) -> (Result<String, String>, Vec<String>) {
        let set = RefCell::new(Vec::new());
        let answer = asked.parse::<Congestion>().unwrap().choose(
            own.into(),
            || near,
            |name| {
                let allowed = allowed.contains(&name);
                if allowed {
                    set.borrow_mut().push(name.to_owned())
                }
                if allowed { Ok(()) } else { Err(Errno::PERM) }
            },
        );
        (answer.map(|got| got.to_string()).map_err(|error| error.to_string()), set.into_inner())
    }

    #[test]
    fn bbr_is_replaced_over_short_ways_alone() {
        let all = ["cubic", "reno", "bbr", "dctcp"];
        let (said, set) = chosen("auto", "bbr", true, &all);
        assert_eq!(set, ["cubic"]);
        assert_eq!(
            said.unwrap(),
            "congestion control cubic (over a short path, in place of the system's bbr)"
        );
        let (said, set) = chosen("auto", "bbr", false, &all);
        assert!(set.is_empty() && said.unwrap().contains("bbr (the system's own, over a long path)"));
        for own in ["cubic", "reno", "dctcp"] {
            let (said, set) = chosen("auto", own, true, &all);
            assert!(set.is_empty() && said.unwrap().contains(own));
        }
        assert!(chosen("system", "bbr", true, &all).1.is_empty());
    }

    #[test]
    fn what_is_not_allowed_is_passed_over_by_the_rule_and_an_error_if_asked_for() {
        assert_eq!(chosen("auto", "bbr2", true, &["reno"]).1, ["reno"]);
        let (said, set) = chosen("auto", "bbr", true, &["bbr"]);
        let said = said.unwrap();
        assert!(set.is_empty() && said.contains("bbr (") && said.contains("tcp_allowed"), "{said}");
        let error = chosen("cubic", "bbr", true, &["reno"]).0.unwrap_err();
        assert!(error.contains("control cubic: this process may not use it"), "{error}");
        assert!(error.contains("reno") && error.contains("--tcp-congestion"), "{error}");
    }

    #[test]
    fn a_round_trip_is_short_within_a_region() {
        let short = |micros| is_short(Duration::from_micros(micros));
        assert_eq!([0, 1, 500, 10_000, 10_001, 80_000].map(short), [false, true, true, true, false, false]);
    }

    #[test]
    fn names_are_the_kernels() {
        assert_eq!("auto".parse(), Ok(Congestion::Auto));
        assert_eq!("htcp".parse(), Ok(Congestion::Named("htcp".into())));
        for text in ["", "a b", "a-name-that-is-long", "cubic;"] {
            assert!(text.parse::<Congestion>().unwrap_err().to_string().contains("auto, system"));
        }
    }

    #[test]
    fn the_kernel_sets_what_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(round_trip(socket.as_fd()).is_ok_and(is_short), "the way to itself is short");
        // Every kernel has reno, and every process may use reno unless root forbids it.
        let got = Congestion::Named("reno".into()).control(&socket).unwrap();
        assert_eq!((&*got.name, &*sockopt::tcp_congestion(&socket).unwrap()), ("reno", "reno"));
        let error = Congestion::Named("nonesuch".into()).control(&socket).unwrap_err().to_string();
        assert!(error.contains("nonesuch: the kernel does not have it; this kernel has "), "{error}");
        Congestion::Named("reno".into()).control_all(listener.as_fd()).unwrap();
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), "reno");
    }

    #[test]
    fn the_rule_leaves_a_listening_socket_as_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = sockopt::tcp_congestion(&listener).unwrap();
        Congestion::Auto.control_all(listener.as_fd()).unwrap();
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), before);
    }
}
