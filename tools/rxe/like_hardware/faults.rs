//! Calls that fail or take longer.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::log;

/// Sleeps for the delay that the file `LIKE_FAULTS` sets for this call, if any. Returns the errno with which
/// the call must fail, or `None`.
pub fn fault(call: &str, device: impl Fn() -> Option<CString>) -> Option<c_int> {
    static LINES: Mutex<Option<(Instant, Vec<String>)>> = Mutex::new(None);
    static COUNTS: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);
    let file = std::env::var_os("LIKE_FAULTS")?;
    let mut known = LINES.lock().unwrap();
    if known.as_ref().is_none_or(|(at, _)| at.elapsed() > Duration::from_millis(20)) {
        let text = std::fs::read_to_string(file).expect("LIKE_FAULTS is a file");
        *known = Some((Instant::now(), text.lines().map(str::to_owned).collect()));
    }
    let is_this = |line: &&String| {
        let of = line.split_whitespace().next().unwrap_or_default();
        let (name, on) = of.split_once('@').map_or((of, None), |(name, on)| (name, Some(on)));
        name == call && on.is_none_or(|on| device().is_some_and(|device| device.to_bytes() == on.as_bytes()))
    };
    let lines: Vec<String> = known.as_ref().unwrap().1.iter().filter(is_this).cloned().collect();
    drop(known);
    let mut errno: Option<c_int> = None;
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number =
            |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("LIKE_FAULTS has {line:?}"));
        match words[1..] {
            ["delay", _] => std::thread::sleep(Duration::from_millis(number(2))),
            ["fail", _] => errno = Some(number(2) as c_int),
            ["fail", _, "after", _] => {
                let mut counts = COUNTS.lock().unwrap();
                let made = counts.get_or_insert_default().entry(line.clone()).or_default();
                *made += 1;
                errno = (*made > number(4)).then(|| number(2) as c_int).or(errno);
            }
            _ => panic!("LIKE_FAULTS has {line:?}"),
        }
    }
    if let Some(errno) = errno {
        log(format!("{call} fails with {errno}"));
    }
    errno
}
