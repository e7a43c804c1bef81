//! The page for people at `GET /`, and the server-sent events at `GET /v1/events` that keep it up to date.
//!
//! ```text
//!   every second: the hub asks its cores --> event `hub`: the reply of GET /v1/hub, with the lateness by rank and round
//!   the hub stops --> event `end`: the reason
//! ```
//!
//! The page is one file without data of the hub, and everybody may get it. The events need a token that may
//! read. All of this runs on the control thread.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use pbox_core::control::RefusalCode;
use serde::Serialize;
use tokio::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::INDEX;
use super::guard::Sees;
use crate::pieces::Pieces;
use crate::refusals::Refusals;
use crate::registry::{Because, Refusal, Registry, random_name};

const PAGE: &str = include_str!("page.html");
/// The placeholder in the page for a random word. The page's content security policy allows only scripts and styles
/// with that word.
const NONCE: &str = "NONCE";

/// The most listeners at the same time. For each listener, the hub makes a description of itself every second.
pub(super) const LISTENERS: usize = 32;
/// The time between two events.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of events in one answer. Then the page sends a new request, so that a token that the hub no
/// longer accepts stops working.
const EVENTS: usize = 600;
/// A listener that reads nothing for this time is cut off.
const UNREAD: Duration = Duration::from_secs(30);

/// Returns the page for a browser, and the list of requests for everybody else.
pub(super) fn page(headers: &HeaderMap) -> Result<Response, Refusal> {
    let accepts = headers.get(ACCEPT).and_then(|kinds| kinds.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return Ok(INDEX.into_response());
    }
    let nonce = random_name().map_err(|error| RefusalCode::NoResource.because(error.to_string()))?;
    let policy = format!(
        "default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let about = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, &policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((about, PAGE.replace(NONCE, &nonce)).into_response())
}

/// Sends events until the hub stops or the listener is gone.
pub(super) fn events(
    registry: &Arc<Registry>,
    refusals: &Arc<Refusals>,
    listeners: &Arc<Semaphore>,
    sees: Sees,
) -> Result<Response, Refusal> {
    let place = Arc::clone(listeners).try_acquire_owned().map_err(|_| {
        RefusalCode::Busy.because(format!(
            "{LISTENERS} clients already listen to the events of this hub; close a page, and try again"
        ))
    })?;
    let (listener, pieces) = Pieces::new(1);
    let seen = Seen { sees, refusals: Arc::clone(refusals) };
    tokio::spawn(tell(Arc::downgrade(registry), listener, seen, place));
    let about = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((StatusCode::OK, about, Body::new(pieces)).into_response())
}

/// The part of the hub that a listener sees.
struct Seen {
    sees: Sees,
    refusals: Arc<Refusals>,
}

async fn tell(registry: Weak<Registry>, listener: Sender<Bytes>, seen: Seen, _place: OwnedSemaphorePermit) {
    let Some(mut stops) = registry.upgrade().map(|registry| registry.stops.subscribe()) else { return };
    let stopped = async move { stops.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()) };
    tokio::select! {
        () = tell_hub(&registry, &listener, &seen) => {}
        // A listener that does not read must not delay the hub's stop.
        why = stopped => drop(timeout(PAUSE, listener.send(event("end", &why))).await),
    }
}

/// Sends an event every second. Ends when the listener is gone, or has got all the events of one answer.
async fn tell_hub(registry: &Weak<Registry>, listener: &Sender<Bytes>, Seen { sees, refusals }: &Seen) {
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..EVENTS {
        ticks.tick().await;
        let hub = {
            // This task has no reference to the registry while it waits for the listener: a hub that stops
            // needs the last reference.
            let Some(registry) = registry.upgrade() else { return };
            registry.look_at_waits().await;
            let mut hub = registry.describe();
            hub.jobs.retain(|job| sees.job(&job.name));
            hub.jobs.sort_by(|a, b| a.name.cmp(&b.name));
            hub.refusals = refusals.replies(|job| sees.job_or_all(job));
            hub
        };
        if !matches!(timeout(UNREAD, listener.send(event("hub", &hub))).await, Ok(Ok(()))) {
            return;
        }
    }
}

fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("events are plain data");
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_offers_a_timeline_where_there_is_one() {
        assert!(PAGE.contains("id=\"traceline\" hidden"), "until the hub says so");
        assert!(PAGE.contains("$(\"traceline\").hidden = !hub.timeline"));
    }

    #[test]
    fn the_page_has_nothing_from_elsewhere() {
        for foreign in ["http:", "https:", "src=", "@import", "url(", "innerHTML", "eval(", "localStorage"] {
            assert!(!PAGE.contains(foreign), "the page has {foreign}");
        }
        assert_eq!(PAGE.matches("style=").count(), 0, "the policy forbids styles of elements");
        assert_eq!(PAGE.matches(NONCE).count(), 2, "one style, one script");
    }
}
