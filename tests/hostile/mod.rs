//! Whatever a stranger or a worker sends costs its sender the connection, and nobody else anything.

mod by_hand;
mod control_port;
mod data_socket;
mod frames;
mod posts;
mod sim_full_rings;
