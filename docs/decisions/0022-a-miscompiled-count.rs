//! rustc 1.85.1 to 1.96.0 lose the subtraction: `rustc --edition 2024 -O` makes a program that prints "1 left".
//! Without -O, and with rustc 1.96.1 and later, it prints "0 left". See 0022-a-miscompiled-count.md.

fn take(slot: &mut Option<u32>, count: &mut u32) -> bool {
    let took = slot.take().is_some();
    *count -= u32::from(took);
    took
}

#[inline(never)]
fn caller(slot: &mut Option<u32>, count: &mut u32) -> &'static str {
    if take(slot, count) { "taken" } else { "nothing to take" }
}

fn main() {
    let (mut slot, mut count) = (Some(7), 1);
    println!("{}, {count} left", caller(&mut slot, &mut count));
}
