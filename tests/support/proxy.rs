//! A proxy in front of a hub's control port. It breaks requests as proxies and networks do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};

use pbox_core::control::{ErrorReply, RefusalCode};
use serde_json::Value;

/// The page of a proxy that answers in place of the hub.
const PAGE: &str = "<html>no hub here</html>";

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The proxy answers with this status and a page.
    Page(u16),
    /// The proxy answers like a hub that is about to end.
    Stops,
    /// The connection ends without an answer, and the hub never sees the request.
    Lose,
    /// The hub carries out the request, and its answer is lost.
    LoseAnswer,
}

/// A function that changes the body or the answer of a request with this path.
pub type Rewrite = fn(&str, &mut Value);

#[derive(Debug)]
struct Plan {
    hub: SocketAddr,
    /// The changes to requests and to answers.
    rewrites: OnceLock<(Rewrite, Rewrite)>,
    /// The verb, the fate of its next requests, and the number of these requests.
    breaks: Mutex<(String, Break, u32)>,
}

/// A proxy. Its threads end with the test's process.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    plan: Arc<Plan>,
}

impl Proxy {
    pub fn start(hub: SocketAddr) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let breaks = Mutex::new((String::new(), Break::Lose, 0));
        let plan = Arc::new(Plan { hub, rewrites: OnceLock::new(), breaks });
        let shared = Arc::clone(&plan);
        std::thread::spawn(move || {
            for client in socket.incoming() {
                let (client, plan) = (client.unwrap(), Arc::clone(&shared));
                // An error means that the client or the hub has hung up. The connection then ends.
                std::thread::spawn(move || drop(plan.serve(client)));
            }
        });
        Proxy { address, plan }
    }

    /// Returns the `host:port` of the proxy.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Breaks the next `count` requests with this verb.
    pub fn breaks(&self, verb: &str, how: Break, count: u32) {
        *self.plan.breaks.lock().unwrap() = (format!("/{verb} "), how, count);
    }

    /// Changes all requests and answers from now on.
    pub fn rewrites(&self, request: Rewrite, answer: Rewrite) {
        self.plan.rewrites.set((request, answer)).expect("once");
    }

    pub fn left(&self) -> u32 {
        self.plan.breaks.lock().unwrap().2
    }
}

impl Plan {
    /// Serves one request.
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            assert!(!lower.starts_with("transfer-encoding"), "the client says how long its body is");
            match line.as_str() {
                "\r\n" => break,
                _ if lower.starts_with("connection:") || lower.starts_with("content-length:") => {}
                _ => head += &line,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let how = {
            let mut breaks = self.breaks.lock().unwrap();
            let (verb, how, left) = &mut *breaks;
            let hit = *left > 0 && head.lines().next().unwrap().contains(verb.as_str());
            *left -= u32::from(hit);
            hit.then_some(*how)
        };
        match how {
            Some(Break::Lose) => return client.shutdown(Shutdown::Both),
            Some(Break::Page(status)) => return answer(&mut client, status, PAGE),
            Some(Break::Stops) => {
                let code = RefusalCode::HubStops;
                let reply = ErrorReply { code, error: "the hub stops".into(), round: None };
                return answer(&mut client, code.status(), &serde_json::to_string(&reply).unwrap());
            }
            _ => {}
        }
        let path = head.split(' ').nth(1).unwrap().to_owned();
        if let Some((request, _)) = self.rewrites.get() {
            body = rewritten(&path, *request, &body);
            head = by_token(&head);
        }
        let Ok(mut hub) = TcpStream::connect(self.hub) else {
            return answer(&mut client, 502, PAGE);
        };
        write!(hub, "{head}content-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
        hub.write_all(&body)?;
        let mut answer = Vec::new();
        hub.read_to_end(&mut answer)?;
        if let Some((_, change)) = self.rewrites.get() {
            let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let body = rewritten(&path, *change, &answer[end..]);
            let status = answer.split(|&byte| byte == b'\r').next().unwrap().to_owned();
            answer = [&status[..], format!("\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body]
                .concat();
        }
        match how {
            Some(_) => client.shutdown(Shutdown::Both),
            None => client.write_all(&answer),
        }
    }
}

fn answer(client: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 {status} Proxy\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Returns the head of a request with a token in place of its proof, which is valid only for the unchanged
/// body.
fn by_token(head: &str) -> String {
    let proves = |line: &&str| line.to_ascii_lowercase().starts_with("authorization: phub-proof ");
    let shown = format!("authorization: {}\r\n", crate::authorization());
    head.split_inclusive("\r\n").map(|line| if proves(&line) { shown.as_str() } else { line }).collect()
}

/// Returns a JSON body after a change, or any other body unchanged.
fn rewritten(path: &str, change: Rewrite, body: &[u8]) -> Vec<u8> {
    let Ok(mut message) = serde_json::from_slice(body) else { return body.to_vec() };
    change(path, &mut message);
    serde_json::to_vec(&message).unwrap()
}
