//! Tests that a warning names each unknown setting in a worker's environment, with the setting that was
//! meant.

use fabric::conformance::rerun;
use hub_tests::{NOWHERE, config_at, refused, says};

const VARIABLE: &str = "PHUB_TEST_NAMES";

/// Runs the process of a worker whose join fails. It is no test, and does nothing if [`VARIABLE`] is not set.
#[test]
fn worker_process() {
    if std::env::var_os(VARIABLE).is_some() {
        phub_server::program::log("warn", None).unwrap();
        (0..2).for_each(|rank| drop(refused(config_at(NOWHERE, "job", rank, 2))));
    }
}

#[test]
fn a_worker_names_a_variable_that_is_no_setting_once() {
    let mut worker = rerun(worker_process);
    let output = worker.env(VARIABLE, "1").env("PHUB_CHEKSUM", "1").output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    says(&said, &["PHUB_CHEKSUM is not a setting, and changes nothing; was PHUB_CHECKSUM meant?"]);
    assert_eq!(said.matches("PHUB_CHEKSUM").count(), 1, "{said}");
}
