//! The settings of a session, put together by C.

use std::ffi::c_char;

use pbox_core::{Dtype, Key, KeyId, Layout, Optimizer, default_chunk_bytes};
use worker_shim::SessionConfig;

use crate::entry::{enter, free, given, put, text};
use crate::status::{Failure, PhubStatus};

/// Settings of a session.
pub struct PhubConfig {
    config: SessionConfig,
    /// The layers that are pulled in batches. If empty, each key is a layer.
    layers: Vec<Vec<KeyId>>,
    /// Whether the size of a chunk was set. If not, it depends on the keys, which are added later.
    has_chunk_bytes: bool,
}

/// Type of a key's elements, little endian.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhubDtype {
    /// IEEE 754 single precision.
    F32 = 0,
    /// IEEE 754 half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

/// Begins the settings of a session. `hub` is the hub's control port ("host:port", or several with commas). `rank` is this
/// worker's number from 0. The optimizer that the hub runs is JSON, such as {"name": "nesterov", "learning_rate": 0.1,
/// "momentum": 0.9, "weight_decay": 0.0001}. Its names are "average" (the mean gradient), "sum" (the sum of gradients),
/// "sgd", "momentum", "dampened", "nesterov", "adam", "adamw", "amsgrad", "amsgradw", "lion", "lars" and "lamb".
///
/// # Safety
/// Texts end with a zero byte, and `config` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_config_new(
    config: *mut *mut PhubConfig,
    hub: *const c_char,
    job: *const c_char,
    rank: u32,
    workers: u32,
    optimizer: *const c_char,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise, for each.
        let [hub, job, optimizer] =
            unsafe { [text("hub", hub)?, text("job", job)?, text("optimizer", optimizer)?] };
        let optimizer: Optimizer = serde_json::from_str(optimizer)
            .map_err(|error| Failure::invalid(format!("optimizer {optimizer}: {error}")))?;
        let made = SessionConfig::new(hub, job, rank, workers, Vec::new(), optimizer);
        let made =
            Box::into_raw(Box::new(PhubConfig { config: made, layers: Vec::new(), has_chunk_bytes: false }));
        // SAFETY: the caller's promise.
        unsafe { put("config", config, made) }.inspect_err(|_| {
            // SAFETY: made above, and not shared yet.
            drop(unsafe { Box::from_raw(made) });
        })
    })
}

/// Adds a key, in the order of the forward pass. Its number counts the keys that were added before it. `lr_mult` and `wd_mult`
/// multiply learning rate and weight decay.
///
/// # Safety
/// `config` is from phub_config_new and not yet freed, `name` ends with a zero byte, and `shape` points to `dims`
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_config_add_key(
    config: *mut PhubConfig,
    name: *const c_char,
    shape: *const u64,
    dims: usize,
    dtype: u32,
    lr_mult: f32,
    wd_mult: f32,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text("name", name) }?;
        let dtype = match dtype {
            d if d == PhubDtype::F32 as u32 => Dtype::F32,
            d if d == PhubDtype::F16 as u32 => Dtype::F16,
            d if d == PhubDtype::Bf16 as u32 => Dtype::BF16,
            other => {
                return Err(Failure::invalid(format!("key {name:?}: type {other}: expected a PhubDtype")));
            }
        };
        let shape = match dims {
            0 => Vec::new(),
            _ if shape.is_null() => {
                let words = format!("key {name:?}: its shape is null; expected {dims} sizes");
                return Err(Failure::invalid(words));
            }
            // SAFETY: not null, and the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(shape, dims) }.to_vec(),
        };
        // SAFETY: the caller's promise.
        let PhubConfig { config, .. } = unsafe { changeable(config) }?;
        config.terms.keys.push(Key { lr_mult, wd_mult, ..Key::new(dtype, name, shape) });
        Ok(())
    })
}

/// Adds a layer for the setting "pull": `count` keys, by their numbers, that are needed together. Layers are added in
/// the order of the forward pass, and contain each key once. Without layers each key is a layer, in the order in which
/// keys were added.
///
/// # Safety
/// `config` is from phub_config_new and not yet freed, and `keys` points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_config_add_layer(
    config: *mut PhubConfig,
    keys: *const u32,
    count: usize,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let PhubConfig { layers, .. } = unsafe { changeable(config) }?;
        if count == 0 || keys.is_null() {
            let words = format!("layer {}: it has no keys; expected at least one key", layers.len());
            return Err(Failure::invalid(words));
        }
        // SAFETY: not null, and the caller's promise.
        let keys = unsafe { std::slice::from_raw_parts(keys, count) };
        layers.push(keys.iter().copied().map(KeyId).collect());
        Ok(())
    })
}

/// Changes a setting that has a default. Names and values are texts. The values true and false turn a setting on and off,
/// and none removes a value.
///
/// - "chunk_bytes", "slice_bytes": sizes in bytes.
/// - "clip_norm", "clip_norm_last", "skip_spikes": a number, or none. "ema": the decay of averages of the weights, or none.
/// - "skip_nonfinite", "maximize", "answers_ahead": true or false. With "clip_norm", "skip_nonfinite" and "skip_spikes", all keys
///   of a round must be pushed before the first phub_wait.
/// - "schedule": kvstore, layerwise, sliced or p3.
/// - "credit": bytes, auto or none.
/// - "consistency": bsp, ssp:S or asp.
/// - "on_loss": stop or continue.
/// - "weights": shared or private.
/// - "compression": a codec with its settings, such as qsgd:8:512, or none. "seed": the seed of the codec's random numbers.
/// - "transport": shm, verbs or tcp.
/// - "checksum": true or false, for everything that is sent over TCP.
/// - "tcp_congestion": auto, system, or the name of a congestion control that the kernel has.
/// - "nics": a list of NICs. "rails": pairs OWN-NIC=HUB-NIC, with commas between them.
/// - "cores": the number of each hub's cores that the job gets.
/// - "compare_every": the number of rounds between comparisons of all workers' weights.
/// - "mesh": this machine in a mesh of hubs, such as 1/4@10.0.0.1:7077. "token": the hubs' secret, or a token for the job.
/// - "trace": the file for this worker's timeline.
/// - "join_limit", "hub_wait", "wait_limit": seconds.
/// - "dma_buf": DESCRIPTOR or DESCRIPTOR:OFFSET of the memory in which gradients lie and that NICs read, such as a GPU's, for
///   verbs. The descriptor is copied. phub_config_place returns the place of each key.
/// - "pull", with the schedule kvstore: the batches of layers in which weights are pulled, or none. The value ibatch overlaps
///   the forward pass best; the session measures that pass from the calls of phub_wait. Other values are greedy, layer and all.
///   With batches, all keys of a round must be pushed before the first phub_wait.
///
/// # Safety
/// `config` is from phub_config_new and not yet freed, and texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_config_set(
    config: *mut PhubConfig,
    name: *const c_char,
    value: *const c_char,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise, for both.
        let (name, value) = unsafe { (text("name", name)?, text("value", value)?) };
        // SAFETY: the caller's promise.
        let PhubConfig { config, has_chunk_bytes, .. } = unsafe { changeable(config) }?;
        config.set(name, value).map_err(|error| Failure::invalid(error.to_string()))?;
        *has_chunk_bytes |= name == "chunk_bytes";
        Ok(())
    })
}

/// Writes the place of a key's gradient in the memory of the setting "dma_buf": its offset and its length in bytes. All keys
/// must have been added before. The memory must hold all of the last key, rounded up to 64 bytes.
///
/// # Safety
/// `config` is from phub_config_new and not yet freed; `offset` and `bytes` point to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_config_place(
    config: *const PhubConfig,
    key: u32,
    offset: *mut usize,
    bytes: *mut usize,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let PhubConfig { config, .. } = unsafe { given("config", config) }?;
        let layout = Layout::of_keys(config.terms.keys.clone());
        let layout = layout.map_err(|error| Failure::invalid(error.to_string()))?;
        if key as usize >= layout.keys().len() {
            return Err(Failure::invalid(format!(
                "key {key} does not exist; the job has {} keys, numbered from 0",
                layout.keys().len()
            )));
        }
        let place = layout.key_span(KeyId(key));
        // SAFETY: the caller's promise, for both.
        unsafe {
            put("offset", offset, place.offset)?;
            put("bytes", bytes, place.bytes)
        }
    })
}

/// Frees settings; null is allowed. Sessions that were made from the settings are not affected.
///
/// # Safety
/// `config` is null, or from phub_config_new and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_config_free(config: *mut PhubConfig) {
    // SAFETY: the caller's promise.
    unsafe { free(config) }
}

/// Returns the settings at a pointer from C, to change them. Until they are complete, C uses them on one thread only.
///
/// # Safety
/// `config` is null, or from phub_config_new and not yet freed.
unsafe fn changeable<'a>(config: *mut PhubConfig) -> Result<&'a mut PhubConfig, Failure> {
    // SAFETY: the caller's promise.
    unsafe { config.as_mut() }.ok_or_else(|| Failure::invalid("config is null"))
}

/// Returns the settings at a pointer from C.
///
/// # Safety
/// `config` is null, or from phub_config_new and not yet freed.
pub(crate) unsafe fn settings(config: *const PhubConfig) -> Result<SessionConfig, Failure> {
    // SAFETY: the caller's promise.
    let PhubConfig { config, layers, has_chunk_bytes } = unsafe { given("config", config) }?;
    let mut config = config.clone();
    if !has_chunk_bytes {
        config.terms.chunk_bytes = default_chunk_bytes(&config.terms.keys);
    }
    match &mut config.pull {
        Some(pull) => pull.layers.clone_from(layers),
        None if layers.is_empty() => {}
        None => {
            let words = "layers were added for a job without batches: set \"pull\", or add no layers";
            return Err(Failure::invalid(words));
        }
    }
    Ok(config)
}
