//! Strangers and workers that send garbage lose their connections, and nobody else loses anything.

mod answers;
mod authority;
mod busy;
pub(crate) mod by_hand;
mod control_port;
mod data_socket;
mod frames;
mod outside;
mod peers;
mod posts;
mod requests;
mod same_machine;
mod spans;
mod strangers;
