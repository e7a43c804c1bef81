//! Tests of what a hub and a session show. A hub shows the ranks that delay it, the page and its events, the
//! size of gradients, and its decisions. A session shows its times. Both show a timeline.

mod counts;
mod gradients;
mod lateness;
mod page;
mod record;
mod timeline;
mod times;
