//! Hostile clients, and clients that ask too much. None of them waits for an answer after its time is over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hub_tests::authorization;
use hub_tests::trouble::Dice;

use super::cluster::HubProcess;
use super::jobs::JOBS;

/// The number of connections that a client has open at the same time.
const CROWD: usize = 100;
const MESSAGE_LIMIT: Duration = Duration::from_millis(500);

/// Returns a connection; `None` if the hub is gone or stopped.
fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, MESSAGE_LIMIT).ok()?;
    stream.set_read_timeout(Some(MESSAGE_LIMIT)).ok()?;
    stream.set_write_timeout(Some(MESSAGE_LIMIT)).ok()?;
    Some(stream)
}

/// Connects to the hub's control port and data port. Sends garbage, half a hello, a wrong token, half a
/// request, or nothing.
pub fn come(hub: &HubProcess, lasts: Duration, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut guests = Vec::new();
    for _ in 0..CROWD {
        let port = if dice.below(2) == 0 { hub.address } else { hub.data };
        let Some(mut stream) = connect(port) else { continue };
        let mut hello = b"phubtcp4".to_vec();
        let said = match dice.below(5) {
            0 => Vec::new(),
            1 => (0..dice.below(300)).map(|_| dice.below(256) as u8).collect(),
            2 => {
                hello.extend((0..dice.below(40)).map(|_| dice.below(256) as u8));
                hello
            }
            3 => b"POST /v1/jobs/exact/join HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer phub-join.*.00\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
            _ => b"GET /v1/hub HTTP/1.1\r\nhost: 127.0.0.1\r\nx-half".to_vec(),
        };
        let _ = stream.write_all(&said);
        guests.push(stream);
    }
    std::thread::sleep(lasts);
}

fn get(stream: &mut TcpStream, path: &str) -> std::io::Result<()> {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {}\r\n\r\n", authorization())
}

fn names(hub: &HubProcess) -> Option<Vec<String>> {
    let mut stream = connect(hub.address)?;
    get(&mut stream, "/v1/hub").ok()?;
    let mut answer = vec![0; 64 << 10];
    let mut bytes = 0;
    while let Ok(count @ 1..) = stream.read(&mut answer[bytes..]) {
        bytes += count;
    }
    let text = String::from_utf8_lossy(&answer[..bytes]).into_owned();
    let parts = text.split("\"name\":\"").skip(1);
    Some(parts.filter_map(|part| part.split('"').next()).map(str::to_owned).collect())
}

/// Reads the states of the hub's jobs, one byte now and then.
pub fn read_slowly(hub: &HubProcess, jobs: &[usize], lasts: Duration) {
    let Some(names) = names(hub) else { return };
    let ours = |name: &&String| jobs.iter().any(|&job| name.starts_with(JOBS[job].name));
    let mut readers = Vec::new();
    for name in names.iter().filter(ours) {
        let Some(mut stream) = connect(hub.address) else { continue };
        if get(&mut stream, &format!("/v1/jobs/{name}/state")).is_ok() {
            readers.push(stream);
        }
    }
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        readers.iter_mut().for_each(|reader| drop(reader.read(&mut [0])));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads everything that can be read as fast as the hub answers, with several clients at once.
pub fn scrape(hub: &HubProcess, lasts: Duration) {
    std::thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || {
                let begun = Instant::now();
                while begun.elapsed() < lasts {
                    let Some(mut stream) = connect(hub.address) else { return };
                    for path in ["/v1/hub", "/v1/health", "/v1/jobs/nobody/state"] {
                        // Every second client reads no part of the answer.
                        if get(&mut stream, path).is_err()
                            || (client % 2 == 0 && stream.read(&mut [0; 4096]).is_err())
                        {
                            break;
                        }
                    }
                }
            });
        }
    });
}
