//! A job's state, as hubs give it to every client that is allowed to read it.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::time::Duration;

use pbox_core::{Key, Round, Tensors};
use sim_tests::values::Saved;

use super::authorization;

/// Fetches a job's state from a hub: a checkpoint file, or the hub's part of a checkpoint file. The result is
/// empty if the hub has no part.
pub fn fetch(hub: &str, job: &str, limit: Duration) -> Result<Vec<u8>, ureq::Error> {
    fetch_only(hub, job, "", limit)
}

/// Fetches the part of the state that a query asks for.
pub fn fetch_only(hub: &str, job: &str, query: &str, limit: Duration) -> Result<Vec<u8>, ureq::Error> {
    let mut file = Vec::new();
    let agent = ureq::Agent::config_builder().timeout_global(Some(limit)).build().new_agent();
    let get = agent
        .get(format!("http://{hub}/v1/jobs/{job}/state{query}"))
        .header("authorization", authorization());
    get.call()?.body_mut().as_reader().read_to_end(&mut file)?;
    Ok(file)
}

/// Returns the parts of these hubs, put together. `limit` is the time for each hub.
pub fn fetch_all<S: AsRef<str>>(
    hubs: &[S],
    job: &str,
    keys: &[Key],
    tensors: &Tensors,
    limit: Duration,
) -> Result<Saved, ureq::Error> {
    let of_state = |name: &'static str| keys.iter().map(move |key| format!("optimizer/{name}/{}", key.name));
    let names = keys.iter().map(|key| key.name.clone());
    let names = names.chain(tensors.state_names().flat_map(of_state));
    let (mut begins, mut all) = (HashMap::new(), 0);
    for (name, key) in names.zip(keys.iter().cycle()) {
        begins.insert(name, (all, &key.name));
        all += 4 * key.elements().unwrap() as usize;
    }
    let (mut values, mut seen, mut rounds) = (vec![0; all], 0, BTreeSet::new());
    let mut steps = vec![0; keys.len()];
    for hub in hubs {
        let file = fetch(hub.as_ref(), job, limit)?;
        if file.is_empty() {
            continue;
        }
        let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut said: serde_json::Map<_, _> = serde_json::from_slice(&file[8..data]).unwrap();
        let about = said.remove("__metadata__").unwrap();
        let before: u32 = about["round"].as_str().unwrap().parse().unwrap();
        rounds.insert(before);
        // The steps of the keys that have not made a step in each round after the broadcast.
        let apart = about.get("steps").map_or("{}", |steps| steps.as_str().unwrap());
        let apart: HashMap<String, u32> = serde_json::from_str(apart).unwrap();
        for (steps, key) in steps.iter_mut().zip(keys).filter(|(_, key)| said.contains_key(&key.name)) {
            *steps = (*steps).max(apart.get(&key.name).copied().unwrap_or(before - 1));
        }
        let share = about.get("share").map_or("{}", |share| share.as_str().unwrap());
        let share: serde_json::Value = serde_json::from_str(share).unwrap();
        for (name, entry) in said {
            let (begin, key) = begins[&name];
            let first = share["pieces"][key][0].as_u64().unwrap_or(0) as usize;
            let offset = |end: usize| data + entry["data_offsets"][end].as_u64().unwrap() as usize;
            let part = &file[offset(0)..offset(1)];
            values[begin + 4 * first..][..part.len()].copy_from_slice(part);
            seen += part.len();
        }
    }
    assert_eq!(seen, all, "every element is at one hub");
    assert_eq!(rounds.len(), 1, "all hubs stand before the same round: {rounds:?}");
    Ok(Saved { before: Round(rounds.pop_first().unwrap()), steps, values })
}
