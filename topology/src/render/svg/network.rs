//! Machines on a network. Each machine is a box with members and an owner below them. Lines lead from the
//! owners to the network, with their traffic.
//!
//! ```text
//!   +- machine 0 ---+  +- machine 1 ---+
//!   |  [m] [m] [m]  |  |  [m] [m] [m]  |
//!   |   [ owner ]   |  |   [ owner ]   |
//!   |   out v ^ in  |  |   out v ^ in  |
//!   +-----|---|-----+  +-----|---|-----+
//!   [            network               ]
//! ```
//!
//! This module must not depend on what members and owners are: the caller gives all texts.

use super::canvas::{Anchor, Canvas, Rect, Stroke, Text, Weight};
use super::figure::{Figure, Flow, Paragraph, Point, Rows, Size, Stack, fitted};
use super::palette::{self, Tint};

const MARGIN: f64 = 24.0;
const BOX_WIDTH: f64 = 230.0;
const GAP: f64 = 14.0;
/// The most boxes of a row.
const ROW: usize = 4;
/// The most boxes of a level, and the most members of a box. The text rendering shows more.
const BOXES: usize = 8;
const MEMBERS: usize = 8;
const MEMBER: Size = Size { width: 46.0, height: 24.0 };
const MEMBER_GAP: f64 = 4.0;
const OWNER: Size = Size { width: 178.0, height: 58.0 };
/// Heights in a picture: from a box's title to its contents, from its members to the owner, from the owner to the
/// network, and of the network itself.
const TITLE: f64 = 30.0;
const JOIN: f64 = 34.0;
const DROP: f64 = 62.0;
const BAR: f64 = 24.0;
/// Half of the distance between the two lines to the network.
const LANE: f64 = 9.0;

/// One machine of a picture.
#[derive(Clone, Debug)]
pub struct NetworkBox {
    /// The name.
    pub name: String,
    /// The names of the members. The list may be empty.
    pub members: Vec<String>,
    /// The text next to the line from the members to the owner.
    pub joined_by: String,
    /// The owner's name, and a line below it.
    pub owner: [String; 2],
    /// The part of all data that the box owns, 0 to 1.
    pub part: f64,
    /// The bytes that it sends.
    pub sends: String,
    /// The bytes that it receives.
    pub receives: String,
}

/// Machines on a network.
#[derive(Clone, Debug)]
pub struct NetworkPicture {
    /// The title.
    pub title: String,
    /// Lines below the title.
    pub heading: Vec<String>,
    /// The text in the bar of the network.
    pub network: String,
    /// The machines, by level.
    pub levels: Vec<Vec<NetworkBox>>,
    /// Lines below the picture.
    pub notes: Vec<String>,
}

impl NetworkPicture {
    /// Returns a complete SVG document that refers to no other file.
    pub fn svg(&self) -> String {
        let most = self.levels.iter().map(|boxes| boxes.len().min(ROW)).max().unwrap_or(1).max(3);
        let width = row_width(most);
        let line = |text: &String, size: f64, weight: Weight, colour: &'static str| {
            Box::new(Paragraph::new(text.clone(), size, weight, colour, width)) as Box<dyn Figure>
        };
        let small = |text: &String| line(text, 12.0, Weight::Regular, palette::FAINT_INK);
        let mut heading = vec![line(&self.title, 19.0, Weight::Bold, palette::INK)];
        heading.extend(self.heading.iter().map(small));
        let mut page: Vec<Box<dyn Figure>> = vec![Box::new(Stack::new(5.0, heading))];
        for boxes in &self.levels {
            let mut number = 0;
            let shown = &boxes[..boxes.len().min(BOXES)];
            for row in shown.chunks(ROW) {
                let figures = (number..).zip(row).map(|(at, each)| BoxFigure::new(each, at)).collect();
                number += row.len();
                page.push(Box::new(Row { boxes: figures, network: self.network.clone(), width }));
            }
            if boxes.len() > shown.len() {
                page.push(small(&format!("\u{2026} and {} more like these", boxes.len() - shown.len())));
            }
        }
        let note = |text| line(text, 13.0, Weight::Regular, palette::INK);
        page.push(Box::new(Stack::new(4.0, self.notes.iter().map(note).collect())));
        let page = Stack::new(18.0, page);
        let mut canvas = Canvas::default();
        page.draw(&mut canvas, Point { x: MARGIN, y: MARGIN });
        canvas.finish(width + 2.0 * MARGIN, page.size().height + 2.0 * MARGIN, &self.title)
    }
}

fn row_width(boxes: usize) -> f64 {
    boxes as f64 * (BOX_WIDTH + GAP) - GAP
}

/// Boxes side by side, and the network below them.
struct Row {
    boxes: Vec<BoxFigure>,
    network: String,
    width: f64,
}

impl Figure for Row {
    fn size(&self) -> Size {
        let height = self.boxes.iter().map(|each| each.size().height).fold(0.0, f64::max);
        Size { width: self.width, height: height + GAP + BAR }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let height = self.size().height - GAP - BAR;
        let bar = at.y + height + GAP;
        for (number, figure) in self.boxes.iter().enumerate() {
            let x = at.x + number as f64 * (BOX_WIDTH + GAP);
            figure.draw_stretched(canvas, Point { x, y: at.y }, height);
            figure.lines(canvas, x + BOX_WIDTH / 2.0, at.y + height - DROP, bar);
        }
        let width = row_width(self.boxes.len());
        let look = Rect {
            fill: palette::NEUTRAL.ground,
            edge: palette::NEUTRAL.edge,
            radius: 9.0,
            stroke: Stroke::Solid,
        };
        canvas.rect(at.x, bar, width, BAR, look);
        let text = fitted(&self.network, SMALL.size, SMALL.weight, width - 12.0);
        canvas.text(at.x + width / 2.0, bar + 16.0, SMALL, &text);
    }
}

const SMALL: Text =
    Text { size: 11.0, weight: Weight::Regular, colour: palette::INK, anchor: Anchor::Middle };
const BOLD: Text = Text { size: 12.0, weight: Weight::Bold, ..SMALL };

struct BoxFigure {
    content: NetworkBox,
    members: Flow,
    tint: Tint,
}

impl BoxFigure {
    fn new(content: &NetworkBox, number: usize) -> Self {
        let tint = if content.part > 0.0 { palette::nic_tint(number) } else { palette::NEUTRAL };
        let count = content.members.len();
        let shown = if count > MEMBERS { MEMBERS - 1 } else { count };
        let mut labels = content.members[..shown].to_vec();
        if shown < count {
            labels.push(format!("+{}", count - shown));
        }
        let tiles = labels.into_iter().map(|label| Box::new(Member(label)) as Box<dyn Figure>).collect();
        let members = Flow::new(Rows::Filled, MEMBER_GAP, BOX_WIDTH - 20.0, tiles);
        BoxFigure { content: content.clone(), members, tint }
    }

    /// Draws the lines from the owner's lower edge to the network, with their traffic.
    fn lines(&self, canvas: &mut Canvas, middle: f64, foot: f64, network: f64) {
        let edge = self.tint.edge;
        arrow(canvas, (middle - LANE, foot), (middle - LANE, network), edge);
        arrow(canvas, (middle + LANE, network), (middle + LANE, foot), edge);
        let half = BOX_WIDTH / 2.0 - LANE;
        for (side, words, text) in [(-1.0, "out", &self.content.sends), (1.0, "in", &self.content.receives)] {
            let x = middle + side * (LANE + half / 2.0);
            canvas.text(x, foot + 22.0, BOLD, &fitted(text, BOLD.size, BOLD.weight, half - 8.0));
            canvas.text(x, foot + 37.0, SMALL, words);
        }
    }
}

impl Figure for BoxFigure {
    fn size(&self) -> Size {
        let members = self.members.size().height;
        let joined = if members > 0.0 { members + JOIN } else { 0.0 };
        Size { width: BOX_WIDTH, height: TITLE + joined + OWNER.height + DROP }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        self.draw_stretched(canvas, at, self.size().height);
    }

    fn draw_stretched(&self, canvas: &mut Canvas, at: Point, height: f64) {
        let NetworkBox { name, joined_by, owner: [owner, line], part, .. } = &self.content;
        let frame = Rect {
            fill: palette::SOCKET_FILL,
            edge: palette::SOCKET_EDGE,
            radius: 8.0,
            stroke: Stroke::Solid,
        };
        canvas.rect(at.x, at.y, BOX_WIDTH, height, frame);
        let middle = at.x + BOX_WIDTH / 2.0;
        canvas.text(middle, at.y + 19.0, BOLD, &fitted(name, BOLD.size, BOLD.weight, BOX_WIDTH - 12.0));
        let top = at.y + height - DROP - OWNER.height;
        let members = self.members.size();
        if members.height > 0.0 {
            let under = top - JOIN;
            let x = middle - members.width / 2.0;
            self.members.draw(canvas, Point { x, y: under - members.height });
            arrow(canvas, (middle - LANE, under), (middle - LANE, top), self.tint.edge);
            arrow(canvas, (middle + LANE, top), (middle + LANE, under), self.tint.edge);
            let half = BOX_WIDTH / 2.0 - LANE;
            let text = fitted(joined_by, SMALL.size, SMALL.weight, half - 8.0);
            canvas.text(middle + LANE + half / 2.0, top - 13.0, SMALL, &text);
        }
        let x = middle - OWNER.width / 2.0;
        let ground =
            Rect { fill: self.tint.ground, edge: self.tint.edge, radius: 5.0, stroke: Stroke::Solid };
        canvas.rect(x, top, OWNER.width, OWNER.height, ground);
        let full = (OWNER.width - 2.0) * part.clamp(0.0, 1.0);
        if full >= 1.0 {
            let look = Rect {
                fill: self.tint.full,
                edge: "none",
                radius: (full / 2.0).min(4.0),
                stroke: Stroke::Solid,
            };
            canvas.rect(x + 1.0, top + OWNER.height - 9.0, full, 8.0, look);
        }
        let room = OWNER.width - 8.0;
        canvas.text(middle, top + 19.0, BOLD, &fitted(owner, BOLD.size, BOLD.weight, room));
        canvas.text(middle, top + 38.0, SMALL, &fitted(line, SMALL.size, SMALL.weight, room));
    }
}

/// Draws a line with an arrowhead at its end, up or down.
fn arrow(canvas: &mut Canvas, from: (f64, f64), to: (f64, f64), colour: &'static str) {
    canvas.line(&[from, to], colour, Stroke::Solid);
    let back = if to.1 > from.1 { -5.0 } else { 5.0 };
    canvas.line(&[(to.0 - 4.0, to.1 + back), to, (to.0 + 4.0, to.1 + back)], colour, Stroke::Solid);
}

/// A member of a machine, by name.
struct Member(String);

impl Figure for Member {
    fn size(&self) -> Size {
        MEMBER
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let Size { width, height } = MEMBER;
        let look =
            Rect { fill: palette::NODE_FILL, edge: palette::NODE_EDGE, radius: 4.0, stroke: Stroke::Solid };
        canvas.rect(at.x, at.y, width, height, look);
        let text = fitted(&self.0, SMALL.size, SMALL.weight, width - 4.0);
        canvas.text(at.x + width / 2.0, at.y + 16.0, SMALL, &text);
    }
}
