//! A test in a separate process, because it counts the resources of its process or limits them.

use std::process::Command;

/// The environment variable that marks the separate process of a test.
const ALONE: &str = "PHUB_TEST_ALONE";

/// Runs the body of a test in a separate process. The process runs this test program, with the name of the
/// test as its argument.
///
/// The test must call this function itself, with a closure: the test's name is read from the closure's type.
///
/// # Panics
///
/// Panics if the body does, or if the process ran no test.
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

/// Returns a command that runs `test` alone, in a new process of this test program. `test` is a function with
/// `#[test]`, which serves as the main function of the new process. In a normal run `test` does nothing,
/// because an environment variable is not set.
pub fn rerun<F: Fn()>(_test: F) -> Command {
    rerun_named(test_name::<F>())
}

fn rerun_named(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its program"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Returns the test program's name for a test, or for the test that contains a closure: `module::test`.
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
