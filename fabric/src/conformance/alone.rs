//! A test in a process of its own: it counts the resources of its process, or puts limits on it.

use std::process::Command;

/// Set in the process that runs one test.
const ALONE: &str = "PHUB_TEST_ALONE";

/// Runs the body of a test in a process of its own. The process runs this test program, with the name of the test as its
/// argument.
///
/// Call it from the test itself with a closure: the test's name is read from the closure's type.
///
/// # Panics
///
/// When the body does, or when the program that was started ran no test.
pub fn alone<F: FnOnce()>(body: F) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let name = test_name::<F>();
    let output = rerun_named(name).env(ALONE, "1").output().expect("a test can start its own program");
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let ran = said.contains("running 1 test\n");
    assert!(output.status.success() && ran, "{name}, alone: {}\n{said}\n{complaints}", output.status);
}

/// Starts this test program again, to run `test` and no other. `test` is a function with `#[test]`: the main function
/// of the new process, which does nothing unless a variable tells it to.
pub fn rerun<F: Fn()>(_test: F) -> Command {
    rerun_named(test_name::<F>())
}

fn rerun_named(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its program"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Returns the name by which the test program knows a test, or the test that a closure is in: `module::test`.
fn test_name<F>() -> &'static str {
    let name = std::any::type_name::<F>();
    let test = name.split("::{{closure}}").next().unwrap_or(name);
    test.split_once("::").map_or(test, |(_program, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_and_its_closures_tell_the_name_of_a_test() {
        fn name_in<F: FnOnce()>(_: F) -> &'static str {
            test_name::<F>()
        }
        let name = name_in(|| ());
        let expected = "conformance::alone::tests::a_function_and_its_closures_tell_the_name_of_a_test";
        assert_eq!(name, expected);
        let command = rerun(a_function_and_its_closures_tell_the_name_of_a_test);
        assert_eq!(command.get_args().nth(1).unwrap(), expected);
    }

    #[test]
    fn the_body_runs_in_another_process() {
        alone(|| assert!(std::env::var_os(ALONE).is_some(), "this is the process of all tests"));
    }

    #[test]
    fn a_body_that_panics_fails_the_test() {
        let told = std::panic::catch_unwind(|| alone(|| panic!("as it should")));
        let why = told.expect_err("the panic comes through");
        if std::env::var_os(ALONE).is_none() {
            let why = why.downcast_ref::<String>().expect("it says why");
            assert!(why.contains("as it should") && why.contains("alone: exit status: 101"), "{why}");
        } else {
            std::panic::resume_unwind(why);
        }
    }
}
