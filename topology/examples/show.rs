//! Shows a machine and a placement on it, as text, or as SVG with `--svg`.
//!
//! `show [--svg] [--cores N] [--items N] [live | FILE.xml | "sockets:2 cores:4 nics:5 nic_gbps:56"]`

use topology::{CoreChoice, Host, Labels, Request, place, render};

const CHUNK_BYTES: u64 = 32 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut svg, mut cores, mut items, mut machine) = (false, None, 3000usize, "live".to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--svg" => svg = true,
            "--cores" => cores = Some(arguments.next().ok_or("--cores needs a number")?.parse()?),
            "--items" => items = arguments.next().ok_or("--items needs a number")?.parse()?,
            _ => machine = argument,
        }
    }
    let host = match machine.as_str() {
        "live" => Host::live()?,
        path if path.ends_with(".xml") => Host::from_xml(path)?,
        description => Host::from_synthetic(description)?,
    };
    // Full chunks; every tenth is the shorter last chunk of a tensor.
    let weight = |item: u64| if item % 10 == 9 { item * 1033 % CHUNK_BYTES + 4 } else { CHUNK_BYTES };
    let weights: Vec<u64> = (0..items as u64).map(weight).collect();
    let request =
        Request { cores: cores.map_or(CoreChoice::EveryCore, CoreChoice::Count), ..Request::new(&weights) };
    let plan = if items > 0 { Some(place(&host, &request)?) } else { None };
    let labels = Labels { item: "chunk", items: "chunks" };
    let draw = if svg { render::svg_with } else { render::text_with };
    print!("{}", draw(&host, plan.as_ref(), labels));
    Ok(())
}
