//! Faults of all kinds at once on processes, drawn from a seed: a short run of `make chaos`. It takes a minute,
//! because it waits until hubs forget failed jobs. Tests begin in the order of their names, so this test is the first.

use std::process::Command;

#[test]
fn whatever_breaks_jobs_have_right_bits_or_a_named_error_and_nothing_stays() {
    // The program has its own time limits: it ends if a worker is silent for too long, or if a job is
    // unfinished for too long.
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_phub-chaos"));
    let output = chaos.args(["--minutes", "0.25", "--seed", "7", "--rounds", "100"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
}
