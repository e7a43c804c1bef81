//! The lines of a file that may have no end, such as a pipe or `/dev/zero`.

use std::io::{self, BufRead, Read};

/// Returns the lines of a file. A longer file, or a longer line, is an error.
pub fn lines(
    mut file: impl BufRead,
    file_bytes: u64,
    line_bytes: u64,
) -> impl Iterator<Item = io::Result<String>> {
    let mut left = file_bytes;
    std::iter::from_fn(move || {
        let (mut line, most) = (String::new(), left.min(line_bytes));
        let read = match file.by_ref().take(most.saturating_add(1)).read_line(&mut line) {
            Ok(read) => read as u64,
            Err(error) => return Some(Err(error)),
        };
        if read <= most {
            left -= read;
            line.truncate(line.trim_end_matches('\n').len());
            return (read > 0).then_some(Ok(line));
        }
        let (what, bytes) =
            if most == line_bytes { ("a line", line_bytes) } else { ("the file", file_bytes) };
        Some(Err(io::Error::other(format!("{what} has more than {bytes} bytes"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_the_file_and_longer_ones_are_errors() {
        let read = |file: &str| -> Result<Vec<String>, String> {
            lines(file.as_bytes(), 12, 5).map(|line| line.map_err(|error| error.to_string())).collect()
        };
        assert_eq!(read("a\n\nbcd"), Ok(["a", "", "bcd"].map(String::from).to_vec()));
        assert_eq!(read("abcd\nefgh\n1\n"), Ok(["abcd", "efgh", "1"].map(String::from).to_vec()));
        assert_eq!(read("abcde"), Ok(vec!["abcde".into()]));
        assert_eq!(read("abcd\nefgh\n\n"), Ok(["abcd", "efgh", ""].map(String::from).to_vec()));
        assert_eq!(read("a\nbcdefg\n"), Err("a line has more than 5 bytes".into()));
        assert_eq!(read("abcd\nefgh\nijk\n"), Err("the file has more than 12 bytes".into()));
    }
}
