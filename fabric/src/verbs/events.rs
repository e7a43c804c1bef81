//! Asynchronous events of a NIC. The thread `phub-watch` reads the events, and notifies the ports that use
//! the NIC. It also notifies these ports if the NIC's own port is still down after the time for which packets
//! are retried.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::error::VerbsError;
use super::handles::context::{About, Context, NicEvent};
use super::handles::ffi::*;
use super::handles::words;
use super::port::rails::{PortState, Rail};
use crate::watch::{Register, Watch, Watched};

/// The watch over one device.
#[derive(Debug)]
pub(super) struct NicWatch {
    context: Arc<Context>,
    ports: Vec<Weak<PortState>>,
    number: u64,
    register: Arc<Register>,
    /// A descriptor that is readable when the device has an event, or when the timer has expired.
    wakes: OwnedFd,
    /// A timer that starts when a port goes down.
    timer: OwnedFd,
    patience: Duration,
}

impl NicWatch {
    /// Watches a device for these ports. `patience` is the time for which a port of the device may be down.
    pub fn start(
        watch: &Watch,
        context: &Arc<Context>,
        patience: Duration,
        ports: &[Arc<PortState>],
    ) -> Result<Arc<Self>, VerbsError> {
        let failed = VerbsError::system("watching a NIC's events");
        let make = || -> rustix::io::Result<(OwnedFd, OwnedFd)> {
            let wakes = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            epoll::add(&wakes, context.events_fd(), EventData::new_u64(0), EventFlags::IN)?;
            epoll::add(&wakes, &timer, EventData::new_u64(1), EventFlags::IN)?;
            Ok((wakes, timer))
        };
        let (wakes, timer) = match make() {
            Ok(made) => made,
            Err(errno) => return Err(failed(errno.into())),
        };
        let register = Arc::clone(watch.register());
        let nic_watch = Arc::new(NicWatch {
            context: Arc::clone(context),
            ports: ports.iter().map(Arc::downgrade).collect(),
            number: register.number(),
            register,
            wakes,
            timer,
            patience,
        });
        let watched: Arc<dyn Watched> = nic_watch.clone();
        watch.add_events(nic_watch.number, &nic_watch.wakes, &watched).map_err(failed)?;
        Ok(nic_watch)
    }

    fn users(&self) -> impl Iterator<Item = Arc<PortState>> {
        self.ports.iter().filter_map(Weak::upgrade).filter(|port| port.own.uses(&self.context))
    }

    /// Starts the timeout of a port of the device that went down. If another port went down shortly before,
    /// the timer starts again, and both ports have the same timeout.
    fn begin_to_wait(&self) {
        let (tv_sec, tv_nsec) = (self.patience.as_secs() as i64, self.patience.subsec_nanos().into());
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: once, it_value: Timespec { tv_sec, tv_nsec } };
        // The call cannot fail: the descriptor is a timer, and the time is valid.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// Reports the ports that are still down after the timeout.
    fn end_wait(&self) {
        let is_down = |number: u8| self.context.port(number).is_ok_and(|port| port.state != IBV_PORT_ACTIVE);
        for user in self.users() {
            let rails = user.own.open();
            let ours = rails.iter().filter(|rail| Arc::ptr_eq(&rail.nic.context, &self.context));
            for number in ours.map(|rail| rail.nic.port).filter(|&number| is_down(number)) {
                let event = NicEvent { kind: IBV_EVENT_PORT_ERR, about: About::Port(number) };
                user.take_event(&self.context, event);
            }
        }
    }

    /// Whether the device failed, and nothing uses it any more.
    pub fn is_over(&self) -> bool {
        self.context.is_lost() && Arc::strong_count(&self.context) == 1
    }
}

impl Watched for NicWatch {
    fn ready(&self) {
        while let Some(event) = self.context.next_event() {
            match event.kind {
                IBV_EVENT_DEVICE_FATAL => self.context.lose(),
                IBV_EVENT_PORT_ERR => self.begin_to_wait(),
                _ => {}
            }
            if ends_links(event.kind) {
                self.users().for_each(|port| port.take_event(&self.context, event));
            }
        }
        if rustix::io::read(&self.timer, &mut [0; 8]).is_ok() {
            self.end_wait();
        }
    }
}

impl Drop for NicWatch {
    fn drop(&mut self) {
        self.register.leave(self.number);
    }
}

/// Whether an event ends links at once. A port that goes down does not end links at once: the port comes up
/// again, or its queue pairs fail after their retries. A link that sends nothing in this time loses nothing.
fn ends_links(kind: ibv_event_type) -> bool {
    matches!(
        kind,
        IBV_EVENT_CQ_ERR
            | IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_DEVICE_FATAL
    )
}

impl NicEvent {
    /// Whether the event is that a port stayed down after its timeout. This event ends only links that are
    /// replaced when lost. Other links end when they have something to send.
    pub fn is_of_a_port(&self) -> bool {
        self.kind == IBV_EVENT_PORT_ERR
    }

    /// Whether the event concerns a link on this rail whose queue pair has this number.
    pub fn concerns(&self, context: &Arc<Context>, rail: &Rail, number: u32) -> bool {
        if !Arc::ptr_eq(&rail.nic.context, context) {
            return false;
        }
        match self.about {
            About::QueuePair(other) => other == number,
            About::CompletionQueue(address) => rail.queue.raw() as usize == address,
            About::Port(port) => rail.nic.port == port,
            About::Device => true,
        }
    }

    /// Describes the event in words, with the NIC's name.
    pub fn words(&self, context: &Context) -> String {
        format!("{} says {}", context.device, words::event(self.kind))
    }
}
