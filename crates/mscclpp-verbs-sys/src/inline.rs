//! The functions that C inlines: they go through the function table of the context to which the object belongs.

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
    ptr,
};

use crate::{
    Verbs, ibv_context, ibv_cq, ibv_port_attr, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc, verbs_context,
};

/// The value of `ibv_context::abi_compat` in a context that lies inside a [`verbs_context`].
const ABI_IS_EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

impl Verbs {
    /// `ibv_post_send`: puts the chain `wr` on the send queue. Does not block and takes no lock of this crate.
    ///
    /// Returns 0, or an errno; in that case `bad_wr` points to the first request that was not posted.
    ///
    /// # Safety
    /// `qp` must be a live queue pair, `wr` a chain of valid requests, `bad_wr` valid for a write.
    pub unsafe fn post_send(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: a live queue pair has a live context.
        match unsafe { (*(*qp).context).ops.post_send } {
            // SAFETY: the provider requires what the caller promises.
            Some(post) => unsafe { post(qp, wr, bad_wr) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// `ibv_post_recv`: puts the chain `wr` on the receive queue. Returns the same as [`Verbs::post_send`].
    ///
    /// # Safety
    /// The same as [`Verbs::post_send`].
    pub unsafe fn post_recv(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: a live queue pair has a live context.
        match unsafe { (*(*qp).context).ops.post_recv } {
            // SAFETY: the provider requires what the caller promises.
            Some(post) => unsafe { post(qp, wr, bad_wr) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// `ibv_poll_cq`: takes up to `num_entries` completions out of the queue. Does not block.
    ///
    /// Returns the number of completions, or a negative number on failure.
    ///
    /// # Safety
    /// `cq` must be a live completion queue, `wc` valid for writing `num_entries` completions.
    pub unsafe fn poll_cq(&self, cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: a live completion queue has a live context.
        match unsafe { (*(*cq).context).ops.poll_cq } {
            // SAFETY: the provider requires what the caller promises.
            Some(poll) => unsafe { poll(cq, num_entries, wc) },
            None => -libc::EOPNOTSUPP,
        }
    }

    /// `ibv_req_notify_cq`: the next completion (with `solicited_only` the next solicited or failed one) makes an event
    /// on the queue's channel. Returns 0 or an errno.
    ///
    /// # Safety
    /// `cq` must be a live completion queue.
    pub unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int {
        // SAFETY: a live completion queue has a live context.
        match unsafe { (*(*cq).context).ops.req_notify_cq } {
            // SAFETY: the provider requires what the caller promises.
            Some(request) => unsafe { request(cq, c_int::from(solicited_only)) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// `ibv_query_port`, as the header defines it: asks the provider, and passes the size of the structure as this crate
    /// declares it. The function that the library exports is meant for old programs and fills in less. It is used if the
    /// provider is old too; the fields that it does not know are then 0. Returns 0 or an errno.
    ///
    /// # Safety
    /// `context` must be a live context that was opened by this table's functions, `attr` valid for a write.
    pub unsafe fn query_port(&self, context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
        // SAFETY: the caller promises a live context.
        if let Some(query) = unsafe { extended(context) }.and_then(|extended| {
            let needed = size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
            // SAFETY: `sz` and `query_port` are read where they lie before the context, and the latter only if the
            // provider's structure, which grows at its front, reaches so far.
            unsafe { if (*extended).sz >= needed { (*extended).query_port } else { None } }
        }) {
            // SAFETY: the provider requires what the caller promises.
            return unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) };
        }
        // SAFETY: the caller's promise holds here too; the shorter structure is the beginning of this one.
        unsafe {
            attr.write(ibv_port_attr::default());
            (self.query_port_compat)(context, port, attr.cast())
        }
    }
}

/// The structure in which the provider keeps `context`; none if the provider is old. It may be shorter than its type.
///
/// # Safety
/// `context` must be a live context.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller promises a live context.
    let is_extended = unsafe { (*context).abi_compat } == ABI_IS_EXTENDED;
    is_extended.then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}
