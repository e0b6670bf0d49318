//! The requests of a queue to its adapter, and their conversion to work requests of the library.

use std::{cell::UnsafeCell, ptr, sync::Arc, sync::atomic::AtomicU64};

use mscclpp_verbs_sys as sys;

use crate::{
    adapter::{Access, Adapter, Mr},
    error::Result,
};

/// One work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// Writes data, and perhaps a number for the peer after it.
    Write { to: u64, key: u32, from: u64, source: u32, len: u32, inline: bool, immediate: Option<u32> },
    /// Adds to a word of the peer.
    Add { to: u64, key: u32, by: u64 },
    /// Stores in a word of the peer.
    Store { to: u64, key: u32, value: u64 },
    /// Sends a message to the peer's thread, such as [`crate::select::Select`].
    Message([u64; 4]),
    /// Moves nothing, and completes after everything before it.
    Nothing,
}

impl Request {
    /// Returns the name of the request, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write { immediate: None, .. } => "an RDMA write",
            Self::Write { immediate: Some(_), .. } => "an RDMA write with immediate data",
            Self::Add { .. } => "an RDMA atomic add",
            Self::Store { .. } => "an RDMA write of a word",
            Self::Message(_) => "a message",
            Self::Nothing => "an RDMA write of nothing",
        }
    }
}

/// A request, and whether it asks for a completion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) request: Request,
    pub(super) signalled: bool,
}

/// Words of this process that its own adapter or the peer's writes, on a cache line of their own.
#[repr(C, align(128))]
#[derive(Default)]
struct CreditWords {
    /// The number of messages that the peer has taken in, as it reports.
    credit: AtomicU64,
    /// The place into which atomics put the old values of the words. Nobody reads it.
    fetched: AtomicU64,
}

/// The contents of messages and words that requests send: one place for each request that can be under way.
struct Places(Box<[UnsafeCell<[u64; 4]>]>);

// SAFETY: only its queue writes a place, and only when nothing that reads the place is under way.
unsafe impl Send for Places {}

/// Turns requests into work requests of the library, a chain at a time.
pub(super) struct Chain {
    requests: Box<[sys::ibv_send_wr]>,
    sges: Box<[sys::ibv_sge]>,
    inline: u32,
    // Fields are dropped in this order: the registrations before their memory.
    words_key: Mr,
    /// The registration of the places; `None` if everything fits into requests, so that adapters need not read the
    /// places.
    places_key: Option<Mr>,
    words: Box<CreditWords>,
    places: Places,
}

// SAFETY: the pointers in `requests` lead only into this chain and its places, and are used only by `&mut` calls.
unsafe impl Send for Chain {}

/// The number of bytes of a message.
const MESSAGE: u32 = size_of::<[u64; 4]>() as u32;

impl Chain {
    /// Makes chains of at most `longest` requests, for a queue that has at most `under_way` requests under way.
    pub(super) fn new(adapter: &Arc<Adapter>, longest: u32, under_way: u32, inline: u32) -> Result<Self> {
        let words = Box::new(CreditWords::default());
        let places = Places((0..under_way).map(|_| UnsafeCell::default()).collect());
        let at = |start: u64, len: usize, access| {
            // SAFETY: the chain drops the boxes after their registrations. The boxes do not move, and consist of
            // atomics or cells.
            unsafe { Mr::of_host(adapter, start, len as u64, access) }
        };
        let words_key =
            at((&raw const *words).expose_provenance() as u64, size_of::<CreditWords>(), Access::Strict)?;
        let places_key = match inline >= MESSAGE {
            true => None,
            false => {
                let start = places.0.as_ptr().expose_provenance() as u64;
                Some(at(start, size_of_val(&*places.0), Access::Source)?)
            }
        };
        let longest = longest.max(1) as usize;
        Ok(Self {
            requests: vec![sys::ibv_send_wr::default(); longest].into(),
            sges: vec![sys::ibv_sge::default(); longest].into(),
            inline,
            words_key,
            places_key,
            words,
            places,
        })
    }

    /// Returns the most requests that a chain has.
    pub(super) fn longest(&self) -> usize {
        self.requests.len()
    }

    /// Returns the most bytes of data that a request may carry itself.
    pub(super) fn inline(&self) -> u32 {
        self.inline
    }

    /// Returns the word that counts the messages that the peer has taken in.
    pub(super) fn credit(&self) -> &AtomicU64 {
        &self.words.credit
    }

    /// Returns the address and key by which the peer writes that count.
    pub(super) fn credit_place(&self) -> (u64, u32) {
        ((&raw const self.words.credit).expose_provenance() as u64, self.words_key.rkey())
    }

    /// Puts the items into a chain, as far as its length allows. The first gets the number `number`, and the others
    /// the numbers after it. Returns the chain's head and its length.
    pub(super) fn make(
        &mut self,
        items: impl Iterator<Item = Item>,
        number: u64,
    ) -> (*mut sys::ibv_send_wr, usize) {
        let mut len = 0;
        for (item, number) in items.take(self.requests.len()).zip(number..) {
            self.put(len, item, number);
            len += 1;
        }
        let first = self.requests.as_mut_ptr();
        for i in 0..len {
            // SAFETY: the pointer is inside the array, and null behind the last request.
            self.requests[i].next = if i + 1 < len { unsafe { first.add(i + 1) } } else { ptr::null_mut() };
        }
        (first, len)
    }

    /// Returns how many requests of the chain lie before `request`.
    pub(super) fn before(&self, request: *const sys::ibv_send_wr) -> usize {
        (request.addr() - self.requests.as_ptr().addr()) / size_of::<sys::ibv_send_wr>()
    }

    fn put(&mut self, at: usize, item: Item, number: u64) {
        let mut wr = sys::ibv_send_wr { wr_id: number, ..Default::default() };
        if item.signalled {
            wr.send_flags |= sys::IBV_SEND_SIGNALED;
        }
        let rdma = |wr: &mut sys::ibv_send_wr, remote_addr, rkey| {
            wr.wr.rdma.remote_addr = remote_addr;
            wr.wr.rdma.rkey = rkey;
        };
        let sge = match item.request {
            Request::Write { to, key, from, source, len, inline, immediate } => {
                wr.opcode = sys::IBV_WR_RDMA_WRITE;
                if let Some(number) = immediate {
                    wr.opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
                    wr.__bindgen_anon_1.imm_data = number.to_be();
                }
                if inline {
                    wr.send_flags |= sys::IBV_SEND_INLINE;
                }
                rdma(&mut wr, to, key);
                sys::ibv_sge { addr: from, length: len, lkey: source }
            }
            Request::Add { to, key, by } => {
                wr.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                    remote_addr: to,
                    compare_add: by,
                    swap: 0,
                    rkey: key,
                };
                let addr = (&raw const self.words.fetched).expose_provenance() as u64;
                sys::ibv_sge { addr, length: 8, lkey: self.words_key.lkey() }
            }
            Request::Store { to, key, value } => {
                wr.opcode = sys::IBV_WR_RDMA_WRITE;
                rdma(&mut wr, to, key);
                self.put_place(&mut wr, number, [value, 0, 0, 0], 8)
            }
            Request::Message(message) => {
                wr.opcode = sys::IBV_WR_SEND;
                self.put_place(&mut wr, number, message, MESSAGE)
            }
            Request::Nothing => {
                wr.opcode = sys::IBV_WR_RDMA_WRITE;
                sys::ibv_sge::default()
            }
        };
        self.sges[at] = sge;
        if sge.length > 0 {
            wr.sg_list = &raw mut self.sges[at];
            wr.num_sge = 1;
        }
        self.requests[at] = wr;
    }

    /// Makes a request send its data from the place with its number.
    fn put_place(
        &self,
        wr: &mut sys::ibv_send_wr,
        number: u64,
        content: [u64; 4],
        length: u32,
    ) -> sys::ibv_sge {
        let place = &self.places.0[number as usize % self.places.0.len()];
        // SAFETY: at most as many requests as there are places can be under way, so the request that used the place
        // before has completed. Only this thread writes places.
        unsafe { *place.get() = content };
        let lkey = match &self.places_key {
            Some(key) => key.lkey(),
            None => {
                wr.send_flags |= sys::IBV_SEND_INLINE;
                0
            }
        };
        sys::ibv_sge { addr: place.get().expose_provenance() as u64, length, lkey }
    }
}
