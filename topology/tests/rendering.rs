//! Pictures and text are complete and well-formed, and pictures fit on their page.

use topology::render::{NetworkBox, NetworkPicture};
use topology::{CoreChoice, Host, Plan, Request, place, render};

fn planned(description: &str, cores: CoreChoice) -> (Host, Plan) {
    let host = Host::from_synthetic(description).unwrap();
    let weights: Vec<u64> = (0..500u64).map(|item| 32768 - item % 7 * 1000).collect();
    let plan = place(&host, &Request { cores, ..Request::new(&weights) }).unwrap();
    (host, plan)
}

/// Asserts that every tag closes, and that text has no stray markup.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "{text}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty());
}

fn number(tag: &str, name: &str) -> f64 {
    let start = tag.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    tag[start..].split('"').next().unwrap().parse().unwrap()
}

/// Asserts that every rectangle lies within the page.
fn assert_inside(svg: &str) {
    let page = svg.split('>').next().unwrap();
    let (width, height) = (number(page, "width"), number(page, "height"));
    for tag in svg.split("<rect ").skip(2).map(|rest| format!(" {rest}")) {
        let (x, y) = (number(&tag, "x"), number(&tag, "y"));
        assert!(x >= 0.0 && y >= 0.0);
        assert!(x + number(&tag, "width") <= width && y + number(&tag, "height") <= height, "{tag}");
    }
}

#[test]
fn pictures_of_machines_small_and_large_are_well_formed() {
    for (description, cores) in [
        ("cores:1", CoreChoice::EveryCore),
        ("sockets:2 cores:10 threads:2 nics:5 nic_gbps:56", CoreChoice::Count(20)),
        ("sockets:4 cores:24 nics:10 nic_gbps:100", CoreChoice::EveryCore),
        ("sockets:2 nodes:2 cores:3 nics:0,4,0,1 loose_nics:2", CoreChoice::Count(5)),
        ("sockets:1 cores:128 threads:2", CoreChoice::Count(200)),
        ("cores:2 nics:40", CoreChoice::Count(1)),
    ] {
        let (host, plan) = planned(description, cores);
        for plan in [Some(&plan), None] {
            let svg = render::svg(&host, plan, "chunk");
            assert_well_formed(&svg);
            assert_inside(&svg);
            let text = render::text(&host, plan, "chunk");
            assert!(text.lines().all(|line| line == line.trim_end()));
        }
        let svg = render::svg(&host, Some(&plan), "chunk");
        for core in plan.cores() {
            assert!(svg.contains(&format!(">cpu {}<", core.cpu.0)));
        }
        for nic in plan.nics() {
            assert!(svg.contains(&format!(">{}<", nic.name)));
        }
    }
}

#[test]
fn names_from_outside_cannot_become_markup() {
    let (mut host, _) = planned("cores:1 nics:1", CoreChoice::EveryCore);
    host.name = Some("<script>alert(1)</script>&\u{0}".into());
    host.nics[0].name = "\"><g>".into();
    let plan = place(&host, &Request::new(&[1])).unwrap();
    let svg = render::svg(&host, Some(&plan), "item");
    assert_well_formed(&svg);
    assert!(!svg.contains("<script") && !svg.contains('\u{0}'));
}

#[test]
fn text_shows_the_machine_the_plan_and_the_reasons() {
    let (mut host, plan) =
        planned("sockets:2 cores:2 memory_gib:64 nics:1,0 nic_gbps:56", CoreChoice::EveryCore);
    host.notes.push("Something was guessed.".into());
    let text = render::text(&host, Some(&plan), "chunk");
    for words in [
        "host: 2 sockets, 2 NUMA nodes, 4 cores, 4 cpus, 1 NIC",
        "NUMA node 1: 64.0 GiB, 2 cores, cpus 2-3",
        "NIC nic0: Ethernet, 56 Gb/s",
        "note: Something was guessed.",
        "plan: 500 chunks, 14.2 MiB, on 4 cores",
        "max/mean 1.0",
        "reason: No NIC on node 1: its cores use nic0 of node 0.",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    assert!(text.contains("\u{2588}\u{2588}\u{2588}"));
}

#[test]
fn the_callers_noun_is_used() {
    let (host, plan) = planned("cores:1", CoreChoice::EveryCore);
    assert!(render::text(&host, Some(&plan), "item").contains("500 items"));
    assert!(render::text(&host, Some(&plan), "chunk").contains("500 chunks"));
}

/// Returns a picture of `machines` machines with `members` members each, and of `apart` machines with an owner only.
fn network(machines: usize, members: usize, apart: usize) -> NetworkPicture {
    let machine = |name: String, members: usize| NetworkBox {
        name,
        members: (0..members).map(|member| format!("w{member}")).collect(),
        joined_by: "shared memory".into(),
        owner: ["hub".into(), "1234 chunks, 1234.5 MB".into()],
        part: 1.0 / machines as f64,
        sends: "102400.4 MB".into(),
        receives: "99.5 MB".into(),
    };
    let level = |count: usize, what: &str, members| {
        (0..count).map(|number| machine(format!("{what} {number}"), members)).collect::<Vec<_>>()
    };
    NetworkPicture {
        title: "machines".into(),
        heading: vec!["a line".into()],
        network: "each link: 25 Gb/s".into(),
        levels: vec![level(machines, "machine", members), level(apart, "apart", 0)],
        notes: vec!["a note of some words. ".repeat(20)],
    }
}

/// Asserts that texts in one line do not overlap, by an upper estimate of their widths.
fn assert_texts_apart(svg: &str) {
    let mut texts = Vec::new();
    for tag in svg.split("<text").skip(1) {
        let (attributes, text) = tag.split_once('>').unwrap();
        let text = text.split('<').next().unwrap();
        let width = text.chars().count() as f64 * number(attributes, "font-size") * 0.57;
        let x = number(attributes, "x") - if attributes.contains("middle") { width / 2.0 } else { 0.0 };
        texts.push((number(attributes, "y"), x, x + width, text));
    }
    for (at, a) in texts.iter().enumerate() {
        for b in &texts[..at] {
            let is_apart = (a.0 - b.0).abs() > 9.0 || a.1 > b.2 || b.1 > a.2;
            assert!(is_apart, "{a:?} and {b:?} overlap");
        }
    }
}

#[test]
fn networks_small_and_large_are_well_formed_and_their_texts_apart() {
    for (machines, members, apart) in [(1, 1, 0), (2, 4, 0), (4, 8, 1), (5, 9, 3), (256, 1024, 256)] {
        let svg = network(machines, members, apart).svg();
        assert_well_formed(&svg);
        assert_inside(&svg);
        assert_texts_apart(&svg);
        for name in ["machine 0", "w0", "102400.4 MB", "99.5 MB", "each link: 25 Gb/s"] {
            assert!(svg.contains(&format!(">{name}<")), "{name} of {machines} machines");
        }
        assert_eq!(svg.contains(">apart 0<"), apart > 0);
    }
}

#[test]
fn what_a_network_leaves_out_is_counted() {
    let svg = network(10, 12, 0).svg();
    assert!(svg.contains(">w6<") && !svg.contains(">w7<") && svg.contains(">+5<"));
    assert!(svg.contains(">machine 7<") && !svg.contains(">machine 8<"));
    assert!(svg.contains("and 2 more like these"));
}

#[test]
fn names_of_a_network_cannot_become_markup() {
    let mut picture = network(1, 1, 0);
    picture.title = "<script>alert(1)</script>&".into();
    picture.levels[0][0].name = "\"><g>".into();
    picture.levels[0][0].members[0] = "</svg>".into();
    let svg = picture.svg();
    assert_well_formed(&svg);
    assert!(!svg.contains("<script"));
}
