//! One process of a trace, as lines of JSON: its name, its tracks and its events.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::{Ahead, Clock};

/// The subject of an event. A viewer shows it next to the event.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Event<'a> {
    /// The job.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub job: &'a str,
    /// The key's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// The chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
    /// The round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// The worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// The begin and the end of a span, in nanoseconds of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The begin.
    pub begin: u64,
    /// The end.
    pub end: u64,
}

/// The lines of one process.
#[derive(Debug)]
pub struct Process {
    pub(crate) id: u32,
    pub(crate) about: Value,
    pub(crate) lines: String,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    cat: &'a str,
    ph: char,
    /// The time of the event, in microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// The scope of an instant. `t` stands for its track.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<char>,
    pid: u32,
    tid: u32,
    args: Event<'a>,
}

impl Process {
    /// Creates a process without events. `lost` is the number of older events that were not kept. `order` is the process's
    /// place among all processes.
    pub fn new(name: &str, order: u32, clock: &Clock, lost: u64) -> Self {
        let source = clock.source();
        // The number of a process is not unique over machines and containers.
        let mut hasher = DefaultHasher::new();
        (name, std::process::id(), clock.started_ns()).hash(&mut hasher);
        let id = (hasher.finish() % 1_000_000_000) as u32 + 1;
        let about = json!({ "pid": id, "name": name, "os_pid": std::process::id(), "lost_events": lost, "clock": source });
        let mut process = Process { id, about, lines: String::new() };
        process.describe("process_name", 0, json!({ "name": name }));
        process.describe("process_sort_index", 0, json!({ "sort_index": order }));
        process
    }

    /// Adds the differences to other clocks that this process knows.
    pub fn add_clocks(&mut self, clocks: &[Ahead]) {
        self.about["clock"]["others"] = json!(clocks);
    }

    fn describe(&mut self, what: &str, track: u32, args: Value) {
        self.push(&json!({ "name": what, "ph": "M", "pid": self.id, "tid": track, "args": args }));
    }

    fn push(&mut self, line: &impl Serialize) {
        self.lines.push_str(&serde_json::to_string(line).expect("an event is plain data"));
        self.lines.push_str(",\n");
    }

    /// Gives a track its name. Tracks are numbered from 1.
    pub fn track(&mut self, track: u32, name: &str) {
        self.describe("thread_name", track, json!({ "name": name }));
        self.describe("thread_sort_index", track, json!({ "sort_index": track }));
    }

    /// Adds a span, an event that took time. Two spans of a track do not overlap, or one lies within the other.
    pub fn span(&mut self, track: u32, what: &str, Span { begin, end }: Span, of: Event) {
        let took = end.saturating_sub(begin) as f64 / 1e3;
        self.line(track, what, (begin, Some(took)), of);
    }

    /// Adds an instant, an event at one point in time.
    pub fn instant(&mut self, track: u32, what: &str, at: u64, of: Event) {
        self.line(track, what, (at, None), of);
    }

    fn line(&mut self, track: u32, what: &str, (at, took): (u64, Option<f64>), of: Event) {
        let name = of.key.map_or_else(|| what.to_owned(), |key| format!("{what} {key}"));
        let (ph, s) = if took.is_some() { ('X', None) } else { ('i', Some('t')) };
        let ts = at as f64 / 1e3;
        self.push(&Line { name: &name, cat: what, ph, ts, dur: took, s, pid: self.id, tid: track, args: of });
    }
}
