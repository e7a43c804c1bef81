//! Who joins, leaves and comes back, and what the others are told.

mod compressed;
mod joining;
mod leaving;
mod on_loss;
