//! Queue pairs set up as this crate sets them up, for benchmarks that post and poll by the verbs themselves. Not part of
//! the API.

use std::sync::Arc;

use mscclpp_core::Transport;
use mscclpp_net::links::header::Fields;
use mscclpp_verbs_sys::{Verbs, ibv_cq, ibv_qp};

use crate::{
    InfiniBand,
    adapter::{Access, Adapter, Cq, Mr, Port, QpSizes, QueuePair, Reliability, random_psn},
    blob,
    error::Result,
};

/// A device that is opened separately, with the port that endpoints use by default.
pub struct BareDevice {
    pub name: String,
    adapter: Arc<Adapter>,
    port: Port,
}

/// Registered memory that a device may read and write, also for its peers.
pub struct BareMemory(Mr);

/// A queue pair with a completion queue for each direction.
pub struct BareQueuePair {
    // A queue pair goes before its completion queues.
    qp: QueuePair,
    sent: Cq,
    received: Cq,
    port: Port,
}

/// The properties of a queue pair that the other end must know.
pub type BarePath = (u32, [u64; 3]);

impl InfiniBand {
    #[doc(hidden)]
    pub fn open_bare(&self, transport: Transport) -> Result<BareDevice> {
        let (devices, name) = self.device(transport)?;
        let adapter = Adapter::open(devices.verbs, name)?;
        let port = adapter.port(None, devices.env.gid_index)?;
        Ok(BareDevice { name: name.to_owned(), adapter, port })
    }
}

impl BareDevice {
    /// Returns the most requests that a queue pair can have under way.
    pub fn depth(&self) -> u32 {
        self.adapter.limits().max_qp_wr.min(self.adapter.limits().max_cqe)
    }

    pub fn has_atomics(&self) -> bool {
        self.adapter.limits().atomics
    }

    /// Registers `len` bytes from `start`: if `relaxed`, for data, whose writes may overtake each other; else for
    /// words.
    ///
    /// # Safety
    /// The range must be memory that lives until this is dropped, and must be accessed with atomics alone.
    pub unsafe fn register(&self, start: u64, len: u64, relaxed: bool) -> Result<BareMemory> {
        let access = if relaxed { Access::Relaxed } else { Access::Strict };
        // SAFETY: the caller's promise.
        unsafe { Mr::of_host(&self.adapter, start, len, access) }.map(BareMemory)
    }

    /// Makes a queue pair that may have receives posted, and be connected.
    pub fn queue_pair(&self, sends: u32, receives: u32, inline: u32) -> Result<BareQueuePair> {
        let [sent, received] = [sends, receives].map(|entries| Cq::new(&self.adapter, entries, 1, None));
        let (sent, received) = (sent?, received?);
        let sizes = QpSizes { send: sends, receive: receives, inline };
        let qp = QueuePair::new(&self.adapter, [&sent, &received], sizes, &self.port, 0, random_psn()?)?;
        Ok(BareQueuePair { qp, sent, received, port: self.port.clone() })
    }
}

impl BareMemory {
    pub fn local_key(&self) -> u32 {
        self.0.lkey()
    }

    pub fn remote_key(&self) -> u32 {
        self.0.rkey()
    }
}

impl BareQueuePair {
    pub fn path(&self) -> BarePath {
        let Fields { small, numbers, .. } = blob::path_fields(0, false, &self.qp.path(&self.port));
        (small, numbers)
    }

    pub fn connect(&self, (small, numbers): BarePath) -> Result<()> {
        let to = blob::path(&Fields { kind: 0, flag: 0, small, numbers })?;
        self.qp.connect(&self.port, &to, &Reliability::default())
    }

    /// Returns the most bytes of data that a request may carry itself.
    pub fn inline(&self) -> u32 {
        self.qp.inline()
    }

    /// Returns the functions, the queue pair, and the completion queues of sends and of receives. They live as long
    /// as this.
    pub fn raw(&self) -> (&'static Verbs, *mut ibv_qp, [*mut ibv_cq; 2]) {
        (self.qp.adapter().verbs, self.qp.as_ptr(), [self.sent.as_ptr(), self.received.as_ptr()])
    }
}
