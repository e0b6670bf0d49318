use std::sync::Arc;

use crate::{
    DevicePtr, Error, Platform, Result,
    backend::{DeviceBackend, PlatformBackend},
};

/// A platform that this build does not have.
pub(crate) struct Missing {
    pub(crate) platform: Platform,
    pub(crate) reason: &'static str,
}

impl Missing {
    fn error<T>(&self) -> Result<T> {
        Err(Error::Unavailable { platform: self.platform, reason: self.reason.to_owned() })
    }
}

impl PlatformBackend for Missing {
    fn device_count(&self) -> Result<usize> {
        self.error()
    }

    fn open(&self, _id: usize) -> Result<Arc<dyn DeviceBackend>> {
        self.error()
    }

    fn find(&self, _uuid: &[u8; 16]) -> Result<Option<usize>> {
        self.error()
    }

    fn owner_of(&self, _ptr: DevicePtr) -> Result<Option<usize>> {
        Ok(None)
    }

    fn why_no_peer_access(&self) -> &'static str {
        self.reason
    }
}
