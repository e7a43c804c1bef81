//! A peer: the other end of a meeting, as a test commands it.

use std::time::Duration;

use super::{End, Seen};
use crate::{Port, Posted, Until};

/// A timeout that is longer than any test. If a wait sleeps past its event, the watchdog ends the test.
pub(super) const FOR_EVER: Duration = Duration::from_secs(3600);

/// The other end of a meeting, in this process or in another. Each peer numbers its links from zero.
pub trait Peer: Send {
    /// Posts like [`End::post`].
    fn post(&mut self, link: usize, value: u32) -> Posted;

    /// Flushes like [`Port::flush`].
    fn flush(&mut self);

    /// Polls like [`End::poll`].
    fn poll(&mut self) -> Vec<Seen>;

    /// Posts `count` arrivals back over the links on which they came. Sleeps while there is no arrival.
    fn echo(&mut self, count: usize);

    /// Detaches a link.
    fn detach(&mut self, link: usize);

    /// Ends without any message, as after `kill -9`.
    fn die(self: Box<Self>);
}

impl dyn Peer + '_ {
    /// Posts a value again until the port accepts it, and flushes.
    pub(super) fn insist(&mut self, link: usize, value: u32) {
        loop {
            let posted = self.post(link, value);
            self.flush();
            match posted {
                Posted::Accepted => return,
                Posted::Full => std::thread::yield_now(),
                Posted::Closed => panic!("the peer's link {link} closed before value {value} was posted"),
            }
        }
    }

    /// Polls until `count` arrivals were seen.
    pub(super) fn collect(&mut self, count: usize) -> Vec<Seen> {
        let mut all = Vec::new();
        while all.len() < count {
            let seen = self.poll();
            if seen.is_empty() {
                std::thread::yield_now();
            }
            all.extend(seen);
        }
        all
    }
}

/// A peer in this process.
pub struct Local<P: Port> {
    end: End<P>,
    death: Box<dyn FnOnce() + Send>,
}

impl<P: Port> Local<P> {
    /// Creates a peer from an end, and attaches all links of the end. `death` makes the process of this end
    /// look dead. After `death`, the end is dropped.
    pub fn new(mut end: End<P>, death: impl FnOnce() + Send + 'static) -> Self {
        end.attach_all();
        Local { end, death: Box::new(death) }
    }
}

impl<P: Port> Peer for Local<P> {
    fn post(&mut self, link: usize, value: u32) -> Posted {
        self.end.post(link, value)
    }

    fn flush(&mut self) {
        self.end.port.flush();
    }

    fn poll(&mut self) -> Vec<Seen> {
        self.end.poll()
    }

    fn echo(&mut self, count: usize) {
        let mut left = count;
        while left > 0 {
            let seen = self.end.poll();
            if seen.is_empty() {
                if self.end.port.closed().is_some() {
                    return;
                }
                self.end.port.wait(Until::Any, FOR_EVER);
            }
            left -= seen.len();
            for seen in seen {
                self.end.insist(seen.link, seen.value);
            }
            self.end.port.flush();
        }
    }

    fn detach(&mut self, link: usize) {
        self.end.detach(link);
    }

    fn die(self: Box<Self>) {
        (self.death)();
    }
}

/// A hub with one port for each link. Each port has the chunks of its own link.
pub struct Hub<P: Port> {
    cores: Vec<Local<P>>,
}

impl<P: Port> Hub<P> {
    /// Creates a hub of `cores`, which are in the order of their links.
    pub fn new(cores: Vec<Local<P>>) -> Self {
        Hub { cores }
    }
}

impl<P: Port> Peer for Hub<P> {
    fn post(&mut self, link: usize, value: u32) -> Posted {
        self.cores[link].post(0, value)
    }

    fn flush(&mut self) {
        self.cores.iter_mut().for_each(Peer::flush);
    }

    fn poll(&mut self) -> Vec<Seen> {
        let cores = self.cores.iter_mut().enumerate();
        cores
            .flat_map(|(link, core)| core.poll().into_iter().map(move |seen| Seen { link, ..seen }))
            .collect()
    }

    fn echo(&mut self, count: usize) {
        // Each core has its own thread, as in a hub. The suite spreads arrivals evenly over the links.
        let share = count / self.cores.len();
        std::thread::scope(|scope| {
            self.cores.iter_mut().for_each(|core| drop(scope.spawn(move || core.echo(share))));
        });
    }

    fn detach(&mut self, link: usize) {
        self.cores[link].detach(0);
    }

    fn die(self: Box<Self>) {}
}
