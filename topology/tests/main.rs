//! Tests of reading, planning and drawing machines, in one program.

mod live;
mod placement;
mod placement_properties;
mod rendering;
mod sysfs;
mod xml;
