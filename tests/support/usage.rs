//! The resources of the machine that a process holds, according to /proc.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::program::until;

/// The names of threads that end by themselves when they have nothing to do.
const PASSING_THREADS: [&str; 3] = ["phub-join\n", "phub-memory\n", "phub-handshake\n"];

/// The resources that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    pub descriptors: usize,
    pub threads: usize,
    /// The number of mappings of windows, bells and rings.
    pub shared_mappings: usize,
}

pub fn holds(pid: u32) -> Holds {
    let path = |what: &str| format!("/proc/{pid}/{what}");
    let threads = fs::read_dir(path("task")).unwrap().flatten();
    let names = threads.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    Holds {
        descriptors: fs::read_dir(path("fd")).unwrap().count(),
        threads: names.filter(|name| !PASSING_THREADS.contains(&name.as_str()) && !name.is_empty()).count(),
        shared_mappings: fs::read_to_string(path("maps")).unwrap().matches("memfd:phub-").count(),
    }
}

/// Returns the resources of process `pid`, which has the hub at `hub`, after the hub has started completely.
/// The connection of this request does not count.
pub fn holds_at_rest(hub: &str, pid: u32) -> Holds {
    let mut client = TcpStream::connect(hub).expect("the hub listens");
    let ours = client.local_addr().expect("it is connected").port();
    client.write_all(b"GET /v1/health HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ok\n"), "{answer}");
    drop(client);
    // The test waits, because the hub ends the stream before it closes the descriptor.
    until("the hub has closed the connection", || !has_connection_from(ours));
    holds(pid)
}

/// Whether a process on this machine has a descriptor of an IPv4 connection whose other end has this port.
fn has_connection_from(port: u16) -> bool {
    // Each line has a number, then both ends as ADDRESS:PORT. Its tenth field is the inode of the descriptor,
    // or 0 after the descriptor is closed.
    let connections = fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[2].ends_with(&format!(":{port:04X}")) && fields[9] != "0"
    };
    connections.lines().skip(1).any(of)
}

/// Returns a size in bytes from `/proc/PID/status`, such as `VmRSS` or `VmSize`.
pub fn status_bytes(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_else(|| panic!("{what}"));
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() * 1024
}

/// Returns the processor time that a process has used, in ticks of a hundredth of a second.
pub fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // The list begins with the state, field 3 of proc(5). User and system time are fields 14 and 15.
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
