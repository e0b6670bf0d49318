//! A rank whose calls have failed, and that lives: the others learn of it.
//!
//! The proxy service tells the ranks to which it has connections, which are those on other hosts, when it fails. The ranks of
//! this host do not hear of that, and their next call would wait for one that this rank does not make. In the same way those on
//! other hosts do not hear of what failed within this one. So who finds its calls failed says so on all connections, once.

use std::sync::atomic::Ordering;

use mscclpp::{
    Report, Semaphore,
    errors::{CoreError, ProxyError},
};

use super::Hosts;

impl Hosts {
    /// As [`Hosts::check_waits_alone`]; what failed is told to all ranks.
    pub(crate) fn check_waits(&self) -> Result<(), mscclpp::Error> {
        self.check_waits_alone().inspect_err(|_| self.tell_failure())
    }

    /// Tells all ranks what failed, unless they were told. An abort is this rank's own decision, and a rank that has left is no failure.
    pub(crate) fn tell_failure(&self) {
        let of_service =
            self.links.health().err().filter(|error| !matches!(error, ProxyError::Aborted { .. }));
        let within = || self.local.iter().flat_map(|local| local.inner.semaphores());
        let of_a_rank = || {
            let is_news = |error: &CoreError| {
                !matches!(error, CoreError::Aborted { .. } | CoreError::PeerClosed { .. })
            };
            within().filter_map(Semaphore::failure).find(is_news)
        };
        let reason = of_service.map(|error| Report(&error).to_string());
        let Some(reason) = reason.or_else(|| of_a_rank().map(|error| Report(&error).to_string())) else {
            return;
        };
        if !self.told.swap(true, Ordering::Relaxed) {
            let reason = format!("collectives: {reason}");
            self.semaphores().for_each(|semaphore| semaphore.connection().tell_failure(&reason));
        }
    }
}
