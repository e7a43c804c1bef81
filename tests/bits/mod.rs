//! Weights equal those of a plain model, bit for bit, with every transport, codec and number of hubs.

mod averages;
mod by_key;
mod clipped;
mod compressed;
#[allow(unsafe_code)]
mod dma_buf;
mod hubs;
mod optimizers;
mod slim;
mod transports;
