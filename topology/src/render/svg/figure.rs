//! Figures that know their size, and figures that arrange other figures.
//!
//! This module must not depend on machines.

use super::canvas::{Anchor, Canvas, Rect, Text, Weight};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub width: f64,
    pub height: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

pub trait Figure {
    fn size(&self) -> Size;

    /// Draws within `size()` from the upper left corner `at`.
    fn draw(&self, canvas: &mut Canvas, at: Point);

    /// Draws the figure into a greater height than it needs. Only frames use the additional height.
    fn draw_stretched(&self, canvas: &mut Canvas, at: Point, _height: f64) {
        self.draw(canvas, at);
    }
}

/// Figures in rows, like the words of a text.
pub struct Flow {
    figures: Vec<Box<dyn Figure>>,
    places: Vec<Place>,
    size: Size,
    rows: Rows,
}

/// The alignment of the figures of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Figures stand on the row's bottom line, with about the same number in each row.
    Standing,
    /// Figures begin at the row's top, and all have the height of the highest figure.
    Stretched,
    /// Figures stand on the row's bottom line, with each row as full as possible.
    Filled,
}

#[derive(Clone, Copy)]
struct Place {
    x: f64,
    top: f64,
    row_height: f64,
}

impl Flow {
    /// Arranges figures in rows that are at most `width` wide, if possible. The rows have about equal numbers
    /// of figures.
    pub fn new(rows: Rows, gap: f64, width: f64, figures: Vec<Box<dyn Figure>>) -> Self {
        let sizes: Vec<Size> = figures.iter().map(|figure| figure.size()).collect();
        let (mut places, mut size, count) = arrange(&sizes, gap, width);
        // Ten figures in rows of five and five look better than in rows of six and four.
        let mut narrower = size.width - 4.0;
        while rows != Rows::Filled && count > 1 && narrower > 0.0 {
            let (tried, tried_size, tried_count) = arrange(&sizes, gap, narrower);
            if tried_count > count {
                break;
            }
            (places, size) = (tried, tried_size);
            narrower = size.width.min(narrower) - 4.0;
        }
        Self { figures, places, size, rows }
    }
}

fn arrange(sizes: &[Size], gap: f64, width: f64) -> (Vec<Place>, Size, usize) {
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut x = 0.0;
    for (at, size) in sizes.iter().enumerate() {
        match rows.last_mut() {
            Some(row) if x + gap + size.width <= width => {
                row.push(at);
                x += gap + size.width;
            }
            _ => {
                rows.push(vec![at]);
                x = size.width;
            }
        }
    }
    let mut places = vec![Place { x: 0.0, top: 0.0, row_height: 0.0 }; sizes.len()];
    let mut total = Size { width: 0.0, height: 0.0 };
    for (number, row) in rows.iter().enumerate() {
        let top = if number == 0 { 0.0 } else { total.height + gap };
        let height = row.iter().map(|&at| sizes[at].height).fold(0.0, f64::max);
        let mut x = 0.0;
        for &at in row {
            places[at] = Place { x, top, row_height: height };
            x += sizes[at].width + gap;
        }
        total = Size { width: total.width.max(x - gap), height: top + height };
    }
    (places, total, rows.len())
}

impl Figure for Flow {
    fn size(&self) -> Size {
        self.size
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        for (figure, place) in self.figures.iter().zip(&self.places) {
            let (x, top) = (at.x + place.x, at.y + place.top);
            if self.rows == Rows::Stretched {
                figure.draw_stretched(canvas, Point { x, y: top }, place.row_height);
            } else {
                figure.draw(canvas, Point { x, y: top + place.row_height - figure.size().height });
            }
        }
    }
}

/// Figures one below the other.
pub struct Stack {
    gap: f64,
    figures: Vec<Box<dyn Figure>>,
}

impl Stack {
    /// Creates a stack. Figures without height are left out, so that they take no gap.
    pub fn new(gap: f64, mut figures: Vec<Box<dyn Figure>>) -> Self {
        figures.retain(|figure| figure.size().height > 0.0);
        Self { gap, figures }
    }
}

impl Figure for Stack {
    fn size(&self) -> Size {
        let sizes = self.figures.iter().map(|figure| figure.size());
        let gaps = self.gap * self.figures.len().saturating_sub(1) as f64;
        sizes.fold(Size { width: 0.0, height: gaps }, |sum, size| Size {
            width: sum.width.max(size.width),
            height: sum.height + size.height,
        })
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let mut y = at.y;
        for figure in &self.figures {
            figure.draw(canvas, Point { x: at.x, y });
            y += figure.size().height + self.gap;
        }
    }
}

/// A titled box around a figure.
pub struct Frame {
    pub title: String,
    pub aside: String,
    pub title_size: f64,
    pub look: Rect,
    pub content: Box<dyn Figure>,
}

const PADDING: f64 = 14.0;
const ASIDE_SIZE: f64 = 11.0;

impl Frame {
    fn header_height(&self) -> f64 {
        self.title_size + 12.0
    }
}

impl Figure for Frame {
    fn size(&self) -> Size {
        let content = self.content.size();
        let title = text_width(&self.title, self.title_size, Weight::Bold) + 12.0;
        let header = title + text_width(&self.aside, ASIDE_SIZE, Weight::Regular);
        Size {
            width: content.width.max(header) + 2.0 * PADDING,
            height: self.header_height() + content.height + 2.0 * PADDING,
        }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        self.draw_stretched(canvas, at, self.size().height);
    }

    fn draw_stretched(&self, canvas: &mut Canvas, at: Point, height: f64) {
        let size = self.size();
        canvas.rect(at.x, at.y, size.width, height, self.look);
        let baseline = at.y + PADDING + self.title_size - 2.0;
        let title = Text {
            size: self.title_size,
            weight: Weight::Bold,
            colour: super::palette::INK,
            anchor: Anchor::Start,
        };
        canvas.text(at.x + PADDING, baseline, title, &self.title);
        let aside = Text {
            size: ASIDE_SIZE,
            weight: Weight::Regular,
            colour: super::palette::FAINT_INK,
            anchor: Anchor::Start,
        };
        let aside_x = at.x + PADDING + text_width(&self.title, self.title_size, Weight::Bold) + 12.0;
        canvas.text(aside_x, baseline, aside, &self.aside);
        let inner = size.width - 2.0 * PADDING;
        let x = at.x + PADDING + (inner - self.content.size().width) / 2.0;
        let top = PADDING + self.header_height();
        self.content.draw_stretched(canvas, Point { x, y: at.y + top }, height - top - PADDING);
    }
}

/// Wrapped text.
pub struct Paragraph {
    lines: Vec<String>,
    look: Text,
    width: f64,
}

impl Paragraph {
    pub fn new(text: String, size: f64, weight: Weight, colour: &'static str, width: f64) -> Self {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split(' ') {
            match lines.last_mut() {
                Some(line)
                    if text_width(line, size, weight) + text_width(word, size, weight) + size < width =>
                {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        Self { lines, look: Text { size, weight, colour, anchor: Anchor::Start }, width }
    }
}

impl Figure for Paragraph {
    fn size(&self) -> Size {
        Size { width: self.width, height: self.lines.len() as f64 * self.look.size * 1.35 }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        for (number, line) in self.lines.iter().enumerate() {
            let baseline = at.y + self.look.size * (1.0 + 1.35 * number as f64);
            canvas.text(at.x, baseline, self.look, line);
        }
    }
}

/// Returns an upper estimate of a text's width, for the wider of the usual fonts.
pub fn text_width(text: &str, size: f64, weight: Weight) -> f64 {
    text.chars().count() as f64 * size * if weight == Weight::Bold { 0.65 } else { 0.57 }
}

/// Returns the text, cut with an ellipsis if it would be wider.
pub fn fitted(text: &str, size: f64, weight: Weight, width: f64) -> String {
    let fitting = (width / text_width("x", size, weight)) as usize;
    if text.chars().count() <= fitting {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(fitting.saturating_sub(1)).collect();
    cut.push('\u{2026}');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_flow_as_five_and_five() {
        let size = Size { width: 100.0, height: 10.0 };
        let (_, _, greedy) = arrange(&[size; 10], 10.0, 690.0);
        assert_eq!(greedy, 2);
        struct Blank(Size);
        impl Figure for Blank {
            fn size(&self) -> Size {
                self.0
            }
            fn draw(&self, _: &mut Canvas, _: Point) {}
        }
        let figures = (0..10).map(|_| Box::new(Blank(size)) as Box<dyn Figure>).collect();
        assert_eq!(
            Flow::new(Rows::Standing, 10.0, 690.0, figures).size(),
            Size { width: 540.0, height: 30.0 }
        );
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(fitted("enp129s0f0np0v123", 10.0, Weight::Regular, 60.0), "enp129s0f\u{2026}");
        assert_eq!(fitted("eth0", 10.0, Weight::Regular, 60.0), "eth0");
    }
}
