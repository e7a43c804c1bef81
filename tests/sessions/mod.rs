//! Calls of a session, on its caller's thread and on its own thread.

mod background;
mod background_ends;
mod calls;
mod failing;
mod names;
