//! The machine that runs the tests can be read, planned and drawn. Little is known about it in advance.

use topology::{Host, Request, place, render};

#[test]
fn the_live_machine_can_be_read_planned_and_drawn() {
    let host = Host::live().unwrap();
    assert!(host.cpus.iter().any(|cpu| cpu.allowed));
    assert!(host.cpus.iter().all(|cpu| host.node(cpu.node).is_some()));
    let plan = place(&host, &Request::new(&[1000; 100])).unwrap();
    assert_eq!(plan.total_bytes(), 100_000);
    assert!(render::text(&host, Some(&plan), "item").contains("balance of cores"));
}

#[test]
fn sysfs_and_hwloc_agree_on_cpus_and_nics() {
    let (live, sysfs) = (Host::live().unwrap(), Host::from_sysfs("/sys").unwrap());
    let ids = |host: &Host| host.cpus.iter().map(|cpu| (cpu.id, cpu.core)).collect::<Vec<_>>();
    assert_eq!(ids(&live), ids(&sysfs));
    let names = |host: &Host| host.nics.iter().map(|nic| nic.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&live), names(&sysfs));
}
