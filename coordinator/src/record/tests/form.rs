//! The format of records: this program must be able to read an older record.
//!
//! This record is `life.record`. It was made from the fixed requests of [`life`](super::life), and must not be changed
//! by hand.

use std::fs::{read_to_string, write};
use std::path::PathBuf;

use super::*;

/// The environment variable that makes the test write the record again.
const MAKE: &str = "PHUB_MAKE_RECORD";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/record/tests/life.record")
}

/// Returns what to do if the replay of the record has another result than before.
fn remedy(error: &NotReplayed) -> String {
    let make = format!("make the record of the life again: {MAKE}=1 cargo test -p coordinator record");
    match error {
        NotReplayed::OtherForm { .. } => format!("{error}; FORM is another one: {make}"),
        NotReplayed::Line { .. } => format!(
            "{error}; records that people have cannot be read any more: raise FORM in coordinator/src/record.rs, and {make}"
        ),
        NotReplayed::Differs(_) => format!(
            "{error}; where answers have other words or fields, raise FORM in coordinator/src/record.rs; where the hub decides otherwise on \
             purpose, leave FORM as it is; then {make}"
        ),
    }
}

#[test]
fn a_record_of_this_form_can_be_read_and_has_the_same_answers() {
    if std::env::var_os(MAKE).is_some() {
        let former =
            read_to_string(path()).map(|text| replayed(&Vec::from_iter(text.lines().map(str::to_owned))));
        // If the former record cannot be replayed, the test fails. Writing the record again would hide that the format
        // needs a new number.
        if let Ok(Err(error @ NotReplayed::Line { .. })) = &former {
            panic!("{}", remedy(error));
        }
        write(path(), life::recorded().join("\n") + "\n").unwrap();
    }
    let text = read_to_string(path()).expect("life.record is beside this file");
    let lines = Vec::from_iter(text.lines().map(str::to_owned));
    let replayed = replayed(&lines).unwrap_or_else(|error| panic!("{}", remedy(&error)));
    assert_eq!((replayed.inputs, replayed.jobs), (lines.len() - 2, 2));
    let missing: Vec<&&str> =
        Input::NAMES.iter().filter(|name| !text.contains(&format!("\"input\":{{\"{name}\":"))).collect();
    assert!(
        missing.is_empty(),
        "no record has a request of these names: {missing:?}; have them happen in record/tests/life.rs, and make the record again: \
         {MAKE}=1 cargo test -p coordinator record"
    );
}

/// Each form of an input that differs from this program's form is detected.
#[test]
fn a_record_of_another_form_under_the_same_number_is_found() {
    let with = |from: &str, to: &str| {
        let lines = Vec::from_iter(life::recorded().iter().map(|line| line.replace(from, to)));
        replayed(&lines).map_or_else(|error| remedy(&error), |_| String::new())
    };
    for (from, to) in [
        ("\"steps\":", "\"counts\":"),
        ("\"StoodStill\"", "\"Stood\""),
        ("\"round\":9}", "\"round\":9,\"since\":8}"),
        ("\"refused\":", "\"denied\":"),
    ] {
        let remedy = with(from, to);
        assert!(remedy.contains("cannot be read any more: raise FORM"), "{remedy}");
    }
    for (from, to) in [("RankTaken", "RankIsTaken"), ("Relinked(1)", "LinkedAgain(1)")] {
        let remedy = with(from, to);
        assert!(remedy.contains("other words or fields, raise FORM"), "{remedy}");
    }
    assert!(with(&format!("\"form\":{FORM},"), "\"form\":0,").contains("FORM is another one: make"));
    assert_eq!(with("nothing of it", "nothing"), "");
}
