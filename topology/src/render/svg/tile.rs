//! Tiles: an owning core, a core that owns nothing, a NIC.
//!
//! This module must not depend on the positions of tiles.

use super::canvas::{Anchor, Canvas, Rect, Stroke, Text, Weight};
use super::figure::{Figure, Point, Size, fitted};
use super::palette::{self, Tint};

/// A core that owns items. In a picture without a plan, it is any core.
pub struct CoreTile {
    pub label: String,
    /// The cpu's number, by which a page can find the tile. `None` if the tile is for several cpus.
    pub cpu: Option<u32>,
    /// The load as text, and as a fraction of the largest load, 0 to 1.
    pub load: Option<(String, f64)>,
    pub tint: Tint,
    pub hint: String,
}

impl CoreTile {
    pub const SIZE: Size = Size { width: 70.0, height: 40.0 };
}

impl Figure for CoreTile {
    fn size(&self) -> Size {
        Self::SIZE
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let Size { width, height } = Self::SIZE;
        let middle = at.x + width / 2.0;
        canvas.open_core(self.cpu, &self.hint);
        let ground =
            Rect { fill: self.tint.ground, edge: self.tint.edge, radius: 4.0, stroke: Stroke::Solid };
        canvas.rect(at.x, at.y, width, height, ground);
        if let Some((_, part)) = &self.load {
            let full = (height - 2.0) * part.clamp(0.0, 1.0);
            if full >= 1.0 {
                let look = Rect { fill: self.tint.full, edge: "none", radius: 3.0, stroke: Stroke::Solid };
                canvas.rect(at.x + 1.0, at.y + height - 1.0 - full, width - 2.0, full, look);
            }
        }
        let small =
            Text { size: 10.0, weight: Weight::Regular, colour: palette::INK, anchor: Anchor::Middle };
        let large = Text { size: 11.5, weight: Weight::Bold, ..small };
        match &self.load {
            Some((text, _)) => {
                canvas.text(middle, at.y + 15.0, small, &self.label);
                canvas.text(middle, at.y + 31.0, large, text);
            }
            None => canvas.text(middle, at.y + height / 2.0 + 4.0, small, &self.label),
        }
        canvas.close_group();
    }
}

/// A core that owns nothing in this plan.
pub struct IdleTile {
    pub label: String,
    pub allowed: bool,
    pub hint: String,
}

impl IdleTile {
    pub const SIZE: Size = Size { width: 34.0, height: 20.0 };
}

impl Figure for IdleTile {
    fn size(&self) -> Size {
        Self::SIZE
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let Size { width, height } = Self::SIZE;
        let (fill, edge, stroke) = match self.allowed {
            true => (palette::IDLE_FILL, palette::IDLE_EDGE, Stroke::Solid),
            false => (palette::PAGE, palette::BARRED_EDGE, Stroke::Dashed),
        };
        canvas.open_group(&self.hint);
        canvas.rect(at.x, at.y, width, height, Rect { fill, edge, radius: 3.0, stroke });
        let look =
            Text { size: 10.0, weight: Weight::Regular, colour: palette::FAINT_INK, anchor: Anchor::Middle };
        canvas.text(at.x + width / 2.0, at.y + 14.0, look, &self.label);
        canvas.close_group();
    }
}

/// The meaning of a NIC tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NicRole {
    /// A NIC of this node that is in use, or any NIC of this node in a picture without a plan.
    Here,
    /// A NIC of another node, shown next to the cores that use it.
    Elsewhere,
    /// A NIC that the plan does not use.
    Unused,
}

/// A NIC: its name and two lines.
pub struct NicTile {
    pub name: String,
    pub lines: [String; 2],
    pub tint: Tint,
    pub role: NicRole,
    pub hint: String,
}

impl NicTile {
    pub const SIZE: Size = Size { width: 112.0, height: 50.0 };
}

impl Figure for NicTile {
    fn size(&self) -> Size {
        Self::SIZE
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let Size { width, height } = Self::SIZE;
        let middle = at.x + width / 2.0;
        let (fill, edge, stroke) = match self.role {
            NicRole::Here => (self.tint.ground, self.tint.edge, Stroke::Solid),
            NicRole::Elsewhere => (palette::PAGE, self.tint.edge, Stroke::Dashed),
            NicRole::Unused => (palette::IDLE_FILL, palette::IDLE_EDGE, Stroke::Solid),
        };
        canvas.open_group(&self.hint);
        canvas.rect(at.x, at.y, width, height, Rect { fill, edge, radius: 9.0, stroke });
        let small =
            Text { size: 10.0, weight: Weight::Regular, colour: palette::INK, anchor: Anchor::Middle };
        let name = Text { size: 11.5, weight: Weight::Bold, ..small };
        canvas.text(middle, at.y + 16.0, name, &fitted(&self.name, name.size, name.weight, width - 8.0));
        canvas.text(
            middle,
            at.y + 30.0,
            small,
            &fitted(&self.lines[0], small.size, small.weight, width - 6.0),
        );
        canvas.text(
            middle,
            at.y + 43.0,
            small,
            &fitted(&self.lines[1], small.size, small.weight, width - 6.0),
        );
        canvas.close_group();
    }
}
