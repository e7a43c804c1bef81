//! A job below other hubs. This file has the meeting, in which the hubs of a mesh learn each other's addresses. It
//! also has the news from the hubs above, and the beginning of the job at these hubs.

use std::pin::pin;

use coordinator::REPORT_EVERY;
use coordinator::input::{MachinesReached, MissMachines};
use membership::{MemberError, Missing};
use pbox_core::control::{MeetReply, MeetRequest, RefusalCode};
use pbox_core::{JobId, Round};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::joined::reason_of;
use super::name_above;
use crate::registry::{Because, NoThread, Refusal, Registry, on_thread};

impl Registry {
    /// Returns the result of a request that was passed on to the hubs above. If a hub above is lost, this function
    /// first makes the job fail at this hub. So the workers learn the true cause, and join again.
    pub(crate) fn passed_on<T>(
        &self,
        id: JobId,
        answer: Result<Result<T, MemberError>, NoThread>,
    ) -> Result<T, Refusal> {
        answer?.map_err(|error| {
            if !error.is_loss_of_hub() {
                return RefusalCode::RefusedAbove.because(error.to_string());
            }
            let (reason, blame) = reason_of(error);
            self.fail_by(&mut self.lock(), id, &reason, blame);
            RefusalCode::JobEnded.because(reason)
        })
    }

    /// Waits until the hubs of all machines have met. Called for a hub of a mesh that asks for the meeting.
    pub async fn meet(&self, name: &str, request: MeetRequest) -> Result<MeetReply, Refusal> {
        let mut meeting = pin!(self.meetings.meet(name, request.clone()));
        loop {
            let made = self.freed.notified(); // before the check, so that no new job is missed
            if let Some(hubs) = self.met(name, &request) {
                return Ok(MeetReply { hubs });
            }
            tokio::select! {
                met = &mut meeting => return met,
                () = made => {}
            }
        }
    }

    /// Returns the hubs of a mesh that have already met, if their job above still waits for this machine. Then this
    /// machine's hub has not joined that job since the meeting.
    fn met(&self, name: &str, request: &MeetRequest) -> Option<Vec<String>> {
        let mut inner = self.lock();
        let (state, job) = inner.named(&name_above(name))?;
        let number = request.machine.number as usize;
        let names: Vec<String> = job.peers.addresses.iter().map(|hub| hub.name.clone()).collect();
        let waits = state.life.gathers() && !state.members.has(request.machine.number);
        let is_same =
            names.len() == request.machine.of as usize && names.get(number) == Some(&request.address);
        (waits && is_same).then_some(names)
    }

    /// Handles the news from the hubs above until the job ends. Also reports the late worker of this hub to the hubs
    /// above.
    pub(crate) fn listen_above(&self, id: JobId, mut news: watch::Receiver<()>) {
        let registry = self.me.clone();
        self.runtime.spawn(async move {
            let mut ticks = tokio::time::interval(REPORT_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while registry.upgrade().is_some_and(|registry| registry.lives_above(id)) {
                tokio::select! {
                    changed = news.changed() => if changed.is_err() { return },
                    _ = ticks.tick() => {
                        let Some(registry) = registry.upgrade() else { return };
                        registry.look_at_waits().await;
                        let said = registry.of_job(id, |state, job| {
                            Some((job.above.clone()?, state.members.latest(&job.last_rounds)))
                        });
                        if let Ok(Some((above, latest))) = said {
                            above.say_latest(latest);
                        }
                    }
                }
            }
        });
    }

    /// Whether a job still runs at the hubs above. If it has ended there, the job fails here.
    fn lives_above(&self, id: JobId) -> bool {
        let mut inner = self.lock();
        let Some(above) = inner.job(id).and_then(|(_, job)| job.above.clone()) else { return false };
        let end = above.end();
        if let Some((reason, blame)) = &end {
            self.fail_by(&mut inner, id, reason, *blame);
        }
        end.is_none()
    }

    /// Reports to the hubs above that all workers have joined here, and waits until this hub takes part. Returns this
    /// hub's first round at the hubs above; `None` if there are no hubs above.
    pub(crate) async fn takes_part_above(&self, id: JobId) -> Result<Option<Round>, String> {
        let of_job =
            self.of_job(id, |state, job| job.above.clone().map(|above| (above, state.news.now().reached)))?;
        let Some((above, reached)) = of_job else { return Ok(None) };
        let mut news = above.news.clone();
        let said = on_thread("phub-above", move || above.say_ready(reached)).await?;
        said.map_err(|error| error.to_string())?;
        loop {
            // News that arrives after this line ends the wait below.
            news.borrow_and_update();
            let Some(above) = self.of_job(id, |_, job| job.above.clone())? else { return Ok(None) };
            match above.takes_part() {
                Ok(round) => {
                    if let Some(round) = above.highest_reached() {
                        self.lock().ask(MachinesReached { job: id, round })?;
                    }
                    return Ok(Some(round));
                }
                Err(Missing { ranks, .. }) => {
                    self.lock().ask(MissMachines { job: id, machines: ranks })?;
                }
            }
            drop(above);
            news.changed().await.map_err(|_| "the job ended meanwhile".to_owned())?;
        }
    }
}
