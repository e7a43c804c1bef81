//! The views of a hub: the ranks that hold it up, the page, its events, how large gradients are, its
//! decisions. The views of a session: its times. The timeline of both.

mod counts;
mod gradients;
mod lateness;
mod page;
mod record;
mod timeline;
mod times;
