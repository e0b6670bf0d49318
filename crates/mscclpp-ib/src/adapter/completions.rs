//! Completion queues, and the channels that report their events.

use std::{
    ffi::c_void,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use mscclpp_verbs_sys as sys;

use super::{Adapter, failed, make_nonblocking};
use crate::error::Result;

/// A channel that reports armed completion queues once they have a completion.
pub(crate) struct Channel {
    channel: NonNull<sys::ibv_comp_channel>,
    adapter: Arc<Adapter>,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for Channel {}
// SAFETY: only its descriptor is used through `&`, and completion queues refer to it.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(adapter: &Arc<Adapter>) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { (adapter.verbs.create_comp_channel)(adapter.context.as_ptr()) })
            .ok_or_else(|| adapter.null("ibv_create_comp_channel"))?;
        let this = Self { channel, adapter: adapter.clone() };
        make_nonblocking(adapter.name(), this.as_fd(), "making a completion channel not block")?;
        Ok(Arc::new(this))
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Takes an event. Returns the number of the completion queue that raised it. Does not block.
    pub(crate) fn next(&self) -> Option<u64> {
        let (mut cq, mut number) = (ptr::null_mut(), ptr::null_mut::<c_void>());
        // SAFETY: the channel lives and does not block; the results are this function's.
        let errno =
            unsafe { (self.adapter.verbs.get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut number) };
        if errno != 0 {
            return None;
        }
        // SAFETY: the queue is one that was made with this channel; it is not destroyed before its events are given back.
        unsafe { (self.adapter.verbs.ack_cq_events)(cq, 1) };
        Some(number.addr() as u64)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, and its descriptor is open, as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: completion queues keep their channel, so none is left.
        unsafe { (self.adapter.verbs.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

/// The outcome of a work request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) vendor: u32,
    /// The flags. With [`sys::IBV_WC_WITH_IMM`], `immediate` is the number that came along.
    pub(crate) flags: u32,
    pub(crate) immediate: u32,
    pub(crate) bytes: u32,
}

/// A completion queue.
pub(crate) struct Cq {
    cq: NonNull<sys::ibv_cq>,
    /// The buffer for polling, as large as the most completions that one poll takes.
    taken: Vec<sys::ibv_wc>,
    adapter: Arc<Adapter>,
    _channel: Option<Arc<Channel>>,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for Cq {}

impl Cq {
    /// Makes a queue for `entries` completions, of which a poll takes at most `at_once`. Events on the channel, if
    /// there is one, carry `number`.
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        entries: u32,
        at_once: u32,
        channel: Option<(&Arc<Channel>, u64)>,
    ) -> Result<Self> {
        let (of, number) =
            channel.map_or((ptr::null_mut(), 0), |(channel, number)| (channel.channel.as_ptr(), number));
        let number = ptr::without_provenance_mut(number as usize);
        // SAFETY: the context is open, and the channel, if there is one, lives and is of this context.
        let cq = unsafe {
            (adapter.verbs.create_cq)(adapter.context.as_ptr(), entries.max(1) as i32, number, of, 0)
        };
        let cq =
            NonNull::new(cq).ok_or_else(|| adapter.null(format!("ibv_create_cq with {entries} entries")))?;
        Ok(Self {
            cq,
            taken: vec![sys::ibv_wc::default(); at_once.max(1) as usize],
            adapter: adapter.clone(),
            _channel: channel.map(|(channel, _)| channel.clone()),
        })
    }

    /// Takes finished completions, at most as many as one poll may take.
    pub(crate) fn poll(&mut self) -> Result<impl Iterator<Item = Completion> + '_> {
        let most = self.taken.len() as i32;
        // SAFETY: the queue lives, and there is room for as many.
        let count = unsafe { self.adapter.verbs.poll_cq(self.cq.as_ptr(), most, self.taken.as_mut_ptr()) };
        if count < 0 {
            return Err(failed(self.adapter.name(), "ibv_poll_cq", count.abs()));
        }
        Ok(self.taken[..count as usize].iter().map(|wc| Completion {
            id: wc.wr_id,
            status: wc.status,
            vendor: wc.vendor_err,
            flags: wc.wc_flags,
            // SAFETY: both views of the union are 4 bytes.
            immediate: u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }),
            bytes: wc.byte_len,
        }))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.cq.as_ptr()
    }

    /// Makes the next completion raise an event on the channel. A completion that came before this call may raise none:
    /// poll once more after it.
    pub(crate) fn arm(&self) -> Result<()> {
        // SAFETY: the queue lives.
        let errno = unsafe { self.adapter.verbs.req_notify_cq(self.cq.as_ptr(), false) };
        self.adapter.check("ibv_req_notify_cq", errno)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs are dropped before their completion queues, and each event was given back when it was taken.
        unsafe { (self.adapter.verbs.destroy_cq)(self.cq.as_ptr()) };
    }
}
