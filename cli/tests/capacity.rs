//! `phub-server topology --workers-for`: the number of workers that a machine can serve, compared with
//! figures computed by hand.

use crate::support::{failure, phub_server, says};

/// PHub's box: ten NICs of 56 Gb/s.
const PBOX: &str = "sockets:2 cores:14 nics:5 nic_gbps:56";

/// Returns the answer for ResNet-50 at 190 samples a second.
fn said(machine: &str, more: &[&str]) -> String {
    let asked = ["topology", "--synthetic", machine, "--workers-for", "resnet50", "--samples-per-s", "190"];
    let output = phub_server(&[&asked[..], more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks the arithmetic. 102 MB x 190 / 32 is 0.607 GB/s per worker. The NICs carry 10 x 56 x 0.97 / 8 =
/// 67.9 GB/s.
#[test]
fn the_box_of_the_paper_is_limited_by_its_memory() {
    let pbox = said(PBOX, &["--memory-gb-s", "125"]);
    says(&pbox, &["A worker pushes 0.607 GB/s", "NICs         67.9 GB/s      111 workers"]);
    says(
        &pbox,
        &["At most 100 workers. The first limit: memory.", "the next limit would be NICs, at 111 workers"],
    );
    let twice = said(PBOX, &["--memory-gb-s", "125", "--batch", "64"]);
    says(twice, &["A worker pushes 0.303 GB/s", "At most 203 workers"]);
}

#[test]
fn a_limit_that_is_not_known_is_named() {
    says(said(PBOX, &[]), &["At most 111 workers. The first limit: NICs. The speed of the other resource"]);
    says(said("sockets:1 cores:4", &[]), &["No limit is known"]);
    says(said("sockets:1 cores:4", &["--memory-gb-s", "0.1"]), &["At most 0 workers"]);
    let asked = ["topology", "--synthetic", PBOX, "--workers-for"];
    says(failure(&[&asked[..], &["resnet50"]].concat()), &["--samples-per-s"]);
    says(failure(&[&asked[..], &["resnet51", "--samples-per-s", "190"]].concat()), &["resnet51", "resnet50"]);
    says(failure(&[&asked[..], &["resnet50", "--samples-per-s", "0"]].concat()), &["0.001"]);
}
