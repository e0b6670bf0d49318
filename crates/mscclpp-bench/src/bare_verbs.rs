//! RDMA by bare verbs: work requests are posted and completions taken by the functions of the verbs library, as by a program
//! that does not use this library. The library's figures are compared with these, so the code here does only what the work
//! needs. The same code sets up the queue pairs of both.

use std::{io, ptr};

use mscclpp_ib::bare::{BareDevice, BareMemory, BareQueuePair};
use mscclpp_verbs_sys as sys;

use crate::prelude::*;

/// The most bytes that a request carries itself.
const INLINE: u32 = 64;

/// Memory that a device, and through it the peer, may read and write.
pub(crate) struct Registered {
    start: u64,
    len: u64,
    keys: BareMemory,
}

/// This side's end of a reliable connection between the two ranks, and the memories of both.
pub(crate) struct QueuePair {
    // The queue pair is dropped before the memory that it uses.
    qp: BareQueuePair,
    mine: Registered,
    /// The address and key of the peer's memory, to which this side may write.
    peer: (u64, u32),
    /// The numbers of requests that were posted, and that have completed.
    posted: u64,
    completed: u64,
}

/// One work request. Offsets are in this side's memory or in the peer's.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    Write {
        from: u64,
        to: u64,
        len: u32,
        immediate: Option<u32>,
    },
    /// Adds 1 to the peer's word at `to`, and stores the former value in the word at `old`.
    AddOne {
        to: u64,
        old: u64,
    },
}

impl Registered {
    /// Registers `len` bytes from `start`. With `relaxed`, later data may overtake earlier data.
    ///
    /// # Safety
    /// The memory must stay valid, and be accessed with atomics alone.
    pub(crate) unsafe fn new(device: &BareDevice, start: *const (), len: u64, relaxed: bool) -> Result<Self> {
        let start = start.expose_provenance() as u64;
        // SAFETY: the caller makes the same promise.
        Ok(Self { start, len, keys: unsafe { device.register(start, len, relaxed)? } })
    }

    fn place(&self, offset: u64, len: u32) -> sys::ibv_sge {
        assert!(offset + u64::from(len) <= self.len, "{len} bytes at {offset} of {}", self.len);
        sys::ibv_sge { addr: self.start + offset, length: len, lkey: self.keys.local_key() }
    }
}

impl QueuePair {
    /// Connects the two ranks, which call this at the same time. The peer may write to `mine`, and requests send from it.
    /// Receives are always posted, as many as `receives`.
    pub(crate) fn connect(
        device: &BareDevice,
        ranks: &Ranks,
        sends: u32,
        receives: u32,
        mine: Registered,
    ) -> Result<Self> {
        let qp = device.queue_pair(sends, receives, INLINE)?;
        let here = (qp.path(), mine.start, mine.keys.remote_key());
        let (path, address, key) = ranks.swap(&here)?;
        let this = Self { qp, mine, peer: (address, key), posted: 0, completed: 0 };
        for _ in 0..receives {
            this.post_receive()?;
        }
        this.qp.connect(path)?;
        // No rank sends before the other can receive.
        ranks.meet()?;
        Ok(this)
    }

    /// Posts the requests in one call; the last is signalled if `signalled`. The queue must have room for them.
    pub(crate) fn post<const N: usize>(&mut self, requests: [Request; N], signalled: bool) -> Result<()> {
        let mut sges = requests.map(|request| match request {
            Request::Write { from, len, .. } => self.mine.place(from, len),
            Request::AddOne { old, .. } => self.mine.place(old, 8),
        });
        let mut wrs = [sys::ibv_send_wr::default(); N];
        for (i, request) in requests.into_iter().enumerate() {
            self.posted += 1;
            let wr = &mut wrs[i];
            (wr.wr_id, wr.num_sge, wr.sg_list) = (self.posted, 1, &raw mut sges[i]);
            match request {
                Request::Write { to, len, immediate, .. } => {
                    wr.opcode = sys::IBV_WR_RDMA_WRITE;
                    if let Some(number) = immediate {
                        wr.opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
                        wr.__bindgen_anon_1.imm_data = number.to_be();
                    }
                    if len <= self.qp.inline() {
                        wr.send_flags |= sys::IBV_SEND_INLINE;
                    }
                    wr.wr.rdma.remote_addr = self.peer.0 + to;
                    wr.wr.rdma.rkey = self.peer.1;
                }
                Request::AddOne { to, .. } => {
                    wr.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
                    wr.wr.atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                        remote_addr: self.peer.0 + to,
                        compare_add: 1,
                        swap: 0,
                        rkey: self.peer.1,
                    };
                }
            }
        }
        if signalled {
            wrs[N - 1].send_flags |= sys::IBV_SEND_SIGNALED;
        }
        let first = wrs.as_mut_ptr();
        for i in 1..N {
            // SAFETY: both are in the array.
            unsafe { (*first.add(i - 1)).next = first.add(i) };
        }
        let mut bad = ptr::null_mut();
        let (verbs, qp, _) = self.qp.raw();
        // SAFETY: the chain ends with a null pointer, and is read during the call alone. Its addresses are in registered memory
        // that stays valid.
        check("ibv_post_send", unsafe { verbs.post_send(qp, first, &raw mut bad) })
    }

    /// The number of requests that are not known to have completed.
    pub(crate) fn under_way(&self) -> u32 {
        (self.posted - self.completed) as u32
    }

    /// Takes completions of signalled requests, which show that the requests before them have completed too.
    pub(crate) fn reap(&mut self) -> Result<()> {
        let mut taken = [sys::ibv_wc::default(); 16];
        for completion in self.poll(0, &mut taken)? {
            self.completed = completion.wr_id;
        }
        Ok(())
    }

    /// The immediate number that came with data, if some has come. Its receive is posted again.
    pub(crate) fn take_immediate(&mut self) -> Result<Option<u32>> {
        let mut taken = [sys::ibv_wc::default()];
        let Some(completion) = self.poll(1, &mut taken)?.next() else { return Ok(None) };
        // SAFETY: both views of the union are 4 bytes.
        let number = u32::from_be(unsafe { completion.__bindgen_anon_1.imm_data });
        self.post_receive()?;
        Ok(Some(number))
    }

    /// Takes completions of sends (0) or receives (1).
    fn poll<'w>(
        &self,
        of: usize,
        taken: &'w mut [sys::ibv_wc],
    ) -> Result<impl Iterator<Item = &'w sys::ibv_wc> + use<'w>> {
        let (verbs, _, queues) = self.qp.raw();
        // SAFETY: the queue lives, and `taken` has room for the given number.
        let count = unsafe { verbs.poll_cq(queues[of], taken.len() as i32, taken.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| "ibv_poll_cq failed")?;
        let taken = &taken[..count];
        match taken.iter().find(|completion| completion.status != sys::IBV_WC_SUCCESS) {
            Some(failed) => Err(format!("bare verbs: a request ended with status {}", failed.status).into()),
            None => Ok(taken.iter()),
        }
    }

    /// Posts a receive without memory, which each write with an immediate number consumes.
    fn post_receive(&self) -> Result<()> {
        let mut wr = sys::ibv_recv_wr::default();
        let mut bad = ptr::null_mut();
        let (verbs, qp, _) = self.qp.raw();
        // SAFETY: the queue pair lives; the request is read during the call alone, and names no memory.
        check("ibv_post_recv", unsafe { verbs.post_recv(qp, &raw mut wr, &raw mut bad) })
    }
}

/// Converts the result of a call of the library, 0 or an errno.
fn check(call: &str, errno: i32) -> Result<()> {
    match errno {
        0 => Ok(()),
        // Some providers return -1 and set errno.
        -1 => Err(format!("{call}: {}", io::Error::last_os_error()).into()),
        errno => Err(format!("{call}: {}", io::Error::from_raw_os_error(errno.abs())).into()),
    }
}
