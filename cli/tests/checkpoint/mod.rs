//! Checkpoints, from the outside: what is saved comes back bit for bit and is safetensors to others;
//! what is damaged, foreign or of another job is refused; a full disk or a killed hub costs nothing.

mod children;
mod disk;
mod generations;
mod killed;
mod refused;
mod round_trip;
mod snapshots;
mod tool;
