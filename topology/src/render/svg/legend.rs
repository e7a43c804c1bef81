//! The meaning of the picture's signs, and the plan's reasons.
//!
//! This module must not depend on the layout of the machine.

use super::canvas::{Canvas, Weight};
use super::figure::{Figure, Flow, Paragraph, Point, Rows, Size, Stack, text_width};
use super::palette;
use super::tile::{CoreTile, IdleTile, NicRole, NicTile};
use crate::host::Host;
use crate::place::Plan;

/// The number of reasons that the picture shows. The text rendering shows all reasons.
const REASONS_LIMIT: usize = 12;
const TEXT_SIZE: f64 = 11.5;

pub fn figure(host: &Host, plan: Option<&Plan>, noun: &str, width: f64) -> Flow {
    let Some(plan) = plan else { return Flow::new(Rows::Filled, 0.0, width, Vec::new()) };
    let mut keys: Vec<Box<dyn Figure>> = vec![key(
        CoreTile {
            label: "cpu".into(),
            cpu: None,
            load: Some(("bytes".into(), 0.5)),
            tint: palette::nic_tint(0),
            hint: "an owning core".into(),
        },
        &format!("core and its {noun}s' bytes, beside the fullest core's"),
    )];
    if !plan.nics().is_empty() {
        let sign = nic("speed", "bytes", NicRole::Here);
        keys.push(key(sign, "NIC and the bytes it carries one way"));
    }
    let far = plan
        .cores()
        .iter()
        .any(|core| core.nics.iter().filter_map(|&id| host.nic(id)).any(|nic| nic.node != Some(core.node)));
    if far {
        keys.push(key(nic("speed", "its node", NicRole::Elsewhere), "NIC of another node"));
    }
    let owned = |core| plan.cores().iter().any(|owner| owner.core == core);
    let idle = |allowed: bool| host.cpus.iter().any(|cpu| cpu.allowed == allowed && !owned(cpu.core));
    let idle_key = |allowed: bool, meaning: &str| {
        key(IdleTile { label: "cpu".into(), allowed, hint: meaning.into() }, meaning)
    };
    if idle(true) {
        keys.push(idle_key(true, "core that owns nothing"));
    }
    if idle(false) {
        keys.push(idle_key(false, "core not allowed to this process"));
    }
    Flow::new(Rows::Filled, 22.0, width, keys)
}

/// Returns the plan's reasons as a list.
pub fn reasons(host: &Host, plan: Option<&Plan>, width: f64) -> Stack {
    let all: Vec<&String> = plan.map_or(&host.notes[..], |plan| plan.reasons()).iter().collect();
    let line = |text: String| {
        Box::new(Paragraph::new(text, TEXT_SIZE, Weight::Regular, palette::INK, width)) as Box<dyn Figure>
    };
    let mut lines: Vec<Box<dyn Figure>> =
        all.iter().take(REASONS_LIMIT).map(|reason| line(format!("\u{2022} {reason}"))).collect();
    if all.len() > REASONS_LIMIT {
        lines.push(line(format!("\u{2022} \u{2026} and {} more", all.len() - REASONS_LIMIT)));
    }
    Stack::new(2.0, lines)
}

fn nic(first: &str, second: &str, role: NicRole) -> NicTile {
    NicTile {
        name: "NIC".into(),
        lines: [first.into(), second.into()],
        tint: palette::nic_tint(0),
        role,
        hint: "a NIC".into(),
    }
}

fn key(sign: impl Figure + 'static, meaning: &str) -> Box<dyn Figure> {
    Box::new(Key { sign: Box::new(sign), meaning: meaning.to_owned() })
}

/// A sign, with its meaning next to it.
struct Key {
    sign: Box<dyn Figure>,
    meaning: String,
}

const SIGN_GAP: f64 = 8.0;
/// The height of the highest sign, so that all signs stand on one line.
const KEY_HEIGHT: f64 = NicTile::SIZE.height;

impl Figure for Key {
    fn size(&self) -> Size {
        let sign = self.sign.size();
        let width = sign.width + SIGN_GAP + text_width(&self.meaning, TEXT_SIZE, Weight::Regular);
        Size { width, height: sign.height.max(KEY_HEIGHT) }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        let sign = self.sign.size();
        let middle = at.y + self.size().height / 2.0;
        self.sign.draw(canvas, Point { x: at.x, y: middle - sign.height / 2.0 });
        let look = super::Text {
            size: TEXT_SIZE,
            weight: Weight::Regular,
            colour: palette::FAINT_INK,
            anchor: super::Anchor::Start,
        };
        canvas.text(at.x + sign.width + SIGN_GAP, middle + 4.0, look, &self.meaning);
    }
}
