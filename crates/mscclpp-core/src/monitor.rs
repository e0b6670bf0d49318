//! The health of a connection, and the semaphores whose waits end when it fails.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::Mutex;

use crate::{Error, Report};

/// An object whose device waits end when a connection fails.
pub(crate) trait Abortable: Send + Sync {
    /// Ends the object's waits. Called at most once per failure, from any thread; must not block.
    fn abort(&self, reason: &Error);
}

/// The health of one connection, shared by its owner and its transport. Clones share one state.
///
/// Invariants:
/// 1. `failure` is set at most once and never changes; the first failure wins.
/// 2. Every target is aborted exactly once after a failure: `watch` and [`LinkMonitor::fail`] both read `failure`
///    under the lock of `targets`, so that a target is either in the list when the failure comes or sees the failure
///    itself.
/// 3. The thread that fails a connection never becomes the last owner of a target, since freeing the target's memory
///    may block: it aborts targets under that lock, and an owner removes its target under the same lock before it
///    drops it.
#[derive(Clone)]
pub struct LinkMonitor {
    inner: Arc<MonitorState>,
}

struct MonitorState {
    label: Mutex<String>,
    failure: OnceLock<Error>,
    targets: Mutex<Vec<Weak<dyn Abortable>>>,
}

impl LinkMonitor {
    /// The most bytes that are kept of a peer's reason for its failure.
    pub const MAX_REASON: usize = 480;

    pub(crate) fn new(label: String) -> Self {
        Self {
            inner: Arc::new(MonitorState {
                label: Mutex::new(label),
                failure: OnceLock::new(),
                targets: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Fails the connection: the transport has seen that the peer is gone without having closed its side.
    pub fn lost(&self, reason: impl fmt::Display) {
        self.fail(Error::PeerLost { peer: self.label(), reason: reason.to_string() });
    }

    /// Fails the connection: the peer closed its side.
    pub fn closed(&self) {
        self.fail(Error::PeerClosed { peer: self.label() });
    }

    /// Fails the connection: the peer has said that it failed
    /// ([`provider::Link::tell_failure`](crate::provider::Link::tell_failure)). `reason` may be anything that a peer
    /// can send: at most [`LinkMonitor::MAX_REASON`] bytes of it are kept, and characters that are not printable are
    /// escaped.
    pub fn peer_failed(&self, reason: &[u8]) {
        self.fail(Error::PeerFailed { peer: self.label(), reason: Self::printable(reason) });
    }

    /// Returns a peer's reason as text, cut and with unprintable characters escaped, as [`LinkMonitor::peer_failed`] has it.
    #[must_use]
    pub fn printable(reason: &[u8]) -> String {
        let reason = String::from_utf8_lossy(&reason[..reason.len().min(Self::MAX_REASON)]);
        let printable = |c: char| match c {
            '"' | '\'' | '\\' => vec![c],
            other => other.escape_debug().collect(),
        };
        reason.chars().flat_map(printable).collect()
    }

    /// Fails the connection with `error`. The first failure counts; later ones are ignored. Waits of kernels on the
    /// connection's semaphores end; the call does not block until they have.
    pub fn fail(&self, error: Error) {
        let mut targets = self.inner.targets.lock();
        if self.inner.failure.set(error).is_err() {
            return;
        }
        let Some(error) = self.inner.failure.get() else { return };
        for target in targets.drain(..).filter_map(|target| target.upgrade()) {
            target.abort(error);
        }
        drop(targets);
        tracing::info!(target: "mscclpp::conn", peer = %self.label(), error = %Report(error), "connection failed");
    }

    /// Checks that the connection still works.
    ///
    /// # Errors
    /// The error that the connection failed with.
    pub fn check(&self) -> crate::Result<()> {
        self.inner.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The name of the peer in errors.
    #[must_use]
    pub fn label(&self) -> String {
        self.inner.label.lock().clone()
    }

    pub(crate) fn set_label(&self, label: String) {
        *self.inner.label.lock() = label;
    }

    /// Aborts `target` when the connection fails, or at once if it has failed.
    pub(crate) fn watch(&self, target: &Arc<dyn Abortable>) {
        {
            let mut targets = self.inner.targets.lock();
            if self.inner.failure.get().is_none() {
                targets.push(Arc::downgrade(target));
                return;
            }
        }
        if let Some(error) = self.inner.failure.get() {
            target.abort(error);
        }
    }

    /// Ends the watch of `target`. If `target` is just being aborted, blocks until that is done.
    pub(crate) fn unwatch(&self, target: *const dyn Abortable) {
        self.inner.targets.lock().retain(|watched| !std::ptr::addr_eq(watched.as_ptr(), target));
    }
}

mscclpp_os::debug_fields!(LinkMonitor, |this| label: this.label(), failure: this.inner.failure);

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Abortable for Count {
        fn abort(&self, _: &Error) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_target_is_aborted_once_whenever_it_comes() {
        let monitor = LinkMonitor::new("rank 1".to_owned());
        let early = Arc::new(Count::default());
        monitor.watch(&(early.clone() as Arc<dyn Abortable>));
        monitor.lost("its socket closed");
        monitor.closed();
        let late = Arc::new(Count::default());
        monitor.watch(&(late.clone() as Arc<dyn Abortable>));
        assert_eq!((early.0.load(Ordering::Relaxed), late.0.load(Ordering::Relaxed)), (1, 1));
        assert_eq!(monitor.check().unwrap_err().to_string(), "lost rank 1: its socket closed");
    }

    #[test]
    fn what_a_peer_says_is_bounded_and_printable() {
        let said = |reason: &[u8]| {
            let monitor = LinkMonitor::new("rank 1".to_owned());
            monitor.peer_failed(reason);
            monitor.check().unwrap_err().to_string()
        };
        assert_eq!(said(b"proxy: 'a' is \\"), "rank 1's proxy: 'a' is \\ (as it says)");
        assert_eq!(said(b"x\n\x1b[2J\xff"), "rank 1's x\\n\\u{1b}[2J\u{fffd} (as it says)");
        assert_eq!(said("\u{202e}x".as_bytes()), "rank 1's \\u{202e}x (as it says)");
        assert_eq!(said(&[b'x'; 10_000]).matches('x').count(), LinkMonitor::MAX_REASON);
    }

    /// A target that reports when its abort begins, and ends it when its owner has left, or after a moment.
    struct Slow {
        begun: mpsc::Sender<()>,
        left: Mutex<mpsc::Receiver<()>>,
        ended: AtomicBool,
    }
    impl Abortable for Slow {
        fn abort(&self, _: &Error) {
            self.begun.send(()).unwrap();
            let _ = self.left.lock().recv_timeout(std::time::Duration::from_millis(100));
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_owner_stays_until_its_target_is_aborted() {
        let ((begun, has_begun), (leave, left)) = (mpsc::channel(), mpsc::channel());
        let monitor = LinkMonitor::new("rank 1".to_owned());
        let target = Arc::new(Slow { begun, left: Mutex::new(left), ended: AtomicBool::new(false) });
        monitor.watch(&(target.clone() as Arc<dyn Abortable>));
        std::thread::scope(|scope| {
            scope.spawn(|| monitor.lost("its socket closed"));
            has_begun.recv().unwrap();
            monitor.unwatch(&*target);
            let ended = target.ended.load(Ordering::Relaxed);
            leave.send(()).unwrap();
            assert!(ended, "the failing thread could have become the last owner");
        });
    }
}
