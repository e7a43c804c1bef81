//! The picture's colours.
//!
//! This module must not depend on what the colours are used for.

pub const PAGE: &str = "#ffffff";
pub const INK: &str = "#1f2933";
pub const FAINT_INK: &str = "#52606d";
pub const SOCKET_FILL: &str = "#f5f7fa";
pub const SOCKET_EDGE: &str = "#9aa5b1";
pub const NODE_FILL: &str = "#ffffff";
pub const NODE_EDGE: &str = "#cbd2d9";
pub const IDLE_FILL: &str = "#eef1f4";
pub const IDLE_EDGE: &str = "#cbd2d9";
pub const BARRED_EDGE: &str = "#c0796f";

/// The colours of one NIC: of the background of its tile, of the tile's filled part, and of its edge and lines.
#[derive(Clone, Copy)]
pub struct Tint {
    pub ground: &'static str,
    pub full: &'static str,
    pub edge: &'static str,
}

const fn tint(ground: &'static str, full: &'static str, edge: &'static str) -> Tint {
    Tint { ground, full, edge }
}

/// The colours of cores without a NIC.
pub const NEUTRAL: Tint = tint("#eceff3", "#c3ccd6", "#616e7c");

/// The colours of cores that may not be used.
pub const BARRED: Tint = tint(PAGE, PAGE, BARRED_EDGE);

/// The colours of NICs. There are ten, because a PBox has ten NICs. Neighbours differ much in hue, and no two
/// differ only in hue.
const TINTS: [Tint; 10] = [
    tint("#e6effb", "#a9c8f2", "#2563b0"),
    tint("#fdeedd", "#f8c78e", "#b96a10"),
    tint("#e4f5e6", "#a5dbab", "#2c7a37"),
    tint("#fbe7ec", "#f2afc0", "#b3305a"),
    tint("#efe9fb", "#c9b8f0", "#6a46b8"),
    tint("#e0f5f5", "#98dadb", "#14787c"),
    tint("#f8f3d4", "#e5d67d", "#8a7500"),
    tint("#f4e8e1", "#dcbba6", "#87502c"),
    tint("#f9e6f7", "#e8b0e2", "#9a3393"),
    tint("#eaf3d9", "#c2de8d", "#5c7a13"),
];

/// Returns the colours of the NIC at this index.
pub fn nic_tint(index: usize) -> Tint {
    TINTS[index % TINTS.len()]
}
