//! How the programs end: an error's whole chain of reasons in words, and an exit status for scripts.

use std::process::ExitCode;

/// Prints an error with its causes to stderr, whatever `RUST_BACKTRACE` says: it is the user's, not
/// the programmer's.
pub fn exit_code(program: &str, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{program}: {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some layers repeat the one below.
        if !said.ends_with(&cause) {
            eprintln!("  because: {cause}");
        }
        said = cause;
    }
    ExitCode::FAILURE
}
