//! Subscriptions to a job's weights, and the tensors of a version.

use std::ffi::{CString, c_char, c_void};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use subscription::{Credential, Names, Precision, SourceSettings, Subscription, Version, Wanted};

use crate::config::PhubDtype;
use crate::entry::{enter, free, given, put, text};
use crate::session::{OnWait, PhubInterrupted};
use crate::status::{Failure, PhubStatus};

/// A reader's subscription to a job's weights. Only one thread at a time may wait for a version.
pub struct PhubSubscription {
    subscription: Subscription,
    on_wait: OnWait,
}

/// All weights of one round. Several threads may read them.
pub struct PhubVersion {
    version: Version,
    /// The names and the shapes of the tensors, sorted by name.
    tensors: Vec<(CString, Vec<u64>)>,
}

/// The source of a version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PhubVersionAbout {
    /// The round before which the job had these weights.
    pub round: u32,
    /// The number of the version in its directory; 0 for a version from a hub.
    pub number: u64,
    /// The number of wanted versions that this reader has missed since its last version.
    pub skipped: u64,
    /// The number of tensors.
    pub tensors: usize,
}

/// A tensor of a version. Its memory belongs to the version, and is valid until phub_version_free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PhubTensor {
    /// The name, which ends with a zero byte.
    pub name: *const c_char,
    /// The type of the elements.
    pub dtype: PhubDtype,
    /// The number of dimensions; 0 for a single element.
    pub dims: usize,
    /// The shape: as many numbers as there are dimensions.
    pub shape: *const u64,
    /// The elements, row by row.
    pub data: *const c_void,
    /// The length of the elements in bytes.
    pub bytes: usize,
}

/// The settings of a subscription, as C writes them.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    dtype: Option<String>,
    ema: bool,
    names: Names,
    token: Option<String>,
    fetch_deltas: bool,
    hub_wait: Option<f64>,
    every: Option<f64>,
    each: Option<NonZeroU32>,
    timeout: Option<f64>,
}

impl Settings {
    /// Reads the settings at a pointer from C.
    ///
    /// # Safety
    /// `settings` is null, or ends with a zero byte.
    unsafe fn of(settings: *const c_char) -> Result<Self, Failure> {
        if settings.is_null() {
            return Ok(Settings::default());
        }
        // SAFETY: the caller's promise.
        let settings = unsafe { text("settings", settings) }?;
        // The text may have a token, so the errors do not repeat it. serde would also read a list as these settings.
        if !settings.trim_start().starts_with('{') {
            return Err(Failure::invalid("settings: expected a JSON object, such as {\"each\": 10}"));
        }
        serde_json::from_str(settings).map_err(|error| Failure::invalid(format!("settings: {error}")))
    }

    fn wanted(&self) -> Result<Wanted, Failure> {
        match (self.every, self.each) {
            (None, None) => Ok(Wanted::default()),
            (Some(every), None) => Ok(Wanted::Newest { every: seconds("every", every)? }),
            (None, Some(each)) => Ok(Wanted::Each(each)),
            (Some(_), Some(_)) => {
                Err(Failure::invalid("settings: expected \"every\" or \"each\", and both are given"))
            }
        }
    }

    fn source(self, hubs: &str, job: &str) -> Result<SourceSettings, Failure> {
        let invalid = |error: &dyn std::fmt::Display| Failure::invalid(error.to_string());
        let defaults = SourceSettings::new(hubs, job);
        let credential = self.token.map(|token| Credential::parse(&token, "the setting `token`")).transpose();
        let precision = self.dtype.map_or(Ok(defaults.precision), |dtype| dtype.parse::<Precision>());
        let hub_wait = self.hub_wait.map_or(Ok(defaults.hub_wait), |wait| seconds("hub_wait", wait))?;
        Ok(SourceSettings {
            credential: credential.map_err(|error| invalid(&error))?,
            precision: precision.map_err(|error| invalid(&error))?,
            averages: self.ema,
            names: self.names,
            fetch_deltas: self.fetch_deltas,
            hub_wait,
            ..defaults
        })
    }

    /// Checks that there is no setting that is only for subscriptions to hubs.
    fn check_for_directory(&self) -> Result<(), Failure> {
        let of_hubs = self.dtype.is_some() || self.ema || self.token.is_some() || self.hub_wait.is_some();
        if of_hubs || self.fetch_deltas || self.names != Names::default() {
            let words = "settings: a directory has the job, names and type that its publisher chose; expected only \"every\", \
                         \"each\" and \"timeout\"";
            return Err(Failure::invalid(words));
        }
        Ok(())
    }
}

fn seconds(what: &str, seconds: f64) -> Result<Duration, Failure> {
    let wrong =
        |_| Failure::invalid(format!("settings: {what} is {seconds:?}, expected seconds from 0 to 1e19"));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

/// Makes a subscription and writes its address to the place at a pointer from C.
///
/// # Safety
/// `place` is null, or points to room for a pointer.
unsafe fn subscribe(
    place: *mut *mut PhubSubscription,
    (timeout, on_wait): (Option<f64>, OnWait),
    make: impl FnOnce() -> Result<Subscription, Failure>,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid("subscription is null: expected room for a result"));
    }
    let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
    let mut subscription = make()?;
    if let Some(timeout) = timeout {
        subscription = subscription.with_timeout(timeout);
    }
    let made = Box::into_raw(Box::new(PhubSubscription { subscription, on_wait }));
    // SAFETY: not null, and the caller's promise.
    unsafe { put("subscription", place, made) }
}

/// Subscribes to the weights of a job, as a reader that no worker waits for. `hub` is the control port of the job's hub, or of all
/// its hubs with commas between them. The first phub_next_version sends the first request to the hubs. `settings` may be null, or
/// is JSON such as {"dtype": "bf16", "each": 100}:
///
/// - "dtype": f32, bf16 or f16, each weight rounded to the nearest number. "ema": true for the averages of the weights.
/// - "names": other names for keys, {"the job's key": "the name of the tensor"}. A name may have its own type, {"the job's key":
///   {"name": "the name of the tensor", "dtype": "f32"}}. A key may be cut along its first dimension, {"key": {"split": [{"name":
///   "tensor", "shape": [2, 3]}, ...]}}. Keys may be joined, {"tensor": {"join": ["key", ...], "shape": [4, 3]}}.
/// - "every": the shortest time from one version to the next, in seconds; 10 by default. Or "each": only the weights before each
///   round that is a multiple of this number.
/// - "timeout": the longest wait for one version after the time of "every", in seconds; there is no limit by default.
/// - "hub_wait": the longest wait for a hub that is away, in seconds; 300 by default. "token": a secret, or a token that allows
///   to read the job. "fetch_deltas": true to get only the differences from the last version, which needs memory for two versions.
///
/// `interrupted` may be null. Otherwise a call that waits calls `interrupted` with `context` 20 times a second.
///
/// # Safety
/// `subscription` points to room for a pointer, and texts end with a zero byte. `interrupted` can be called with `context` by any
/// thread that waits for a version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_subscribe(
    subscription: *mut *mut PhubSubscription,
    hub: *const c_char,
    job: *const c_char,
    settings: *const c_char,
    interrupted: PhubInterrupted,
    context: *mut c_void,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise, for each.
        let (hub, job, settings) = unsafe { (text("hub", hub)?, text("job", job)?, Settings::of(settings)?) };
        let (wanted, timeout) = (settings.wanted()?, settings.timeout);
        let make = || Ok(Subscription::to_hubs(settings.source(hub, job)?, wanted)?);
        // SAFETY: the caller's promise.
        unsafe { subscribe(subscription, (timeout, OnWait { interrupted, context }), make) }
    })
}

/// Subscribes to a directory of `phub-server publish`, which may have no version yet. `settings` may be null, or is JSON with
/// "every", "each" and "timeout" (see phub_subscribe). With "each", the reader gets versions whose numbers are multiples of
/// "each", the oldest first; with 1 every version.
///
/// # Safety
/// See phub_subscribe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_subscribe_directory(
    subscription: *mut *mut PhubSubscription,
    directory: *const c_char,
    settings: *const c_char,
    interrupted: PhubInterrupted,
    context: *mut c_void,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise, for both.
        let (directory, settings) = unsafe { (text("directory", directory)?, Settings::of(settings)?) };
        settings.check_for_directory()?;
        let wanted = settings.wanted()?;
        let make = || Ok(Subscription::to_directory(Path::new(directory), wanted));
        // SAFETY: the caller's promise.
        unsafe { subscribe(subscription, (settings.timeout, OnWait { interrupted, context }), make) }
    })
}

/// Waits for the next version, and writes its address; free it with phub_version_free. The address is null when the job has ended.
/// After an error the caller may call again.
///
/// # Safety
/// `subscription` is from phub_subscribe or phub_subscribe_directory and not yet closed, and `version` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_next_version(
    subscription: *const PhubSubscription,
    version: *mut *mut PhubVersion,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let PhubSubscription { subscription, on_wait } = unsafe { given("subscription", subscription) }?;
        if version.is_null() {
            return Err(Failure::invalid("version is null: expected room for a result"));
        }
        let next = subscription.next_version_unless(&mut || on_wait.asks())?;
        let next = next.map(PhubVersion::of).transpose()?;
        let next = next.map_or(std::ptr::null_mut(), |next| Box::into_raw(Box::new(next)));
        // SAFETY: not null, and the caller's promise.
        unsafe { put("version", version, next) }
    })
}

impl PhubVersion {
    fn of(version: Version) -> Result<Self, Failure> {
        let tensor = |name: &str| {
            let zero = |_| {
                Failure::invalid(format!(
                    "tensor {name:?} has a zero byte in its name; give the key another name by \"names\""
                ))
            };
            let shape = version.weights.form(name).map_or(&[][..], |(_, shape)| shape);
            Ok((CString::new(name).map_err(zero)?, shape.iter().map(|&of| of as u64).collect()))
        };
        let tensors = version.weights.names().map(tensor).collect::<Result<_, Failure>>()?;
        Ok(PhubVersion { version, tensors })
    }

    fn tensor(&self, (name, shape): &(CString, Vec<u64>)) -> PhubTensor {
        let text = name.to_str().expect("made from a text");
        let weights = &self.version.weights;
        let (precision, _) = weights.form(text).expect("a name of the version");
        let data = weights.get(text).expect("a name of the version");
        PhubTensor {
            name: name.as_ptr(),
            dtype: match precision {
                Precision::F32 => PhubDtype::F32,
                Precision::F16 => PhubDtype::F16,
                Precision::Bf16 => PhubDtype::Bf16,
            },
            dims: shape.len(),
            shape: shape.as_ptr(),
            data: data.as_ptr().cast(),
            bytes: data.len(),
        }
    }
}

/// Writes the source of a version.
///
/// # Safety
/// `version` is from phub_next_version and not yet freed, and `about` points to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_version_about(
    version: *const PhubVersion,
    about: *mut PhubVersionAbout,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let PhubVersion { version, tensors } = unsafe { given("version", version) }?;
        let (round, number) = (version.origin.round, version.id.map_or(0, |id| id.0));
        let facts = PhubVersionAbout { round, number, skipped: version.skipped, tensors: tensors.len() };
        // SAFETY: the caller's promise.
        unsafe { put("about", about, facts) }
    })
}

/// Writes a tensor of a version. Tensors have numbers from 0, in the order of their names.
///
/// # Safety
/// `version` is from phub_next_version and not yet freed, and `tensor` points to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_version_tensor(
    version: *const PhubVersion,
    number: usize,
    tensor: *mut PhubTensor,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let version = unsafe { given("version", version) }?;
        let count = version.tensors.len();
        let none = || {
            Failure::invalid(format!(
                "tensor {number} does not exist; the version has {count}, numbered from 0"
            ))
        };
        let found = version.tensor(version.tensors.get(number).ok_or_else(none)?);
        // SAFETY: the caller's promise.
        unsafe { put("tensor", tensor, found) }
    })
}

/// Writes the tensor of a version that has this name.
///
/// # Safety
/// `version` is from phub_next_version and not yet freed, `name` ends with a zero byte, and `tensor` points to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_version_find(
    version: *const PhubVersion,
    name: *const c_char,
    tensor: *mut PhubTensor,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise, for both.
        let (version, name) = unsafe { (given("version", version)?, text("name", name)?) };
        let place = version.tensors.binary_search_by(|(there, _)| there.as_bytes().cmp(name.as_bytes()));
        let none = |_| {
            let count = version.tensors.len();
            Failure::invalid(format!(
                "the version has no tensor {name:?}; phub_version_tensor gives its {count} tensors"
            ))
        };
        let found = version.tensor(&version.tensors[place.map_err(none)?]);
        // SAFETY: the caller's promise.
        unsafe { put("tensor", tensor, found) }
    })
}

/// Frees a version and the memory of its tensors; null is allowed. A closed subscription does not affect its versions.
///
/// # Safety
/// `version` is null, or from phub_next_version and not yet freed, and no thread uses its tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_version_free(version: *mut PhubVersion) {
    // SAFETY: the caller's promise.
    unsafe { free(version) }
}

/// Ends a subscription and frees it; null is allowed.
///
/// # Safety
/// `subscription` is null, or from phub_subscribe or phub_subscribe_directory and not yet closed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_subscription_close(subscription: *mut PhubSubscription) {
    // SAFETY: the caller's promise.
    unsafe { free(subscription) }
}
