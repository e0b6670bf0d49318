//! Simulated adapters with the transport over them.

use mscclpp_core::{IbConfig, IbMode, SendQueue, Transport};
use mscclpp_ib::{InfiniBand, InfiniBandBuilder};
use mscclpp_test_support::{LIMIT, within};
use mscclpp_verbs_sys::Verbs;

use crate::ends::{self, End, Pair};
use mscclpp_fake_ib::{Config, Fake, Live};

/// The most polls that a wait may take, which is enough for minutes.
pub(crate) const POLLS: i64 = 1_000_000_000;
pub(crate) const MODES: [IbMode; 2] = [IbMode::Host, IbMode::HostNoAtomic];

/// Two adapters with no objects left at the end.
pub(crate) struct World {
    pub(crate) fake: Fake,
    verbs: &'static Verbs,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let fake = Fake::new(config);
        Self { verbs: fake.verbs(), fake }
    }

    pub(crate) fn builder(&self, mode: IbMode) -> InfiniBandBuilder {
        // SAFETY: the simulated adapters do what libibverbs does with real ones.
        unsafe { InfiniBand::builder().verbs(self.verbs) }.mode(mode)
    }

    pub(crate) fn end(&self, transport: Transport, mode: IbMode, config: IbConfig) -> End {
        ends::end_over(self.builder(mode).build(), transport, config)
    }

    /// Connects the first adapter to the second, and back.
    pub(crate) fn pair(&self, mode: IbMode, config: IbConfig) -> Pair {
        Pair::of(self.end(Transport::IB0, mode, config.clone()), self.end(Transport::IB1, mode, config))
    }

    /// Waits until all objects are gone. Queues finish their requests shortly after they are dropped.
    pub(crate) fn assert_empty(&self) {
        let is_empty = within(LIMIT, || self.fake.live() == Live::default());
        assert!(is_empty, "something has leaked: {:?}\n{}", self.fake.live(), self.fake.describe());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_empty();
        }
    }
}

/// Submits everything that waits in a queue.
pub(crate) fn submit_all(queue: &mut SendQueue) {
    let is_done = within(LIMIT, || {
        queue.progress().expect("progress");
        queue.submit().expect("handing over") == 0
    });
    assert!(is_done, "{} operations wait still", queue.waiting());
}

/// Waits until everything submitted to a queue is complete at the peer.
pub(crate) fn flush(queue: &mut SendQueue) {
    let ticket = queue.request_flush().expect("a flush");
    let is_done = within(LIMIT, || {
        queue.submit().expect("handing over");
        queue.progress().expect("progress") >= ticket
    });
    assert!(is_done, "a flush does not end");
}
