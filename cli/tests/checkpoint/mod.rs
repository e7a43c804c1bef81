//! Checkpoints, tested from the outside. A saved state is read back bit for bit, and other programs read it
//! as safetensors. A file that is damaged, foreign or from another job is refused. A full disk or a killed
//! hub loses no checkpoint.

mod children;
mod disk;
mod generations;
mod killed;
mod refused;
mod round_trip;
mod snapshots;
mod tool;
