//! A reliable connection between the two ranks, both ways.

use std::ptr;

use mscclpp_verbs_sys as sys;
use serde::{Deserialize, Serialize};

use super::{Device, Registered, check, last};
use crate::{Result, ranks::Ranks};

/// How many requests may be under way.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) sends: u32,
    /// Receives are always posted, as many.
    pub(crate) receives: u32,
}

/// How many bytes a request carries itself.
const INLINE: u32 = 64;
/// As in the library: how long an acknowledgement is waited for, how often a packet is sent again, how long a peer
/// without a receive waits, how many routers a packet may pass.
const TIMEOUT: u8 = 18;
const RETRIES: u8 = 7;
const RNR_TIMER: u8 = 12;
const HOPS: u8 = 255;

/// What the other side must know of this one.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Ends {
    qpn: u32,
    lid: u16,
    gid: [u8; 16],
    mtu: u32,
    atomics: u8,
    /// The memory that this side may write to.
    address: u64,
    key: u32,
}

/// This side's end of a connection, and the peer's memory behind it.
pub(crate) struct QueuePair<'a> {
    device: &'a Device,
    qp: *mut sys::ibv_qp,
    sent: *mut sys::ibv_cq,
    received: *mut sys::ibv_cq,
    sizes: Sizes,
    inline: u32,
    mine: Registered,
    peer: Ends,
    /// How many requests were posted, and have completed.
    posted: u64,
    completed: u64,
}

/// One work request. Offsets are in the memory of either side that the queue pair is between.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    Write {
        from: u64,
        to: u64,
        len: u32,
        immediate: Option<u32>,
    },
    /// Adds 1 to the peer's word at `to`. What was there goes to the word at `old`.
    AddOne {
        to: u64,
        old: u64,
    },
}

impl<'a> QueuePair<'a> {
    /// Connects the ranks, which do this at the same time. `mine` is what the peer may write to and what is sent from.
    pub(crate) fn connect(device: &'a Device, ranks: &Ranks, sizes: Sizes, mine: Registered) -> Result<Self> {
        let verbs = device.verbs;
        let cq = |entries: u32| {
            // SAFETY: the context is open.
            let cq = unsafe {
                (verbs.create_cq)(device.context, entries.max(1) as i32, ptr::null_mut(), ptr::null_mut(), 0)
            };
            if cq.is_null() { Err(last("ibv_create_cq")) } else { Ok(cq) }
        };
        let (sent, received) = (cq(sizes.sends)?, cq(sizes.receives)?);
        let mut attr = sys::ibv_qp_init_attr {
            send_cq: sent,
            recv_cq: received,
            qp_type: sys::IBV_QPT_RC,
            ..Default::default()
        };
        attr.cap = sys::ibv_qp_cap {
            max_send_wr: sizes.sends,
            max_recv_wr: sizes.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        // SAFETY: the protection domain and the completion queues are there.
        let qp = unsafe { (verbs.create_qp)(device.pd, &raw mut attr) };
        if qp.is_null() {
            return Err(last("ibv_create_qp"));
        }
        let port = &device.port;
        let here = Ends {
            // SAFETY: it was just made.
            qpn: unsafe { (*qp).qp_num },
            lid: port.attr.lid,
            gid: port.gid,
            mtu: port.attr.active_mtu,
            atomics: u8::try_from(device.limits.max_qp_rd_atom).unwrap_or(u8::MAX),
            address: mine.start,
            key: mine.remote_key,
        };
        let peer = ranks.swap(&here)?;
        let inline = attr.cap.max_inline_data;
        let mut this =
            Self { device, qp, sent, received, sizes, inline, mine, peer, posted: 0, completed: 0 };
        this.make_ready()?;
        // Nobody sends before the other can receive.
        ranks.meet()?;
        Ok(this)
    }

    /// Brings it to where it receives and sends.
    fn make_ready(&mut self) -> Result<()> {
        let (port, peer) = (&self.device.port, &self.peer);
        let mut init = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            port_num: port.number,
            qp_access_flags: sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_ATOMIC,
            ..Default::default()
        };
        let mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.modify("INIT", &mut init, mask)?;
        for _ in 0..self.sizes.receives {
            self.post_receive()?;
        }
        let mut receive = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: port.attr.active_mtu.min(peer.mtu),
            dest_qp_num: peer.qpn,
            max_dest_rd_atomic: u8::try_from(self.device.limits.max_qp_rd_atom).unwrap_or(u8::MAX),
            min_rnr_timer: RNR_TIMER,
            ..Default::default()
        };
        receive.ah_attr.dlid = peer.lid;
        receive.ah_attr.port_num = port.number;
        if peer.lid == 0 || port.attr.flags & sys::IBV_QPF_GRH_REQUIRED != 0 {
            receive.ah_attr.is_global = 1;
            receive.ah_attr.grh.dgid.raw = peer.gid;
            receive.ah_attr.grh.sgid_index = port.gid_index;
            receive.ah_attr.grh.hop_limit = HOPS;
        }
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify("RTR", &mut receive, mask)?;
        let initiated = u8::try_from(self.device.limits.max_qp_init_rd_atom).unwrap_or(u8::MAX);
        let mut send = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            max_rd_atomic: initiated.min(self.peer.atomics),
            ..Default::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("RTS", &mut send, mask)
    }

    fn modify(&self, state: &str, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: the queue pair is there, and the attributes that the mask names are set, to 0 where that is meant.
        let errno = unsafe { (self.device.verbs.modify_qp)(self.qp, attr, mask as i32) };
        check(&format!("ibv_modify_qp to {state}"), errno)
    }

    /// Posts the requests by one call, the last of them signalled if `signalled`. There must be room.
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
                    if len <= self.inline {
                        wr.send_flags |= sys::IBV_SEND_INLINE;
                    }
                    wr.wr.rdma.remote_addr = self.peer.address + to;
                    wr.wr.rdma.rkey = self.peer.key;
                }
                Request::AddOne { to, .. } => {
                    wr.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
                    wr.wr.atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                        remote_addr: self.peer.address + to,
                        compare_add: 1,
                        swap: 0,
                        rkey: self.peer.key,
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
        // SAFETY: the chain ends with a null pointer, and is read during the call alone. What it names is registered memory
        // that stays.
        check("ibv_post_send", unsafe { self.device.verbs.post_send(self.qp, first, &raw mut bad) })
    }

    /// How many requests have not completed, as far as is known.
    pub(crate) fn under_way(&self) -> u32 {
        (self.posted - self.completed) as u32
    }

    /// Takes completions of requests that were signalled: those before them have completed too.
    pub(crate) fn reap(&mut self) -> Result<()> {
        let mut taken = [sys::ibv_wc::default(); 16];
        for completion in self.poll(self.sent, &mut taken)? {
            self.completed = completion.wr_id;
        }
        Ok(())
    }

    /// The number that came with data, if some has come. Its receive is posted again.
    pub(crate) fn take_immediate(&mut self) -> Result<Option<u32>> {
        let mut taken = [sys::ibv_wc::default()];
        let Some(completion) = self.poll(self.received, &mut taken)?.next() else { return Ok(None) };
        // SAFETY: both views of the union are 4 bytes.
        let number = u32::from_be(unsafe { completion.__bindgen_anon_1.imm_data });
        self.post_receive()?;
        Ok(Some(number))
    }

    fn poll<'w>(
        &self,
        cq: *mut sys::ibv_cq,
        taken: &'w mut [sys::ibv_wc],
    ) -> Result<impl Iterator<Item = &'w sys::ibv_wc> + use<'w>> {
        // SAFETY: the queue is there, with room for as many as it is told.
        let count = unsafe { self.device.verbs.poll_cq(cq, taken.len() as i32, taken.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| "ibv_poll_cq failed")?;
        let taken = &taken[..count];
        match taken.iter().find(|completion| completion.status != sys::IBV_WC_SUCCESS) {
            Some(failed) => Err(format!("bare verbs: a request ended with status {}", failed.status).into()),
            None => Ok(taken.iter()),
        }
    }

    /// A receive takes no data: writes with a number need one.
    fn post_receive(&self) -> Result<()> {
        let mut wr = sys::ibv_recv_wr::default();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there; the request is read during the call alone, and names no memory.
        check("ibv_post_recv", unsafe { self.device.verbs.post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }
}
