//! Tests that need a program of their own (an allocator that counts, machine code) or data of others, in one.

mod machine_code;
mod messages;
mod round_path;
mod torch;
mod toys;
