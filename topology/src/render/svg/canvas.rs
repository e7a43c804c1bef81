//! SVG elements as text.
//!
//! This file alone writes markup, so it alone must escape text. It must not depend on what is drawn.

use std::fmt::Write;

/// The part of a text, start or middle, that is at the given x.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
}

/// The weight of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    Regular,
    Bold,
}

/// The way in which a line is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    Solid,
    Dashed,
}

impl Stroke {
    fn attribute(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Dashed => " stroke-dasharray=\"4 3\"",
        }
    }
}

/// The look of a text.
#[derive(Clone, Copy)]
pub struct Text {
    pub size: f64,
    pub weight: Weight,
    pub colour: &'static str,
    pub anchor: Anchor,
}

/// The look of a rectangle.
#[derive(Clone, Copy)]
pub struct Rect {
    pub fill: &'static str,
    pub edge: &'static str,
    pub radius: f64,
    pub stroke: Stroke,
}

#[derive(Default)]
pub struct Canvas {
    body: String,
}

impl Canvas {
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, look: Rect) {
        let Rect { fill, edge, radius, stroke } = look;
        let dash = stroke.attribute();
        self.element(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{radius}\" \
             fill=\"{fill}\" stroke=\"{edge}\"{dash}/>"
        ));
    }

    /// Draws a line through the points.
    pub fn line(&mut self, points: &[(f64, f64)], colour: &'static str, stroke: Stroke) {
        let dash = stroke.attribute();
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.element(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" \
             stroke-linejoin=\"round\"{dash}/>",
            points.join(" ")
        ));
    }

    /// Draws text with its baseline at y.
    pub fn text(&mut self, x: f64, y: f64, look: Text, text: &str) {
        if text.is_empty() {
            return;
        }
        let weight = match look.weight {
            Weight::Regular => "",
            Weight::Bold => " font-weight=\"bold\"",
        };
        let anchor = match look.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
        };
        self.element(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\" fill=\"{}\"{weight}{anchor}>{}</text>",
            look.size,
            look.colour,
            escape(text)
        ));
    }

    /// Opens a group with a hint that shows under the pointer.
    pub fn open_group(&mut self, hint: &str) {
        self.element(format_args!("<g><title>{}</title>", escape(hint)));
    }

    /// Opens a group for a core. A page finds the group by its attribute `data-cpu`. The first rectangle of
    /// the group is the core's tile.
    pub fn open_core(&mut self, cpu: Option<u32>, hint: &str) {
        match cpu {
            Some(cpu) => self.element(format_args!("<g data-cpu=\"{cpu}\"><title>{}</title>", escape(hint))),
            None => self.open_group(hint),
        }
    }

    /// Closes the group that [`Canvas::open_group`] opened.
    pub fn close_group(&mut self) {
        self.element(format_args!("</g>"));
    }

    pub fn finish(self, width: f64, height: f64, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n{}</svg>\n",
            escape(title),
            super::palette::PAGE,
            self.body
        )
    }

    fn element(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{text}");
    }
}

/// Returns the text with escaped markup. Control characters, which XML forbids, become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escape("<a & \"b\">\u{7}"), "&lt;a &amp; &quot;b&quot;&gt;\u{fffd}");
    }
}
