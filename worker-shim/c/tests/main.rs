//! Tests of `libphub` from C and of its header, in one program.

mod from_c;
mod header;
