//! The doctor's output: a line for each check when it is done, or one JSON object at the end.
//!
//! This module must not depend on the checks.

use std::io::{ErrorKind, IsTerminal, Write as _};

use anyhow::Context;
use serde_json::json;

use super::check::{Check, Verdict};

/// The width of the column of names.
const NAME_WIDTH: usize = 22;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Lines, with colours or without.
    Text { colours: bool },
    /// One object.
    Json,
}

impl Form {
    /// Returns JSON if `json`, and otherwise text. Text has colours if the output is a terminal.
    pub fn of(json: bool) -> Self {
        if json { Form::Json } else { Form::Text { colours: std::io::stdout().is_terminal() } }
    }
}

/// The checks so far.
#[derive(Debug)]
pub(crate) struct Report {
    form: Form,
    subject: String,
    checks: Vec<Check>,
    /// The first error of a write to stdout.
    write_error: Option<std::io::Error>,
}

impl Report {
    /// Creates a report without checks. `subject` is the hub and the job that are checked.
    pub fn new(form: Form, subject: String) -> Self {
        let mut report = Report { form, subject, checks: Vec::new(), write_error: None };
        if let Form::Text { .. } = form {
            report.say(&format!("{}\n\n", report.subject));
        }
        report
    }

    /// Adds a check. If the report is text, prints the line of the check at once.
    pub fn add(&mut self, check: Check) {
        if let Form::Text { colours } = self.form {
            self.say(&line(&check, colours));
        }
        self.checks.push(check);
    }

    /// Prints the end of the report, and returns the worst verdict.
    ///
    /// # Errors
    /// Returns an error if a part of the report could not be printed.
    pub fn end(mut self) -> anyhow::Result<Verdict> {
        let verdict = self.checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Pass);
        match self.form {
            Form::Text { .. } => self.say(&format!("\n{}\n", summary(&self.checks))),
            Form::Json => {
                let (version, subject, checks) = (env!("CARGO_PKG_VERSION"), &self.subject, &self.checks);
                let object =
                    json!({"version": version, "subject": subject, "verdict": verdict, "checks": checks});
                self.say(&format!("{object}\n"));
            }
        }
        self.write_error.map_or(Ok(verdict), Err).context("writing to stdout")
    }

    /// Prints a text. Ignores a closed pipe: its reader has ended, but the exit status is still of use.
    fn say(&mut self, text: &str) {
        let mut out = std::io::stdout();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                self.write_error = self.write_error.take().or(Some(error))
            }
            _ => {}
        }
    }
}

fn line(check: &Check, colours: bool) -> String {
    // Failures are printed in a colour.
    let (word, colour) = match check.verdict {
        Verdict::Pass => ("pass", "32"),
        Verdict::Note => ("note", "2"),
        Verdict::Warn => ("warn", "33"),
        Verdict::Fail => ("FAIL", "1;31"),
    };
    let word = if colours { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() };
    let mut lines = check.seen.lines();
    let mut text = format!("{word}  {:<NAME_WIDTH$}  {}\n", check.name, lines.next().unwrap_or_default());
    let indent = " ".repeat(8 + NAME_WIDTH);
    lines.for_each(|line| text.push_str(&format!("{indent}{line}\n")));
    if let Some(fix) = &check.fix {
        let label = if check.verdict == Verdict::Note { "hint" } else { "fix" };
        let mut lines = fix.lines();
        text.push_str(&format!("{indent}{label}: {}\n", lines.next().unwrap_or_default()));
        lines.for_each(|line| text.push_str(&format!("{indent}  {line}\n")));
    }
    text
}

fn summary(checks: &[Check]) -> String {
    let named = |verdict: Verdict| -> Vec<&str> {
        checks.iter().filter(|check| check.verdict == verdict).map(|check| check.name.as_str()).collect()
    };
    let (failed, warned) = (named(Verdict::Fail), named(Verdict::Warn));
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let mut text = match failed.len() {
        0 => "Well: nothing is in the way".to_owned(),
        n => format!("Not well: {} ({})", count(n, "failure"), failed.join(", ")),
    };
    if !warned.is_empty() {
        text.push_str(&format!("; {} ({})", count(warned.len(), "warning"), warned.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_verdict_name_seen_and_fix() {
        let check = Check::fail("memlock", "too little\n  a table", "ulimit -l unlimited\nor this");
        let indent = " ".repeat(30);
        let expected = format!(
            "FAIL  memlock                 too little\n{indent}  a table\n{indent}fix: ulimit -l unlimited\n{indent}  or this\n"
        );
        assert_eq!(line(&check, false), expected);
        assert!(line(&check, true).starts_with("\x1b[1;31mFAIL\x1b[0m  memlock"));
        assert_eq!(line(&Check::pass("numa", "one node"), false), "pass  numa                    one node\n");
    }

    #[test]
    fn the_summary_names_what_is_not_well() {
        let (pass, warn) = (Check::pass("a", ""), Check::warn("b", "", ""));
        assert_eq!(summary(std::slice::from_ref(&pass)), "Well: nothing is in the way");
        assert_eq!(summary(&[pass, warn.clone()]), "Well: nothing is in the way; 1 warning (b)");
        let failed = [Check::fail("c", "", ""), warn, Check::fail("d", "", "")];
        assert_eq!(summary(&failed), "Not well: 2 failures (c, d); 1 warning (b)");
    }

    #[test]
    fn the_worst_verdict_counts() {
        let mut report = Report::new(Form::Json, "a hub".into());
        report.add(Check::warn("b", "", ""));
        report.add(Check::note("a", ""));
        assert_eq!(report.end().unwrap(), Verdict::Warn);
        assert!(
            Verdict::Fail > Verdict::Warn && Verdict::Warn > Verdict::Note && Verdict::Note > Verdict::Pass
        );
    }
}
