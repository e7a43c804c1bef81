//! What people see of a hub: who holds it up, the page, its events.

mod lateness;
mod page;
