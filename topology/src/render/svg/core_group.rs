//! Cores and the NICs they use, joined by lines.
//!
//! ```text
//!   one core      up to 4 cores     more cores
//!
//!    [core]        ┌─[core]         [core]─┬─[core]  [core]─┬─[core]
//!      │           ├─[core]         [core]─┤         [core]─┤
//!      │           │                       └───────┬────────┘
//!    ┌─┴──┐        └───┐                           │
//!  (nic)(nic)        (nic)                       (nic)
//! ```
//!
//! Lines run only in gaps between tiles, so no line crosses a tile. This module must not depend on the
//! machine.

use super::canvas::{Canvas, Stroke};
use super::figure::{Figure, Point, Size};
use super::palette::Tint;
use super::tile::{CoreTile, NicRole, NicTile};

const GAP: f64 = 6.0;
/// The gap between the two columns that share a vertical line.
const BUS_GAP: f64 = 18.0;
/// The distance from the lowest core to the NICs.
const DROP: f64 = 22.0;
const NIC_GAP: f64 = 10.0;
const SINGLE_COLUMN_LIMIT: usize = 4;
const NICS_IN_ROW_LIMIT: usize = 6;
const TWO_COLUMNS_LIMIT: usize = 10;

pub struct CoreGroup {
    pub cores: Vec<CoreTile>,
    pub nics: Vec<NicTile>,
    pub tint: Tint,
}

impl CoreGroup {
    fn columns(&self) -> usize {
        match self.cores.len() {
            0 => 0,
            n if n <= SINGLE_COLUMN_LIMIT && !self.nics.is_empty() => 1,
            1 => 1,
            n if n <= TWO_COLUMNS_LIMIT => 2,
            // There are about as many columns as rows, and an even number of columns.
            n => 2 * ((n as f64).sqrt() / 2.0).ceil() as usize,
        }
    }

    fn rows(&self) -> usize {
        self.cores.len().div_ceil(self.columns().max(1))
    }

    fn cores_size(&self) -> Size {
        let (columns, rows) = (self.columns(), self.rows());
        if columns == 0 {
            return Size { width: 0.0, height: 0.0 };
        }
        let Size { width, height } = CoreTile::SIZE;
        let bus = if self.nics.is_empty() { GAP } else { BUS_GAP };
        let width = match columns {
            1 if rows == 1 => width,
            1 => width + bus,
            _ => {
                let pairs = columns as f64 / 2.0;
                pairs * (2.0 * width + bus) + (pairs - 1.0) * GAP
            }
        };
        Size { width, height: rows as f64 * (height + GAP) - GAP }
    }

    fn nics_in_row(&self) -> usize {
        // Ten NICs are drawn in rows of five and five.
        let rows = self.nics.len().div_ceil(NICS_IN_ROW_LIMIT).max(1);
        self.nics.len().div_ceil(rows).max(1)
    }

    fn nic_rows(&self) -> usize {
        self.nics.len().div_ceil(self.nics_in_row())
    }

    fn nics_size(&self) -> Size {
        if self.nics.is_empty() {
            return Size { width: 0.0, height: 0.0 };
        }
        let (columns, rows) = (self.nics_in_row() as f64, self.nic_rows() as f64);
        Size {
            width: self.spine() + columns * (NicTile::SIZE.width + NIC_GAP) - NIC_GAP,
            height: rows * (NicTile::SIZE.height + DROP) - DROP,
        }
    }

    /// Returns the width on the left that the line that joins the rows of NICs needs.
    fn spine(&self) -> f64 {
        if self.nic_rows() > 1 { NIC_GAP } else { 0.0 }
    }

    /// Returns the place of the NIC at this index, relative to the block of NICs.
    fn nic_place(&self, index: usize) -> Point {
        let (row, column) = (index / self.nics_in_row(), index % self.nics_in_row());
        Point {
            x: self.spine() + column as f64 * (NicTile::SIZE.width + NIC_GAP),
            y: row as f64 * (NicTile::SIZE.height + DROP),
        }
    }

    /// Returns the place of the core at this index, relative to the block of cores.
    fn tile_place(&self, index: usize) -> Point {
        let columns = self.columns();
        let (row, column) = (index / columns, index % columns);
        let Size { width, height } = CoreTile::SIZE;
        let bus = if self.nics.is_empty() { GAP } else { BUS_GAP };
        let x = match columns {
            1 if self.rows() == 1 => 0.0,
            // The line runs on the left.
            1 => bus,
            _ => (column / 2) as f64 * (2.0 * width + bus + GAP) + (column % 2) as f64 * (width + bus),
        };
        Point { x, y: row as f64 * (height + GAP) }
    }

    /// Draws lines from every core down to the bar above the NICs, and returns the x of each line.
    fn draw_buses(&self, canvas: &mut Canvas, cores_at: Point, bar: f64, stroke: Stroke) -> Vec<f64> {
        let Size { width, height } = CoreTile::SIZE;
        let colour = self.tint.edge;
        if self.cores.len() == 1 {
            let x = cores_at.x + width / 2.0;
            canvas.line(&[(x, cores_at.y + height), (x, bar)], colour, stroke);
            return vec![x];
        }
        let single = self.columns() == 1;
        let mut buses: Vec<f64> = Vec::new();
        for index in 0..self.cores.len() {
            let place = self.tile_place(index);
            let y = cores_at.y + place.y + height / 2.0;
            let left = cores_at.x + place.x;
            // The line is to the left of the second core of a pair, or to the left of a single column.
            let (from, bus) = if single || index % self.columns() % 2 == 1 {
                (left, left - BUS_GAP / 2.0)
            } else {
                (left + width, left + width + BUS_GAP / 2.0)
            };
            canvas.line(&[(from, y), (bus, y)], colour, stroke);
            if !buses.contains(&bus) {
                buses.push(bus);
                canvas.line(&[(bus, y), (bus, bar)], colour, stroke);
            }
        }
        buses
    }

    /// Draws a bar above each row of NICs, a line that joins the bars, and a line from each NIC to its row's bar.
    fn draw_bars(&self, canvas: &mut Canvas, nics_at: Point, ends: Vec<f64>, stroke: Stroke) {
        let colour = self.tint.edge;
        let bar_of = |row: usize| nics_at.y + row as f64 * (NicTile::SIZE.height + DROP) - DROP / 2.0;
        for row in 0..self.nic_rows() {
            let bar = bar_of(row);
            let mut xs = if row == 0 { ends.clone() } else { Vec::new() };
            if self.nic_rows() > 1 {
                xs.push(nics_at.x);
            }
            let first = row * self.nics_in_row();
            for index in first..(first + self.nics_in_row()).min(self.nics.len()) {
                let x = nics_at.x + self.nic_place(index).x + NicTile::SIZE.width / 2.0;
                canvas.line(&[(x, bar), (x, bar + DROP / 2.0)], colour, stroke);
                xs.push(x);
            }
            let left = xs.iter().copied().fold(f64::MAX, f64::min);
            let right = xs.iter().copied().fold(0.0, f64::max);
            if right - left > 0.5 {
                canvas.line(&[(left, bar), (right, bar)], colour, stroke);
            }
        }
        if self.nic_rows() > 1 {
            canvas.line(&[(nics_at.x, bar_of(0)), (nics_at.x, bar_of(self.nic_rows() - 1))], colour, stroke);
        }
    }
}

impl Figure for CoreGroup {
    fn size(&self) -> Size {
        let (cores, nics) = (self.cores_size(), self.nics_size());
        let drop = if self.cores.is_empty() || self.nics.is_empty() { 0.0 } else { DROP };
        Size { width: cores.width.max(nics.width), height: cores.height + drop + nics.height }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let (size, cores, nics) = (self.size(), self.cores_size(), self.nics_size());
        let cores_at = Point { x: at.x + (size.width - cores.width) / 2.0, y: at.y };
        let nics_at =
            Point { x: at.x + (size.width - nics.width) / 2.0, y: at.y + size.height - nics.height };
        if !self.cores.is_empty() && !self.nics.is_empty() {
            let elsewhere = self.nics.iter().all(|nic| nic.role == NicRole::Elsewhere);
            let stroke = if elsewhere { Stroke::Dashed } else { Stroke::Solid };
            let ends = self.draw_buses(canvas, cores_at, nics_at.y - DROP / 2.0, stroke);
            self.draw_bars(canvas, nics_at, ends, stroke);
        }
        for (index, core) in self.cores.iter().enumerate() {
            let place = self.tile_place(index);
            core.draw(canvas, Point { x: cores_at.x + place.x, y: cores_at.y + place.y });
        }
        for (index, nic) in self.nics.iter().enumerate() {
            let place = self.nic_place(index);
            nic.draw(canvas, Point { x: nics_at.x + place.x, y: nics_at.y + place.y });
        }
    }
}
