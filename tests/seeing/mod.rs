//! What people see of a hub: who holds it up, the page, its events; and of a session: where its time
//! went; and what both did when; how large gradients are; what a hub decided.

mod counts;
mod gradients;
mod lateness;
mod page;
mod record;
mod timeline;
mod times;
