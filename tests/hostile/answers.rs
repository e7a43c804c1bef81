//! Answers from a party that is not the hub: another program, a hub's data path, or a sender that never ends.
//! The worker's join ends with an error that can be printed, and takes no memory for the answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use fabric::conformance::Watchdog;
use hub_tests::{config_at, hub, join_by_hand, join_request, refused, says};
use pbox_core::control::TransportAddress;

/// Listens, and answers each connection in this way. Clients that ask for health get `ok` first.
fn at(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Copy + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut asked = [0; 4096];
                while let Ok(1..) = client.read(&mut asked) {
                    let well = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
                    let answered = match asked.starts_with(b"GET /v1/health") {
                        true => client.write_all(well),
                        false => answer(&mut client),
                    };
                    if answered.is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

fn error_of(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Copy + 'static) -> String {
    let error = refused(config_at(&at(answer), "job", 0, 1));
    assert!(error.len() < 2000, "an error of {} bytes", error.len());
    assert!(!error.chars().any(char::is_control), "{error:?}");
    error
}

/// Sends an answer of JSON.
fn answer(client: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let bytes = body.len();
    client.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: {bytes}\r\n\r\n{body}").as_bytes())
}

#[test]
fn answers_without_an_end_end_a_join() {
    let _watchdog = Watchdog::start();
    let headers = error_of(|client| {
        client.write_all(b"HTTP/1.1 200 OK\r\n")?;
        loop {
            client.write_all(&[b"x-a: ", [b'y'; 10_000].as_slice(), b"\r\n"].concat())?;
        }
    });
    says(headers, &["header is too big", "is phub-server running there"]);
    let body = error_of(|client| {
        client.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        let part = [b"10000\r\n".as_slice(), &[b' '; 65536], b"\r\n"].concat();
        loop {
            client.write_all(&part)?;
        }
    });
    says(body, &["larger than"]);
    error_of(|client| {
        loop {
            client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
    });
    let deep = error_of(|client| answer(client, "200 OK", &"[".repeat(1_000_000)));
    says(deep, &["answered to join with 200 OK", "is it a phub-server"]);
}

#[test]
fn a_refusal_from_whoever_answers_is_a_line_that_can_be_printed() {
    let _watchdog = Watchdog::start();
    let error = error_of(|client| {
        let why =
            serde_json::json!({"error": format!("\u{1b}[2J\u{1b}]0;owned\u{7}full{}", "\nline".repeat(20))});
        answer(client, "409 Conflict", &why.to_string())
    });
    says(error, &["refused to join", "owned full line line"]);
}

/// The error of a wrong port says what the port may be. People name the port of the data path, or that of
/// another program.
#[test]
fn a_port_that_speaks_no_http_is_said_to_be_a_data_port_perhaps() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let joined = join_by_hand(&hub, "job", &join_request(0, 2));
    let data = joined.transports.iter().find_map(|each| match each {
        TransportAddress::Tcp { addresses } => Some(addresses[0].to_string()),
        _ => None,
    });
    let words = ["does not speak HTTP", "a hub's data path (port 7078"];
    says(refused(config_at(&data.unwrap(), "job", 0, 1)), &words);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
            open.push(client); // it waits for the other end
        }
    });
    says(refused(config_at(&at, "job", 0, 1)), &words);
}
