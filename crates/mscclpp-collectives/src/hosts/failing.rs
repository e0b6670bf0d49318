//! A rank whose calls have failed, and that lives: the others learn of it.
//!
//! - Its proxy service fails, because of its adapter or of a rank on another host. The service tells the ranks on other hosts,
//!   whose services then fail, too. The ranks of this host hear of that as well, and what this one waits for from them ends: they
//!   may never make the call for which it waits.
//! - It loses a rank of its own host. That one is lost for all, unless the loss is that of the connection alone. So who finds its
//!   calls failed so says it to the ranks on other hosts, once.

use std::sync::atomic::Ordering;

use mscclpp::{
    Report, Semaphore,
    errors::{CoreError, ProxyError},
};

use crate::Collectives;

use super::Hosts;

/// What is done when the service of a rank fails whose collectives within its host are these.
pub(super) fn of_host(local: Option<&Collectives>) -> impl Fn(&ProxyError) + Send + Sync + 'static {
    let semaphores: Vec<Semaphore> =
        local.iter().flat_map(|local| local.inner.semaphores().cloned()).collect();
    move |error| {
        let reason = format!("collectives: {}", Report(error));
        for semaphore in &semaphores {
            // An abort is this rank's own decision.
            if !matches!(error, ProxyError::Aborted { .. }) {
                semaphore.connection().tell_failure(&reason);
            }
            semaphore.abort(&reason);
        }
    }
}

impl Hosts {
    /// As [`Hosts::check_waits_alone`]; what failed within this host is told to the ranks on others.
    pub(crate) fn check_waits(&self) -> Result<(), mscclpp::Error> {
        self.check_waits_alone().inspect_err(|_| self.tell_failure())
    }

    /// Tells it, unless it was told. An abort is this rank's own decision, and a rank that has left is no failure.
    pub(crate) fn tell_failure(&self) {
        let is_news =
            |error: &CoreError| !matches!(error, CoreError::Aborted { .. } | CoreError::PeerClosed { .. });
        let mut within = self.local.iter().flat_map(|local| local.inner.semaphores());
        let Some(error) = within.find_map(|semaphore| semaphore.failure().filter(is_news)) else { return };
        if !self.told.swap(true, Ordering::Relaxed) {
            let reason = format!("collectives: {}", Report(&error));
            self.links.semaphores().for_each(|semaphore| semaphore.connection().tell_failure(&reason));
        }
    }
}
