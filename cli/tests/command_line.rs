//! The program's command line: its errors for settings that make no sense, and for invalid files. Each error
//! names the setting or the object, the value that was seen, and the next step.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::support::{failure, phub_server, says};
use fabric::conformance::Watchdog;

#[test]
fn serve_settings_out_of_range() {
    let _watchdog = Watchdog::start();
    for (arguments, words) in [
        (["--cores", "four"], ["--cores", "\"four\"", "4-7"]),
        (["--cores", "6-4"], ["--cores", "\"6-4\"", "lower number"]),
        (["--cores", "0"], ["asked for 0 cores", "at least 1", "omit"]),
        (["--cores", "100000"], ["asked for 100000 cores", "allowed", "at most"]),
        (["--cores", "9999,"], ["9999", "does not exist", "the host has cpus"]),
        (["--cores", "0-4000"], ["cpu", "does not exist", "the host has cpus"]),
        (["--cores", "0,0"], ["cpu", "0", "named twice"]),
        (["--idle", "never"], ["never", "--idle", "busy-poll"]),
        (["--listen", "localhost"], ["localhost", "--listen", "invalid"]),
        (["--late-limit-s", "5"], ["--late-limit-s is 5", "--late-warning-s 30", "not less"]),
        (["--interface", "nowhere7"], ["--interface", "no interface", "lo"]),
        (["--heartbeat-limit-s", "0"], ["0", "--heartbeat-limit-s", "1..=3600"]),
        (["--rdma-timeout", "32"], ["32", "--rdma-timeout", "1..=31"]),
        (["--rdma-mtu", "jumbo"], ["jumbo", "--rdma-mtu", "invalid"]),
    ] {
        let listen = if arguments[0] == "--listen" { vec![] } else { vec!["--listen", "127.0.0.1:0"] };
        says(failure(&[&["serve"][..], &listen, &arguments].concat()), &words);
    }
}

/// Checks the exit status for a wrong setting. In earlier versions it was 1, the status of a hub that cannot
/// start.
#[test]
fn a_wrong_setting_has_a_status_of_its_own() {
    let _watchdog = Watchdog::start();
    let trace = ["trace", "--to", "a.json", "a.json"];
    let twice = ["trace", "--to", "all.json", "a.json", "b.json", "a.json"];
    let wrong: [&[&str]; 17] = [
        &["serve", "--cores", "0"],
        &["serve", "--late-limit-s", "5"],
        &["serve", "--machine", "0/2"],
        &["serve", "--interface", "nowhere7"],
        &["serve", "--listen", "127.0.0.1:0", "--insecure", "--tcp-congestion", "nonesuch"],
        &["serve", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"],
        &["stop", "no job"],
        &["stop", "job", "foo"],
        &["top", "foo"],
        &["topology", "--chunk-bytes", "4096"],
        &["topology", "--workers-for", "resnet50"],
        &["topology", "--model", "resnet5"],
        &["topology", "--synthetic", "sockets:0"],
        &["topology", "--model", "resnet50", "--chunk-bytes", "63"],
        &trace,
        &twice,
        &["certificate", "--name", "hub.example,"],
    ];
    for arguments in wrong {
        let output = phub_server(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(phub_cli::exit::WRONG)), "{arguments:?}: {said}");
    }
    for (variable, value) in
        [("RUST_LOG", "phub_server=loud"), ("PHUB_LOG_FORMAT", "xml"), ("PHUB_TOKEN", "x")]
    {
        let output = phub_server(&["serve"]).env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(phub_cli::exit::WRONG)), "{variable}");
    }
}

/// Checks that texts other than names are refused: no worker would accept such a certificate.
#[test]
fn a_certificate_has_names() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("tls");
    for names in
        ["", " ", "hub.example,", "hub example", "hub:7077", "10.0.0.1:7077", "exämple", "*", "[hub]x"]
    {
        let said = failure(&["certificate", "--out", out.to_str().unwrap(), "--name", names]);
        says(said, &["--name", "expected a host name or an address"]);
    }
    assert!(!out.exists());
    // The brackets are removed: a worker compares addresses, which have none.
    let names = "[2001:db8::1],::1,10.0.0.1,*.hubs.example,hub_1";
    let made =
        phub_server(&["certificate", "--out", out.to_str().unwrap(), "--name", names]).output().unwrap();
    let said = String::from_utf8_lossy(&made.stdout);
    says(said, &["(for 2001:db8::1, ::1, 10.0.0.1, *.hubs.example, hub_1)"]);
}

#[test]
fn settings_of_the_environment_are_named_by_it() {
    let _watchdog = Watchdog::start();
    let output = phub_server(&["serve"]).env("PHUB_HEARTBEAT_LIMIT_S", "soon").output().unwrap();
    assert!(!output.status.success());
    let from = "--heartbeat-limit-s comes from the environment: PHUB_HEARTBEAT_LIMIT_S is \"soon\"";
    says(String::from_utf8_lossy(&output.stderr), &["soon", "--heartbeat-limit-s", "invalid", from]);
    let output = phub_server(&["serve"]).env("RUST_LOG", "phub_server=loud").output().unwrap();
    assert!(!output.status.success());
    says(
        String::from_utf8_lossy(&output.stderr),
        &["RUST_LOG", "phub_server=loud", "warn,phub_server=debug"],
    );
    let output = phub_server(&["serve"]).env("PHUB_LOG_FORMAT", "xml").output().unwrap();
    assert!(!output.status.success());
    says(String::from_utf8_lossy(&output.stderr), &["PHUB_LOG_FORMAT", "\"xml\"", "text or json"]);
}

#[test]
fn flags_of_rdma_paths_are_those_of_the_table() {
    let _watchdog = Watchdog::start();
    for command in ["serve", "doctor"] {
        let help = phub_server(&[command, "--help"]).output().unwrap().stdout;
        for setting in fabric::verbs::PATH_SETTINGS {
            says(String::from_utf8_lossy(&help), &[setting.flag, &setting.variables.join(", ")]);
        }
    }
    // A wrong value of this program's own variable stops a hub, even on a machine without RDMA.
    for command in ["serve", "doctor"] {
        let mut program =
            phub_server(&[command, "--rdma-sl", "15", "--listen", "127.0.0.1:0", "--unused-limit-s", "0"]);
        let output = program.env("PHUB_RDMA_SL", "16").env("PHUB_RDMA_TC", "256").output().unwrap();
        assert!(!output.status.success());
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        says(said, &["PHUB_RDMA_TC", "\"256\"", "from 0 to 255"]);
    }
}

/// Checks values of other libraries' variables that stopped earlier versions of the hub or of the doctor.
#[test]
fn what_nccl_is_told_stops_nobody() {
    let _watchdog = Watchdog::start();
    for (name, value, warned) in [
        ("NCCL_SOCKET_IFNAME", "ib", true),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", false),
        ("NCCL_SOCKET_IFNAME", "=eth7,=lo", true),
        ("GLOO_SOCKET_IFNAME", "eth7", true),
        ("NCCL_IB_RETRY_CNT", "13", true),
        ("NCCL_IB_TIMEOUT", "50", true),
        ("NCCL_IB_PKEY", "0x2", false),
        ("NCCL_IB_GID_INDEX", "-1", false),
        ("NCCL_IB_HCA", "^mlx5_bond_0:1", false),
        ("NCCL_IB_HCA", "mlx5_7", false),
        ("NCCL_IB_DISABLE", "1", false),
    ] {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--unused-limit-s", "0"];
        let output = phub_server(&serve).env(name, value).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}={value}: {log}");
        assert_eq!(log.contains(name), warned || name == "NCCL_IB_DISABLE", "{name}={value}: {log}");
        let output = phub_server(&["doctor", "--listen", "127.0.0.1:0"]).env(name, value).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}={value}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn nics_that_are_not_there_are_refused() {
    let _watchdog = Watchdog::start();
    let error = failure(&["serve", "--listen", "127.0.0.1:0", "--nics", "=no_such_nic7"]);
    says(&error, &["--nics asks for RDMA, and this hub has none"]);
    // Without the library or without any device, the error names what is missing instead.
    assert!(["no_such_nic7", "libibverbs", "RDMA"].iter().any(|word| error.contains(word)), "{error}");
}

/// Checks the common rule of all variables. An empty variable counts as unset, all variables have the same
/// words for on and off, and an unknown name is reported.
#[test]
fn the_environment_has_one_rule() {
    let _watchdog = Watchdog::start();
    let serve = |variables: &[(&str, &str)]| {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--unused-limit-s", "0"];
        let output = phub_server(&serve).envs(variables.iter().copied()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let empty =
        ["PHUB_NICS", "PHUB_CHECKPOINTS", "PHUB_INSECURE", "PHUB_CHECKSUM", "PHUB_CORES", "PHUB_DATA_LISTEN"];
    let (well, log) = serve(&empty.map(|name| (name, "")));
    assert!(well && log.contains("wants tokens") && log.contains("checkpoints off"), "{log}");
    for (on, word) in [
        ("1", "serves everybody"),
        ("yes", "serves everybody"),
        ("off", "wants tokens"),
        ("0", "wants tokens"),
    ] {
        let (well, log) = serve(&[("PHUB_INSECURE", on)]);
        assert!(well && log.contains(word), "PHUB_INSECURE={on}: {log}");
    }
    let (well, error) = serve(&[("PHUB_CHECKPOINTS", "/no/such/directory")]);
    assert!(!well);
    says(error, &["--checkpoints comes from the environment: PHUB_CHECKPOINTS is \"/no/such/directory\""]);
    let (well, error) = serve(&[("PHUB_NICS", "=no_such_nic7")]);
    assert!(!well);
    says(error, &["--nics comes from the environment: PHUB_NICS is \"=no_such_nic7\""]);
    let (well, error) = serve(&[("PHUB_CHECKSUM", "maybe")]);
    assert!(!well);
    says(error, &["--checksum", "PHUB_CHECKSUM is \"maybe\""]);
    let (well, error) = serve(&[("PHUB_CHECKPOINT_EVERY", "100")]);
    assert!(!well);
    says(error, &["--checkpoints", "set in the environment: PHUB_CHECKPOINT_EVERY"]);
    let (well, error) = serve(&[("PHUB_TRACE", "/no/such/directory/trace.json")]);
    assert!(!well);
    says(error, &["--trace comes from the environment: PHUB_TRACE is"]);
    let mut doctor = phub_server(&["doctor", "--listen", "127.0.0.1:0"]);
    let text = String::from_utf8(doctor.env("PHUB_CHECKPOINT", "/x").output().unwrap().stdout).unwrap();
    says(text, &["warn  environment", "was PHUB_CHECKPOINTS meant?"]);
    let (well, log) = serve(&[("PHUB_CHECKPOINT", "/x"), ("PHUB_PORT", "tcp://10.0.0.1:7077")]);
    assert!(well, "{log}");
    says(
        log,
        &[
            "PHUB_CHECKPOINT is not a setting",
            "was PHUB_CHECKPOINTS meant?",
            "Kubernetes sets PHUB_PORT for a Service",
        ],
    );
}

#[test]
fn a_log_for_programs_has_an_object_a_line() {
    let _watchdog = Watchdog::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    // The hub logs its cores, and then fails to listen.
    let output =
        phub_server(&["serve", "--listen", &address, "--cores", "1", "--log-format", "json"]).output();
    let lines = String::from_utf8(output.unwrap().stderr).unwrap();
    let objects: Vec<serde_json::Value> = lines
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let core = objects.iter().find(|line| line["message"] == "core").expect(&lines);
    assert!(core["slot"] == 0 && core["level"] == "INFO" && core["timestamp"].is_string(), "{core}");
}

#[test]
fn a_port_in_use() {
    let _watchdog = Watchdog::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = failure(&["serve", "--listen", &address]);
    says(error, &["cannot listen", &address, "in use", "choose another address with --listen", "port 0"]);
}

#[test]
fn topology_of_bad_files() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.xml");
    let path = path.to_str().unwrap();
    if cfg!(not(feature = "hwloc")) {
        return says(
            failure(&["topology", "--xml", path]),
            &[path, "built without hwloc", "--features hwloc"],
        );
    }
    let next = "lstopo --of xml";
    says(failure(&["topology", "--xml", path]), &[path, "cannot be read", "No such file", next]);
    for (text, fault) in [
        ("", "empty"),
        ("not xml", "line 1"),
        ("<topology version=\"2.0\"><object type=", "line 1"),
        ("<?xml version=\"1.0\"?>\n<html>\n</html>", "topology"),
    ] {
        std::fs::write(path, text).unwrap();
        says(failure(&["topology", "--xml", path]), &[path, fault, next]);
    }
    std::fs::write(path, [0xff; 64]).unwrap();
    says(failure(&["topology", "--xml", path]), &[path]);
    std::fs::write(path, "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n</topology>").unwrap();
    says(failure(&["topology", "--xml", path]), &[path]);
    says(failure(&["topology", "--xml", dir.path().to_str().unwrap()]), &["cannot be read", next]);
}

#[test]
fn topology_of_bad_descriptions() {
    let _watchdog = Watchdog::start();
    for (description, words) in [
        ("", ["synthetic", "expected", "sockets"]),
        ("sockets", ["synthetic", "expected", "sockets"]),
        ("sockets:0", ["synthetic", "byte 8", "\"0\""]),
        ("sockets:2 cores:x", ["synthetic", "byte 16", "\"x\""]),
        ("sockets:2 coers:8", ["synthetic", "byte 10", "\"coers\""]),
        ("sockets:65536 cores:65536", ["synthetic", "expected", "65536"]),
    ] {
        says(failure(&["topology", "--synthetic", description]), &words);
    }
    says(
        failure(&["topology", "--synthetic", "sockets:1", "--xml", "x"]),
        &["--synthetic", "cannot be used with", "--xml"],
    );
}

#[test]
fn topology_of_what_cannot_be_placed() {
    let _watchdog = Watchdog::start();
    let error = |more: &[&str]| {
        let host = ["topology", "--synthetic", "sockets:2 cores:2 nics:1", "--model", "resnet50"];
        failure(&[&host, more].concat())
    };
    says(error(&["--cores", "5"]), &["asked for 5 cores", "only 4", "at most 4"]);
    says(error(&["--cores", "0,7"]), &["cpu", "7", "does not exist", "0-3"]);
    says(error(&["--nics", "mlx5_0"]), &["\"mlx5_0\"", "nic0", "nic1"]);
    says(error(&["--except-nics", "mlx5_0"]), &["\"mlx5_0\"", "nic0", "nic1"]);
    says(error(&["--chunk-bytes", "100"]), &["chunk size 100", "multiple of 64"]);
    says(error(&["--workers", "0"]), &["0", "--workers", "1..=4096"]);
    let host = ["topology", "--synthetic", "sockets:1"];
    says(failure(&[&host[..], &["--model", "vgg-18"]].concat()), &["\"vgg-18\"", "did you mean vgg1"]);
}

/// Returns the output of `topology` for a job on machines with this description.
#[track_caller]
fn of_machines(host: &str, more: &[&str]) -> String {
    let arguments = [&["topology", "--synthetic", host, "--model", "resnet50"], more].concat();
    let output = phub_server(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const TWO_BY_FOUR: [&str; 4] = ["--machines", "2", "--workers-per-machine", "4"];

#[test]
fn topology_of_several_machines_says_which_shape_to_use() {
    let _watchdog = Watchdog::start();
    let text = of_machines("cores:2 nics:2 nic_gbps:1", &TWO_BY_FOUR);
    let words = [
        "2 machines x 4 workers, resnet50: 161 keys, 3223 chunks",
        "each hub: cores: 2; links of each core to other hubs, in a mesh: 2",
        "each link: 1 Gb/s each way, the speed of nic0",
        "flat:  a round waits for the link of machine 0, 409.1 MB one way: 3297.1 ms, 0.303 rounds a second",
        "mesh:  a round waits for the link of machine 0, 102.4 MB one way: 825.1 ms, 1.212 rounds a second",
        "use mesh: it is 4.00 times as fast as flat",
        "PHUB_LEVELS=machine PHUB_MESH=N/2@FIRST-HOST:7077, N from 0",
        "4 workers: 408.9 MB of gradients, 102.2 MB of sums, 102.2 MB of weights",
        "the job above: 102.4 MB of the hubs' sums, 51.1 MB of weights, 51.1 MB of the optimizer's state",
        "with RDMA, 204.7 MB count against RLIMIT_MEMLOCK, on all NICs together",
    ];
    says(&text, &words);
    // The hubs of the machines own all chunks.
    let owned = text.lines().filter(|line| line.starts_with("  machine "));
    let chunks = owned.map(|line| line.split_whitespace().nth(2).unwrap().parse::<u32>().unwrap());
    assert_eq!(chunks.sum::<u32>(), 3223);
    // A link has the speed of one NIC, not of all NICs together.
    says(
        of_machines("cores:2 nics:2 nic_gbps:1", &[&TWO_BY_FOUR[..], &["--link-gbps", "10"]].concat()),
        &["82.5 ms"],
    );
}

#[test]
fn topology_without_the_speed_of_links_says_so_and_tells_bytes() {
    let _watchdog = Watchdog::start();
    let text = of_machines("cores:2 nics:1", &TWO_BY_FOUR);
    says(&text, &["speed unknown", "--link-gbps 25", "102.4 MB", "use mesh: it is 4.00 times"]);
    assert!(!text.contains("rounds a second"), "{text}");
}

#[test]
fn topology_of_shapes_that_are_alike_or_not_possible() {
    let _watchdog = Watchdog::start();
    let of = |machines, workers, more: &[&str]| {
        of_machines("cores:2", &[&["--machines", machines, "--workers-per-machine", workers], more].concat())
    };
    says(of("1", "8", &[]), &["1 machine x 8 workers", "use flat: nothing crosses a link"]);
    says(
        of("4", "1", &[]),
        &["4 machines x 1 worker,", "use flat: it is the simplest, and mesh is not faster"],
    );
    says(
        of("4", "2", &["--above-hubs", "4"]),
        &["hub above 3", "use above: it is 1.50 times as fast as mesh"],
    );
    says(
        of("1024", "8", &[]),
        &[
            "flat:  not possible: 8192 workers, and a job has at most 4096",
            "... and 1008 more like these",
            "use mesh",
        ],
    );
}

#[test]
fn topology_of_racks_takes_the_papers_formula() {
    let _watchdog = Watchdog::start();
    let speeds = ["--worker-gbps", "10", "--hub-gbps", "100", "--uplink-gbps", "40"];
    let of = |racks, more: &[&str]| {
        of_machines("cores:2", &[&["--racks", racks, "--workers-per-rack", "8"], more].concat())
    };
    // Flat: 24 x 102.3 MB cross the link of a rack at 40 Gb/s. Mesh: 102.3 MB cross the link of a worker at
    // 10 Gb/s.
    says(
        of("4", &speeds),
        &[
            "4 racks x 8 workers, resnet50",
            "flat:  a round waits for the link of a rack to others, 2454.7 MB one way: 494.6 ms",
            "mesh:  a round waits for the link of a worker, 102.3 MB one way: 82.4 ms",
            "use mesh: it is 6.00 times as fast as flat",
        ],
    );
    says(of("1", &speeds), &["use flat: it is the simplest"]);
    says(of("600", &speeds), &["flat:  not possible: 4800 workers", "use mesh"]);
    let error = failure(&["topology", "--racks", "4", "--workers-per-rack", "8", "--model", "vgg19"]);
    says(error, &["--worker-gbps", "--hub-gbps", "--uplink-gbps"]);
    says(failure(&["topology", "--racks", "0"]), &["--racks", "\"0\" racks", "1 to 4096", "each has a hub"]);
    let given = ["topology", "--racks", "4", "--workers-per-rack", "8"];
    says(failure(&[&given[..], &speeds].concat()), &["--racks needs a model", "--model resnet50"]);
}

#[test]
fn topology_draws_several_machines() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.svg");
    of_machines(
        "cores:2 nics:1 nic_gbps:1",
        &[&TWO_BY_FOUR[..], &["--svg", path.to_str().unwrap()]].concat(),
    );
    let svg = std::fs::read_to_string(&path).unwrap();
    for text in ["machine 0", "machine 1", "w3", "1615 chunks, 51.1 MB", "102.4 MB"] {
        assert!(svg.contains(&format!(">{text}<")), "{text}");
    }
    assert!(svg.contains("use mesh: it is 4.00 times as fast as flat"));
}

#[test]
fn topology_of_machines_that_cannot_be() {
    let _watchdog = Watchdog::start();
    let error = |machines: &str, workers: &str, more: &[&str]| {
        let given =
            ["topology", "--synthetic", "cores:2", "--machines", machines, "--workers-per-machine", workers];
        failure(&[&given[..], more].concat())
    };
    let model = ["--model", "resnet50"];
    says(error("0", "4", &model), &["--machines", "\"0\" machines", "1 to 4096", "each has a hub"]);
    says(error("4097", "4", &model), &["--machines", "\"4097\" machines", "1 to 4096"]);
    says(error("two", "4", &model), &["--machines", "\"two\" machines", "1 to 4096"]);
    says(error("2", "0", &model), &["--workers-per-machine", "\"0\" workers", "1 to 4096"]);
    says(error("2", "4", &[]), &["--machines", "needs a model", "--model resnet50"]);
    let more = |setting, value| error("2", "4", &[&model[..], &[setting, value]].concat());
    says(
        more("--above-hubs", "0"),
        &["--above-hubs", "\"0\" hubs above", "1 to 4096", "leave --above-hubs out"],
    );
    says(more("--link-gbps", "0"), &["--link-gbps", "\"0\" Gb/s", "such as 25"]);
    says(more("--link-gbps", "nan"), &["--link-gbps", "\"nan\" Gb/s"]);
    says(more("--workers", "4"), &["--machines", "cannot be used with", "--workers"]);
    says(more("--model", "vgg-18"), &["--model"]);
    says(failure(&["topology", "--machines", "2"]), &["--workers-per-machine"]);
    says(failure(&["topology", "--link-gbps", "2"]), &["--machines"]);
}

#[test]
fn topology_without_a_model_heeds_what_it_is_told() {
    let _watchdog = Watchdog::start();
    let of = |more: &[&str]| {
        let output = phub_server(&[&["topology", "--synthetic", "sockets:2 cores:2 nics:1"], more].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let plan = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&of(&[&["--json"], more].concat())).unwrap()
    };
    let cpus = |plan: &serde_json::Value| {
        plan["cores"].as_array().unwrap().iter().map(|core| core["cpu"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let chosen = plan(&["--cores", "1,3", "--nics", "nic0"]);
    assert_eq!(cpus(&chosen), [1, 3]);
    assert_eq!(chosen["nics"].as_array().unwrap().len(), 1, "{chosen}");
    let with_model = plan(&["--model", "resnet50", "--cores", "2"]);
    let bytes = with_model["cores"]
        .as_array()
        .unwrap()
        .iter()
        .map(|core| core["bytes"].as_u64().unwrap())
        .sum::<u64>();
    assert!(bytes > 100_000_000, "{with_model}");
    assert_ne!(of(&["--cores", "1"]), of(&[]), "the plan is shown");
    says(failure(&["topology", "--synthetic", "sockets:1", "--cores", "9"]), &["asked for 9 cores"]);
    says(
        failure(&["topology", "--synthetic", "sockets:1", "--chunk-bytes", "4096"]),
        &["--chunk-bytes needs a model"],
    );
}

#[test]
fn pictures_that_cannot_be_written() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing").join("host.svg");
    for path in [missing.as_path(), dir.path()] {
        let path = path.to_str().unwrap();
        let error = failure(&["topology", "--synthetic", "sockets:1", "--svg", path]);
        says(error, &["cannot write", path]);
    }
    let good = dir.path().join("host.svg");
    let arguments = ["topology", "--synthetic", "sockets:1 cores:2", "--svg", good.to_str().unwrap()];
    let output = phub_server(&arguments).output().unwrap();
    assert!(output.status.success());
    says(String::from_utf8_lossy(&output.stdout), &["Picture", good.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&good).unwrap().contains("<svg"));
}

#[test]
fn commands_that_do_not_exist() {
    let _watchdog = Watchdog::start();
    says(failure(&["serv"]), &["serv", "unrecognized", "serve"]);
    says(failure(&[]), &["Usage", "serve", "topology"]);
}

#[test]
fn bash_completes_commands_and_options() {
    let script = phub_server(&["completions", "bash"]).output().unwrap();
    assert!(script.status.success());
    let script = String::from_utf8(script.stdout).unwrap();
    for (words, expected) in
        [("dem", "demo"), ("demo --slow", "--slow-after"), ("serve --checkpoint-k", "--checkpoint-keep")]
    {
        let last = words.rsplit(' ').next().unwrap();
        let asked = format!(
            "{script}\nCOMP_WORDS=(phub-server {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _phub__server phub-server {last} x; echo \"${{COMPREPLY[@]}}\""
        );
        let said = Command::new("bash").args(["-c", &asked]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&said.stdout).trim(),
            expected,
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
    says(failure(&["completions", "tcsh"]), &["tcsh", "bash", "fish", "zsh"]);
}

#[test]
fn a_version_says_the_commit_and_what_the_build_can() {
    let said = |flag: &str| String::from_utf8(phub_server(&[flag]).output().unwrap().stdout).unwrap();
    assert_eq!(said("-V").lines().count(), 1);
    let commit = Command::new("git").args(["log", "-1", "--format=%h"]).output().unwrap();
    says(said("-V"), &[env!("CARGO_PKG_VERSION"), String::from_utf8(commit.stdout).unwrap().trim()]);
    says(said("--version"), &[said("-V").trim(), "features: ", "instruction set: ", "protocol: "]);
}

#[test]
fn each_command_has_a_page_for_man() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    let output = phub_server(&["man", pages.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    says(
        std::fs::read_to_string(pages.join("phub-server.1")).unwrap(),
        &["Exit status", "phub\\-server\\-serve(1)"],
    );
    says(
        std::fs::read_to_string(pages.join("phub-server-serve.1")).unwrap(),
        &["PHUB_LISTEN", "late\\-limit\\-s"],
    );
    says(failure(&["man", "/proc/here"]), &["/proc/here", "a directory that this user may write"]);
}

/// Checks that flags take precedence over variables, and variables over the file. Each error names the file.
#[test]
fn a_configuration_file_has_the_flags() {
    let _watchdog = Watchdog::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    let serve = |text: &str, flags: &[&str], variables: &[(&str, &str)]| {
        std::fs::write(&file, text).unwrap();
        let output = phub_server(&["serve", "--config", file.to_str().unwrap()])
            .args(flags)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let all = "# a hub\nlisten = \"127.0.0.1:0\"\ncores = 1\ntransports = [\"shm\", \"tcp\"]\ninsecure = true\nchecksum = false\n\
               unused-limit-s = 0\njobs-limit = 7\nlate-warning-s = 40\n";
    let (status, log) = serve(all, &["--jobs-limit", "9"], &[("PHUB_LATE_WARNING_S", "50")]);
    assert_eq!(status, Some(0), "{log}");
    says(
        &log,
        &["transports shm+tcp", "serves everybody", "checksums off", "at most 9 jobs", "late after 50 s"],
    );
    let named = file.to_str().unwrap();
    for (text, words) in [
        ("cores = \"four\"", ["--cores comes from", "\"four\"", named]),
        ("lisen = \"127.0.0.1:0\"", ["--lisen comes from", "'--listen'", named]),
        ("Cores = 4", ["Cores is not a flag", "like late-limit-s", named]),
        ("config = \"more.toml\"", ["config cannot be in", "on the command line", named]),
        ("insecure = \"yes\"", ["insecure is on or off", "true or false", named]),
        ("[cores]\nnumber = 4", ["cores is not a value", "a number or a list", named]),
        ("cores 4", ["is no TOML", "line 1", named]),
        (
            "nics = \"=no_such_nic7\"\nlisten = \"127.0.0.1:0\"",
            ["--nics comes from", "this hub has none", named],
        ),
    ] {
        let (status, error) = serve(text, &[], &[]);
        assert!(matches!(status, Some(1 | 2)), "{status:?}: {error}");
        says(error, &words);
    }
    says(
        failure(&["serve", "--config", "/no/such/file.toml"]),
        &["/no/such/file.toml", "--config wants a TOML file"],
    );
    let mut named_by_bytes = OsString::from("--config=");
    named_by_bytes.push(OsStr::from_bytes(b"/no/such/\xff.toml"));
    let output = phub_server(&["serve"]).arg(named_by_bytes).output().unwrap();
    says(String::from_utf8_lossy(&output.stderr), &["cannot read /no/such/", "--config wants a TOML file"]);
    let large = "#".repeat((1 << 20) + 1);
    says(serve(&large, &[], &[]).1, &[named, "found more than 1048576 bytes", "wants a TOML file"]);
}
