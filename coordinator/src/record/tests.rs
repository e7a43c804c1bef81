//! Tests of records: a replay has the right result, and older records with the same format number can be read.

use super::*;
use crate::hub::Quotas;
use crate::input::{Find, Release, Sweep};
use crate::job::LateLimits;
use crate::{Request, Token};

mod form;
mod life;

/// Returns a record in which a name is reserved and released.
fn recorded() -> Vec<String> {
    let late = LateLimits { warning: Duration::from_secs(30), limit: None };
    let settings = Settings { jobs_limit: 4, quotas: Quotas::default(), late };
    let (mut hub, now) = (Hub::new(settings), Instant::now());
    let mut lines = vec![head("a test", settings)];
    let mut ask = |input: Input| {
        let answer = input.clone().apply(&mut hub, now);
        // The answer is already text, and is written without quotes.
        lines.push(step(Duration::from_millis(1500), &input, &format_args!("{answer}")));
    };
    ask(Find { name: "job".into(), owner: None }.into());
    (0..2 * TOLD).for_each(|_| ask(Sweep.into()));
    ask(Find { name: "job".into(), owner: None }.into());
    ask(Release { name: "job".into() }.into());
    ask(Sweep.into());
    lines.push(end("the hub stopped"));
    lines
}

fn replayed(lines: &[String]) -> Result<Replayed, NotReplayed> {
    replay(lines.iter().cloned().map(Ok::<_, String>), Instant::now())
}

#[test]
fn a_record_has_the_same_answers_again() {
    let replayed = replayed(&recorded()).unwrap();
    assert_eq!((replayed.inputs, replayed.jobs), (4 + 2 * TOLD, 0));
    assert_eq!(replayed.time, Duration::from_millis(1500));
    assert!(replayed.to_string().ends_with("20 inputs, 0 jobs, 1.500 s; end of the record: the hub stopped"));
}

#[test]
fn the_first_answer_that_differs_is_shown_with_what_happened_before() {
    let mut lines = recorded();
    let at = 2 + 2 * TOLD;
    lines[at] = lines[at].replace("Ok(Reserved)", "Ok(Job)");
    let NotReplayed::Differs(difference) = replayed(&lines).unwrap_err() else { panic!("it differs") };
    assert_eq!((difference.line, difference.expected.as_str()), (at + 1, "Ok(Job)"));
    assert_eq!(difference.seen, "Ok(Reserved)");
    let story = difference.to_string();
    assert!(story.contains("2: 1.500000 s: Find(Find { name: \"job\""), "{story}");
    assert!(story.contains("-> Ok(Free(JobId(0)))"), "{story}");
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    let broken = |at: usize, line: &str| {
        let mut lines = recorded();
        lines.insert(at, line.to_owned());
        replayed(&lines).unwrap_err().to_string()
    };
    for (at, line, words) in [
        (0, "", "line 1: "),
        (0, "{\"at_ns\":1}", "line 1: "),
        (0, "a foreign \u{1b}[31m file", "in a foreign  [31m file"),
        (1, "{\"at_ns\":1,\"input\":{\"Nothing\":1},\"answer\":\"\"}", "line 2: unknown variant `Nothing`"),
        (2, "{\"at_ns\":1,\"in", "line 3: "),
        (recorded().len(), "more", "a line follows the last line"),
    ] {
        let error = broken(at, line);
        assert!(error.contains(words) && error.contains("expected {"), "{error}");
    }
    assert!(replayed(&[]).unwrap_err().to_string().starts_with("line 1: "));
}

/// Checks that a record is replayed even if its last line is cut off, because the hub was killed or is still writing.
#[test]
fn a_last_line_that_is_cut_off_ends_the_record() {
    let mut lines = recorded();
    lines.pop();
    let whole = lines.pop().unwrap();
    for bytes in 1..whole.len() {
        let cut = [&lines[..], &[whole[..bytes].to_owned()]].concat();
        let replayed = replayed(&cut).unwrap();
        assert_eq!((replayed.inputs, replayed.ended), (3 + 2 * TOLD, None), "{bytes} bytes");
    }
}

#[test]
fn a_record_of_another_form_is_refused_by_name() {
    for (other, form) in [("", 0), ("\"form\":1,", 1)] {
        let mut lines = recorded();
        lines[0] = lines[0]
            .replace(&format!("\"form\":{FORM},"), other)
            .replace("\"settings\":{", "\"settings\":{\"other\":1,");
        let refused = replayed(&lines).unwrap_err();
        assert_eq!(refused, NotReplayed::OtherForm { form, version: "a test".to_owned() });
        assert!(refused.to_string().contains("phub-server a test"), "{refused}");
    }
}

#[test]
fn a_record_shows_no_token_and_a_long_answer_is_short() {
    let (token, of_it) = (hex(&[0xab; 16]), hex(&fabric::name_of([0xab; 16])));
    assert_eq!(veiled(&format!("a {token}, \"{token}\"")), format!("a {of_it}, \"{of_it}\""));
    let longer = format!("{token}0");
    assert_eq!(veiled(&longer), longer);
    assert_eq!(veiled(""), "");
    assert_eq!(format!("{:?}", Token([1; 16])), "Token");
    let of = |end: &str| shortened(&("é".repeat(LONGEST) + end));
    assert!(of("a").len() < 2 * LONGEST && of("a") != of("b"), "{}", of("a"));
}

/// Each request can be written to a record and read from it.
#[test]
fn a_request_is_an_input() {
    fn of<R: Request>(request: R) -> String {
        json(&request.into())
    }
    assert_eq!(of(Sweep), "{\"Sweep\":null}");
}
