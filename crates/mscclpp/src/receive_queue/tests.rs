//! Tests of the log lines about a wait, and of the ways in which it ends.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use mscclpp_bootstrap::LocalBootstrap;
use mscclpp_test_support::Lines;

use super::*;

/// The call with the number `position`.
struct Call {
    position: u64,
    done: AtomicBool,
}

impl PendingReceive for Call {
    fn complete(&self, _: &[u8]) {
        self.done.store(true, Ordering::Relaxed);
    }

    fn is_complete(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn name(&self) -> (&'static str, u64) {
        ("connect", self.position)
    }
}

fn calls(queue: &ReceiveQueue, n: u64) -> Vec<Arc<Call>> {
    let call = |position| {
        let call = Arc::new(Call { position, done: AtomicBool::new(false) });
        let queued: Arc<dyn PendingReceive> = call.clone();
        queue.enqueue(Arc::downgrade(&queued));
        call
    };
    (0..n).map(call).collect()
}

/// Runs `work` with what it logs on this thread going to `lines`.
fn logged_to<T>(lines: &Lines, work: impl FnOnce() -> T) -> T {
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
    tracing::subscriber::with_default(subscriber.finish(), work)
}

const SOON: Duration = Duration::from_millis(5);

#[test]
fn a_long_wait_names_rank_peer_call_tag_and_position() {
    let ranks = LocalBootstrap::group(2);
    let queue = ReceiveQueue::new(1, 7);
    let calls = calls(&queue, 2);
    let lines = Lines::default();
    let wait = || queue.complete_up_to(&*calls[1], &ranks[0], None, LongWait::begin(SOON)).is_ok();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| logged_to(&lines, wait));
        let said = |text: &str| mscclpp_test_support::until(text, || lines.text().contains(text));
        said(
            "WARN mscclpp::wait: rank 0: waiting for rank 1: connect, tag 7, call 1 (call 0 comes first) (for",
        );
        ranks[1].send(b"0", 0, 7).unwrap();
        said("rank 0: waiting for rank 1: connect, tag 7, call 1 (for");
        ranks[1].send(b"1", 0, 7).unwrap();
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn who_waits_for_another_threads_step_says_so_too_and_keeps_its_time() {
    let ranks = LocalBootstrap::group(2);
    let queue = ReceiveQueue::new(1, 0);
    let calls = calls(&queue, 2);
    let wait = |call: usize, limit, first| {
        queue.complete_up_to(&*calls[call], &ranks[0], limit, LongWait::begin(first))
    };
    thread::scope(|scope| {
        let stepping = mscclpp_test_support::start_waiting(scope, || wait(0, None, Duration::MAX).is_ok());
        let lines = Lines::default();
        let late = logged_to(&lines, || wait(1, Some(SOON * 10), SOON));
        assert!(matches!(late, Err(Stopped::TimedOut)));
        assert!(
            lines.text().contains("rank 1: connect, tag 0, call 1 (call 0 comes first)"),
            "{}",
            lines.text()
        );
        ranks[1].send(b"0", 0, 0).unwrap();
        assert!(stepping.join().unwrap());
    });
}

#[test]
fn a_time_out_of_the_bootstraps_own_ends_a_wait_without_one() {
    /// A bootstrap that cannot connect to its peer.
    struct Cut(LocalBootstrap);
    impl Bootstrap for Cut {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn n_ranks(&self) -> usize {
            self.0.n_ranks()
        }
        fn n_ranks_per_node(&self) -> usize {
            1
        }
        fn n_ranks_per_ipc_domain(&self) -> usize {
            1
        }
        fn send(&self, bytes: &[u8], peer: usize, tag: u32) -> mscclpp_bootstrap::Result<()> {
            self.0.send(bytes, peer, tag)
        }
        fn recv(&self, peer: usize, tag: u32) -> mscclpp_bootstrap::Result<Vec<u8>> {
            self.recv_timeout(peer, tag, Duration::MAX)
        }
        fn recv_timeout(&self, peer: usize, _: u32, _: Duration) -> mscclpp_bootstrap::Result<Vec<u8>> {
            let operation = format!("connecting to rank {peer}");
            Err(BootstrapError::Timeout { operation, after: SOON, missing: vec![peer], attempts: Vec::new() })
        }
        fn all_gather(&self, bytes: &[u8]) -> mscclpp_bootstrap::Result<Vec<Vec<u8>>> {
            self.0.all_gather(bytes)
        }
        fn barrier(&self) -> mscclpp_bootstrap::Result<()> {
            self.0.barrier()
        }
        fn group_barrier(&self, ranks: &[usize]) -> mscclpp_bootstrap::Result<()> {
            self.0.group_barrier(ranks)
        }
        fn broadcast(&self, bytes: &mut Vec<u8>, root: usize) -> mscclpp_bootstrap::Result<()> {
            self.0.broadcast(bytes, root)
        }
        fn failure(&self) -> Option<BootstrapError> {
            None
        }
        fn on_failure(&self, hook: mscclpp_bootstrap::FailureHook) {
            self.0.on_failure(hook);
        }
        fn abort(&self, reason: &str) {
            self.0.abort(reason);
        }
    }
    let cut = Cut(LocalBootstrap::group(2).remove(0));
    let queue = ReceiveQueue::new(1, 0);
    let calls = calls(&queue, 1);
    let stopped = queue.complete_up_to(&*calls[0], &cut, None, LongWait::begin(Duration::MAX));
    assert!(
        matches!(stopped, Err(Stopped::Failed(error)) if error.to_string().contains("connecting to rank 1"))
    );
}
