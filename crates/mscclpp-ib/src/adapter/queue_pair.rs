//! Queue pairs, and how they are connected.

use std::{
    ptr::{self, NonNull},
    sync::Arc,
};

use mscclpp_verbs_sys as sys;

use super::{Adapter, Cq, Port, last_errno};
use crate::{
    error::{Error, Result},
    gid::Gid,
};

/// The number of work requests that a queue pair holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QpSizes {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    /// The most bytes of data that a request may carry itself.
    pub(crate) inline: u32,
}

/// The properties of a queue pair that the other end must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) qpn: u32,
    /// The number of its first packet.
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    pub(crate) gid: Gid,
    /// The MTU, as the library numbers MTUs.
    pub(crate) mtu: u32,
    /// The most atomics of the other end that it carries out at once.
    pub(crate) atomics: u8,
}

/// The number of retries of a queue pair, and the class of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reliability {
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) pkey_index: u16,
}

impl Default for Reliability {
    fn default() -> Self {
        let (traffic_class, service_level, pkey_index) = (0, 0, 0);
        Self { timeout: 18, retry_count: 7, rnr_retry: 7, traffic_class, service_level, pkey_index }
    }
}

/// One end of a reliable connection.
pub(crate) struct QueuePair {
    qp: NonNull<sys::ibv_qp>,
    adapter: Arc<Adapter>,
    sizes: QpSizes,
    psn: u32,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for QueuePair {}

/// The first packet number of a queue pair: 24 random bits, so that packets of an earlier queue pair are not taken for
/// its own.
pub(crate) fn random_psn() -> Result<u32> {
    let bytes: [u8; 3] = mscclpp_net::random()?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
}

/// The time that a peer with no receive posted asks the sender to wait before the next try: 0.64 milliseconds.
const RNR_TIMER: u8 = 12;
/// The most routers that a packet may pass.
const HOPS: u8 = 255;

impl QueuePair {
    /// Makes a queue pair that can be connected and may have receives posted. Sends complete on the first completion
    /// queue, receives on the second. Both must be kept until the queue pair is dropped.
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        [sent, received]: [&Cq; 2],
        sizes: QpSizes,
        port: &Port,
        pkey_index: u16,
        psn: u32,
    ) -> Result<Self> {
        let mut attr = sys::ibv_qp_init_attr {
            send_cq: sent.as_ptr(),
            recv_cq: received.as_ptr(),
            qp_type: sys::IBV_QPT_RC,
            ..Default::default()
        };
        attr.cap.max_send_wr = sizes.send;
        attr.cap.max_recv_wr = sizes.receive;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        let mut qp = None;
        // Adapters differ in how much they carry inline, and refuse to make a queue pair with more than that.
        for inline in [sizes.inline, sizes.inline / 2, 0] {
            attr.cap.max_inline_data = inline;
            // SAFETY: the protection domain and the completion queues live.
            qp = NonNull::new(unsafe { (adapter.verbs.create_qp)(adapter.pd.as_ptr(), &raw mut attr) });
            if qp.is_some() || last_errno() != libc::EINVAL {
                break;
            }
        }
        let qp = qp.ok_or_else(|| {
            adapter.null(format!(
                "ibv_create_qp with {} sends and {} receives (the adapter takes {})",
                sizes.send,
                sizes.receive,
                adapter.limits().max_qp_wr
            ))
        })?;
        // The library may grant more than was asked for. Only the inline size is taken from its answer.
        let sizes = QpSizes { inline: attr.cap.max_inline_data, ..sizes };
        let this = Self { qp, adapter: adapter.clone(), sizes, psn };
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            pkey_index,
            port_num: port.number,
            qp_access_flags: sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_ATOMIC,
            ..Default::default()
        };
        if !adapter.limits().atomics {
            attr.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE;
        }
        let mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        this.modify("INIT", &mut attr, mask)?;
        Ok(this)
    }

    fn modify(&self, state: &str, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: the queue pair lives, and the attributes that the mask names are set.
        let errno = unsafe { (self.adapter.verbs.modify_qp)(self.qp.as_ptr(), attr, mask as i32) };
        self.adapter.check(format!("ibv_modify_qp to {state}"), errno)
    }

    /// Connects to the other end: makes the queue pair ready to receive from it, and then to send to it.
    pub(crate) fn connect(&self, port: &Port, to: &Path, how: &Reliability) -> Result<()> {
        let limits = self.adapter.limits();
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: port.mtu.min(to.mtu),
            dest_qp_num: to.qpn,
            rq_psn: to.psn,
            max_dest_rd_atomic: limits.max_rd_atom,
            min_rnr_timer: RNR_TIMER,
            ..Default::default()
        };
        attr.ah_attr.dlid = to.lid;
        attr.ah_attr.sl = how.service_level;
        attr.ah_attr.port_num = port.number;
        // Without a LID, a GID is the only address.
        if port.needs_grh || to.lid == 0 {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid.raw = to.gid.0;
            attr.ah_attr.grh.sgid_index = u8::try_from(port.gid.index).map_err(|_| {
                Error::Incompatible(format!(
                    "GID index {} is over 255, the most a queue pair takes",
                    port.gid.index
                ))
            })?;
            attr.ah_attr.grh.hop_limit = HOPS;
            attr.ah_attr.grh.traffic_class = how.traffic_class;
        }
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(&format!("RTR, from GID {} to {}", port.gid.gid, to.gid), &mut attr, mask)?;
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            timeout: how.timeout,
            retry_cnt: how.retry_count,
            rnr_retry: how.rnr_retry,
            sq_psn: self.psn,
            // Each end has at most as many atomics under way as the other carries out.
            max_rd_atomic: limits.max_init_rd_atom.min(to.atomics),
            ..Default::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("RTS", &mut attr, mask)
    }

    /// Returns the properties that the other end must know.
    pub(crate) fn path(&self, port: &Port) -> Path {
        Path {
            qpn: self.number(),
            psn: self.psn,
            lid: port.lid,
            gid: port.gid.gid,
            mtu: port.mtu,
            atomics: self.adapter.limits().max_rd_atom,
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.qp.as_ptr()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Returns the most bytes of data that a request may carry itself.
    pub(crate) fn inline(&self) -> u32 {
        self.sizes.inline
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Posts a chain of requests. If not all were taken, returns the first that was not, and why.
    ///
    /// # Safety
    /// The chain must end with a null pointer. The lists that its requests point to must live during the call, and
    /// the memory that they name must live until they complete.
    pub(crate) unsafe fn post_send(
        &mut self,
        first: *mut sys::ibv_send_wr,
    ) -> Option<(*mut sys::ibv_send_wr, i32)> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's promise; the queue pair lives.
        match unsafe { self.adapter.verbs.post_send(self.qp.as_ptr(), first, &raw mut bad) } {
            0 => None,
            // Some providers do not set the pointer if they take no request.
            errno => Some((if bad.is_null() { first } else { bad }, errno.abs())),
        }
    }

    /// Writes the 8 bytes at `from` to the peer's word at `to`. The completion carries `id`.
    ///
    /// # Safety
    /// The word at `from` must be registered under `source`, and must not change before the write has completed.
    pub(crate) unsafe fn post_word(
        &mut self,
        id: u64,
        (from, source): (u64, u32),
        (to, key): (u64, u32),
    ) -> Result<()> {
        let mut place = sys::ibv_sge { addr: from, length: 8, lkey: source };
        let mut request = sys::ibv_send_wr {
            wr_id: id,
            sg_list: &raw mut place,
            num_sge: 1,
            opcode: sys::IBV_WR_RDMA_WRITE,
            send_flags: sys::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        request.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: to, rkey: key };
        // SAFETY: the caller's promise; the request is read only during the call.
        match unsafe { self.post_send(&raw mut request) } {
            None => Ok(()),
            Some((_, errno)) => self.adapter.check("ibv_post_send of a count", errno),
        }
    }

    /// Posts a receive: a message of at most `len` bytes may arrive at `address`.
    ///
    /// # Safety
    /// The memory must be registered under `lkey` for local writes, and nothing else may use it until the receive
    /// completes or the queue pair is dropped.
    pub(crate) unsafe fn post_receive(&mut self, id: u64, address: u64, len: u32, lkey: u32) -> Result<()> {
        let mut place = sys::ibv_sge { addr: address, length: len, lkey };
        let mut request =
            sys::ibv_recv_wr { wr_id: id, sg_list: &raw mut place, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's promise; the queue pair lives, and the request is read only during the call.
        let errno = unsafe { self.adapter.verbs.post_recv(self.qp.as_ptr(), &raw mut request, &raw mut bad) };
        self.adapter.check("ibv_post_recv", errno)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair was made once and is destroyed once. Its requests end with it.
        let errno = unsafe { (self.adapter.verbs.destroy_qp)(self.qp.as_ptr()) };
        if errno != 0 {
            tracing::warn!(target: "mscclpp::conn", device = self.adapter.name(), errno, "ibv_destroy_qp failed");
        }
    }
}
