//! What people see of a hub: who holds it up, the page, its events; and of a session: where its time
//! went; and what both did when.

mod counts;
mod lateness;
mod page;
mod timeline;
mod times;
