//! Calls of a session, on its caller's thread and on a thread of its own.

mod background;
mod background_ends;
mod calls;
