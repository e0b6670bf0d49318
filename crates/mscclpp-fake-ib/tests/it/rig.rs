//! Two ends of a connection that use the table almost directly.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use mscclpp_verbs_sys::{self as sys, Verbs};

use mscclpp_fake_ib::Fake;

/// The number of words that an end has for data; the token is a region of its own.
pub(crate) const WORDS: usize = 1 << 10;
const EVERYTHING: u32 =
    sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_ATOMIC;
pub(crate) const RELAXED: u32 = EVERYTHING | sys::IBV_ACCESS_RELAXED_ORDERING;
pub(crate) const STRICT: u32 = EVERYTHING;

/// The properties of an end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) device: usize,
    pub(crate) data: u32,
    pub(crate) token: u32,
    pub(crate) send_places: u32,
    pub(crate) receive_places: u32,
    pub(crate) cq_entries: i32,
    pub(crate) rnr_retry: u8,
}

impl Shape {
    pub(crate) const fn on(device: usize) -> Self {
        Self {
            device,
            data: RELAXED,
            token: STRICT,
            send_places: 64,
            receive_places: 64,
            cq_entries: 256,
            rnr_retry: 7,
        }
    }
}

/// One end: a device, a queue pair, memory. Its objects are destroyed with it.
pub(crate) struct End {
    pub(crate) verbs: Verbs,
    pub(crate) shape: Shape,
    pub(crate) context: *mut sys::ibv_context,
    pub(crate) pd: *mut sys::ibv_pd,
    pub(crate) channel: *mut sys::ibv_comp_channel,
    pub(crate) cq: *mut sys::ibv_cq,
    pub(crate) qp: *mut sys::ibv_qp,
    pub(crate) data: &'static [AtomicU64],
    pub(crate) token: &'static [AtomicU64],
    pub(crate) data_mr: *mut sys::ibv_mr,
    pub(crate) token_mr: *mut sys::ibv_mr,
}

pub(crate) fn open(verbs: &Verbs, device: usize) -> *mut sys::ibv_context {
    let mut count = 0;
    // SAFETY: the list is used within its length and freed once.
    unsafe {
        let list = (verbs.get_device_list)(&raw mut count);
        assert!(device < count as usize, "there are {count} devices");
        let context = (verbs.open_device)(*list.add(device));
        (verbs.free_device_list)(list);
        assert!(!context.is_null());
        context
    }
}

fn words(count: usize) -> &'static [AtomicU64] {
    Box::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}

impl End {
    pub(crate) fn new(fake: &Fake, shape: Shape) -> Self {
        let verbs = fake.table();
        let context = open(&verbs, shape.device);
        let (data, token) = (words(WORDS), words(8));
        // SAFETY: each object is made on those before it, which live; the memory is never freed.
        unsafe {
            let pd = (verbs.alloc_pd)(context);
            let channel = (verbs.create_comp_channel)(context);
            let cq = (verbs.create_cq)(context, shape.cq_entries, ptr::null_mut(), channel, 0);
            assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
            let mut init = sys::ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                cap: sys::ibv_qp_cap {
                    max_send_wr: shape.send_places,
                    max_recv_wr: shape.receive_places,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 64,
                },
                qp_type: sys::IBV_QPT_RC,
                ..Default::default()
            };
            let qp = (verbs.create_qp)(pd, &raw mut init);
            assert!(!qp.is_null(), "{:?}", fake.refusals());
            let register = |memory: &[AtomicU64], access: u32| {
                let address = memory.as_ptr().cast_mut().cast();
                let register = verbs.reg_mr_iova2.expect("the fake has it");
                let mr = register(pd, address, size_of_val(memory), address as u64, access);
                assert!(!mr.is_null());
                mr
            };
            let (data_mr, token_mr) = (register(data, shape.data), register(token, shape.token));
            Self { verbs, shape, context, pd, channel, cq, qp, data, token, data_mr, token_mr }
        }
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.qp).qp_num }
    }

    /// Returns the attributes of each change of state, from INIT on.
    pub(crate) fn changes(&self, peer: &End) -> [(sys::ibv_qp_attr, u32); 3] {
        let init = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: EVERYTHING,
            ..Default::default()
        };
        let mut gid = sys::ibv_gid::default();
        // SAFETY: the peer's context is open, and the GID is this function's.
        assert_eq!(unsafe { (self.verbs.query_gid)(peer.context, 1, 3, &raw mut gid) }, 0);
        let mut rtr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: sys::IBV_MTU_1024,
            dest_qp_num: peer.number(),
            rq_psn: 7,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            ..Default::default()
        };
        rtr.ah_attr = sys::ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        rtr.ah_attr.grh =
            sys::ibv_global_route { dgid: gid, sgid_index: 3, hop_limit: 64, ..Default::default() };
        let rts = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: self.shape.rnr_retry,
            sq_psn: 7,
            max_rd_atomic: 16,
            ..Default::default()
        };
        use sys::*;
        let to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let to_rtr = IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        let to_rts = IBV_QP_STATE | retries | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        [(init, to_init), (rtr, to_rtr), (rts, to_rts)]
    }

    pub(crate) fn modify(&self, mut attr: sys::ibv_qp_attr, mask: u32) -> i32 {
        // SAFETY: the queue pair lives.
        unsafe { (self.verbs.modify_qp)(self.qp, &raw mut attr, mask as i32) }
    }

    fn connect(&self, peer: &End, fake: &Fake) {
        for (attr, mask) in self.changes(peer) {
            assert_eq!(self.modify(attr, mask), 0, "{:?}", fake.refusals());
        }
    }

    /// Posts a chain of requests. Returns the errno and how many were taken.
    pub(crate) fn post(&self, requests: &[Request]) -> (i32, usize) {
        let mut pieces: Vec<sys::ibv_sge> = requests.iter().map(|request| request.piece).collect();
        let mut chain: Vec<sys::ibv_send_wr> = requests.iter().map(|request| request.wr).collect();
        for index in 0..chain.len() {
            chain[index].sg_list = &raw mut pieces[index];
            chain[index].num_sge = 1;
            chain[index].next = chain.get_mut(index + 1).map_or(ptr::null_mut(), ptr::from_mut);
        }
        let mut bad = ptr::null_mut();
        let first = chain.as_mut_ptr();
        // SAFETY: the queue pair lives, and the chain during the call.
        let errno = unsafe { self.verbs.post_send(self.qp, first, &raw mut bad) };
        // SAFETY: both point into the chain.
        let taken = if errno == 0 { chain.len() } else { unsafe { bad.offset_from(first) as usize } };
        (errno, taken)
    }

    pub(crate) fn receive(&self, count: usize) -> i32 {
        for wr_id in 0..count as u64 {
            let mut wr = sys::ibv_recv_wr { wr_id, ..Default::default() };
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair lives, and the receive during the call.
            let errno = unsafe { self.verbs.post_recv(self.qp, &raw mut wr, &raw mut bad) };
            if errno != 0 {
                return errno;
            }
        }
        0
    }

    pub(crate) fn poll(&self) -> Vec<sys::ibv_wc> {
        let mut room = [sys::ibv_wc::default(); 16];
        // SAFETY: the queue lives, and the buffer is as long as the call is given.
        let count = unsafe { self.verbs.poll_cq(self.cq, room.len() as i32, room.as_mut_ptr()) };
        room[..usize::try_from(count).expect("polling works")].to_vec()
    }

    /// Polls until there are `count` completions. Panics after a minute.
    pub(crate) fn completions(&self, count: usize) -> Vec<sys::ibv_wc> {
        let start = Instant::now();
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.poll());
            assert!(start.elapsed() < Duration::from_secs(60), "{} of {count} completions", all.len());
        }
        all
    }

    pub(crate) fn fill(&self, words: std::ops::Range<usize>, value: u64) {
        self.data[words].iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    pub(crate) fn holds(&self, words: std::ops::Range<usize>, value: u64) -> bool {
        self.data[words].iter().all(|word| word.load(Ordering::Relaxed) == value)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: objects are destroyed before those that they were made on, each once.
        unsafe {
            (self.verbs.destroy_qp)(self.qp);
            (self.verbs.dereg_mr)(self.data_mr);
            (self.verbs.dereg_mr)(self.token_mr);
            (self.verbs.destroy_cq)(self.cq);
            (self.verbs.destroy_comp_channel)(self.channel);
            (self.verbs.dealloc_pd)(self.pd);
            (self.verbs.close_device)(self.context);
        }
    }
}

/// Two ends, connected.
pub(crate) fn pair(fake: &Fake, a: Shape, b: Shape) -> (End, End) {
    let (a, b) = (End::new(fake, a), End::new(fake, b));
    a.connect(&b, fake);
    b.connect(&a, fake);
    (a, b)
}

/// A request with one piece of memory.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) wr: sys::ibv_send_wr,
    pub(crate) piece: sys::ibv_sge,
}

impl Request {
    /// Writes the words `from` this end's data `to` the same place of the peer's.
    pub(crate) fn write(from: &End, to: &End, words: std::ops::Range<usize>) -> Self {
        let piece = sys::ibv_sge {
            addr: from.data[words.start..].as_ptr() as u64,
            length: 8 * words.len() as u32,
            // SAFETY: regions live as long as their ends.
            lkey: unsafe { (*from.data_mr).lkey },
        };
        let mut wr = sys::ibv_send_wr { opcode: sys::IBV_WR_RDMA_WRITE, ..Default::default() };
        wr.wr.rdma.remote_addr = to.data[words.start..].as_ptr() as u64;
        // SAFETY: regions live as long as their ends.
        wr.wr.rdma.rkey = unsafe { (*to.data_mr).rkey };
        Self { wr, piece }
    }

    /// Writes words with immediate data.
    pub(crate) fn write_imm(from: &End, to: &End, words: std::ops::Range<usize>, imm: u32) -> Self {
        let mut request = Self::write(from, to, words);
        request.wr.opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
        request.wr.__bindgen_anon_1.imm_data = imm.to_be();
        request
    }

    /// Adds to the peer's token. The old value goes to the second word of this end's tokens.
    pub(crate) fn add(from: &End, to: &End, add: u64) -> Self {
        let piece = sys::ibv_sge {
            addr: from.token[1..].as_ptr() as u64,
            length: 8,
            // SAFETY: regions live as long as their ends.
            lkey: unsafe { (*from.token_mr).lkey },
        };
        let mut wr = sys::ibv_send_wr { opcode: sys::IBV_WR_ATOMIC_FETCH_AND_ADD, ..Default::default() };
        // SAFETY: regions live as long as their ends.
        let rkey = unsafe { (*to.token_mr).rkey };
        wr.wr.atomic.remote_addr = to.token.as_ptr() as u64;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = add;
        Self { wr, piece }
    }

    pub(crate) fn id(mut self, wr_id: u64) -> Self {
        self.wr.wr_id = wr_id;
        self
    }

    pub(crate) fn flags(mut self, flags: u32) -> Self {
        self.wr.send_flags |= flags;
        self
    }

    pub(crate) fn signalled(self) -> Self {
        self.flags(sys::IBV_SEND_SIGNALED)
    }
}
