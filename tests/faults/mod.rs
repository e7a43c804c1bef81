//! When something dies, stops or breaks, all others get an error that names it, and no worker hangs.

mod killed;
mod sim_network;
