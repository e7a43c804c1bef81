//! Host and plan as text for a terminal.
//!
//! This module must not depend on how the plan was made.

use crate::amount::{self, count};
use crate::cpulist;
use crate::host::{CacheKind, Cpu, Host, Nic, Node, Socket, SpeedSource};
use crate::place::{Balance, Plan};
use std::collections::BTreeSet;
use std::fmt::Write;

const BAR_CHARS: usize = 20;

/// Returns the machine as an indented tree, and then the plan core by core. `noun` is the caller's word for an item;
/// the plural is made with an s.
pub fn text(host: &Host, plan: Option<&Plan>, noun: &str) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = machine(&mut out, host);
    if let Some(plan) = plan {
        let _ = owners(&mut out, host, plan, noun);
    }
    out
}

fn machine(out: &mut String, host: &Host) -> std::fmt::Result {
    writeln!(out, "{}", host.summary())?;
    writeln!(out, "  source: {}", host.source)?;
    let near = |nic: &Nic, socket: &Socket| nic.node.is_none() && nic.socket == Some(socket.id);
    for socket in &host.sockets {
        let has_node = host.nodes.iter().any(|node| node.socket == Some(socket.id));
        if !has_node && !host.nics.iter().any(|nic| near(nic, socket)) {
            continue;
        }
        writeln!(out, "  {}", socket.id)?;
        for node in host.nodes.iter().filter(|node| node.socket == Some(socket.id)) {
            node_lines(out, host, node, "    ", Some(socket))?;
        }
        for nic in host.nics.iter().filter(|nic| near(nic, socket)) {
            writeln!(out, "    NIC {}", nic_line(nic))?;
        }
    }
    for node in host.nodes.iter().filter(|node| node.socket.is_none()) {
        writeln!(out, "  {}", host.socket_heading(node.id).to_lowercase())?;
        node_lines(out, host, node, "    ", None)?;
    }
    for nic in host.nics.iter().filter(|nic| nic.node.is_none() && nic.socket.is_none()) {
        writeln!(out, "  NIC {}, node unknown", nic_line(nic))?;
    }
    for note in &host.notes {
        writeln!(out, "  note: {note}")?;
    }
    Ok(())
}

fn node_lines(
    out: &mut String,
    host: &Host,
    node: &Node,
    indent: &str,
    socket: Option<&Socket>,
) -> std::fmt::Result {
    let on_node = |cpu: &&Cpu| cpu.node == node.id && socket.is_none_or(|socket| cpu.socket == socket.id);
    let cpus: Vec<&Cpu> = host.cpus.iter().filter(on_node).collect();
    let cores: BTreeSet<_> = cpus.iter().map(|cpu| cpu.core).collect();
    let memory = node.memory_bytes.map_or("memory unknown".to_owned(), amount::bytes);
    write!(out, "{indent}NUMA {}: {memory}", node.id)?;
    if cpus.is_empty() {
        writeln!(out, ", no cpus")?;
    } else {
        let list = cpulist::format(cpus.iter().map(|cpu| cpu.id.0));
        writeln!(out, ", {}, cpus {list}", count(cores.len(), "core"))?;
    }
    let barred: Vec<u32> = cpus.iter().filter(|cpu| !cpu.allowed).map(|cpu| cpu.id.0).collect();
    if !barred.is_empty() {
        writeln!(out, "{indent}  not allowed to this process: cpus {}", cpulist::format(barred))?;
    }
    if let Some(line) = caches(host, &cpus) {
        writeln!(out, "{indent}  {line}")?;
    }
    for nic in host.nics.iter().filter(|nic| nic.node == Some(node.id)) {
        writeln!(out, "{indent}  NIC {}", nic_line(nic))?;
    }
    Ok(())
}

/// Returns the caches as `caches: 4 x L2 1.00 MiB, 1 x L3 32.0 MiB`, without instruction caches.
fn caches(host: &Host, cpus: &[&Cpu]) -> Option<String> {
    let mut kinds: Vec<(u8, Option<u64>, usize)> = Vec::new();
    let here = |cache: &&crate::host::Cache| {
        cache.kind != CacheKind::Instruction && cpus.iter().any(|cpu| cache.cpus.first() == Some(&cpu.id))
    };
    for cache in host.caches.iter().filter(here) {
        match kinds.iter_mut().find(|(level, size, _)| (*level, *size) == (cache.level, cache.size_bytes)) {
            Some((.., count)) => *count += 1,
            None => kinds.push((cache.level, cache.size_bytes, 1)),
        }
    }
    let word = |(level, size, count): &(u8, Option<u64>, usize)| {
        format!("{count} x L{level} {}", size.map_or("?".to_owned(), amount::bytes))
    };
    (!kinds.is_empty()).then(|| format!("caches: {}", kinds.iter().map(word).collect::<Vec<_>>().join(", ")))
}

fn nic_line(nic: &Nic) -> String {
    let mut line = format!("{}: {}, {}", nic.name, nic.kind, speed(nic));
    if nic.netdevs.iter().any(|name| *name != nic.name) {
        let _ = write!(line, ", net {}", nic.netdevs.join(" "));
    }
    if let Some(pci) = nic.pci {
        let _ = write!(line, ", PCI {pci}");
    }
    if nic.link_up == Some(false) {
        line.push_str(", no link");
    }
    line
}

/// Returns the speed as `56 Gb/s`, or as `<= 64 Gb/s` if only the PCI link's speed is known.
pub fn speed(nic: &Nic) -> String {
    match nic.speed {
        None => "speed unknown".to_owned(),
        Some(speed) => {
            let bound = if speed.source == SpeedSource::PciLink { "\u{2264} " } else { "" };
            format!("{bound}{}", amount::bits_per_s(speed.bits_per_s))
        }
    }
}

fn owners(out: &mut String, host: &Host, plan: &Plan, noun: &str) -> std::fmt::Result {
    writeln!(
        out,
        "\nplan: {}, {}, on {}",
        count(plan.owners().len(), noun),
        amount::bytes(plan.total_bytes()),
        count(plan.cores().len(), "core")
    )?;
    let nic_names = |nics: &[crate::host::NicId]| {
        let names: Vec<&str> =
            nics.iter().filter_map(|&id| host.nic(id)).map(|nic| nic.name.as_str()).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(" ") }
    };
    let items = format!("{noun}s");
    let mut rows = vec![["slot", "cpu", "node", "NIC", &items, "bytes", "share"].map(str::to_owned).to_vec()];
    let fullest = plan.cores().iter().map(|core| core.load_bytes).max().unwrap_or(0);
    for core in plan.cores() {
        rows.push(vec![
            core.slot.0.to_string(),
            core.cpu.0.to_string(),
            core.node.0.to_string(),
            nic_names(&core.nics),
            amount::grouped(core.items as u64),
            amount::bytes(core.load_bytes),
            share_bar(core.load_bytes, fullest, plan.total_bytes()),
        ]);
    }
    table(out, &rows, &[true, true, true, false, true, true, false])?;
    if !plan.nics().is_empty() {
        let mut rows =
            vec![["NIC", "speed", "node", "cores", &items, "bytes", "share"].map(str::to_owned).to_vec()];
        let fullest = plan.nics().iter().map(|nic| nic.load_bytes).max().unwrap_or(0);
        for placed in plan.nics() {
            let nic = host.nic(placed.nic);
            rows.push(vec![
                placed.name.clone(),
                nic.map_or_else(String::new, speed),
                nic.and_then(|nic| nic.node).map_or("?".to_owned(), |node| node.0.to_string()),
                placed.cores.len().to_string(),
                amount::grouped(placed.items as u64),
                amount::bytes(placed.load_bytes),
                share_bar(placed.load_bytes, fullest, plan.total_bytes()),
            ]);
        }
        writeln!(out)?;
        table(out, &rows, &[false, true, true, true, true, true, false])?;
    }
    writeln!(out, "\n  balance of cores: {}", balance(&plan.core_balance()))?;
    if let Some(nics) = plan.nic_balance() {
        writeln!(out, "  balance of NICs:  {}, relative to speed", balance(&nics))?;
    }
    for reason in plan.reasons() {
        writeln!(out, "  reason: {reason}")?;
    }
    Ok(())
}

fn balance(balance: &Balance) -> String {
    format!(
        "max {}, mean {}, max/mean {:.3}",
        amount::bytes(balance.max_bytes),
        amount::bytes(balance.mean_bytes as u64),
        balance.max_over_mean
    )
}

/// Returns a bar whose length shows `part` relative to the largest load, and the percentage of the total.
fn share_bar(part: u64, fullest: u64, total: u64) -> String {
    let ratio = |of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
    let full = (ratio(fullest) * BAR_CHARS as f64).round() as usize;
    let bar: String = (0..BAR_CHARS).map(|at| if at < full { '\u{2588}' } else { '\u{00b7}' }).collect();
    format!("{bar} {:5.1}%", ratio(total) * 100.0)
}

/// Writes rows with columns as wide as needed. `right` says which columns are aligned to the right.
fn table(out: &mut String, rows: &[Vec<String>], right: &[bool]) -> std::fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..right.len()).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for ((cell, &width), &right) in row.iter().zip(&widths).zip(right) {
            if right {
                write!(line, " {cell:>width$} ")?;
            } else {
                write!(line, " {cell:<width$} ")?;
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
