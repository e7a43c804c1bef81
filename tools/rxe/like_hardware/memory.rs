//! Regions of memory and of dma-bufs.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::devices::name_of;
use crate::ffi::*;
use crate::functions::{Argument as _, ibv_reg_mr_iova2};
use crate::kinds::kind;
use crate::{EBADF, EINVAL, ENOMEM, fail, log, setting};

const PAGE: u64 = 4096;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;

unsafe extern "C" {
    fn mmap(
        start: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(start: *mut c_void, bytes: usize) -> c_int;
}

pub static REGIONS: AtomicI64 = AtomicI64::new(0);

pub fn reg_mr(
    go_on: impl Fn() -> *mut ibv_mr,
    (pd, _, bytes, access): (*mut ibv_pd, *mut c_void, usize, c_int),
) -> *mut ibv_mr {
    log(format!("region of={:?} bytes={bytes} access={access}", pd.device().unwrap()));
    let most = setting("LIKE_MAX_MR").or(kind().map(|kind| kind.max_mr));
    if most.is_some_and(|most| REGIONS.load(Relaxed) >= most) {
        return fail(ENOMEM);
    }
    REGIONS.fetch_add(1, Relaxed);
    let region = go_on();
    if region.is_null() {
        REGIONS.fetch_sub(1, Relaxed);
    }
    region
}

pub fn reg_mr_iova2(
    go_on: impl Fn() -> *mut ibv_mr,
    (pd, start, bytes, _, access): (*mut ibv_pd, *mut c_void, usize, u64, c_uint),
) -> *mut ibv_mr {
    reg_mr(go_on, (pd, start, bytes, access as c_int))
}

/// The regions in dma-bufs. Each entry has the region, and the address and size of the mapping of its dma-buf.
pub static DMA_BUFS: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

/// Registers a dma-buf as Linux's `ib_uverbs` and mlx5 do, by a mapping of the whole dma-buf. Some exporters of
/// dma-bufs can map a dma-buf only from its start.
pub fn reg_dmabuf_mr(
    _: impl Fn() -> *mut ibv_mr,
    (pd, offset, bytes, iova, fd, access): (*mut ibv_pd, u64, usize, u64, c_int, c_int),
) -> *mut ibv_mr {
    // SAFETY: `pd` is the caller's domain, which begins with its context.
    let device = name_of(unsafe { *pd.cast::<*mut ibv_context>() });
    log(format!("dma-buf of={device:?} offset={offset} bytes={bytes} iova={iova} access={access}"));
    if offset % PAGE != iova % PAGE {
        return fail(EINVAL);
    }
    if fd < 0 {
        return fail(EBADF);
    }
    // SAFETY: `fd` is the caller's descriptor, and is not closed here.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let Ok(size) = file.seek(SeekFrom::End(0)) else { return fail(EBADF) };
    if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return fail(EINVAL);
    }
    // SAFETY: the mapping is fresh, at an address that the kernel chooses.
    let start = unsafe { mmap(std::ptr::null_mut(), size as usize, PROT_READ_WRITE, MAP_SHARED, fd, 0) };
    if start as isize == -1 {
        return std::ptr::null_mut();
    }
    // SAFETY: the domain is the caller's. The range lies in the mapping, which remains until the region is gone.
    let made = unsafe {
        ibv_reg_mr_iova2(pd, start.wrapping_byte_add(offset as usize), bytes, iova, access as c_uint)
    };
    if made.is_null() {
        // SAFETY: the range was mapped above, and nobody else has it.
        unsafe { munmap(start, size as usize) };
    } else {
        DMA_BUFS.lock().unwrap().push((made as usize, start as usize, size as usize));
    }
    made
}

pub fn dereg_mr(go_on: impl Fn() -> c_int, (mr,): (*mut ibv_mr,)) -> c_int {
    REGIONS.fetch_sub(1, Relaxed);
    let mut mapped = DMA_BUFS.lock().unwrap();
    let place = mapped.iter().position(|&(of, ..)| of == mr as usize);
    let mapped = place.map(|place| mapped.swap_remove(place));
    let answer = go_on();
    if let Some((_, start, size)) = mapped {
        // SAFETY: the range was mapped for this region, which is gone.
        unsafe { munmap(start as *mut c_void, size) };
    }
    answer
}
