//! Tests of the program `phub-server` and of its checkpoints, in one program.

mod between_hubs;
mod capacity;
mod checkpoint;
mod command_line;
mod demo;
mod doctor;
mod mistakes;
mod over_hubs;
mod serve;
mod support;
mod tls;
mod token;
mod top;
mod versions;
