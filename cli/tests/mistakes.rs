//! Mistakes of operators. Each ends the program at once, or is reported. The text names the setting, the
//! expected value and the fix.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{failure, phub_server, says};
use fabric::conformance::Watchdog;

/// An address that no machine has. A hub reads all its files before it tries to listen.
const NOT_HERE: &str = "192.0.2.1:0";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the output of `serve` before it ends.
fn serve(arguments: &[&str]) -> String {
    failure(&[&["serve", "--listen", NOT_HERE], arguments].concat())
}

#[test]
fn settings_that_cannot_be_end_a_hub_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    std::fs::write(&file, "\"0123456789abcdef\"\n").unwrap();
    symlink(dir.path().join("nowhere"), &link).unwrap();
    let endless = u64::MAX.to_string();
    for (arguments, words) in [
        (["--unused-limit-s", &endless], ["--unused-limit-s", "31536000"]),
        (["--above-limit-s", &endless], ["--above-limit-s", "86400"]),
        (["--cores", "0-4294967295"], ["--cores", "not a range of cpus"]),
        (["--checkpoints", text(&file)], ["the path is a file", "make the directory, or give another one"]),
        (["--checkpoints", text(&link)], ["or a symbolic link without a target", "make the directory"]),
        (["--checkpoints", "~/checkpoints"], ["~/checkpoints", "make the directory"]),
        (["--token-file", text(&file)], [text(&file), "is in quotation marks: remove the quotation marks"]),
        (["--token-file", text(dir.path())], [text(dir.path()), "Is a directory"]),
        (["--listen", "::1:7077"], ["::1:7077", "[::1]:7077"]),
        (["--data-listen", "7078"], ["7078", "10.0.0.1:7077"]),
    ] {
        // A second --listen would be another mistake.
        let arguments = match arguments[0] {
            "--listen" => [&["serve"], &arguments[..]].concat(),
            _ => [&["serve", "--listen", NOT_HERE], &arguments[..]].concat(),
        };
        says(failure(&arguments), &words);
    }
}

#[test]
fn a_machine_that_gives_no_descriptors_is_told_with_the_limit() {
    let mut hub = Command::new("prlimit");
    hub.arg("--nofile=20:20").arg(phub_server(&[]).get_program());
    let output = hub.args(["serve", "--listen", "127.0.0.1:0"]).output().expect("util-linux is there");
    says(String::from_utf8_lossy(&output.stderr), &["Too many open files", "ulimit -n"]);
    assert!(!output.status.success());
}

#[test]
fn files_that_others_can_read_are_told_with_the_command_that_closes_them() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoints, secret) = (dir.path().join("checkpoints"), dir.path().join("secret"));
    std::fs::create_dir(&checkpoints).unwrap();
    // Editors of other systems write a file in this form.
    std::fs::write(&secret, "\u{feff}0123456789abcdef\r\n").unwrap();
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(&checkpoints, 0o755);
    open(&secret, 0o644);
    let said = || serve(&["--checkpoints", text(&checkpoints), "--token-file", text(&secret)]);
    let words = [
        format!("other users can read the secret in {0}, which has mode 644: chmod 600 {0}", text(&secret)),
        format!("chmod 700 {} closes the directory", text(&checkpoints)),
    ];
    says(said(), &[&words[0], &words[1], "cannot listen on 192.0.2.1:0"]);
    open(&checkpoints, 0o700);
    open(&secret, 0o600);
    let said = said();
    assert!(!said.contains("chmod"), "{said}");
}

/// Checks that no warning is printed twice. A hub checks its settings before it opens the directory. In earlier
/// versions, the check of the settings compared the mode of the directory with mode 600, and each warning was printed
/// twice.
#[test]
fn a_directory_that_a_group_may_read_by_setting_is_no_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = dir.path().join("checkpoints");
    std::fs::create_dir(&checkpoints).unwrap();
    let saved = checkpoints.join("job.safetensors");
    std::fs::write(&saved, "").unwrap();
    std::fs::set_permissions(&saved, PermissionsExt::from_mode(0o640)).unwrap();
    let said = |mode| {
        std::fs::set_permissions(&checkpoints, PermissionsExt::from_mode(mode)).unwrap();
        serve(&["--checkpoints", text(&checkpoints), "--checkpoint-mode", "640"])
    };
    let closed = said(0o750);
    assert!(!closed.contains("chmod"), "{closed}");
    let open = said(0o755);
    assert_eq!(open.matches("chmod 750").count(), 1, "{open}");
    assert!(!open.contains("chmod 700"), "{open}");
}

#[test]
fn settings_of_checkpoints_without_their_directory_are_wrong() {
    for (name, value) in [("every", "100"), ("keep", "5"), ("jobs", "5"), ("mode", "640")] {
        let option = format!("--checkpoint-{name}");
        let by_flag = phub_server(&["serve", "--listen", NOT_HERE, &option, value]).output().unwrap();
        let variable = format!("PHUB_CHECKPOINT_{}", name.to_uppercase());
        let mut by_variable = phub_server(&["serve", "--listen", NOT_HERE]);
        let by_variable = by_variable.env(variable, value).output().unwrap();
        for ended in [by_flag, by_variable] {
            assert_eq!(ended.status.code(), Some(2), "{ended:?}");
            says(String::from_utf8_lossy(&ended.stderr), &["--checkpoints <DIRECTORY>"]);
        }
    }
}

/// Answers the next request at a port with these bytes. Returns the address of the port.
fn answering(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        assert!(client.read(&mut request).unwrap() > 0);
        client.write_all(answer.as_bytes()).unwrap();
    });
    address
}

#[test]
fn who_answers_and_is_no_hub_is_named_by_its_status_and_controls_no_terminal() {
    let _watchdog = Watchdog::start();
    for (answer, words) in [
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
            "the server answers 403 Forbidden, and not as a hub",
        ),
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\n\r\n<html>",
            "the server answers 404 Not Found, and not as a hub",
        ),
        (
            "HTTP/1.1 409 Conflict\r\ncontent-length: 27\r\n\r\n{\"error\":\"\\u001b[2Jf\\null\"}",
            "the hub refuses:  [2Jf ull",
        ),
    ] {
        says(failure(&["status", &answering(answer)]), &[words]);
    }
}

#[test]
fn what_is_no_hub_and_no_job_is_said_before_anybody_is_asked() {
    for (arguments, words) in [
        (&["status", "127.0.0.1"][..], ["\"127.0.0.1\"", "expected a host and a port"]),
        (&["status", "http://127.0.0.1:1/v1/hub"], ["127.0.0.1:1/v1/hub", "expected a host and a port"]),
        (&["status", "[::1]"], ["[::1]", "expected a host and a port"]),
        (&["stop", "Jürgen's run", "127.0.0.1:1"], ["Jürgen", "expected 1 to 64 letters"]),
        (&["stop", &"x".repeat(65), "127.0.0.1:1"], ["job name", "expected 1 to 64 letters"]),
    ] {
        says(failure(arguments), &words);
    }
}

/// Checks that no hub waits for the other end of a FIFO: SIGTERM does not end such a hub.
#[test]
fn a_fifo_in_place_of_a_file_of_settings_ends_a_hub() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&fifo).status().unwrap().success());
    let fifo = text(&fifo);
    let tls = dir.path().join("tls");
    assert!(phub_server(&["certificate", "--out", text(&tls)]).output().unwrap().status.success());
    let (certificate, key) = (tls.join("hub.crt"), tls.join("hub.key"));
    let (certificate, key) = (text(&certificate), text(&key));
    for arguments in [
        &["--config", fifo][..],
        &["--token-file", fifo],
        &["--tls-cert", fifo, "--tls-key", key],
        &["--tls-cert", certificate, "--tls-key", fifo],
        &["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", fifo],
        &["--trace", fifo],
    ] {
        says(serve(arguments), &[fifo, "expected a file, found a FIFO"]);
    }
    says(
        serve(&["--tls-cert", "/dev/zero", "--tls-key", key]),
        &["/dev/zero", "found more than 16777216 bytes"],
    );
}

/// Checks that no command waits for the writer of a FIFO. The pipe of a shell is read.
#[test]
fn a_fifo_in_place_of_a_file_ends_a_command_and_a_pipe_is_read() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let (fifo, all) = (dir.path().join("fifo"), dir.path().join("all.json"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let with = |file: &str| {
        [
            vec!["topology".to_owned(), "--xml".to_owned(), file.to_owned()],
            vec!["trace".to_owned(), "--to".to_owned(), text(&all).to_owned(), file.to_owned()],
            vec!["replay".to_owned(), file.to_owned()],
        ]
    };
    for arguments in with(text(&fifo)) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = phub_server(&arguments).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}");
        says(
            String::from_utf8_lossy(&ended.stderr),
            &[text(&fifo), "expected a file, found a FIFO", "give a file"],
        );
    }
    // The second path is like the one that a shell gives for `<(command)`.
    for arguments in ["/dev/stdin", "/dev/fd/0"].map(with).into_iter().flatten() {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"nothing of use\n").unwrap();
        drop(write);
        let ended = phub_server(&arguments).stdin(read).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && !said.contains("FIFO"), "{arguments:?}: {said}");
    }
}

/// `/dev/zero` has no end: in earlier versions, a command read it until the memory was full.
#[test]
fn a_file_without_an_end_ends_a_command() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let all = dir.path().join("all.json");
    for (arguments, limit) in [
        (&["topology", "--xml", "/dev/zero"][..], "more than 67108864 bytes"),
        (&["trace", "--to", text(&all), "/dev/zero"], "a line has more than 16777216 bytes"),
        (&["replay", "/dev/zero"], "a line has more than 268435456 bytes"),
    ] {
        says(failure(arguments), &["/dev/zero", limit]);
    }
}
