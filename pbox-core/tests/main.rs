//! Tests that need a program of their own (an allocator that counts, machine code) or recorded data, in one
//! program.

mod machine_code;
mod messages;
mod round_path;
mod torch;
mod toys;
