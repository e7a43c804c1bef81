//! The properties of plans, by name, on made-up hosts.

use std::collections::BTreeSet;
use topology::{
    Cache, CacheKind, CoreChoice, CoreSlot, CpuId, Host, NicChoice, NodeId, PlaceError, Plan, Request, lpt,
    place,
};

fn host(description: &str) -> Host {
    Host::from_synthetic(description).unwrap()
}

fn has_reason(plan: &Plan, words: &str) -> bool {
    plan.reasons().iter().any(|reason| reason.contains(words))
}

fn cpus(plan: &Plan) -> Vec<u32> {
    plan.cores().iter().map(|core| core.cpu.0).collect()
}

/// Returns the bytes of each tensor of ResNet-50: 25,557,032 parameters in 161 tensors.
fn resnet_50() -> Vec<u64> {
    fn conv(tensors: &mut Vec<u64>, out: u64, input: u64, side: u64) {
        tensors.extend([out * input * side * side, out, out]);
    }
    let mut tensors = Vec::new();
    conv(&mut tensors, 64, 3, 7);
    let mut input = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            conv(&mut tensors, width, input, 1);
            conv(&mut tensors, width, width, 3);
            conv(&mut tensors, 4 * width, width, 1);
            if block == 0 {
                conv(&mut tensors, 4 * width, input, 1);
            }
            input = 4 * width;
        }
    }
    tensors.extend([2048 * 1000, 1000]);
    assert_eq!((tensors.len(), tensors.iter().sum::<u64>()), (161, 25_557_032));
    tensors.into_iter().map(|parameters| parameters * 4).collect()
}

#[test]
fn resnet_50_unchunked_is_even_over_ten() {
    // PHub's published code gives 1.874 here.
    let plan = place(&host("sockets:2 cores:5 nics:5 nic_gbps:56"), &Request::new(&resnet_50())).unwrap();
    assert!(plan.core_balance().max_over_mean <= 1.01, "{:?}", plan.core_balance());
    assert!(plan.nic_balance().unwrap().max_over_mean <= 1.01);
    assert!(plan.reasons().is_empty(), "{:?}", plan.reasons());
}

#[test]
fn the_owner_table_is_lpt_of_weights_and_core_count() {
    let weights = resnet_50();
    let host = host("sockets:2 cores:3 nics:2,5 nic_gbps:40");
    let plan = place(&host, &Request { cores: CoreChoice::Count(5), ..Request::new(&weights) }).unwrap();
    let owners: Vec<u32> = plan.owners().iter().map(|slot| slot.0).collect();
    assert_eq!(owners, lpt(&weights, 5));
    let all_on_one = vec![3; weights.len()];
    let given = Request { cores: CoreChoice::Count(5), owners: Some(&all_on_one), ..Request::new(&weights) };
    let plan = place(&host, &given).unwrap();
    assert_eq!(plan.cores()[3].load_bytes, plan.total_bytes(), "others have decided");
}

#[test]
fn a_pbox_gives_every_core_a_nic_of_its_own_node() {
    let host = host("sockets:2 cores:10 threads:2 nics:5 nic_gbps:56 nic_kind:infiniband");
    let plan = place(&host, &Request::new(&[32768; 2000])).unwrap();
    assert_eq!(cpus(&plan), (0..20).collect::<Vec<u32>>());
    assert!(plan.nics().iter().all(|nic| nic.cores.len() == 2 && nic.items == 200));
    for core in plan.cores() {
        assert_eq!(host.nic(core.nic().unwrap()).unwrap().node, Some(core.node));
    }
}

#[test]
fn no_nic_one_core() {
    let plan = place(&host("cores:1"), &Request::new(&[5, 6])).unwrap();
    assert_eq!((plan.owners(), plan.nic_of(0)), (&[CoreSlot(0), CoreSlot(0)][..], None));
    assert!(plan.nic_balance().is_none() && plan.cores()[0].nics.is_empty());
    assert!(has_reason(&plan, "The host has no NIC"));
    assert_eq!(plan.core_balance().max_over_mean, 1.0);
}

#[test]
fn no_items() {
    let plan = place(&host("cores:2 nics:1"), &Request::new(&[])).unwrap();
    assert_eq!((plan.total_bytes(), plan.core_balance().max_over_mean), (0, 1.0));
    assert_eq!(
        (plan.cores().len(), plan.nics().len()),
        (2, 1),
        "cores and NICs are chosen without items too"
    );
    assert!(plan.reasons().is_empty(), "{:?}", plan.reasons());
}

#[test]
fn too_few_items() {
    let plan = place(&host("cores:3 nics:1"), &Request::new(&[7])).unwrap();
    assert!(has_reason(&plan, "2 of 3 cores own nothing"));
}

#[test]
fn more_nics_than_cores_gives_a_core_several_and_its_items_are_spread() {
    let plan = place(&host("cores:1 nics:10 nic_gbps:56"), &Request::new(&[100; 1000])).unwrap();
    assert_eq!(plan.cores()[0].nics.len(), 10);
    assert!(plan.nics().iter().all(|nic| nic.items == 100));
    assert!(has_reason(&plan, "10 NICs have only 1 core on node 0"));
}

#[test]
fn cores_without_a_nic_borrow_from_the_other_node() {
    let plan = place(&host("sockets:2 cores:4 nics:0,2 nic_gbps:10"), &Request::new(&[1; 800])).unwrap();
    assert!(has_reason(&plan, "No NIC on node 0: its cores use nic0 of node 1, nic1 of node 1."));
    assert!(plan.nics().iter().all(|nic| nic.cores.len() == 4));
}

#[test]
fn cores_without_a_nic_borrow_from_their_own_socket_first() {
    let host = host("sockets:2 nodes:2 cores:2 nics:1,0,1,0 nic_gbps:10");
    let plan = place(&host, &Request::new(&[1; 80])).unwrap();
    for core in plan.cores() {
        assert_eq!(host.nic(core.nic().unwrap()).unwrap().socket, Some(core.socket));
    }
}

#[test]
fn a_nic_on_a_node_without_owners_is_served_from_elsewhere() {
    let host = host("sockets:2 cores:2 nics:1 nic_gbps:10");
    let request = Request { cores: CoreChoice::Cpus(vec![CpuId(1), CpuId(0)]), ..Request::new(&[1; 10]) };
    let plan = place(&host, &request).unwrap();
    assert_eq!(cpus(&plan), [1, 0], "an explicit list keeps its order");
    assert!(plan.nics().iter().all(|nic| nic.cores.len() == 1));
    assert!(has_reason(&plan, "nic1 is on node 1, which has no owning core: node 0 serves it."));
}

#[test]
fn a_nic_of_unknown_node_goes_where_nics_are_fewest() {
    let plan =
        place(&host("sockets:2 cores:4 nics:2,0 nic_gbps:10 loose_nics:1"), &Request::new(&[1; 80])).unwrap();
    assert!(has_reason(&plan, "The node of nic2 is unknown: node 1 serves it."));
    let loose = &plan.nics()[2];
    assert!(loose.cores.iter().all(|slot| plan.cores()[slot.index()].node == NodeId(1)));
}

#[test]
fn a_given_number_of_cores_is_spread_by_nic_speed() {
    let host = host("sockets:2 cores:8 threads:2 nics:1,3 nic_gbps:100");
    let choose =
        |count| place(&host, &Request { cores: CoreChoice::Count(count), ..Request::new(&[1; 8]) }).unwrap();
    let on_node_1 = |plan: &Plan| plan.cores().iter().filter(|core| core.node == NodeId(1)).count();
    assert_eq!(on_node_1(&choose(1)), 1);
    assert_eq!(on_node_1(&choose(2)), 1, "each node with NICs gets one");
    assert_eq!(on_node_1(&choose(8)), 6);
    let all = choose(16);
    let cores: BTreeSet<_> = all.cores().iter().map(|core| core.core).collect();
    assert_eq!(cores.len(), 16, "physical cores before their siblings");
    assert!(has_reason(&choose(17), "1 of the 17 owners share a physical core"));
    assert!(has_reason(&choose(8), "spread over nodes by the speed of their NICs: 2 on node 0, 6 on node 1"));
}

#[test]
fn nics_with_rdma_get_so_many_cores_that_they_are_even() {
    let plan = |description: &str| {
        let request = Request { cores: CoreChoice::EvenOverNics, ..Request::new(&[1; 840]) };
        place(&host(description), &request).unwrap()
    };
    let of_nics = |plan: &Plan| plan.nics().iter().map(|nic| nic.cores.len()).collect::<Vec<_>>();
    let pbox = plan("sockets:2 cores:14 nics:5 nic_gbps:56 nic_kind:infiniband");
    assert_eq!(of_nics(&pbox), [2; 10], "three for some would carry half as much more than the others");
    assert!(pbox.nics().iter().all(|nic| nic.items == 84));
    assert!(has_reason(&pbox, "10 of 14 cores on node 0 serve NICs."));
    let rails = plan("sockets:2 cores:56 threads:2 nics:4 nic_gbps:400 nic_kind:infiniband");
    assert_eq!(of_nics(&rails), [4; 8]);
    let unlike = plan("sockets:2 cores:16 nics:1,2 nic_gbps:200,100 nic_kind:infiniband");
    assert_eq!(of_nics(&unlike), [4, 2, 2]);
    // Only cores of the NIC's own node count, so four of its cores are chosen.
    let one = plan("sockets:2 cores:16 nics:1,0 nic_gbps:100 nic_kind:infiniband");
    assert_eq!(cpus(&one), [0, 1, 2, 3]);
    // There are too few cores for two cores per NIC, so all cores are used.
    assert_eq!(cpus(&plan("sockets:2 cores:9 nics:5 nic_gbps:56 nic_kind:infiniband")).len(), 18);
    // Without RDMA every core is used, because the kernel's TCP needs the cores.
    assert_eq!(cpus(&plan("sockets:2 cores:14 nics:5 nic_gbps:56")).len(), 28);
}

#[test]
fn half_of_the_cores_are_no_more_than_nics_with_rdma_want() {
    let choose = |description: &str| {
        let request = Request { cores: CoreChoice::HalfOfTheCores, ..Request::new(&[1; 840]) };
        place(&host(description), &request).unwrap()
    };
    let rails = choose("sockets:2 cores:56 threads:2 nics:4 nic_gbps:400 nic_kind:infiniband");
    assert!(rails.nics().iter().all(|nic| nic.cores.len() == 4));
    assert!(has_reason(&rails, "16 of 28 cores on node 0 serve NICs."));
    assert_eq!(choose("sockets:2 cores:4 nics:4 nic_gbps:400 nic_kind:infiniband").cores().len(), 4);
    assert_eq!(choose("sockets:2 cores:56 nics:4 nic_gbps:400").cores().len(), 56);
}

/// Returns an EPYC with one node and two threads per core. Eight cores share a third-level cache.
fn epyc(nics: &str) -> Host {
    let mut host = host(&format!("cores:96 threads:2 {nics}"));
    let cache = |index: usize| {
        let cpus = host.cpus.iter().filter(|cpu| cpu.core.0 as usize / 8 == index).map(|cpu| cpu.id);
        Cache { level: 3, kind: CacheKind::Unified, size_bytes: None, cpus: cpus.collect() }
    };
    let mut caches: Vec<Cache> = (0..12).map(cache).collect();
    caches.extend(host.cpus.chunks(2).map(|of| Cache {
        level: 2,
        kind: CacheKind::Unified,
        size_bytes: None,
        cpus: of.iter().map(|cpu| cpu.id).collect(),
    }));
    host.caches = caches;
    host
}

#[test]
fn cores_are_taken_in_turn_over_the_caches_of_a_node() {
    let caches = |plan: &Plan| plan.cores().iter().map(|core| core.core.0 / 8).collect::<BTreeSet<_>>().len();
    let with_nics = epyc("nics:4 nic_gbps:400 nic_kind:infiniband");
    for (host, cores, expected) in [
        (&with_nics, CoreChoice::EvenOverNics, (16, 12)),
        (&with_nics, CoreChoice::HalfOfTheCores, (16, 12)),
        (&epyc(""), CoreChoice::HalfOfTheCores, (48, 12)),
        (&epyc(""), CoreChoice::Count(6), (6, 6)),
    ] {
        let plan = place(host, &Request { cores: cores.clone(), ..Request::new(&[1; 840]) }).unwrap();
        assert_eq!((plan.cores().len(), caches(&plan)), expected, "{cores:?}");
        assert!(has_reason(&plan, &format!("taken in turn over last-level caches: {} of 12", expected.1)));
        let physical: BTreeSet<_> = plan.cores().iter().map(|core| core.core).collect();
        assert_eq!(physical.len(), expected.0, "no sibling is taken");
    }
    let all = place(&epyc(""), &Request::new(&[1; 840])).unwrap();
    assert!(all.cores().len() == 96 && !has_reason(&all, "caches"), "there is no choice");
}

#[test]
fn slow_cores_own_nothing_unless_they_are_asked_for() {
    let mut host = host("cores:8");
    host.cpus[4..].iter_mut().for_each(|cpu| cpu.slow = true);
    let choose = |cores: CoreChoice| place(&host, &Request { cores, ..Request::new(&[1; 8]) }).unwrap();
    assert_eq!(cpus(&choose(CoreChoice::EveryCore)), [0, 1, 2, 3]);
    assert!(has_reason(&choose(CoreChoice::EveryCore), "4 cores of less capacity own nothing"));
    assert_eq!(cpus(&choose(CoreChoice::HalfOfTheCores)), [0, 1]);
    assert_eq!(cpus(&choose(CoreChoice::Count(4))), [0, 1, 2, 3]);
    assert_eq!(cpus(&choose(CoreChoice::Count(6))).len(), 6);
    assert_eq!(cpus(&choose(CoreChoice::Cpus(vec![CpuId(7)]))), [7]);
    host.cpus.iter_mut().for_each(|cpu| cpu.slow = true);
    assert_eq!(place(&host, &Request::new(&[1; 8])).unwrap().cores().len(), 8, "there are no faster ones");
}

#[test]
fn cores_near_no_nic_are_the_last_choice() {
    let host = host("sockets:2 nodes:2 cores:2 nics:1,0,0,0 nic_gbps:100");
    let choose =
        |count| place(&host, &Request { cores: CoreChoice::Count(count), ..Request::new(&[1; 8]) }).unwrap();
    assert_eq!(cpus(&choose(2)), [0, 1]);
    assert_eq!(cpus(&choose(4)), [0, 1, 2, 3], "the same socket comes next");
    assert!(has_reason(&choose(3), "1 of 3 are on nodes without"));
}

#[test]
fn slow_and_linkless_nics_are_left_out_unless_named() {
    let mut host = host("sockets:2 cores:2 nics:1,2 nic_gbps:1,100");
    host.nics[2].link_up = Some(false);
    let plan = place(&host, &Request::new(&[1; 8])).unwrap();
    assert_eq!(plan.nics().len(), 1);
    assert!(has_reason(&plan, "nic0 (1 Gb/s) is less than an eighth as fast as nic1"));
    assert!(has_reason(&plan, "nic2 has no link"));
    let only = Some(vec!["nic0".to_owned(), "nic2".to_owned(), "nic2".to_owned()]);
    let named = NicChoice { only, except: vec![] };
    let plan = place(&host, &Request { nics: named, ..Request::new(&[1; 8]) }).unwrap();
    assert_eq!(plan.nics().iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["nic0", "nic2"]);
    let none = NicChoice { only: None, except: vec!["nic1".to_owned(), "nic0".to_owned()] };
    let plan = place(&host, &Request { nics: none, ..Request::new(&[1; 8]) }).unwrap();
    assert!(plan.nics().is_empty() && has_reason(&plan, "No NIC was chosen"));
}

#[test]
fn nics_without_rdma_are_left_out_beside_others_that_have_it() {
    // hwloc describes a machine with two Ethernet ports and one InfiniBand port in this way. No speed is
    // known.
    let mut host = host("cores:6 nics:3");
    assert_eq!(place(&host, &Request::new(&[1; 6])).unwrap().nics().len(), 3);
    host.nics[1].kind = topology::NicKind::Infiniband;
    let plan = place(&host, &Request::new(&[1; 6])).unwrap();
    assert_eq!(plan.nics().iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["nic1"]);
    assert!(has_reason(&plan, "nic0 has no RDMA, but nic1 has") && has_reason(&plan, "nic2 has no RDMA"));
    let named = NicChoice { only: Some(vec!["nic0".to_owned(), "nic1".to_owned()]), except: vec![] };
    let plan = place(&host, &Request { nics: named, ..Request::new(&[1; 6]) }).unwrap();
    assert_eq!(plan.nics().len(), 2);
    host.nics[1].link_up = Some(false);
    assert_eq!(
        place(&host, &Request::new(&[1; 6])).unwrap().nics().len(),
        2,
        "without a link it has no RDMA either"
    );
}

#[test]
fn cores_are_dealt_to_nics_by_speed() {
    let mut host = host("cores:10 nics:2 nic_gbps:100");
    host.nics[1].speed = topology::Speed::new(25_000_000_000, topology::SpeedSource::Given);
    let plan = place(&host, &Request::new(&[1; 1000])).unwrap();
    assert_eq!(plan.nics().iter().map(|nic| nic.cores.len()).collect::<Vec<_>>(), [8, 2]);
    assert_eq!(plan.nic_balance().unwrap().max_over_mean, 1.0);
    host.nics[1].speed = None;
    let plan = place(&host, &Request::new(&[1; 1000])).unwrap();
    assert!(has_reason(&plan, "The speed of nic1 is unknown: counted as 100 Gb/s"));
}

#[test]
fn nics_that_cores_cannot_be_dealt_to_evenly_are_remarked_on() {
    let host = host("cores:8 nics:5 nic_gbps:56");
    let cores = place(&host, &Request::new(&[32768; 10_000])).unwrap();
    assert!(cores.nic_balance().unwrap().max_over_mean > 1.2);
    assert!(has_reason(&cores, "Use a number of cores that the NICs can share evenly"));
}

#[test]
fn impossible_requests_say_what_to_do() {
    let mut host = host("sockets:2 cores:2 nics:1");
    host.cpus[3].allowed = false;
    let with = |cores| place(&host, &Request { cores, ..Request::new(&[1]) }).unwrap_err();
    assert_eq!(with(CoreChoice::Count(0)), PlaceError::NoCores);
    assert_eq!(with(CoreChoice::Cpus(vec![])), PlaceError::NoCores);
    assert_eq!(with(CoreChoice::Count(4)), PlaceError::TooManyCores { asked: 4, allowed: 3 });
    assert_eq!(
        with(CoreChoice::Cpus(vec![CpuId(9)])).to_string(),
        "placement: cpu 9 does not exist; the host has cpus 0-3"
    );
    assert!(with(CoreChoice::Cpus(vec![CpuId(3)])).to_string().contains("may use cpus 0-2"));
    assert_eq!(with(CoreChoice::Cpus(vec![CpuId(1), CpuId(1)])), PlaceError::RepeatedCpu { cpu: CpuId(1) });
    let nics = NicChoice { only: None, except: vec!["eth7".into()] };
    let error = place(&host, &Request { nics, ..Request::new(&[1]) }).unwrap_err();
    assert_eq!(error.to_string(), "placement: no NIC is called \"eth7\"; the host has nic0, nic1");
    let error = place(&host, &Request::new(&[u64::MAX, 1])).unwrap_err();
    assert_eq!(error, PlaceError::BytesOverflow { items: 2 });
    host.cpus.iter_mut().for_each(|cpu| cpu.allowed = false);
    assert_eq!(place(&host, &Request::new(&[1])).unwrap_err(), PlaceError::NoAllowedCpu { cpus: 4 });
}

#[test]
fn forbidden_cpus_own_nothing() {
    let mut host = host("cores:4 nics:1");
    host.cpus[0].allowed = false;
    let plan = place(&host, &Request::new(&[1; 9])).unwrap();
    assert_eq!(cpus(&plan), [1, 2, 3]);
    assert!(has_reason(&plan, "1 of the host's 4 cpus are not allowed"));
}
