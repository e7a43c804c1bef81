//! A protection domain: the memory that one connection can access on one NIC.
//!
//! This file is on the `unsafe` list. Any thread may use the domain.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::context::Context;
use super::error::{CreateError, Made};
use super::ffi::ibv_pd;

/// An `ibv_pd`. Queue pairs and regions can be used together only within one domain.
pub(in crate::verbs) struct Domain {
    raw: NonNull<ibv_pd>,
    pub context: Arc<Context>,
}

// SAFETY: every thread may use an ibv_pd, and only this value frees it.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, CreateError> {
        // SAFETY: the context is open, and this value keeps it open.
        let raw = NonNull::new(unsafe { context.verbs.ibv_alloc_pd(context.raw()) }).ok_or_else(|| {
            let made = Made { what: "protection domain", call: "ibv_alloc_pd" };
            CreateError::new(made, &context.device, String::new(), io::Error::last_os_error())
        })?;
        Ok(Arc::new(Domain { raw, context: Arc::clone(context) }))
    }

    pub fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: `new` made the domain, and it is freed once. Queue pairs and regions hold an `Arc` of this
        // value.
        unsafe { self.context.verbs.ibv_dealloc_pd(self.raw()) };
    }
}
