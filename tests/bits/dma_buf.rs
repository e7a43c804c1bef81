//! Gradients in a dma-buf give the bits of a plain model. An error names a device or setting that does not
//! allow dma-bufs.
//!
//! A buffer of a video driver replaces the memory of a GPU. The driver exports the dma-buf, and the test writes
//! through a separate mapping. The test needs an RDMA device that takes dma-bufs. It also needs
//! `PHUB_TEST_VIDEO` with the driver's device, as in a virtual machine of `make rxe`. The hub is at
//! `PHUB_TEST_HUB`.
//!
//! This file is on the `unsafe` list, because it makes the dma-buf by ioctls, and maps the dma-buf.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use half::bf16;
use hub_tests::training::Training;
use hub_tests::values::{Reference, fill_gradient, fill_weights, same_bits};
use hub_tests::{NOWHERE, config_at, on_threads, refused};
use pbox_core::{Dtype, Key, KeyId, Layout, Optimizer};
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use worker_shim::{DmaBuf, Session, SessionConfig};

const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
/// The offset of the window in the dma-buf, which is on no page boundary.
const OFFSET: u64 = 3 * 4096 + 192;

/// A buffer of a video driver: its dma-buf, and a mapping that imitates a GPU.
struct Device {
    dma_buf: OwnedFd,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: only this value unmaps the mapping, and only one worker of a job writes to the mapping.
unsafe impl Sync for Device {}

/// Structures of linux/videodev2.h.
#[repr(C)]
#[derive(Default)]
struct RequestBuffers([u32; 5]);
#[repr(C)]
#[derive(Default)]
struct ExportBuffer {
    kind: u32,
    index: u32,
    plane: u32,
    flags: u32,
    fd: i32,
    reserved: [u32; 11],
}
const CAPTURE: u32 = 1;
const MMAP: u32 = 1;

impl Device {
    /// Opens the device. Returns `None` if no video device is named, and prints that.
    fn new() -> Option<Self> {
        let Ok(path) = std::env::var("PHUB_TEST_VIDEO") else {
            println!("skipped: PHUB_TEST_VIDEO names no video device for a dma-buf; make rxe has one");
            return None;
        };
        let video = File::options().read(true).write(true).open(path).unwrap();
        let mut request = RequestBuffers([1, CAPTURE, MMAP, 0, 0]);
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let mut export = ExportBuffer { kind: CAPTURE, flags: flags.bits(), ..Default::default() };
        const REQUEST: u32 = opcode::read_write::<RequestBuffers>(b'V', 8);
        const EXPORT: u32 = opcode::read_write::<ExportBuffer>(b'V', 16);
        // SAFETY: VIDIOC_REQBUFS and VIDIOC_EXPBUF with their structures.
        unsafe {
            ioctl(&video, Updater::<REQUEST, _>::new(&mut request)).unwrap();
            ioctl(&video, Updater::<EXPORT, _>::new(&mut export)).unwrap();
        }
        // SAFETY: the ioctl has made the descriptor for this process.
        let dma_buf = unsafe { OwnedFd::from_raw_fd(export.fd) };
        let bytes = rustix::fs::seek(&dma_buf, rustix::fs::SeekFrom::End(0)).unwrap() as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping is fresh, at an address that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &dma_buf, 0) };
        println!("a dma-buf of {bytes} bytes");
        Some(Device { dma_buf, start: start.unwrap().cast(), bytes })
    }

    fn write(&self, offset: usize, values: &[u8]) {
        let place = OFFSET as usize + offset;
        assert!(place + values.len() <= self.bytes);
        // SAFETY: the range lies in the mapping, and nobody else in this process writes to the range.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(place), values.len()) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { munmap(self.start.cast(), self.bytes) }.unwrap();
    }
}

/// Returns a training with keys of many chunks, keys of few chunks, and small keys that are sent in one post.
fn training(job: &str) -> Training {
    let mut keys = vec![Key::f32("large", [50, 1000]), Key::new(Dtype::BF16, "bf16", [30_000])];
    keys.extend((0..5).map(|small| Key::f32(format!("small {small}"), [40 + small])));
    let mut training = Training::new(job, keys, NESTEROV);
    (training.chunk_bytes, training.transport) = (4096, |_| Some(Transport::Verbs));
    training
}

/// Writes values of a key as the device does.
fn write(device: &Device, layout: &Layout, key: KeyId, fill: impl FnOnce(&mut [f32])) {
    let Key { dtype, .. } = layout.keys()[key.index()];
    let mut values = vec![0.0; layout.keys()[key.index()].elements().unwrap() as usize];
    fill(&mut values);
    let bytes: Vec<u8> = match dtype {
        Dtype::BF16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    device.write(layout.key_span(key).offset, &bytes);
}

/// Trains one worker, with gradients in the memory of `device`, or in the session's memory without a device.
/// Trains while `more` returns true, and compares all weights after each round.
fn work(
    training: &Training,
    rank: u32,
    device: Option<&Device>,
    mut more: impl FnMut(&mut Session, u32) -> bool,
) {
    let mut config = training.config(&std::env::var("PHUB_TEST_HUB").unwrap(), rank);
    config.dma_buf =
        device.map(|device| DmaBuf::of_number(device.dma_buf.as_fd().as_raw_fd(), OFFSET).unwrap());
    config.hub_wait = Duration::from_secs(60);
    let mut session = Session::join(config).unwrap();
    let layout = Layout::new(training.keys.clone(), training.chunk_bytes).unwrap();
    let mut reference = Reference::new(training.seed, training.workers, NESTEROV, &training.keys);
    match device {
        Some(device) if rank == 0 => {
            let error = session.gradient_mut::<f32>(KeyId(0)).unwrap_err().to_string();
            assert!(error.contains("key \"large\": its gradient lies in the dma-buf"), "{error}");
            let keys: Vec<KeyId> = session.keys().collect();
            keys.iter()
                .for_each(|&key| write(device, &layout, key, |into| fill_weights(training.seed, key, into)));
            session.broadcast_written().unwrap();
        }
        _ => training.broadcast(&mut session, rank).unwrap(),
    }
    for round in 0.. {
        if !more(&mut session, round) {
            break;
        }
        for key in session.keys() {
            let fill = |into: &mut [f32]| fill_gradient(training.seed, rank, round, key, into);
            match device {
                Some(device) => write(device, &layout, key, fill),
                None => training.write(&mut session, key, fill),
            }
        }
        session.push_keys(session.keys()).unwrap();
        session.wait_all().unwrap();
        reference.advance(NESTEROV.learning_rate());
        for key in session.keys() {
            let what = format!("rank {rank}, round {round}, key {}", key.0);
            same_bits(what, &training.read(&session, key), &reference.weights[key.index()]);
        }
    }
    session.leave().unwrap();
}

#[test]
fn gradients_leave_from_a_dma_buf() {
    let _watchdog = Watchdog::start();
    let Some(device) = Device::new() else { return };
    let training = Training { workers: 2, ..training("dma-buf") };
    on_threads(2, |rank| work(&training, rank, Some(&device).filter(|_| rank == 0), |_, round| round < 6));
}

#[test]
fn links_that_are_lost_are_made_again_to_a_dma_buf() {
    let _watchdog = Watchdog::start();
    let Ok(events) = std::env::var("LIKE_EVENTS") else {
        println!("skipped: LIKE_EVENTS names no pipe for events of a NIC");
        return;
    };
    let device = Device::new().unwrap();
    let training = Training { workers: 1, ..training("lost-port") };
    let mut last = None;
    work(&training, 0, Some(&device), |session, round| {
        if round == 3 {
            let port_err = [10];
            File::options().write(true).open(&events).unwrap().write_all(&port_err).unwrap();
        }
        if last.is_none() && session.relinks() > 0 {
            last = Some(round + 3);
        }
        last != Some(round)
    });
    println!("relinked, and {} rounds in all", last.unwrap());
}

/// A check of `make rxe` also looks at the words that the test prints.
#[test]
fn a_device_that_takes_no_dma_buf_is_named() {
    let Some(device) = Device::new() else { return };
    let refused_from = |offset| {
        let mut config = training("refused").config(&std::env::var("PHUB_TEST_HUB").unwrap(), 0);
        config.terms.workers = 1;
        config.dma_buf = Some(DmaBuf::of_number(device.dma_buf.as_fd().as_raw_fd(), offset).unwrap());
        refused(config)
    };
    let bytes = device.bytes as u64;
    let too_far = refused_from(bytes - 64);
    assert!(too_far.contains(&format!("the dma-buf has {bytes} bytes, and the window of")), "{too_far}");
    println!("refused: {}", refused_from(OFFSET));
}

fn with_dma_buf(change: impl FnOnce(&mut SessionConfig)) -> String {
    let file = tempfile::tempfile().unwrap();
    let mut config = config_at(NOWHERE, "job", 0, 1);
    config.dma_buf = Some(DmaBuf::new(file.into(), 64));
    change(&mut config);
    refused(config)
}

#[test]
fn a_dma_buf_is_refused_before_the_hub_is_asked() {
    let compressed =
        with_dma_buf(|config| config.terms.level.compression = Some("topk:0.1".parse().unwrap()));
    let by_tcp = with_dma_buf(|config| config.transport = Some(Transport::Tcp));
    let no_dma_buf = with_dma_buf(|_| ());
    for (error, expected) in [
        (compressed, "compression reads gradients from host memory; leave out dma_buf or the compression"),
        (by_tcp, "gradients in a dma-buf are sent by RDMA alone; ask for the transport verbs"),
        (no_dma_buf, "the descriptor does not belong to a dma-buf (its file system is 0x"),
    ] {
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        assert!(error.contains("setting \"dma_buf\", \"a dma-buf from byte 64\""), "{error}");
    }
    let mut config = config_at(NOWHERE, "job", 0, 1);
    let error = config.set("dma_buf", "1:x").unwrap_err().to_string();
    assert!(error.contains("DESCRIPTOR:OFFSET"), "{error}");
}
