//! The control port: whether the port is free, or a hub answers at it. One function asks by HTTP, and the
//! judgement only computes.

use authority::{ALL_JOBS, Credential, Right};
use membership::Named;
use phub_server::client::Address;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use pbox_core::control::{HubReply, Versions};
use tokio::runtime::Builder;

use crate::doctor::check::Check;

/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(1);

const NAME: &str = "control port";

/// The state of the address for the control port.
#[derive(Debug)]
pub(crate) enum Seen {
    /// Nothing: a hub can listen there.
    Free,
    /// A hub, which answers.
    Hub(Box<HubReply>),
    /// No hub can listen at the address, and no hub answers.
    Blocked {
        /// The kernel's answer.
        error: std::io::Error,
        /// The reason why no hub answers, in words.
        no_hub: String,
    },
}

/// Tries to listen at the address. If that fails, asks whether a hub is there.
pub(crate) fn look(listen: SocketAddr) -> Seen {
    let error = match TcpListener::bind(listen) {
        Ok(_) => return Seen::Free,
        Err(error) => error,
    };
    match ask(reachable(listen)) {
        Ok(hub) => Seen::Hub(Box::new(hub)),
        Err(no_hub) => Seen::Blocked { error, no_hub },
    }
}

/// Returns the address for a request to a hub that listens at all addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

fn ask(address: SocketAddr) -> Result<HubReply, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let credential = Credential::find_if_any().map_err(|error| error.to_string())?;
    let token = credential.map(|credential| credential.token(Right::Read, ALL_JOBS));
    let answer =
        runtime.block_on(Address::new(&address.to_string(), Named::Here).get("/v1/hub", token, PATIENCE));
    answer.map_err(|error| format!("{address}: {error}"))
}

/// Judges whether a hub can use this address, or uses it already.
pub(crate) fn judge(listen: SocketAddr, seen: &Seen) -> Check {
    match seen {
        Seen::Free if listen.ip().is_loopback() => {
            let others = "workers on other machines need --listen with an address of the network, or 0.0.0.0";
            Check::pass(
                NAME,
                format!("{listen} is free: a hub there serves workers on this machine ({others})"),
            )
        }
        Seen::Free => Check::pass(NAME, format!("{listen} is free")),
        Seen::Hub(hub) => running(listen, hub),
        Seen::Blocked { error, no_hub } => {
            let seen = format!("cannot listen at {listen} ({error}), and no hub answers ({no_hub})");
            let port = listen.port();
            let fix = match error.kind() {
                ErrorKind::AddrInUse => format!(
                    "ss -ltnp 'sport = :{port}' shows the program that has the port; --listen {}:0 takes a free port",
                    listen.ip()
                ),
                ErrorKind::AddrNotAvailable => format!(
                    "give --listen an address that this machine has (ip -brief address), or 0.0.0.0:{port}; for a hub on another machine: start the hub, and let TCP port {port} pass"
                ),
                ErrorKind::PermissionDenied => "give --listen a port of 1024 or more".into(),
                _ => "give --listen another address".into(),
            };
            Check::fail(NAME, seen, fix)
        }
    }
}

fn running(listen: SocketAddr, hub: &HubReply) -> Check {
    let ways: Vec<String> = hub.transports.iter().map(|way| way.transport().to_string()).collect();
    let seen = format!(
        "a hub answers at {listen}: healthy, version {}, {} cores, {} jobs, transports {}",
        hub.version,
        hub.cores.len(),
        hub.jobs.len(),
        ways.join(", ")
    );
    let ours = env!("CARGO_PKG_VERSION");
    let fix = format!("run hub and workers of one version (this program has {ours})");
    let theirs = Versions::of(hub.protocol, hub.protocol_lowest);
    if theirs.common(Versions::OURS).is_none() {
        let seen = format!("{seen}; the hub speaks protocol {theirs}, this program {}", Versions::OURS);
        return Check::fail(NAME, seen, fix);
    }
    if hub.version != ours {
        return Check::warn(NAME, seen, fix);
    }
    Check::pass(NAME, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    use pbox_core::control::PROTOCOL;

    fn hub(version: &str, protocol: u32) -> Seen {
        let (kernels, version, id) = ("scalar".into(), version.into(), String::new());
        let (transports, cores, jobs) = (vec![], vec![], vec![]);
        Seen::Hub(Box::new(HubReply {
            draining: false,
            machine: None,
            protocol,
            protocol_lowest: None,
            version,
            id,
            kernels,
            rss_bytes: 0,
            transports,
            counts: Default::default(),
            cores,
            nics: Vec::new(),
            jobs,
            refusals: Vec::new(),
            timeline: false,
        }))
    }

    #[test]
    fn a_hub_of_another_version_is_named() {
        let listen = "127.0.0.1:7077".parse().unwrap();
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(judge(listen, &hub(ours, PROTOCOL)).verdict, Verdict::Pass);
        assert_eq!(judge(listen, &hub("0.0.9", PROTOCOL)).verdict, Verdict::Warn);
        let other = judge(listen, &hub(ours, PROTOCOL + 1));
        assert_eq!(other.verdict, Verdict::Fail);
        assert!(other.fix.unwrap().contains("one version"));
    }

    #[test]
    fn each_way_to_be_blocked_has_its_fix() {
        for (kind, fix) in [
            (ErrorKind::AddrInUse, "ss -ltnp 'sport = :80'"),
            (ErrorKind::AddrNotAvailable, "ip -brief address"),
            (ErrorKind::PermissionDenied, "1024 or more"),
        ] {
            let seen = Seen::Blocked { error: kind.into(), no_hub: "silence".into() };
            let check = judge("10.0.0.1:80".parse().unwrap(), &seen);
            assert_eq!(check.verdict, Verdict::Fail);
            assert!(check.seen.contains("silence") && check.fix.as_ref().unwrap().contains(fix), "{check:?}");
        }
    }

    #[test]
    fn a_hub_that_listens_everywhere_is_asked_here() {
        let at = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(at("0.0.0.0:7077"), "127.0.0.1:7077");
        assert_eq!(at("[::]:7077"), "[::1]:7077");
        assert_eq!(at("10.0.0.1:1"), "10.0.0.1:1");
    }
}
