//! The properties of every plan, on random hosts, choices and weights.

use proptest::prelude::*;
use std::collections::BTreeSet;
use topology::{CoreChoice, CpuId, Host, NodeId, Request, place};

fn host(description: &str) -> Host {
    Host::from_synthetic(description).unwrap()
}

fn any_host() -> impl Strategy<Value = Host> {
    (1usize..4, 1usize..3, 1usize..3).prop_flat_map(|(sockets, nodes, threads)| {
        let all = sockets * nodes;
        let list = |values: &[usize]| values.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let cores = proptest::collection::vec(1usize..6, all);
        let nics = proptest::collection::vec(0usize..6, all);
        (cores, nics, 0usize..3).prop_map(move |(cores, nics, loose)| {
            let (cores, nics) = (list(&cores), list(&nics));
            host(&format!(
                "sockets:{sockets} nodes:{nodes} threads:{threads} cores:{cores} nics:{nics} nic_gbps:56 loose_nics:{loose}"
            ))
        })
    })
}

fn any_choice(host: &Host) -> impl Strategy<Value = CoreChoice> + use<> {
    let ids: Vec<CpuId> = host.cpus.iter().map(|cpu| cpu.id).collect();
    prop_oneof![
        Just(CoreChoice::EveryCore),
        Just(CoreChoice::HalfOfTheCores),
        (1..=ids.len()).prop_map(CoreChoice::Count),
        (1..=ids.len(), Just(ids).prop_shuffle()).prop_map(|(n, ids)| CoreChoice::Cpus(ids[..n].to_vec())),
    ]
}

fn any_case() -> impl Strategy<Value = (Host, CoreChoice, Vec<u64>)> {
    any_host().prop_flat_map(|host| {
        let choice = any_choice(&host);
        (Just(host), choice, proptest::collection::vec(0u64..100_000, 0..300))
    })
}

proptest! {
    #[test]
    fn every_item_has_one_owner_and_the_loads_add_up((host, cores, weights) in any_case()) {
        let request = Request { cores, ..Request::new(&weights) };
        let plan = place(&host, &request).unwrap();
        prop_assert_eq!(plan.owners().len(), weights.len());
        let mut loads = vec![(0usize, 0u64); plan.cores().len()];
        for (item, owner) in plan.owners().iter().enumerate() {
            loads[owner.index()].0 += 1;
            loads[owner.index()].1 += weights[item];
            let nics = &plan.cores()[owner.index()].nics;
            match plan.nic_of(item) {
                Some(nic) => prop_assert!(nics.contains(&nic)),
                None => prop_assert!(nics.is_empty() && plan.nics().is_empty()),
            }
        }
        for (core, (items, bytes)) in plan.cores().iter().zip(loads) {
            prop_assert_eq!((core.items, core.load_bytes), (items, bytes));
        }
        if !plan.nics().is_empty() {
            let bytes: u64 = plan.nics().iter().map(|nic| nic.load_bytes).sum();
            prop_assert_eq!(bytes, weights.iter().sum::<u64>());
        }
        prop_assert!(plan.core_balance().max_over_mean >= 1.0 - 1e-9);
    }

    #[test]
    fn equal_inputs_give_equal_plans((host, cores, weights) in any_case()) {
        let request = Request { cores, ..Request::new(&weights) };
        prop_assert_eq!(place(&host, &request), place(&host.clone(), &request.clone()));
    }

    #[test]
    fn every_nic_has_a_core_and_every_core_a_nic((host, cores, _) in any_case()) {
        // All items have equal weights, and there are so many that each core and NIC gets many.
        let weights = vec![4096; 64 * (host.cpus.len() + host.nics.len())];
        let plan = place(&host, &Request { cores, ..Request::new(&weights) }).unwrap();
        prop_assert_eq!(plan.nics().len(), host.nics.len());
        for nic in plan.nics() {
            prop_assert!(!nic.cores.is_empty() && nic.items > 0, "{:?}", nic);
        }
        for core in plan.cores() {
            prop_assert_eq!(core.nics.is_empty(), host.nics.is_empty());
        }
    }

    #[test]
    fn a_cores_nic_is_on_its_own_node_whenever_the_node_has_one((host, cores, weights) in any_case()) {
        let plan = place(&host, &Request { cores, ..Request::new(&weights) }).unwrap();
        let owned: BTreeSet<NodeId> = plan.cores().iter().map(|core| core.node).collect();
        for core in plan.cores() {
            let own = host.nics.iter().any(|nic| nic.node == Some(core.node));
            for nic in core.nics.iter().map(|&id| host.nic(id).unwrap()) {
                // A core may serve a NIC of another node if that node has no owner.
                let stray = nic.node.is_none_or(|node| !owned.contains(&node));
                prop_assert!(nic.node == Some(core.node) || !own || stray);
                let near = host.nics.iter().any(|nic| nic.socket == Some(core.socket));
                prop_assert!(nic.socket == Some(core.socket) || !near || stray);
            }
        }
    }

    #[test]
    fn owners_are_distinct_and_allowed((mut host, _, weights) in any_case(), barred in 0usize..5, count in 1usize..40) {
        for cpu in host.cpus.iter_mut().take(barred) {
            cpu.allowed = false;
        }
        let request = Request { cores: CoreChoice::Count(count), ..Request::new(&weights) };
        let allowed = host.cpus.iter().filter(|cpu| cpu.allowed).count();
        match place(&host, &request) {
            Ok(plan) => {
                let cpus: BTreeSet<CpuId> = plan.cores().iter().map(|core| core.cpu).collect();
                prop_assert_eq!(cpus.len(), count);
                prop_assert!(cpus.iter().all(|&cpu| host.cpu(cpu).unwrap().allowed));
                let cores: BTreeSet<_> = plan.cores().iter().map(|core| core.core).collect();
                let physical: BTreeSet<_> = host.cpus.iter().filter(|cpu| cpu.allowed).map(|cpu| cpu.core).collect();
                prop_assert_eq!(cores.len(), count.min(physical.len()), "siblings only if all cores are used");
            }
            Err(_) => prop_assert!(allowed < count),
        }
    }

    #[test]
    fn more_items_than_cores_leave_no_core_idle((host, cores, mut weights) in any_case()) {
        weights.iter_mut().for_each(|weight| *weight += 1);
        let plan = place(&host, &Request { cores, ..Request::new(&weights) }).unwrap();
        let idle = plan.cores().iter().filter(|core| core.items == 0).count();
        prop_assert_eq!(idle, plan.cores().len().saturating_sub(weights.len()));
    }
}
