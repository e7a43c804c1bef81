//! A thread of its own for work that waits for the disk or for other hubs. Must not depend on the work.

use hub_threads::alarm::guarded;
use pbox_core::control::RefusalCode;
use tokio::sync::oneshot;

use super::{Because, Refusal};

/// Runs work that may wait long on a thread of its own, and returns the result.
pub(crate) async fn on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoThread> {
    let (done, result) = oneshot::channel();
    // The values that the work owns are dropped before its result is visible: a hub that stops needs the last
    // reference to the registry.
    let run: Box<dyn FnOnce() + Send> = Box::new(move || drop(done.send(work())));
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(guarded(run));
    spawned.map_err(|error| NoThread(format!("cannot start the thread {name}: {error}")))?;
    result.await.map_err(|_| NoThread(format!("the thread {name} failed; see the log")))
}

/// The error that no thread could be started, or that the thread panicked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoThread(pub(super) String);

impl From<NoThread> for String {
    fn from(error: NoThread) -> Self {
        error.0
    }
}

impl From<NoThread> for Refusal {
    fn from(error: NoThread) -> Self {
        RefusalCode::NoResource.because(error)
    }
}
