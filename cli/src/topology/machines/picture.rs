//! A job on several machines as a picture.

use pbox_core::ChunkId;
use phub_server::shapes::{Kind, Level, Link, Load, choose};
use topology::render::{NetworkBox, NetworkPicture};

use super::{MachinesJob, bytes_of, mb};

impl MachinesJob {
    /// Returns the picture. It has dedicated upper hubs if the user asked for them and they are the best choice, else a mesh.
    pub fn svg(&self) -> String {
        let (kind, level) = match &self.above {
            Some(above) if choose(&self.shapes).best.kind == Kind::Above => (Kind::Above, above),
            _ => (Kind::Mesh, &self.mesh),
        };
        let loads = self.shapes.iter().filter(|shape| shape.kind == kind).flat_map(|shape| &shape.loads);
        let (apart, machines): (Vec<&Load>, Vec<&Load>) =
            loads.partition(|load| matches!(load.link, Link::HubAbove(_)));
        let draw =
            |loads: Vec<&Load>| loads.into_iter().map(|load| self.machine(level, kind, load)).collect();
        let model = mb(self.wire.layout().model_bytes());
        NetworkPicture {
            title: self.title(),
            heading: vec![
                format!("{kind}: bytes of a round. A bar is a hub's share of the {model} model"),
                format!("each machine: {}", self.host),
            ],
            network: format!("each link: {}", self.link),
            levels: vec![draw(machines), draw(apart)],
            notes: self.rounds().lines().map(|line| line.trim().to_owned()).collect(),
        }
        .svg()
    }

    /// Returns the box of a machine, or of a dedicated hub.
    fn machine(&self, level: &Level, kind: Kind, load: &Load) -> NetworkBox {
        let (share, workers) = match load.link {
            Link::HubAbove(number) => (Some(number), 0),
            Link::Machine(number) if kind == Kind::Mesh => (Some(number), self.terms.workers),
            _ => (None, self.terms.workers),
        };
        let chunks: Vec<ChunkId> = share.map_or(Vec::new(), |hub| level.chunks(hub as usize));
        let layout = self.wire.layout();
        let bytes = bytes_of(layout, &chunks);
        let line = match share {
            Some(_) => format!("{} chunks, {}", chunks.len(), mb(bytes)),
            None => "sums, and owns no chunks".to_owned(),
        };
        NetworkBox {
            name: load.link.to_string(),
            members: (0..workers).map(|rank| format!("w{rank}")).collect(),
            joined_by: "shared memory".into(),
            owner: ["hub".into(), line],
            part: bytes as f64 / layout.model_bytes() as f64,
            sends: mb(load.sends),
            receives: mb(load.receives),
        }
    }
}
