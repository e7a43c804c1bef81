//! Whatever dies, stops or breaks the network is named to all others, and nobody hangs.

mod killed;
mod sim_network;
