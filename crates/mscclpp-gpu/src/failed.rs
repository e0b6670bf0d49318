//! Objects of complete launches by which waits of kernels have failed, until the stream is synchronised. Those of streams
//! that were dropped are the device's, until that is synchronised.
//!
//! Launches let go of their objects when they are complete, which may be long before somebody synchronises, or be noticed
//! by a query. So what is let go is looked at, and kept here if a wait through it may have failed. A synchronize takes
//! all of these and asks them: so each failure is told once, and objects that have not failed are not kept longer.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::{Error, KernelObject, Owner, Result, object::peers_of};

/// How many objects are kept: a program that never synchronises may go on launching with what has failed.
const MOST: usize = 64;

/// Those of one stream.
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

/// What has failed of that which a device's dropped streams kept. It keeps nothing alive: nobody may ever synchronise the
/// device, and connections end when nobody uses them.
#[derive(Default)]
pub(crate) struct Untold {
    /// Objects that somebody still has, and may ask himself.
    objects: Vec<Weak<dyn KernelObject>>,
    /// What the others said before they went.
    failures: Vec<Error>,
}

impl Untold {
    /// All, each once.
    pub(crate) fn take(&mut self) -> Vec<Owner> {
        let objects = self.objects.drain(..).filter_map(|object| object.upgrade());
        let failures = self.failures.drain(..).map(|error| Arc::new(Failure(error)) as Owner);
        objects.chain(failures).collect()
    }
}

/// What an object said that is gone.
struct Failure(Error);

impl KernelObject for Failure {
    fn may_have_failed(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        Err(self.0.clone())
    }
}

/// Launches that needed `owners` are complete, and nobody has their stream: what those say that have failed is the
/// `device`'s. The caller drops them then.
pub(crate) fn leave(owners: &[Owner], device: &Mutex<Untold>) {
    for owner in owners.iter().filter(|owner| owner.may_have_failed()) {
        // Nobody else can ask it any more.
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

/// A stream was dropped that has not told of these. They are not asked: what is told once is for who synchronises the device.
pub(crate) fn log_untold(failed: &[Owner]) {
    if !failed.is_empty() {
        let peers = peers_of(failed).join(", ");
        tracing::warn!(
            target: "mscclpp::gpu", peers, "a stream was dropped that was not synchronised after waits of kernels had failed"
        );
    }
}
