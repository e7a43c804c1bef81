//! The choice of the cpus that become owners.
//!
//! This module must not depend on items, or on which NIC a core will get. It uses only the speed of the NICs
//! near each node.

use super::nic_choice::UsedNic;
use super::wiring::{NodeCores, groups, home_groups};
use super::{CoreChoice, PlaceError, apportion};
use crate::amount::count;
use crate::cpulist;
use crate::host::{CoreId, Cpu, CpuId, Host, NodeId, SocketId};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

/// The number of cores that the fastest NIC may have. With two cores, one core can post sends while the other core runs
/// the optimizer. With more than four cores, the queue pairs of many workers crowd the NIC's cache.
const CORES_OF_A_NIC: RangeInclusive<u64> = 2..=4;

/// Returns the owners' cpus, in slot order.
pub fn choose(
    host: &Host,
    choice: &CoreChoice,
    nics: &[UsedNic],
    reasons: &mut Vec<String>,
) -> Result<Vec<Cpu>, PlaceError> {
    let mut allowed: Vec<&Cpu> = host.cpus.iter().filter(|cpu| cpu.allowed).collect();
    if allowed.is_empty() {
        return Err(PlaceError::NoAllowedCpu { cpus: host.cpus.len() });
    }
    allowed.sort_by_key(|cpu| (cpu.node, cpu.core, cpu.id));
    leave_slow_cores_out(choice, &mut allowed, reasons);
    let caches = in_turn_over_caches(host, &mut allowed);
    let mut chosen: Vec<Cpu> = match choice {
        CoreChoice::Cpus(ids) => explicit(host, ids)?,
        CoreChoice::EveryCore => every_core(&allowed),
        CoreChoice::EvenOverNics => even_over_nics(every_core(&allowed), nics, reasons),
        CoreChoice::HalfOfTheCores => {
            let half = (every_core(&allowed).len() / 2).max(1);
            even_over_nics(spread(&allowed, half, nics, reasons), nics, reasons)
        }
        CoreChoice::Count(0) => return Err(PlaceError::NoCores),
        CoreChoice::Count(count) if *count > allowed.len() => {
            return Err(PlaceError::TooManyCores { asked: *count, allowed: allowed.len() });
        }
        CoreChoice::Count(count) => spread(&allowed, *count, nics, reasons),
    };
    if !matches!(choice, CoreChoice::Cpus(_)) {
        let used = chosen.iter().filter_map(|cpu| last_cache(host, cpu.id)).collect::<BTreeSet<_>>().len();
        if caches > 0 && chosen.len() < every_core(&allowed).len() {
            reasons.push(format!("Cores were taken in turn over last-level caches: {used} of {caches}."));
        }
        chosen.sort_by_key(|cpu| (cpu.node, cpu.core, cpu.id));
    }
    let shared = chosen.len() - chosen.iter().map(|cpu| cpu.core).collect::<BTreeSet<_>>().len();
    if shared > 0 {
        reasons.push(format!(
            "{shared} of the {} owners share a physical core with another owner.",
            chosen.len()
        ));
    }
    Ok(chosen)
}

/// Removes cores of less capacity, unless the request names them. All cores have equal bytes, so each round would wait
/// for the slow cores.
fn leave_slow_cores_out(choice: &CoreChoice, cpus: &mut Vec<&Cpu>, reasons: &mut Vec<String>) {
    let fast = cpus.iter().filter(|cpu| !cpu.slow).count();
    let wanted = match choice {
        CoreChoice::Cpus(_) => return,
        CoreChoice::Count(count) => (1..=fast).contains(count),
        CoreChoice::EveryCore | CoreChoice::EvenOverNics | CoreChoice::HalfOfTheCores => fast > 0,
    };
    let cores = every_core(cpus).len();
    if wanted && fast < cpus.len() {
        cpus.retain(|cpu| !cpu.slow);
        let slow = cores - every_core(cpus).len();
        reasons.push(format!(
            "{} of less capacity own nothing: rounds would wait for them.",
            count(slow, "core")
        ));
    }
}

/// Orders the cpus of each node so that neighbours in the order have different last-level caches. So the chosen cpus
/// use many caches: the link between one cache and the memory has only a part of the memory's speed. Returns the number
/// of caches, or 0 if no node has several.
fn in_turn_over_caches(host: &Host, cpus: &mut [&Cpu]) -> usize {
    let mut cores: BTreeMap<(NodeId, Option<usize>), BTreeSet<CoreId>> = BTreeMap::new();
    let group = |cpu: &Cpu| (cpu.node, last_cache(host, cpu.id));
    for cpu in cpus.iter() {
        cores.entry(group(cpu)).or_default().insert(cpu.core);
    }
    cpus.sort_by_cached_key(|cpu| {
        let (node, cache) = group(cpu);
        (node, cores[&(node, cache)].range(..cpu.core).count(), cache, cpu.core, cpu.id)
    });
    let shared: Vec<NodeId> =
        cores.iter().filter(|(_, cores)| cores.len() > 1).map(|((node, _), _)| *node).collect();
    let has_several = shared.windows(2).any(|pair| pair[0] == pair[1]);
    if has_several { shared.len() } else { 0 }
}

/// Returns the index of the cpu's last-level cache, which is next to the memory.
fn last_cache(host: &Host, cpu: CpuId) -> Option<usize> {
    let of_cpu = host.caches.iter().enumerate().filter(|(_, cache)| cache.cpus.binary_search(&cpu).is_ok());
    of_cpu.max_by_key(|(_, cache)| cache.level).map(|(index, _)| index)
}

fn every_core(allowed: &[&Cpu]) -> Vec<Cpu> {
    let mut seen = BTreeSet::new();
    allowed.iter().filter(|cpu| seen.insert(cpu.core)).map(|&cpu| cpu.clone()).collect()
}

/// Chooses a subset of these cpus that makes the loads of NICs with RDMA even. All cores have equal bytes, so a NIC's
/// share of the bytes is the share of its cores.
fn even_over_nics(mut cpus: Vec<Cpu>, nics: &[UsedNic], reasons: &mut Vec<String>) -> Vec<Cpu> {
    if !nics.iter().any(|nic| nic.has_rdma) {
        return cpus;
    }
    let (groups, _) = groups(&cpus);
    let homes = home_groups(nics, &groups);
    let needed = |seats: &[u64]| {
        let mut needed = vec![0; groups.len()];
        homes.iter().zip(seats).for_each(|(&home, &seats)| needed[home] += seats as usize);
        needed
    };
    let fits = |seats: &Vec<u64>| needed(seats).iter().zip(&groups).all(|(&needed, of)| needed <= of.cores);
    let seats = CORES_OF_A_NIC.map(|each| seats(nics, each)).filter(fits);
    let Some(seats) = seats.max_by(|a, b| compare_carried(nics, a, b)) else {
        return cpus; // too few cpus: all are used
    };
    for (group, needed) in groups.iter().zip(needed(&seats)) {
        if needed < group.cores {
            reasons.push(format!("{needed} of {} on {} serve NICs.", count(group.cores, "core"), group.node));
        }
        let mut taken = 0;
        cpus.retain(|cpu| {
            taken += usize::from(cpu.node == group.node);
            cpu.node != group.node || taken <= needed
        });
    }
    cpus
}

/// Returns each NIC's number of cores if the fastest NIC gets `fastest` cores.
fn seats(nics: &[UsedNic], fastest: u64) -> Vec<u64> {
    let most = nics.iter().map(|nic| u128::from(nic.weight)).max().unwrap_or(1);
    let of = |nic: &UsedNic| (2 * u128::from(nic.weight) * u128::from(fastest) + most) / (2 * most);
    nics.iter().map(|nic| of(nic).max(1) as u64).collect()
}

/// Compares two choices of each NIC's number of cores, `a` and `b`, by the bytes that all NICs together carry. All
/// cores have equal bytes, so the NIC with the least speed per core is the limit.
fn compare_carried(nics: &[UsedNic], a: &[u64], b: &[u64]) -> Ordering {
    let carried = |seats: &[u64]| {
        let of = nics.iter().zip(seats).map(|(nic, &seats)| (u128::from(nic.weight), u128::from(seats)));
        let (weight, held) = of.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1))).unwrap_or((0, 1));
        (weight * seats.iter().map(|&seats| u128::from(seats)).sum::<u128>(), held)
    };
    let (a, b) = (carried(a), carried(b));
    (a.0 * b.1).cmp(&(b.0 * a.1))
}

fn explicit(host: &Host, ids: &[CpuId]) -> Result<Vec<Cpu>, PlaceError> {
    if ids.is_empty() {
        return Err(PlaceError::NoCores);
    }
    let list_where = |keep: &dyn Fn(&Cpu) -> bool| {
        cpulist::format(host.cpus.iter().filter(|cpu| keep(cpu)).map(|cpu| cpu.id.0))
    };
    let mut seen = BTreeSet::new();
    let mut chosen = Vec::with_capacity(ids.len());
    for &id in ids {
        let Some(cpu) = host.cpu(id) else {
            return Err(PlaceError::UnknownCpu { cpu: id, known: list_where(&|_| true) });
        };
        if !cpu.allowed {
            return Err(PlaceError::CpuNotAllowed { cpu: id, allowed: list_where(&|cpu| cpu.allowed) });
        }
        if !seen.insert(id) {
            return Err(PlaceError::RepeatedCpu { cpu: id });
        }
        chosen.push(cpu.clone());
    }
    Ok(chosen)
}

/// A node's free cpus: at first the first threads of the node's cores, and later the other threads.
struct Pool<'a> {
    node: NodeId,
    socket: SocketId,
    cores: usize,
    free: VecDeque<&'a Cpu>,
}

fn spread(allowed: &[&Cpu], count: usize, nics: &[UsedNic], reasons: &mut Vec<String>) -> Vec<Cpu> {
    let mut pools = pools(allowed);
    let groups: Vec<NodeCores> = pools
        .iter()
        .map(|pool| NodeCores { node: pool.node, socket: pool.socket, cores: pool.cores })
        .collect();
    // The speed of each node's NICs.
    let mut demand = vec![0u64; pools.len()];
    for (nic, home) in nics.iter().zip(home_groups(nics, &groups)) {
        demand[home] = demand[home].saturating_add(nic.weight);
    }
    let near: BTreeSet<SocketId> = groups
        .iter()
        .zip(&demand)
        .filter(|&(_, &demand)| demand > 0)
        .map(|(group, _)| group.socket)
        .collect();
    let cores: Vec<u64> = groups.iter().map(|group| group.cores as u64).collect();
    let mut taken = vec![0u64; pools.len()];
    let mut chosen = Vec::with_capacity(count);
    let mut ranks = ranks(allowed).into_iter();
    while chosen.len() < count {
        // Seats go to nodes with NICs first, then to other nodes of sockets with NICs, and then to any node.
        let next = apportion::next_seat(&demand, &taken, |at| demand[at] > 0 && !pools[at].free.is_empty())
            .or_else(|| {
                apportion::next_seat(&cores, &taken, |at| {
                    near.contains(&pools[at].socket) && !pools[at].free.is_empty()
                })
            })
            .or_else(|| apportion::next_seat(&cores, &taken, |at| !pools[at].free.is_empty()));
        match next {
            Some(at) => {
                taken[at] += 1;
                chosen.extend(pools[at].free.pop_front().cloned());
            }
            // No free cpu is left: every physical core has an owner. So the next thread of each core becomes free.
            None => match ranks.next() {
                Some(rank) => pools.iter_mut().for_each(|pool| {
                    pool.free.extend(rank.iter().filter(|cpu| cpu.node == pool.node));
                }),
                None => break,
            },
        }
    }
    explain_spread(&pools, &demand, &taken, count, reasons);
    chosen
}

fn explain_spread(
    pools: &[Pool<'_>],
    demand: &[u64],
    taken: &[u64],
    count: usize,
    reasons: &mut Vec<String>,
) {
    if pools.len() > 1 {
        let words: Vec<String> =
            pools.iter().zip(taken).map(|(pool, n)| format!("{n} on {}", pool.node)).collect();
        let rule =
            if demand.iter().any(|&demand| demand > 0) { "the speed of their NICs" } else { "their cores" };
        reasons.push(format!("{count} cores were spread over nodes by {rule}: {}.", words.join(", ")));
    }
    let far: u64 = demand.iter().zip(taken).filter(|&(&demand, _)| demand == 0).map(|(_, &n)| n).sum();
    if far > 0 && demand.iter().any(|&demand| demand > 0) {
        reasons
            .push(format!("Nodes with NICs have too few cores: {far} of {count} are on nodes without NICs."));
    }
}

fn pools<'a>(allowed: &[&'a Cpu]) -> Vec<Pool<'a>> {
    let mut pools: BTreeMap<NodeId, Pool<'a>> = BTreeMap::new();
    let mut cores: BTreeMap<NodeId, BTreeSet<CoreId>> = BTreeMap::new();
    for cpu in allowed {
        pools.entry(cpu.node).or_insert_with(|| Pool {
            node: cpu.node,
            socket: cpu.socket,
            cores: 0,
            free: VecDeque::new(),
        });
        cores.entry(cpu.node).or_default().insert(cpu.core);
    }
    for (node, pool) in &mut pools {
        pool.cores = cores.get(node).map_or(0, BTreeSet::len);
    }
    pools.into_values().collect()
}

/// Returns the first threads of all cores, then the second threads, and so on.
fn ranks<'a>(allowed: &[&'a Cpu]) -> Vec<Vec<&'a Cpu>> {
    let mut ranks: Vec<Vec<&Cpu>> = Vec::new();
    let mut threads: BTreeMap<CoreId, usize> = BTreeMap::new();
    for &cpu in allowed {
        let rank = threads.entry(cpu.core).or_default();
        if ranks.len() == *rank {
            ranks.push(Vec::new());
        }
        ranks[*rank].push(cpu);
        *rank += 1;
    }
    ranks
}
