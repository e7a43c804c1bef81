//! Weights are those of a plain model, bit by bit, by every transport, codec and number of hubs.

mod compressed;
mod hubs;
mod optimizers;
mod sim_compressed;
mod sim_levels;
mod sim_seeds;
mod sim_slim;
mod slim;
mod transports;
