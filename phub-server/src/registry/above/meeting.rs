//! The meetings of meshes. At the hub of the first machine, the hubs of a mesh learn each other's addresses.
//!
//! ```text
//!   hub of machine 0 --meet--+
//!   hub of machine 1 --meet--+--> hub of machine 0 --> each: the hubs of machines 0 and 1
//! ```
//!
//! Each job has its own meeting. It is over when all hubs have arrived.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pbox_core::control::{Machine, MeetReply, MeetRequest, RefusalCode, check_address, check_job_name};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::registry::refusal::{Because, Refusal};

/// The longest time that a hub waits for other hubs.
const LONGEST: Duration = Duration::from_secs(3600);
/// The most meetings at the same time.
const MOST: usize = 1024;

/// The addresses of the hubs that have arrived, by machine.
type Seats = Vec<Option<String>>;

/// All meetings at this hub, by job.
#[derive(Debug, Default)]
pub(crate) struct Meetings(Mutex<HashMap<String, watch::Sender<Seats>>>);

/// The place of a hub in a meeting. If this value is dropped while other hubs are missing, the place is free again.
struct Seated<'a> {
    meetings: &'a Meetings,
    job: &'a str,
    machine: Machine,
    news: watch::Receiver<Seats>,
}

fn is_complete(seats: &Seats) -> bool {
    seats.iter().all(Option::is_some)
}

impl Meetings {
    /// Whether hubs wait in a meeting at this hub.
    pub fn are_under_way(&self) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Notes that a hub has arrived, and waits until the hubs of all machines have arrived.
    pub async fn meet(&self, job: &str, request: MeetRequest) -> Result<MeetReply, Refusal> {
        let MeetRequest { machine, address, wait_ms, .. } = request;
        check_job_name(job).map_err(Refusal::bad)?;
        check_address(&address).map_err(Refusal::bad)?;
        let mut seated = self.take_seat(job, machine, address)?;
        let wait = Duration::from_millis(wait_ms).min(LONGEST);
        let _ = timeout(wait, seated.news.wait_for(is_complete)).await.is_ok();
        let seats = seated.news.borrow().clone();
        let missing: Vec<usize> =
            (0..).zip(&seats).filter(|(_, seat)| seat.is_none()).map(|(at, _)| at).collect();
        if missing.is_empty() {
            return Ok(MeetReply { hubs: seats.into_iter().flatten().collect() });
        }
        Err(RefusalCode::MachinesMissing.because(format!(
            "job {job:?}: no hub of machine(s) {missing:?} of {} has arrived within {:.1} s; a hub arrives when \
         the first worker of its machine joins",
            machine.of,
            wait.as_secs_f64()
        )))
    }

    fn take_seat<'a>(
        &'a self,
        job: &'a str,
        machine: Machine,
        address: String,
    ) -> Result<Seated<'a>, Refusal> {
        let refuse = |code: RefusalCode, why: String| Err(code.because(format!("job {job:?}: {why}")));
        let mut meetings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = meetings.len() >= MOST;
        let meeting = match meetings.entry(job.to_owned()) {
            Entry::Vacant(_) if busy => {
                return refuse(
                    RefusalCode::NoMesh,
                    format!("{MOST} other jobs, the maximum, wait for their machines at this hub; try again"),
                );
            }
            Entry::Vacant(vacant) => vacant.insert(watch::Sender::new(vec![None; machine.of as usize])),
            Entry::Occupied(meeting) => meeting.into_mut(),
        };
        let (expected, taken) = {
            let seats = meeting.borrow();
            (seats.len(), seats.get(machine.number as usize).cloned().flatten())
        };
        if expected != machine.of as usize {
            return refuse(
                RefusalCode::NoMesh,
                format!(
                    "machine {} says that there are {} machines, and another machine says {expected}; give all machines the same number",
                    machine.number, machine.of
                ),
            );
        }
        if let Some(taken) = taken {
            return refuse(
                RefusalCode::RankTaken,
                format!(
                    "the hubs at {taken} and {address} both say that they are machine {machine}; give each machine its own number",
                ),
            );
        }
        meeting.send_modify(|seats| seats[machine.number as usize] = Some(address));
        let news = meeting.subscribe();
        if is_complete(&news.borrow()) {
            meetings.remove(job);
        }
        Ok(Seated { meetings: self, job, machine, news })
    }
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        let mut meetings = self.meetings.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(meeting) = meetings.get(self.job) else { return };
        // There is nothing to free if the meeting is complete, or if a new meeting of the same name has begun.
        if is_complete(&self.news.borrow()) || !meeting.subscribe().same_channel(&self.news) {
            return;
        }
        meeting.send_modify(|seats| seats[self.machine.number as usize] = None);
        if meeting.borrow().iter().all(Option::is_none) {
            meetings.remove(self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use pbox_core::control::PROTOCOL;

    use super::*;

    fn request(machine: &str, address: &str, wait_ms: u64) -> MeetRequest {
        MeetRequest {
            protocol: PROTOCOL,
            protocol_lowest: None,
            machine: machine.parse().unwrap(),
            address: address.to_owned(),
            wait_ms,
        }
    }

    fn refused(met: Result<MeetReply, Refusal>) -> String {
        match met {
            Err(Refusal { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_learn_all_addresses_and_a_second_meeting_begins_anew() {
        let meetings = Meetings::default();
        crate::registry::test_bed::runtime().block_on(async {
            for port in 1..3 {
                let (a, b) = (format!("a:{port}"), format!("b:{port}"));
                let met = tokio::join!(
                    meetings.meet("job", request("1/2", &b, 9000)),
                    meetings.meet("job", request("0/2", &a, 9000)),
                );
                for met in [met.0, met.1] {
                    assert_eq!(met.unwrap().hubs, [a.clone(), b.clone()]);
                }
            }
        });
        assert!(meetings.0.lock().unwrap().is_empty());
    }

    #[test]
    fn who_does_not_come_or_does_not_fit_is_named() {
        let meetings = Meetings::default();
        crate::registry::test_bed::runtime().block_on(async {
            let mut waits = Box::pin(meetings.meet("job", request("1/3", "b:1", 9000)));
            let poll = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(poll, Poll::Pending));
            let twice = refused(meetings.meet("job", request("1/3", "c:1", 9000)).await);
            assert!(twice.contains("b:1 and c:1 both say that they are machine 1/3"), "{twice}");
            let other = refused(meetings.meet("job", request("0/2", "a:1", 9000)).await);
            assert!(
                other.contains("machine 0 says that there are 2 machines, and another machine says 3"),
                "{other}"
            );
            let missing = refused(meetings.meet("job", request("0/3", "a:1", 1)).await);
            assert!(missing.contains("machine(s) [2] of 3"), "{missing}");
            // The client hangs up, which frees its place.
            drop(waits);
            assert!(meetings.0.lock().unwrap().is_empty());
            let mut waits = pin!(meetings.meet("job", request("1/3", "c:1", 9000)));
            let poll = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(poll, Poll::Pending));
        });
    }
}
