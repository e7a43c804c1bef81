//! Checkpoints, from the outside. A saved state is read back bit for bit, and other programs read it as safetensors.
//! A damaged or foreign file, or one of another job, is refused. A full disk or a killed hub costs nothing.

mod children;
mod disk;
mod generations;
mod killed;
mod refused;
mod round_trip;
mod snapshots;
mod tool;
