//! A connection's two windows on one NIC, in a protection domain of their own.
//!
//! Made by a handshake's thread, then held by the links that use it.

use std::sync::Arc;

use super::domain::Domain;
use super::error::VerbsError;
use super::nic::Nic;
use super::region::Region;
use crate::window::{RecvWindow, SendWindow};

/// A connection's windows on one NIC: registered in a domain of its own.
pub(super) struct Registered {
    pub nic: Arc<Nic>,
    pub domain: Arc<Domain>,
    pub send: Arc<Region>,
    pub receive: Arc<Region>,
}

impl Registered {
    pub fn new(nic: &Arc<Nic>, ours: &Arc<SendWindow>, theirs: &RecvWindow) -> Result<Self, VerbsError> {
        let domain = Domain::new(&nic.context)?;
        let send = Region::send(&domain, ours)?;
        let receive = Region::receive(&domain, theirs)?;
        Ok(Registered { nic: Arc::clone(nic), domain, send, receive })
    }
}
