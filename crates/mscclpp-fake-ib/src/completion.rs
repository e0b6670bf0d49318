//! Completions, the events they make, and the failure of queue pairs.

use mscclpp_verbs_sys as sys;

use crate::state::{Completion, Queue, State};

/// The vendor error of all failed completions.
pub const VENDOR_ERROR: u32 = 0xfa;

/// The opcode of a failed completion, which the specification leaves undefined.
const UNDEFINED: sys::ibv_wc_opcode = sys::ibv_wc_opcode::MAX;

impl State {
    /// Puts a completion on its queue.
    pub(crate) fn complete(&mut self, cq: usize, wc: sys::ibv_wc, queue: Queue, frees: u32) {
        match queue {
            Queue::Send => self.counters.send_completions += 1,
            Queue::Receive => self.counters.receive_completions += 1,
        }
        let Some(found) = self.cqs.get_mut(&cq) else { return };
        if found.entries.len() >= found.capacity {
            self.counters.overruns += 1;
            let capacity = found.capacity;
            if !found.failed {
                self.misuse.push(format!("a completion queue of {capacity} entries was overrun"));
                self.fail_cq(cq);
            }
            return;
        }
        found.entries.push_back(Completion { wc, queue, frees });
        if std::mem::take(&mut found.armed)
            && let Some(channel) = found.channel.and_then(|channel| self.channels.get_mut(&channel))
        {
            channel.events.push_back(cq);
            self.counters.events += 1;
            raise(channel.fd);
        }
    }

    /// Fails a completion queue, which takes no more completions, and raises an event.
    pub(crate) fn fail_cq(&mut self, cq: usize) {
        let Some(found) = self.cqs.get_mut(&cq) else { return };
        (found.failed, found.capacity) = (true, 0);
        let element = sys::ibv_async_event__bindgen_ty_1 { cq: cq as *mut sys::ibv_cq };
        let event = sys::ibv_async_event { element, event_type: sys::IBV_EVENT_CQ_ERR };
        let context = found.context;
        self.event(context, event);
    }

    /// Notes that one of the chunks that a request waits for is visible.
    pub(crate) fn acknowledge(&mut self, number: u32, sequence: u64) {
        let Some(qp) = self.qps.get_mut(&number) else { return };
        if let Some(request) = qp.sends.iter_mut().find(|request| request.sequence == sequence) {
            request.awaited = request.awaited.saturating_sub(1);
        }
        self.complete_acknowledged(number);
    }

    /// Completes the acknowledged requests at the head, in the order of posting. A request that failed is the last to
    /// complete.
    pub(crate) fn complete_acknowledged(&mut self, number: u32) {
        while let Some(qp) = self.qps.get_mut(&number) {
            let ready = qp.executed > 0 && qp.sends.front().is_some_and(|request| request.awaited == 0);
            if !ready {
                return;
            }
            let Some(request) = qp.sends.pop_front() else { return };
            qp.executed -= 1;
            qp.silent += 1;
            let ok = request.status == sys::IBV_WC_SUCCESS;
            if request.signalled || !ok {
                let opcode = match request.opcode {
                    sys::IBV_WR_ATOMIC_FETCH_AND_ADD => sys::IBV_WC_FETCH_ADD,
                    sys::IBV_WR_SEND => sys::IBV_WC_SEND,
                    _ => sys::IBV_WC_RDMA_WRITE,
                };
                let wc = match ok {
                    true => {
                        sys::ibv_wc { wr_id: request.wr_id, opcode, qp_num: number, ..Default::default() }
                    }
                    false => failed(request.wr_id, request.status, number),
                };
                let (cq, frees) = (qp.send_cq, std::mem::take(&mut qp.silent));
                self.complete(cq, wc, Queue::Send, frees);
            }
            if !ok {
                self.fail(number);
            }
        }
    }

    /// Makes the next request fail that is to be carried out. It completes after those before it.
    pub(crate) fn fail_next(&mut self, number: u32, status: sys::ibv_wc_status) {
        let Some(qp) = self.qps.get_mut(&number) else { return };
        let executed = qp.executed;
        if let Some(request) = qp.sends.get_mut(executed) {
            request.status = status;
            qp.executed += 1;
        }
        self.complete_acknowledged(number);
    }

    /// Puts a queue pair into the error state: everything that is posted is flushed.
    pub(crate) fn fail(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(&number) else { return };
        qp.state = sys::IBV_QPS_ERR;
        // SAFETY: objects are never freed.
        unsafe { (*qp.c).state = sys::IBV_QPS_ERR };
        self.flush(number);
    }

    /// Completes everything that is posted to a failed queue pair.
    pub(crate) fn flush(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(&number) else { return };
        let (sends, receives) = (std::mem::take(&mut qp.sends), std::mem::take(&mut qp.receives));
        let (send_cq, receive_cq) = (qp.send_cq, qp.receive_cq);
        qp.executed = 0;
        let silent = std::mem::take(&mut qp.silent);
        for (index, request) in sends.iter().enumerate() {
            let frees = if index == 0 { silent + 1 } else { 1 };
            let wc = failed(request.wr_id, sys::IBV_WC_WR_FLUSH_ERR, number);
            self.complete(send_cq, wc, Queue::Send, frees);
        }
        if sends.is_empty()
            && let Some(qp) = self.qps.get_mut(&number)
        {
            qp.silent = silent;
        }
        for receive in receives {
            let wc = failed(receive.wr_id, sys::IBV_WC_WR_FLUSH_ERR, number);
            self.complete(receive_cq, wc, Queue::Receive, 1);
        }
    }

    /// Completes the receive at the head with an error; then the queue pair fails.
    pub(crate) fn fail_receive(&mut self, number: u32, status: sys::ibv_wc_status) {
        self.land_all(number);
        let Some(qp) = self.qps.get_mut(&number) else { return };
        let cq = qp.receive_cq;
        if let Some(receive) = qp.receives.pop_front() {
            self.complete(cq, failed(receive.wr_id, status, number), Queue::Receive, 1);
        }
        self.fail(number);
    }

    /// Fails this side's queue pair because it refused a request of the peer, and raises an event.
    pub(crate) fn fail_responder(&mut self, number: u32, event_type: sys::ibv_event_type) {
        self.queue_pair_event(number, event_type);
        self.fail(number);
    }

    pub(crate) fn queue_pair_event(&mut self, number: u32, event_type: sys::ibv_event_type) {
        let Some(qp) = self.qps.get(&number) else { return };
        let (context, element) = (qp.context, sys::ibv_async_event__bindgen_ty_1 { qp: qp.c });
        self.event(context, sys::ibv_async_event { element, event_type });
    }

    /// Raises an event for everybody who has the device open.
    pub(crate) fn device_event(&mut self, device: usize, event_type: sys::ibv_event_type, port: u8) {
        let element = sys::ibv_async_event__bindgen_ty_1 { port_num: i32::from(port) };
        let event = sys::ibv_async_event { element, event_type };
        let of_device = self.contexts.iter().filter(|(_, context)| context.device == device);
        for context in of_device.map(|(address, _)| *address).collect::<Vec<_>>() {
            self.event(context, event);
        }
    }

    fn event(&mut self, context: usize, event: sys::ibv_async_event) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(event);
            raise(context.fd);
        }
    }
}

/// Returns a failed completion. Only these fields of one are defined.
pub(crate) fn failed(wr_id: u64, status: sys::ibv_wc_status, qp_num: u32) -> sys::ibv_wc {
    sys::ibv_wc { wr_id, status, opcode: UNDEFINED, vendor_err: VENDOR_ERROR, qp_num, ..Default::default() }
}

/// Makes a descriptor readable once more.
fn raise(fd: i32) {
    let one = 1_u64;
    // SAFETY: the descriptor is an eventfd of this module, and the word is 8 bytes.
    let written = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    assert_eq!(written, 8, "an eventfd takes 2^64 - 2 events");
}
