//! Who joins, leaves and comes back, and what the others are told.

mod joining;
mod leaving;
mod on_loss;
