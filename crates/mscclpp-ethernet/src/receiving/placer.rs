use mscclpp_gpu::{Gpu, Result, access};
use mscclpp_os::waiting::Backoff;

use crate::{
    regions::Target,
    settings::Settings,
    socket::Piece,
    staging::{self, Staging},
};

/// Puts bytes in place: into host memory at once, into device memory through staging.
pub(crate) struct Placer {
    settings: Settings,
    /// One staging for each device for which data arrived; usually one, or none.
    stagings: Vec<Staging>,
}

/// The reason why a wait for a device ended.
pub(crate) enum Interrupted {
    /// This side has closed the connection.
    Closed,
    Device(mscclpp_gpu::Error),
}

impl From<mscclpp_gpu::Error> for Interrupted {
    fn from(error: mscclpp_gpu::Error) -> Self {
        Self::Device(error)
    }
}

/// A chunk of staging memory that waits to be filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    staging: usize,
    chunk: usize,
}

impl Placer {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, stagings: Vec::new() }
    }

    /// Waits for the device's next chunk, which takes up to `len` bytes, to be free, and returns it.
    pub(crate) fn slot(
        &mut self,
        gpu: &Gpu,
        len: u64,
        closed: impl Fn() -> bool,
    ) -> Result<Slot, Interrupted> {
        let staging = staging::number_of(&mut self.stagings, gpu, &self.settings)?;
        let chunk = self.stagings[staging].turn(len);
        let mut backoff = Backoff::default();
        while !self.stagings[staging].is_copied(chunk)? {
            if closed() {
                return Err(Interrupted::Closed);
            }
            backoff.wait();
        }
        Ok(Slot { staging, chunk })
    }

    /// The first `len` bytes of a slot, or the whole slot if it is shorter.
    pub(crate) fn piece(&self, slot: Slot, len: u64) -> Result<Piece> {
        let staging = &self.stagings[slot.staging];
        staging.piece(slot.chunk, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Starts copying the first `len` bytes of a slot to `offset` of the target.
    pub(crate) fn store(&mut self, slot: Slot, target: &Target, offset: u64, len: u64) -> Result<()> {
        let staging = &mut self.stagings[slot.staging];
        // SAFETY: the target is a checked range, and the frame's reader passes no more than its length; the slot is filled, its
        // chunk was free, and nobody writes to it before it is free again.
        unsafe { staging.store(slot.chunk, &target.region, target.address.add(offset), len) }
    }

    /// Makes `value` visible at the target, after everything that came before.
    pub(crate) fn update(
        &mut self,
        target: &Target,
        value: u64,
        closed: impl Fn() -> bool,
    ) -> Result<(), Interrupted> {
        match target.region.gpu() {
            None => {
                self.settle(None, closed)?;
                // SAFETY: a checked range of 8 bytes of host memory, whose alignment was checked too.
                unsafe { access::publish(target.address, value) };
            }
            Some(gpu) => {
                let staging = staging::number_of(&mut self.stagings, gpu, &self.settings)?;
                self.settle(Some(staging), closed)?;
                // SAFETY: a checked and aligned range of 8 bytes of the device's memory.
                unsafe { self.stagings[staging].publish(&target.region, target.address, value)? };
            }
        }
        Ok(())
    }

    /// Waits until all copies are complete, except those of staging `except`, whose stream keeps its own order.
    pub(crate) fn settle(
        &mut self,
        except: Option<usize>,
        closed: impl Fn() -> bool,
    ) -> Result<(), Interrupted> {
        for (_, staging) in self.stagings.iter_mut().enumerate().filter(|(index, _)| Some(*index) != except) {
            let mut backoff = Backoff::default();
            while !staging.is_idle()? {
                if closed() {
                    return Err(Interrupted::Closed);
                }
                backoff.wait();
            }
        }
        Ok(())
    }

    /// Whether no copy is under way. Releases memory that is no longer needed.
    pub(crate) fn is_idle(&mut self) -> bool {
        // An error is returned again when the device is next used.
        self.stagings.iter_mut().all(|staging| staging.is_idle().unwrap_or(true))
    }
}
