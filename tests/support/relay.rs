//! A network in front of a hub, with one port for the hub's control port and one for its data path over TCP.
//! Connections are passed on, cut, halted in one or both directions, or have a bit altered on the way.
//!
//! ```text
//!   worker ---- control ----> relay ---- control ----> hub        answers that name the hub's data port name the relay's
//!   worker ---- frames -----> relay ---- frames -----> hub
//! ```

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A path through the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPath {
    /// Requests to the control port.
    Control,
    /// Gradients and weights.
    Data,
}

/// The bytes that are halted. None is lost, and no end is notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// The direction from the worker to the hub.
    pub up: bool,
    /// The direction from the hub to the worker.
    pub down: bool,
}

impl Stall {
    pub const NONE: Stall = Stall { up: false, down: false };
    pub const UP: Stall = Stall { up: true, down: false };
    pub const DOWN: Stall = Stall { up: false, down: true };
    pub const BOTH: Stall = Stall { up: true, down: true };
}

/// A relay. Its threads end with the process.
#[derive(Debug)]
pub struct Relay {
    control: Arc<Line>,
    data: Arc<Line>,
}

#[derive(Debug)]
struct Line {
    here: SocketAddr,
    hub: SocketAddr,
    /// A text in the hub's messages, and the text of the same length that replaces it.
    other_name: Option<(String, String)>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stall: Stall,
    /// The place of the byte that gets one bit altered, with the direction of its bytes.
    altered: Option<(Stall, u64)>,
    made: u64,
    open: HashMap<u64, [TcpStream; 2]>,
}

impl Relay {
    /// Starts a relay in front of the hub with these two addresses.
    pub fn start(control: SocketAddr, data: SocketAddr) -> Self {
        let data_line = Line::start(data, None);
        let names = (data.to_string(), data_line.here.to_string());
        assert_eq!(
            names.0.len(),
            names.1.len(),
            "an answer's length stays: give the hub a port of five digits"
        );
        Relay { control: Line::start(control, Some(names)), data: data_line }
    }

    /// Returns the `host:port` at which workers reach the hub's control port.
    pub fn address(&self) -> String {
        self.control.here.to_string()
    }

    fn line(&self, path: RelayPath) -> &Line {
        match path {
            RelayPath::Control => &self.control,
            RelayPath::Data => &self.data,
        }
    }

    /// Ends all connections of one path (control or data), as a device between the two ends can.
    pub fn cut(&self, path: RelayPath) {
        let state = self.line(path).lock();
        state.open.values().flatten().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Halts these bytes of one path (control or data) from now on.
    pub fn stall(&self, path: RelayPath, stall: Stall) {
        let line = self.line(path);
        line.lock().stall = stall;
        line.changed.notify_all();
    }

    /// Alters a bit of byte `at` once, in this direction, on the next connection of one path (control or
    /// data). The connection must carry that many bytes.
    pub fn alter(&self, path: RelayPath, direction: Stall, at: u64) {
        self.line(path).lock().altered = Some((direction, at));
    }

    /// Whether that bit was altered.
    pub fn has_altered(&self, path: RelayPath) -> bool {
        self.line(path).lock().altered.is_none()
    }

    pub fn open(&self, path: RelayPath) -> usize {
        self.line(path).lock().open.len()
    }
}

impl Line {
    fn start(hub: SocketAddr, other_name: Option<(String, String)>) -> Arc<Self> {
        // The port needs five digits, like the hub's port. Another process may take the port first.
        let listen = || {
            let here = super::free_address();
            Some((here, TcpListener::bind(here).ok()?))
        };
        let (here, socket) = std::iter::repeat_with(listen).flatten().next().expect("it ends with a port");
        let line = Line { here, hub, other_name, state: Mutex::default(), changed: Condvar::new() };
        let line = Arc::new(line);
        let accepting = Arc::clone(&line);
        std::thread::spawn(move || {
            for client in socket.incoming().map_while(Result::ok) {
                // The client's connection ends if no hub listens.
                if let Ok(hub) = TcpStream::connect(accepting.hub) {
                    accepting.pass_on(client, hub);
                }
            }
        });
        line
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(self: &Arc<Self>, client: TcpStream, hub: TcpStream) {
        let number = {
            let mut state = self.lock();
            state.made += 1;
            let number = state.made;
            let (Ok(first), Ok(second)) = (client.try_clone(), hub.try_clone()) else { return };
            state.open.insert(number, [first, second]);
            number
        };
        let (Ok(from_hub), Ok(to_client)) = (hub.try_clone(), client.try_clone()) else { return };
        let line = Arc::clone(self);
        let up = std::thread::spawn(move || line.copy(client, hub, |stall| stall.up, None));
        let line = Arc::clone(self);
        std::thread::spawn(move || {
            let names = line.other_name.as_ref();
            line.copy(from_hub, to_client, |stall| stall.down, names);
            let _ = up.join();
            line.lock().open.remove(&number);
        });
    }

    fn copy(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        stands: fn(Stall) -> bool,
        names: Option<&(String, String)>,
    ) {
        let mut bytes = vec![0; 64 << 10];
        let mut passed = 0;
        loop {
            let read = from.read(&mut bytes);
            // While a direction is halted, the end of its stream is held back, too.
            let state = self.lock();
            let waited = self.changed.wait_while(state, |state| stands(state.stall));
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let Ok(count @ 1..) = read else { break };
            if let Some((direction, at)) = state.altered
                && stands(direction)
                && (passed..passed + count as u64).contains(&at)
            {
                bytes[(at - passed) as usize] ^= 8;
                state.altered = None;
            }
            passed += count as u64;
            drop(state);
            let written = match names {
                Some((real, other)) if contains(&bytes[..count], real.as_bytes()) => {
                    to.write_all(String::from_utf8_lossy(&bytes[..count]).replace(real, other).as_bytes())
                }
                _ => to.write_all(&bytes[..count]),
            };
            if written.is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
