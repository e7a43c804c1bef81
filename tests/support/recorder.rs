//! A recorder that listens in the place of a hub, answers as a test says, and notes all requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// An answer to a request: status, other headers, body.
pub type Answer = (u16, String, String);

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    /// The value of `Authorization`.
    pub shown: Option<String>,
    pub body: String,
    /// The whole request.
    pub text: String,
}

/// A recorder that listens on a free port of this machine until the process ends.
#[derive(Clone)]
pub struct Recorder {
    address: SocketAddr,
    seen: Arc<(Mutex<Vec<Seen>>, Condvar)>,
    /// The connections of clients that wait forever.
    kept: Arc<Mutex<Vec<TcpStream>>>,
}

impl Recorder {
    /// Starts a recorder that answers each request by `answer`. For `None`, the client waits forever.
    pub fn start(answer: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let recorder = Recorder {
            address: listener.local_addr().expect("it is bound"),
            seen: Arc::default(),
            kept: Arc::default(),
        };
        let (mine, answer) = (recorder.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (mine, answer) = (mine.clone(), Arc::clone(&answer));
                std::thread::spawn(move || mine.serve(client, &*answer));
            }
        });
        recorder
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.0.lock().unwrap().clone()
    }

    /// Waits until `count` requests have come.
    pub fn wait_for(&self, count: usize) -> Vec<Seen> {
        let seen = self.seen.1.wait_while(self.seen.0.lock().unwrap(), |seen| seen.len() < count).unwrap();
        seen.clone()
    }

    /// Closes the connections of the clients that wait forever.
    pub fn let_go(&self) {
        for client in self.kept.lock().unwrap().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    fn serve(&self, client: TcpStream, answer: &dyn Fn(&Seen) -> Option<Answer>) {
        let mut reader = BufReader::new(client.try_clone().expect("a descriptor"));
        while let Some(seen) = read(&mut reader) {
            self.seen.0.lock().unwrap().push(seen.clone());
            self.seen.1.notify_all();
            let Some((status, headers, body)) = answer(&seen) else {
                self.kept.lock().unwrap().push(client.try_clone().expect("a descriptor"));
                break;
            };
            let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
            if (&client).write_all(format!("{head}{body}").as_bytes()).is_err() {
                return;
            }
        }
        // The other end decides when the connection ends.
        let _ = reader.read(&mut [0]);
    }
}

fn read(from: &mut impl BufRead) -> Option<Seen> {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if from.read_line(&mut text).ok()? == 0 {
            return None;
        }
    }
    let header = |name: &str| {
        let line = text.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line[name.len() + 1..].trim().to_owned())
    };
    let mut first = text.lines().next()?.split(' ').map(str::to_owned);
    let (method, path) = (first.next()?, first.next()?);
    let mut body = vec![0; header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
    from.read_exact(&mut body).ok()?;
    let (shown, body) = (header("authorization"), String::from_utf8_lossy(&body).into_owned());
    text.push_str(&body);
    Some(Seen { method, path, shown, body, text })
}

/// Returns an answer whose body is JSON.
pub fn json(value: serde_json::Value) -> Option<Answer> {
    Some((200, "content-type: application/json\r\n".to_owned(), value.to_string()))
}
