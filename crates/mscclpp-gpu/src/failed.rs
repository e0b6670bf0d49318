//! Objects of complete launches by which waits of kernels have failed, until the stream is synchronised. Those of streams
//! that were dropped are the device's, until that is synchronised.
//!
//! Launches let go of their objects when they are complete, which may be long before somebody synchronises, or be noticed
//! by a query. So what is let go is looked at, and kept here if a wait through it may have failed. A synchronize takes
//! all of these and asks them: so each failure is told once, and objects that have not failed are not kept longer.

use parking_lot::Mutex;

use crate::{Owner, object::peers_of};

/// How many objects are kept: a program that never synchronises may go on launching with what has failed.
const MOST: usize = 64;

/// Those of one stream, or of a device's dropped streams.
#[derive(Default)]
pub(crate) struct Failed(Vec<Owner>);

impl Failed {
    /// A launch that needed `owner` is complete. Neither blocks nor calls a driver, and may be called with locks held.
    pub(crate) fn note(&mut self, owner: &Owner) {
        let is = |known: &Owner| std::ptr::addr_eq(&raw const **known, &raw const **owner);
        if owner.may_have_failed() && self.0.len() < MOST && !self.0.iter().any(is) {
            self.0.push(owner.clone());
        }
    }

    /// All, to be asked with no lock held.
    pub(crate) fn take(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.0)
    }
}

/// Launches that needed `owners` are complete, and nobody has their stream: those that have failed are the `device`'s.
pub(crate) fn note_all(owners: &[Owner], device: &Mutex<Failed>) {
    let mut device = device.lock();
    owners.iter().for_each(|owner| device.note(owner));
}

/// A stream was dropped that has not told of these. They are not asked: what is told once is for who synchronises the device.
pub(crate) fn log_untold(failed: &[Owner]) {
    if !failed.is_empty() {
        let peers = peers_of(failed).join(", ");
        tracing::warn!(
            target: "mscclpp::gpu", peers, "a stream was dropped that was not synchronised after waits of kernels had failed"
        );
    }
}
