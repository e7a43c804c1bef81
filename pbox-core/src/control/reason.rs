//! The reason why a worker fails, as its program reports it: one line that other workers can print.
//!
//! The text comes from outside, and appears in errors, logs and pages of all other workers. This module must not depend
//! on its meaning.

/// The length limit of a [reason](reason), in bytes. A handshake's refusal, which has at most 1024 bytes, holds the reason and
/// the names of job and rank.
pub const MAX_REASON_BYTES: usize = 600;

/// The end of a text that is cut.
const CUT: &str = " ...";

/// Returns a failing worker's text as one printable line of at most [`MAX_REASON_BYTES`] bytes. Every character that
/// controls a terminal or the direction of text becomes a space.
pub fn reason(words: &str) -> String {
    let mut line = String::new();
    for c in words.chars().map(|c| if is_printed(c) { c } else { ' ' }) {
        if line.len() + c.len_utf8() > MAX_REASON_BYTES {
            line.truncate(line.floor_char_boundary(MAX_REASON_BYTES - CUT.len()));
            line.push_str(CUT);
            break;
        }
        line.push(c);
    }
    match line.trim() {
        "" => "it does not say why".to_owned(),
        words => words.to_owned(),
    }
}

/// Whether a character is printed unchanged.
fn is_printed(c: char) -> bool {
    let moves_others = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !moves_others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_one_line_that_can_be_printed() {
        assert_eq!(reason("KeyError: 'x'"), "KeyError: 'x'");
        assert_eq!(reason("\x1b[2Ja\r\nb\tc\u{9b}d\u{202e}e\n"), "[2Ja  b c d e");
        for nothing in ["", "\n\0\u{feff}"] {
            assert_eq!(reason(nothing), "it does not say why");
        }
    }

    #[test]
    fn words_are_cut_between_two_characters() {
        assert_eq!(reason(&"x".repeat(600)), "x".repeat(600));
        for (c, length, kept) in [("x", 601, 596), ("é", 900, 298), ("€", 900, 198)] {
            assert_eq!(reason(&c.repeat(length)), format!("{} ...", c.repeat(kept)));
        }
    }
}
