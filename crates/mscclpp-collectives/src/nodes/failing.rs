//! A rank whose calls have failed, and that lives: the others learn of it.
//!
//! - Its proxy service fails, because of its adapter or of a rank on another node. The service tells the ranks on other nodes,
//!   whose services then fail, too. The ranks of this node hear of that as well, and what this one waits for from them ends: they
//!   may never make the call for which it waits.
//! - A wait for one rank ends: that one has left, or the connection to it is lost. The service is none the wiser, and the other
//!   ranks may not wait for the same rank. So who finds its calls failed so tells all others, once.

use std::sync::atomic::{AtomicBool, Ordering};

use mscclpp::{
    Report, Semaphore,
    errors::{CoreError, ProxyError},
    gpu::Abort,
};

use crate::rank::Engine;

/// Returns the function that the service of a rank calls when it fails. It ends the waits of `local`, the engine within
/// the node, and tells the ranks of the node.
pub(super) fn of_node(local: Option<&impl Engine>) -> impl Fn(&ProxyError) + Send + Sync + 'static {
    let semaphores: Vec<Semaphore> = local.iter().flat_map(|local| local.semaphores().cloned()).collect();
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

/// Tells all other ranks what failed, unless they were `notified`. An abort is this rank's own decision; a rank that has left
/// is a failure if a wait ended with that.
pub(super) fn tell_others(engine: &impl Engine, notified: &AtomicBool) {
    let news = |semaphore: &Semaphore| match semaphore.failure()? {
        CoreError::Aborted { .. } => None,
        closed @ CoreError::PeerClosed { .. } => Abort::check(semaphore).is_err().then_some(closed),
        failure => Some(failure),
    };
    let Some(error) = engine.semaphores().find_map(news) else { return };
    if !notified.swap(true, Ordering::Relaxed) {
        let reason = format!("collectives: {}", Report(&error));
        engine.semaphores().for_each(|semaphore| semaphore.connection().tell_failure(&reason));
    }
}
