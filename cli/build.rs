//! Passes the commit of the build to the program, for `--version`. The commit is COMMIT_OF_BUILD, or the
//! output of git.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=COMMIT_OF_BUILD");
    // The log of HEAD changes with each commit and checkout. A source tree without a Git repository has no
    // such log.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let said = std::env::var("COMMIT_OF_BUILD").ok().filter(|commit| !commit.is_empty());
    let commit = said.or_else(|| git(&["log", "-1", "--format=%h of %cs"]));
    println!("cargo:rustc-env=COMMIT_OF_BUILD={}", commit.as_deref().unwrap_or("unknown commit"));
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !said.trim().is_empty()).then(|| said.trim().to_owned())
}
