//! Objects of complete launches by which waits of kernels have failed, until the stream is synchronised. Those of streams
//! that were dropped are the device's, until that is synchronised.
//!
//! Launches release their objects when they are complete, which may be long before a synchronize, or be noticed by a query.
//! So objects that are released are checked, and kept here if a wait through them may have failed. A synchronize takes all
//! of these and asks them: so each failure is reported once, and objects that have not failed are not kept longer.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::{Error, KernelObject, Owner, Result, object::peers_of};

/// The most objects that are kept: a program that never synchronises may go on launching with failed objects.
const MOST: usize = 64;

/// The failed objects of one stream.
#[derive(Default)]
pub(crate) struct Failed(Vec<Owner>);

impl Failed {
    /// Notes that a launch that needed `owner` is complete. Neither blocks nor calls a driver, and may be called with
    /// locks held.
    pub(crate) fn note(&mut self, owner: &Owner) {
        let is = |known: &Owner| std::ptr::addr_eq(&raw const **known, &raw const **owner);
        if owner.may_have_failed() && self.0.len() < MOST && !self.0.iter().any(is) {
            self.0.push(owner.clone());
        }
    }

    /// Takes all objects. The caller asks them with no lock held.
    pub(crate) fn take(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.0)
    }
}

/// The failures of objects that a device's dropped streams kept. It keeps nothing alive: the program may never
/// synchronise the device, and connections end when nobody uses them.
#[derive(Default)]
pub(crate) struct Untold {
    /// Objects that still have other owners, who may ask them themselves.
    objects: Vec<Weak<dyn KernelObject>>,
    /// The errors of the other objects, from before they were dropped.
    failures: Vec<Error>,
}

impl Untold {
    /// Takes all failures, each once.
    pub(crate) fn take(&mut self) -> Vec<Owner> {
        let objects = self.objects.drain(..).filter_map(|object| object.upgrade());
        let failures = self.failures.drain(..).map(|error| Arc::new(Failure(error)) as Owner);
        objects.chain(failures).collect()
    }
}

/// The error of an object that was dropped.
struct Failure(Error);

impl KernelObject for Failure {
    fn may_have_failed(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        Err(self.0.clone())
    }
}

/// Notes the failures of `owners` at the `device`: launches that needed them are complete, and their stream was dropped.
/// The caller then drops the owners.
pub(crate) fn leave(owners: &[Owner], device: &Mutex<Untold>) {
    for owner in owners.iter().filter(|owner| owner.may_have_failed()) {
        // No other owner can ask it any more.
        let failure = if Arc::strong_count(owner) == 1 { owner.check().err() } else { None };
        let mut untold = device.lock();
        untold.objects.retain(|object| object.strong_count() > 0);
        if untold.objects.len() + untold.failures.len() >= MOST {
            continue;
        }
        match failure {
            Some(failure) => untold.failures.push(failure),
            None => untold.objects.push(Arc::downgrade(owner)),
        }
    }
}

/// Logs the failures of a dropped stream that were not reported. The objects are not asked: they report a failure once,
/// to the program that synchronises the device.
pub(crate) fn log_untold(failed: &[Owner]) {
    if !failed.is_empty() {
        let peers = peers_of(failed).join(", ");
        tracing::warn!(
            target: "mscclpp::gpu", peers, "a stream was dropped that was not synchronised after waits of kernels had failed"
        );
    }
}
