//! The alarm of a hub. A panic in a thread of a hub, or in a task of its control thread, is a bug of the hub.
//! The hub reports the panic, and stops cleanly.
//!
//! ```text
//!   Hub::start: the calling thread belongs to the hub --> threads that it starts, and the threads of these threads
//!   panic --> the hook of this process --> the hub of that thread --> phub-alarm: writes checkpoints, notifies workers, stops the hub
//! ```
//!
//! The hook also sees panics of threads that nobody joins, and the source line of each panic. This module must not
//! depend on what a hub is.

use std::cell::RefCell;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

thread_local! {
    /// The alarm of this thread's hub.
    static OF_THREAD: RefCell<Option<Alarm>> = const { RefCell::new(None) };
}

/// The alarms of all hubs of this process. `phub-watch` works for all hubs, so its panic goes to all alarms.
static ALL: Mutex<Vec<Weak<Sender<Rung>>>> = Mutex::new(Vec::new());

/// A message of an alarm.
#[derive(Debug)]
pub enum Rung {
    /// A thread panicked: its name, the source line and the reason.
    Panicked(String),
    /// The hub stops by itself, so there is nothing more to wait for.
    Ends,
}

/// The alarm of a hub.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<Sender<Rung>>);

impl Alarm {
    /// Makes an alarm, and the receiver of its messages.
    pub fn new() -> (Self, Receiver<Rung>) {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let former = take_hook();
            set_hook(Box::new(move |panic| {
                former(panic);
                ring(panic);
            }));
        });
        let (sender, receiver) = channel();
        let sender = Arc::new(sender);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|alarm| alarm.strong_count() > 0);
        all.push(Arc::downgrade(&sender));
        (Alarm(sender), receiver)
    }

    /// Assigns the calling thread to the hub, until the returned value is dropped.
    pub fn enter(&self) -> Entered {
        Entered(OF_THREAD.replace(Some(self.clone())))
    }

    /// Ends the wait of the thread that receives the messages.
    pub fn end(&self) {
        let _ = self.0.send(Rung::Ends);
    }

    fn ring(&self, what: &str) {
        let _ = self.0.send(Rung::Panicked(what.to_owned()));
    }
}

/// A guard: the thread belongs to a hub. Dropping it assigns the thread to the hub that it belonged to
/// before.
#[derive(Debug)]
pub struct Entered(Option<Alarm>);

impl Drop for Entered {
    fn drop(&mut self) {
        OF_THREAD.set(self.0.take());
    }
}

/// Wraps work for another thread, which then belongs to the hub of the calling thread.
pub fn guarded<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let alarm = OF_THREAD.with_borrow(Clone::clone);
    move || {
        let _entered = alarm.as_ref().map(Alarm::enter);
        work()
    }
}

/// Returns a function that a runtime calls at the start of each thread. The function assigns the thread to the hub of
/// the calling thread.
pub fn guards_threads() -> impl Fn() + Send + Sync {
    let alarm = Mutex::new(OF_THREAD.with_borrow(Clone::clone));
    move || {
        let alarm = alarm.lock().unwrap_or_else(PoisonError::into_inner).clone();
        OF_THREAD.set(alarm);
    }
}

/// Sends the panic of this thread to the alarm of its hub. This function must not panic.
fn ring(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = panic.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
    let what = format!(
        "the thread {name} panicked{place}: {}; this is a bug of the hub: report it",
        panic.payload_as_str().unwrap_or("the panic has no message")
    );
    let own = OF_THREAD.try_with(|alarm| alarm.try_borrow().ok().and_then(|alarm| alarm.clone()));
    alarms_for(name, own.ok().flatten()).iter().for_each(|alarm| alarm.ring(&what));
}

/// Returns the alarms that a panic of a thread goes to. `name` is the thread's name, and `own` the alarm of
/// its hub.
fn alarms_for(name: &str, own: Option<Alarm>) -> Vec<Alarm> {
    if own.is_some() || name != "phub-watch" {
        return own.into_iter().collect();
    }
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter_map(Weak::upgrade).map(Alarm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for a panic, and returns its text.
    fn panic_text(reports: &Receiver<Rung>) -> String {
        match reports.recv().unwrap() {
            Rung::Panicked(what) => what,
            Rung::Ends => panic!("nobody ended it"),
        }
    }

    #[test]
    fn a_panic_is_heard_by_the_hub_of_its_thread() {
        let (alarm, listens) = Alarm::new();
        let (another, nothing) = Alarm::new();
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let entered = alarm.enter();
        let nested = guarded(move || {
            let _ = thread("phub-inner").spawn(guarded(|| panic!("as it should"))).unwrap().join();
        });
        thread("phub-outer").spawn(nested).unwrap().join().unwrap();
        drop(entered);
        let what = panic_text(&listens);
        assert!(
            what.contains("phub-inner") && what.contains("alarm.rs") && what.contains("as it should"),
            "{what}"
        );
        let _ = thread("of nobody").spawn(guarded(|| panic!("as it should"))).unwrap().join();
        for (alarm, listens) in [(alarm, listens), (another, nothing)] {
            alarm.end();
            assert!(matches!(listens.recv(), Ok(Rung::Ends)));
        }
    }

    #[test]
    fn the_watch_of_a_process_is_heard_by_all_its_hubs() {
        let (first, _heard) = Alarm::new();
        let (second, _too) = Alarm::new();
        let rings = |alarm: &Alarm, all: &[Alarm]| all.iter().any(|one| Arc::ptr_eq(&one.0, &alarm.0));
        let all = alarms_for("phub-watch", None);
        assert!(rings(&first, &all) && rings(&second, &all));
        assert!(alarms_for("phub-session", None).is_empty());
        let own = alarms_for("phub-control", Some(first.clone()));
        assert!(own.len() == 1 && rings(&first, &own));
    }
}
