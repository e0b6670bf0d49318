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
    /// One for each device that data arrived for; usually one, or none.
    stagings: Vec<Staging>,
}

/// Why a wait for a device ended.
pub(crate) enum Interrupted {
    /// This side has closed.
    Closed,
    Device(mscclpp_gpu::Error),
}

impl From<mscclpp_gpu::Error> for Interrupted {
    fn from(error: mscclpp_gpu::Error) -> Self {
        Self::Device(error)
    }
}

/// A chunk that waits to be filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    staging: usize,
    chunk: usize,
}

impl Placer {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, stagings: Vec::new() }
    }

    /// The next chunk of the device for a part of `len` bytes or less, once it is free.
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

    /// The first `len` bytes of a slot, or all of it if it has less.
    pub(crate) fn piece(&self, slot: Slot, len: u64) -> Result<Piece> {
        let staging = &self.stagings[slot.staging];
        staging.piece(slot.chunk, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Starts copying the first `len` bytes of a slot to `offset` of the target.
    pub(crate) fn store(&mut self, slot: Slot, target: &Target, offset: u64, len: u64) -> Result<()> {
        let staging = &mut self.stagings[slot.staging];
        // SAFETY: the target is a checked range, of which the frame's reader uses no more; the slot is filled, its chunk
        // was free, and nobody writes to it before it is free again.
        unsafe { staging.store(slot.chunk, &target.region, target.address.add(offset), len) }
    }

    /// Makes `value` visible at the target, behind everything before.
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
                // SAFETY: as above, of a device's memory.
                unsafe { self.stagings[staging].publish(&target.region, target.address, value)? };
            }
        }
        Ok(())
    }

    /// Waits until everything is complete, except what is on the stream of staging `except`, which keeps its own order.
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

    /// Whether nothing is under way. Releases memory that is not needed any more.
    pub(crate) fn is_idle(&mut self) -> bool {
        // An error comes again at the next use of the device.
        self.stagings.iter_mut().all(|staging| staging.is_idle().unwrap_or(true))
    }
}
