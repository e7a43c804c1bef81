//! The figures of the machine: sockets with their nodes, nodes with their cores and NICs.
//!
//! This module must not depend on coordinates.

use super::canvas::{Rect, Stroke, Weight};
use super::core_group::CoreGroup;
use super::figure::{Figure, Flow, Frame, Rows, Stack};
use super::palette::{self, Tint};
use super::tile::{CoreTile, IdleTile, NicRole, NicTile};
use crate::amount;
use crate::host::{CoreId, Host, Nic, NicId, Node, NodeId, SocketId};
use crate::place::{PlacedCore, PlacedNic, Plan};
use crate::render::text;
use std::collections::BTreeMap;

/// The width of a node. A row of five NICs with their cores fits in it.
const NODE_WIDTH: f64 = 690.0;
const GAP: f64 = 14.0;

pub fn figure(host: &Host, plan: Option<&Plan>, noun: &str, width: f64) -> Flow {
    let scene = Scene { host, plan, noun };
    let sockets = host.sockets.iter().filter_map(|socket| scene.socket(socket.id));
    let figures = sockets.chain(scene.outside()).collect();
    Flow::new(Rows::Stretched, GAP, width, figures)
}

struct Scene<'a> {
    host: &'a Host,
    plan: Option<&'a Plan>,
    noun: &'a str,
}

impl Scene<'_> {
    /// Returns a socket with its nodes, or `None` if it has no nodes and no NICs.
    fn socket(&self, id: SocketId) -> Option<Box<dyn Figure>> {
        let nodes = self.host.nodes.iter().filter(|node| node.socket == Some(id));
        let panels: Vec<_> = nodes.map(|node| self.node(node)).collect();
        let near = |nic: &Nic| nic.node.is_none() && nic.socket == Some(id);
        if panels.is_empty() && !self.host.nics.iter().any(near) {
            return None;
        }
        let panels = Flow::new(Rows::Stretched, GAP, NODE_WIDTH + 60.0, panels);
        let content: Box<dyn Figure> = match self.host.nics.iter().any(near) {
            true => Box::new(Stack::new(GAP, vec![Box::new(panels), Box::new(self.lone_nics(near))])),
            false => Box::new(panels),
        };
        Some(Box::new(socket_frame(format!("Socket {}", id.0), content)))
    }

    /// Returns the nodes and NICs that belong to no single socket.
    fn outside(&self) -> Vec<Box<dyn Figure>> {
        let mut figures: Vec<Box<dyn Figure>> = Vec::new();
        for node in self.host.nodes.iter().filter(|node| node.socket.is_none()) {
            figures.push(Box::new(socket_frame(self.host.socket_heading(node.id), self.node(node))));
        }
        let unknown = |nic: &Nic| nic.node.is_none() && nic.socket.is_none();
        if self.host.nics.iter().any(unknown) {
            let content = Box::new(self.lone_nics(unknown));
            figures.push(Box::new(socket_frame("NICs of unknown place".into(), content)));
        }
        figures
    }

    fn node(&self, node: &Node) -> Box<dyn Figure> {
        let mut figures: Vec<Box<dyn Figure>> = Vec::new();
        if self.plan.is_some() {
            figures.push(Box::new(Flow::new(Rows::Standing, 4.0, NODE_WIDTH, self.idle_cores(node.id))));
        }
        let groups = match self.plan {
            Some(plan) => self.wired(plan, node.id),
            None => self.unwired(node.id),
        };
        figures.push(Box::new(Flow::new(Rows::Standing, GAP, NODE_WIDTH, groups)));
        let memory = node.memory_bytes.map_or("memory unknown".to_owned(), amount::bytes);
        let cpus = self.host.cpus.iter().filter(|cpu| cpu.node == node.id).count();
        Box::new(Frame {
            title: format!("NUMA node {}", node.id.0),
            aside: format!("{memory}, {cpus} cpu{}", if cpus == 1 { "" } else { "s" }),
            title_size: 12.0,
            look: Rect {
                fill: palette::NODE_FILL,
                edge: palette::NODE_EDGE,
                radius: 6.0,
                stroke: Stroke::Solid,
            },
            content: Box::new(Stack::new(GAP, figures)),
        })
    }

    /// Returns the node's cores and NICs, for a picture without a plan.
    fn unwired(&self, node: NodeId) -> Vec<Box<dyn Figure>> {
        let tile = |(core, allowed): (CoreId, bool)| {
            let (tint, aside) = match allowed {
                true => (palette::NEUTRAL, ""),
                false => (palette::BARRED, ", not allowed to this process"),
            };
            let hint = format!("{core}{aside}");
            Box::new(CoreTile { label: self.core_label(core), cpu: None, load: None, tint, hint })
                as Box<dyn Figure>
        };
        let cores = self.cores_of(node).into_iter().map(tile).collect();
        let cores = Flow::new(Rows::Standing, 6.0, NODE_WIDTH, cores);
        let nics = self.lone_nics(|nic| nic.node == Some(node));
        vec![Box::new(Stack::new(GAP, vec![Box::new(cores), Box::new(nics)]))]
    }

    /// Returns figures for a picture with a plan: the node's owners, joined to their NICs, and the node's NICs that
    /// serve no owner of the node.
    fn wired(&self, plan: &Plan, node: NodeId) -> Vec<Box<dyn Figure>> {
        let mut by_nics: BTreeMap<&[NicId], Vec<&PlacedCore>> = BTreeMap::new();
        for core in plan.cores().iter().filter(|core| core.node == node) {
            by_nics.entry(&core.nics).or_default().push(core);
        }
        let mut groups: Vec<Box<dyn Figure>> = Vec::new();
        let mut shown: Vec<NicId> = Vec::new();
        for (nics, cores) in by_nics {
            let tint = nics.first().map_or(palette::NEUTRAL, |&nic| tint_of(plan, nic));
            let cores = cores.iter().map(|core| self.core_tile(plan, core, tint)).collect();
            let nics = nics.iter().filter_map(|&id| {
                let nic = self.host.nic(id)?;
                let here = nic.node == Some(node) && !shown.contains(&id);
                shown.push(id);
                Some(self.nic_tile(id, nic, if here { NicRole::Here } else { NicRole::Elsewhere }))
            });
            groups.push(Box::new(CoreGroup { cores, nics: nics.collect(), tint }));
        }
        for (id, nic) in self.nics_where(|nic| nic.node == Some(node)) {
            if !shown.contains(&id) {
                groups.push(Box::new(self.nic_tile(id, nic, NicRole::Here)));
            }
        }
        groups
    }

    fn lone_nics(&self, keep: impl Fn(&Nic) -> bool) -> Flow {
        let tile = |(id, nic)| Box::new(self.nic_tile(id, nic, NicRole::Here)) as Box<dyn Figure>;
        Flow::new(Rows::Standing, GAP, NODE_WIDTH, self.nics_where(keep).map(tile).collect())
    }

    fn nics_where(&self, keep: impl Fn(&Nic) -> bool) -> impl Iterator<Item = (NicId, &Nic)> {
        let nics = self.host.nics.iter().enumerate().map(|(at, nic)| (NicId(at as u32), nic));
        nics.filter(move |(_, nic)| keep(nic))
    }

    /// Returns small tiles for the node's cores that own nothing.
    fn idle_cores(&self, node: NodeId) -> Vec<Box<dyn Figure>> {
        let Some(plan) = self.plan else { return Vec::new() };
        let cores = self.cores_of(node).into_iter();
        let idle = cores.filter(|(core, _)| !plan.cores().iter().any(|owner| owner.core == *core));
        let tile = |(core, allowed): (CoreId, bool)| {
            let why = if allowed { "owns nothing in this plan" } else { "not allowed to this process" };
            let label = self.first_cpu(core);
            Box::new(IdleTile { label, allowed, hint: format!("{core}: {why}") }) as Box<dyn Figure>
        };
        idle.map(tile).collect()
    }

    /// Returns the node's physical cores, each with whether any of its cpus is allowed.
    fn cores_of(&self, node: NodeId) -> BTreeMap<CoreId, bool> {
        let mut cores = BTreeMap::new();
        for cpu in self.host.cpus.iter().filter(|cpu| cpu.node == node) {
            *cores.entry(cpu.core).or_default() |= cpu.allowed;
        }
        cores
    }

    fn first_cpu(&self, core: CoreId) -> String {
        let first = self.host.cpus.iter().find(|cpu| cpu.core == core);
        first.map_or_else(String::new, |cpu| cpu.id.0.to_string())
    }

    /// Returns the label: `cpu 3`, or `cpu 3,15` for a core with two threads.
    fn core_label(&self, core: CoreId) -> String {
        let cpus = self.host.cpus.iter().filter(|cpu| cpu.core == core).map(|cpu| cpu.id.0.to_string());
        let list = cpus.collect::<Vec<_>>().join(",");
        super::figure::fitted(&format!("cpu {list}"), 10.0, Weight::Regular, CoreTile::SIZE.width - 4.0)
    }

    fn core_tile(&self, plan: &Plan, core: &PlacedCore, tint: Tint) -> CoreTile {
        let fullest = plan.cores().iter().map(|core| core.load_bytes).max().unwrap_or(0).max(1);
        CoreTile {
            label: format!("cpu {}", core.cpu.0),
            cpu: Some(core.cpu.0),
            load: has_items(plan)
                .then(|| (amount::bytes(core.load_bytes), core.load_bytes as f64 / fullest as f64)),
            tint,
            hint: format!(
                "{}: {}, {}, {}, owns {}, {}",
                core.slot,
                core.cpu,
                core.core,
                core.node,
                amount::count(core.items, self.noun),
                amount::bytes(core.load_bytes)
            ),
        }
    }

    fn nic_tile(&self, id: NicId, nic: &Nic, role: NicRole) -> NicTile {
        let placed = self.plan.and_then(|plan| plan.nics().iter().find(|placed| placed.nic == id));
        let role = if self.plan.is_some() && placed.is_none() { NicRole::Unused } else { role };
        let second = match (role, placed, nic.node) {
            (NicRole::Elsewhere, _, Some(node)) => format!("on {node}"),
            (NicRole::Elsewhere, _, None) => "place unknown".to_owned(),
            (_, Some(placed), _) if self.plan.is_some_and(has_items) => amount::bytes(placed.load_bytes),
            (NicRole::Unused, ..) if nic.link_up == Some(false) => "no link".to_owned(),
            (NicRole::Unused, ..) => "not used".to_owned(),
            (NicRole::Here, ..) => nic.kind.to_string(),
        };
        NicTile {
            name: nic.name.clone(),
            lines: [text::speed(nic), second],
            tint: match (self.plan, placed) {
                (Some(plan), Some(_)) => tint_of(plan, id),
                _ => palette::NEUTRAL,
            },
            role,
            hint: self.nic_hint(nic, placed),
        }
    }

    fn nic_hint(&self, nic: &Nic, placed: Option<&PlacedNic>) -> String {
        let mut hint = format!("{}: {}, {}", nic.name, nic.kind, text::speed(nic));
        if !nic.netdevs.is_empty() {
            hint += &format!(", net {}", nic.netdevs.join(" "));
        }
        if let Some(pci) = nic.pci {
            hint += &format!(", PCI {pci}");
        }
        if let Some(placed) = placed {
            let (items, bytes) = (amount::count(placed.items, self.noun), amount::bytes(placed.load_bytes));
            let s = if placed.cores.len() == 1 { "" } else { "s" };
            hint += &format!(", carries {items}, {bytes}, for {} core{s}", placed.cores.len());
        }
        hint
    }
}

/// Whether the plan has items. A hub's plan has none before the first job.
fn has_items(plan: &Plan) -> bool {
    !plan.owners().is_empty()
}

fn tint_of(plan: &Plan, nic: NicId) -> Tint {
    plan.nics().iter().position(|placed| placed.nic == nic).map_or(palette::NEUTRAL, palette::nic_tint)
}

fn socket_frame(title: String, content: Box<dyn Figure>) -> Frame {
    Frame {
        title,
        aside: String::new(),
        title_size: 14.0,
        look: Rect {
            fill: palette::SOCKET_FILL,
            edge: palette::SOCKET_EDGE,
            radius: 10.0,
            stroke: Stroke::Solid,
        },
        content,
    }
}
