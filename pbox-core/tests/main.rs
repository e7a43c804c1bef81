//! Tests that need their own program, because their allocator counts or they read machine code, and tests that need
//! recorded data.

mod machine_code;
mod messages;
mod round_path;
mod torch;
mod toys;
