//! A record of a hub: its settings, then every input with its time and its answer. Each line is JSON. A replay gives the
//! inputs to a new hub, and compares the answers.
//!
//! ```text
//!   {"record": "phub-server", "form": 6, "version": "0.1.0", "settings": {..}}
//!   {"at_ns": 81220417, "input": {"Find": {"name": "job", "owner": null}}, "answer": "Ok(Free(JobId(0)))"}
//!   ...
//!   {"ended": "the hub stopped"}
//! ```
//!
//! A record shows no token and no secret. Every text with as many hexadecimal digits as a token is replaced by its digest.
//! The hub of a replay takes the digests as tokens, so the replay has the same answers.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::time::{Duration, Instant};

use authority::{hex, unhex};
use pbox_core::JobId;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::hub::{Hub, Settings};
use crate::input::{Happened, Input};
use crate::job::Event;

/// The name of the format.
const FORMAT: &str = "phub-server";
/// The version of the form of inputs and answers. The version is raised by each change after which this program cannot read
/// older records. `tests/form.rs` finds such a change, because it replays an older record.
const FORM: u32 = 6;
/// The number of hexadecimal digits of a token or a secret.
const SECRET_DIGITS: usize = 32;
/// The length limit of an answer in a record, in bytes. A longer answer is recorded by its beginning, length and digest.
const LONGEST: usize = 4096;
/// The number of lines that a report shows before a difference.
const TOLD: usize = 8;
/// The answers of sweeps without effect. A report leaves these sweeps out.
const NOTHING: [&str; 2] = ["[]", "Forgotten(0, [])"];
/// The length limit of a line in a report, in characters.
const SHOWN: usize = 600;

/// The first line of a record. The format of its settings depends on the version of the record's format.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    record: String,
    /// The version of the format. Records that are older than the first numbered version have no such number.
    #[serde(default)]
    form: u32,
    /// The version of the program.
    version: String,
    settings: Box<RawValue>,
}

/// An input with its answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at_ns: u64,
    input: Input,
    answer: String,
}

/// The last line of a record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ended {
    ended: String,
}

/// Returns the first line of a record. `version` is the version of the hub that writes the record.
pub fn head(version: &str, settings: Settings) -> String {
    let settings = to_raw_value(&settings).expect("its keys are texts");
    json(&Head { record: FORMAT.to_owned(), form: FORM, version: version.to_owned(), settings })
}

/// Returns the line of an input. `at` is its time since the beginning of the record.
pub fn step(at: Duration, input: &Input, answer: &dyn Debug) -> String {
    let (input, answer) = (veiled(&json(input)), json(&shortened(&veiled(&format!("{answer:?}")))));
    format!("{{\"at_ns\":{},\"input\":{input},\"answer\":{answer}}}", at.as_nanos())
}

/// Returns the last line, which says why the record ends.
pub fn end(why: &str) -> String {
    json(&Ended { ended: why.to_owned() })
}

fn json(of: &impl Serialize) -> String {
    serde_json::to_string(of).expect("its keys are texts and numbers")
}

/// Replaces each text that may be a token or a secret by its digest.
fn veiled(text: &str) -> String {
    let mut veiled = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let is_digit = |letter: char| letter.is_ascii_hexdigit();
        let digits = rest.find(|letter| !is_digit(letter)).unwrap_or(rest.len());
        let (run, behind) = rest.split_at(digits);
        match unhex(run).filter(|_| run.len() == SECRET_DIGITS) {
            Some(secret) => veiled += &hex(&fabric::name_of(secret)),
            None => veiled += run,
        }
        let others = behind.find(is_digit).unwrap_or(behind.len());
        let (between, behind) = behind.split_at(others);
        veiled += between;
        rest = behind;
    }
    veiled
}

/// Returns a text, shortened to the length limit of an answer in a record.
fn shortened(text: &str) -> String {
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    // The digest is FNV-1a, so that a text has the same digest in every version of this program.
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest: u64, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{} ... {} bytes, digest {digest:016x}", &text[..text.floor_char_boundary(LONGEST)], text.len())
}

/// The result of a replay without a difference.
#[derive(Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The number of inputs.
    pub inputs: usize,
    /// The number of jobs.
    pub jobs: usize,
    /// The time from the beginning to the last input.
    pub time: Duration,
    /// The reason why the record ends, if the hub wrote its last line.
    pub ended: Option<String>,
}

impl fmt::Display for Replayed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replayed { inputs, jobs, time, ended } = self;
        let ended = ended.as_deref().unwrap_or("there is no last line: the hub was killed, or still runs");
        write!(
            out,
            "all answers are equal: {inputs} inputs, {jobs} jobs, {:.3} s; end of the record: {ended}",
            time.as_secs_f64()
        )
    }
}

/// The reason why a replay ended early.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReplayed {
    /// A line cannot be read.
    #[error("line {line}: {why}; expected {expected}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The reason.
        why: String,
        /// The line that was expected.
        expected: &'static str,
    },
    /// The record has another version of the format.
    #[error(
        "the record has format {form} of phub-server {version}, and this program replays format {FORM}: replay the record with \
         phub-server of that version"
    )]
    OtherForm {
        /// The number of its form.
        form: u32,
        /// The version of the program that made the record.
        version: String,
    },
    /// An answer of the replay differs from the record.
    #[error("{0}")]
    Differs(Box<Difference>),
}

/// The first answer that differs from the record.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the line, from 1.
    pub line: usize,
    /// The lines before the difference, and the input.
    pub story: Vec<String>,
    /// The answer in the record.
    pub expected: String,
    /// The answer in the replay.
    pub seen: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "at line {} the replay gives another answer than the hub. What happened:", self.line)?;
        self.story.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        writeln!(out, "expected: {}", self.expected)?;
        write!(out, "seen:     {}", self.seen)
    }
}

/// Replays the lines of a record. The times in the record count from `begun`.
///
/// # Errors
/// Returns an error if the record has another version of the format, if a line cannot be read, or if an answer differs. The
/// error names the first line at fault.
pub fn replay<E: fmt::Display>(
    lines: impl IntoIterator<Item = Result<String, E>>,
    begun: Instant,
) -> Result<Replayed, NotReplayed> {
    let mut lines = (1..).zip(lines).peekable();
    let head = "{\"record\": \"phub-server\", \"form\": .., \"version\": .., \"settings\": ..}";
    let (_, first) = lines.next().unwrap_or_else(|| (1, Ok(String::new())));
    let Head { record, form, version, settings } = read(1, first, head)?;
    if record != FORMAT {
        return Err(NotReplayed::Line { line: 1, why: format!("a record of {record:?}"), expected: head });
    }
    if form != FORM {
        return Err(NotReplayed::OtherForm { form, version });
    }
    let settings = read(1, Ok::<_, E>(settings.get().to_owned()), head)?;
    let mut hub = Hub::new(settings);
    let mut replayed = Replayed { inputs: 0, jobs: 0, time: Duration::ZERO, ended: None };
    let (mut story, mut jobs) = (Story::default(), BTreeSet::<JobId>::new());
    while let Some((number, line)) = lines.next() {
        let expected = "{\"at_ns\": .., \"input\": .., \"answer\": ..}, and {\"ended\": ..} as the last line";
        let line =
            line.map_err(|error| NotReplayed::Line { line: number, why: error.to_string(), expected })?;
        if replayed.ended.is_some() {
            let why = "a line follows the last line of the record".to_owned();
            return Err(NotReplayed::Line { line: number, why, expected });
        }
        if let Ok(Ended { ended }) = serde_json::from_str(&line) {
            replayed.ended = Some(ended);
            continue;
        }
        // A hub that was killed, or still runs, may have written only a part of its last line.
        if lines.peek().is_none() && serde_json::from_str::<Step>(&line).is_err_and(|error| error.is_eof()) {
            break;
        }
        let Step { at_ns, input, answer } = read::<String, _>(number, Ok(line), expected)?;
        let at = Duration::from_nanos(at_ns);
        let Some(now) = begun.checked_add(at) else {
            return Err(NotReplayed::Line { line: number, why: format!("the time {at_ns} ns"), expected });
        };
        let is_sweep =
            matches!(&input, Input::Sweep(_) | Input::Happened(Happened { event: Event::Swept(_), .. }));
        story.add(format!("{number}: {:.6} s: {}", at.as_secs_f64(), shown(&format!("{input:?}"))));
        let seen = shortened(&input.apply(&mut hub, now));
        if seen != answer {
            return Err(NotReplayed::Differs(Box::new(story.difference(number, &answer, &seen))));
        }
        // The hub sweeps five times a second, usually without effect. The report leaves such sweeps out.
        match is_sweep && NOTHING.contains(&seen.as_str()) {
            true => drop(story.0.pop()),
            false => story.add(format!("  -> {}", shown(&seen))),
        }
        jobs.extend(hub.jobs().map(|job| job.spec.id));
        (replayed.inputs, replayed.time) = (replayed.inputs + 1, at);
    }
    replayed.jobs = jobs.len();
    Ok(replayed)
}

fn read<E: fmt::Display, T: for<'de> Deserialize<'de>>(
    line: usize,
    text: Result<String, E>,
    expected: &'static str,
) -> Result<T, NotReplayed> {
    let why = match text {
        Err(error) => error.to_string(),
        Ok(text) => match serde_json::from_str(&text) {
            Ok(read) => return Ok(read),
            Err(error) => format!("{error}, in {}", shown(&text)),
        },
    };
    Err(NotReplayed::Line { line, why, expected })
}

/// Returns a text for a terminal: only its printable characters, up to the length limit of a line in a report.
fn shown(text: &str) -> String {
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    let shown: String = text.chars().take(SHOWN).map(printable).collect();
    match text.chars().nth(SHOWN) {
        Some(_) => format!("{shown} ..."),
        None => shown,
    }
}

/// The last lines before a difference, for the report.
#[derive(Default)]
struct Story(Vec<String>);

impl Story {
    fn add(&mut self, line: String) {
        if self.0.len() > TOLD {
            self.0.remove(0);
        }
        self.0.push(line);
    }

    /// Describes a difference. A long answer is shown from shortly before its first difference.
    fn difference(self, line: usize, expected: &str, seen: &str) -> Difference {
        let same = expected.bytes().zip(seen.bytes()).take_while(|(a, b)| a == b).count();
        let from = expected.floor_char_boundary(same.saturating_sub(SHOWN / 2));
        let of = |text: &str| match from {
            0 => shown(text),
            _ => format!("... {}", shown(&text[from..])),
        };
        Difference { line, story: self.0, expected: of(expected), seen: of(seen) }
    }
}

#[cfg(test)]
mod tests;
