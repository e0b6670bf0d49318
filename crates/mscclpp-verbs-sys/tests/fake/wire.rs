//! Carrying out what is posted: from the requester's send queue to the responder's checks.

use std::time::{Duration, Instant};

use mscclpp_verbs_sys as sys;

use super::{
    config::Execution,
    landing::{Landing, Piece, load},
    state::{Request, Source, State},
};

/// How long an adapter waits before it tries again.
const RETRY: Duration = Duration::from_micros(20);
/// How often it tries to reach the peer where steps take the place of time.
const ATTEMPTS: u32 = 1000;
/// How much may be on its way to the memory of one queue pair.
const IN_FLIGHT: usize = 128;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// Nothing to do but to try again after a while.
    Waiting,
    Idle,
}

/// Memory that a key opens.
pub(super) struct Found {
    pub(super) address: usize,
    relaxed: bool,
}

enum Action {
    Execute(u32),
    Land(u32, usize),
}

impl State {
    /// One thing that happens, chosen at random among all that may.
    pub(super) fn step(&mut self) -> Step {
        let now = Instant::now();
        let timed = self.config.execution == Execution::Thread;
        let (mut actions, mut waiting) = (Vec::new(), false);
        for (&number, qp) in &self.qps {
            let failed =
                qp.sends.iter().take(qp.executed).any(|request| request.status != sys::IBV_WC_SUCCESS);
            if qp.state == sys::IBV_QPS_RTS && qp.sends.len() > qp.executed && !failed {
                if timed && qp.again.is_some_and(|again| again > now) {
                    waiting = true;
                } else {
                    actions.push(Action::Execute(number));
                }
            }
            actions.extend(self.eligible(number).into_iter().map(|index| Action::Land(number, index)));
        }
        if actions.is_empty() {
            return if waiting { Step::Waiting } else { Step::Idle };
        }
        let chosen = self.random.usize(..actions.len());
        match actions[chosen] {
            Action::Land(number, index) => {
                self.land(number, index);
                Step::Done
            }
            Action::Execute(number) => self.execute(number, now),
        }
    }

    /// Carries out the request at the head of what has not been, or finds that it must wait.
    fn execute(&mut self, number: u32, now: Instant) -> Step {
        let Some(qp) = self.qps.get(&number) else { return Step::Idle };
        let (device, domain) = (qp.device, qp.domain);
        let Some(request) = qp.sends.get(qp.executed).cloned() else { return Step::Idle };
        let Some(peer) = self.peer(number) else {
            self.counters.transport_retries += 1;
            return self.try_again(number, now, sys::IBV_WC_RETRY_EXC_ERR);
        };
        let with_imm = request.opcode == sys::IBV_WR_RDMA_WRITE_WITH_IMM;
        if with_imm && self.qps[&peer].receives.is_empty() {
            self.counters.rnr_retries += 1;
            return self.try_again(number, now, sys::IBV_WC_RNR_RETRY_EXC_ERR);
        }
        if let Some(qp) = self.qps.get_mut(&number) {
            (qp.attempts, qp.attempts_since, qp.again) = (0, None, None);
        }
        if let Some(status) = self.faults.of_completion(device) {
            self.fail_next(number, status);
            return Step::Done;
        }
        let outcome = match self.gather(&request, domain) {
            Ok(data) => self.respond(number, peer, &request, data),
            Err((status, why)) => Err((status, None, why)),
        };
        match outcome {
            Ok(()) => self.complete_acknowledged(number),
            Err((status, event, why)) => {
                self.refused(why);
                self.fail_next(number, status);
                if let Some(event) = event {
                    self.fail_responder(peer, event);
                }
            }
        }
        Step::Done
    }

    /// Puts off the request at the head, unless that was done too often.
    fn try_again(&mut self, number: u32, now: Instant, status: sys::ibv_wc_status) -> Step {
        let timed = self.config.execution == Execution::Thread;
        let patience = self.config.patience;
        let Some(qp) = self.qps.get_mut(&number) else { return Step::Idle };
        qp.attempts += 1;
        qp.again = Some(now + RETRY);
        let since = *qp.attempts_since.get_or_insert(now);
        let over = match status {
            // 7 is for ever.
            sys::IBV_WC_RNR_RETRY_EXC_ERR => {
                qp.attr.rnr_retry < 7 && qp.attempts > u32::from(qp.attr.rnr_retry)
            }
            _ if timed => now - since > patience,
            _ => qp.attempts > ATTEMPTS,
        };
        if over {
            self.fail_next(number, status);
            return Step::Done;
        }
        Step::Waiting
    }

    /// The queue pair at the other end, if packets come through.
    fn peer(&self, number: u32) -> Option<u32> {
        let qp = self.qps.get(&number)?;
        let peer_number = qp.attr.dest_qp_num;
        let peer = self.qps.get(&peer_number)?;
        let ready = peer.state == sys::IBV_QPS_RTR || peer.state == sys::IBV_QPS_RTS;
        let paired = peer.attr.dest_qp_num == number && peer.attr.rq_psn == qp.attr.sq_psn;
        let ports = [(qp.device, qp.attr.port_num), (peer.device, peer.attr.port_num)];
        let up = ports.iter().all(|&(device, port)| {
            let device = &self.devices[device];
            !device.failed && device.active.get(usize::from(port).wrapping_sub(1)) == Some(&true)
        });
        let port = |device: usize, port: u8| &self.devices[device].config.ports[usize::from(port) - 1];
        let (own, theirs) = (port(ports[0].0, ports[0].1), port(ports[1].0, ports[1].1));
        let address = &qp.attr.ah_attr;
        let reached = if address.is_global == 0 {
            !own.ethernet && !theirs.ethernet && address.dlid == theirs.lid
        } else {
            let kind = own.gids.get(usize::from(address.grh.sgid_index))?.kind;
            // SAFETY: all views of a GID are bytes.
            let wanted = unsafe { address.grh.dgid.raw };
            theirs.gids.iter().any(|gid| gid.raw == wanted && gid.kind == kind)
        };
        (ready && paired && up && reached).then_some(peer_number)
    }

    /// The data of a request, from the requester's memory. An atomic has none; its place for the result is checked.
    fn gather(&self, request: &Request, domain: usize) -> Result<Vec<u8>, (sys::ibv_wc_status, String)> {
        let atomic = request.opcode == sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let pieces = match &request.source {
            Source::Inline(data) => return Ok(data.clone()),
            Source::Memory(pieces) => pieces,
        };
        if atomic && (pieces.len() != 1 || pieces[0].length != 8) {
            return Err((
                sys::IBV_WC_LOC_LEN_ERR,
                "the result of an atomic needs one piece of 8 bytes".to_owned(),
            ));
        }
        let needed = if atomic { sys::IBV_ACCESS_LOCAL_WRITE } else { 0 };
        let mut data = Vec::new();
        for piece in pieces {
            let found = self.region(piece.lkey, piece.addr, piece.length as usize, domain, needed);
            let found = found.map_err(|why| (sys::IBV_WC_LOC_PROT_ERR, format!("local memory: {why}")))?;
            if !atomic {
                data.extend(load(found.address, piece.length as usize));
            }
        }
        Ok(data)
    }

    /// What the responder's adapter does with a request that has reached it.
    fn respond(
        &mut self,
        requester: u32,
        peer: u32,
        request: &Request,
        data: Vec<u8>,
    ) -> Result<(), (sys::ibv_wc_status, Option<sys::ibv_event_type>, String)> {
        let access_error = |why: String| {
            (sys::IBV_WC_REM_ACCESS_ERR, Some(sys::IBV_EVENT_QP_ACCESS_ERR), format!("at the peer: {why}"))
        };
        let request_error = |why: &str| {
            (sys::IBV_WC_REM_INV_REQ_ERR, Some(sys::IBV_EVENT_QP_REQ_ERR), format!("at the peer: {why}"))
        };
        let (qp, own) = (&self.qps[&peer], &self.qps[&requester]);
        let device = &self.devices[qp.device].config;
        let rules = device.reordering;
        let atomic = request.opcode == sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let mtu = 128_usize << qp.attr.path_mtu;
        if own.attr.path_mtu > qp.attr.path_mtu && data.len() > mtu {
            return Err(request_error("a packet is longer than the MTU of its path"));
        }
        let needed = if atomic { sys::IBV_ACCESS_REMOTE_ATOMIC } else { sys::IBV_ACCESS_REMOTE_WRITE };
        if atomic && (!device.atomics || qp.attr.max_dest_rd_atomic == 0) {
            return Err(request_error("the device or the queue pair takes no atomics"));
        }
        if atomic && !request.remote.is_multiple_of(8) {
            return Err(request_error("an atomic must be aligned to 8 bytes"));
        }
        let length = if atomic { 8 } else { data.len() };
        if length > 0 && qp.attr.qp_access_flags & needed == 0 {
            return Err(access_error(format!("the queue pair lacks access flag {needed:#x}")));
        }
        let mut pieces = Vec::new();
        let mut relaxed = false;
        if length > 0 {
            let found =
                self.region(request.key, request.remote, length, qp.domain, needed).map_err(access_error)?;
            relaxed = found.relaxed;
            if atomic {
                let original = match &request.source {
                    Source::Memory(places) => places[0],
                    Source::Inline(_) => return Err(request_error("an atomic has no inline data")),
                };
                pieces.push(Piece::Add { address: found.address, add: request.add, original });
            } else {
                pieces = self.cut(found.address, data, (relaxed && rules.relaxed).then_some(mtu));
            }
        }
        if request.opcode == sys::IBV_WR_RDMA_WRITE_WITH_IMM {
            let Some(qp) = self.qps.get_mut(&peer) else { return Ok(()) };
            let Some(wr_id) = qp.receives.pop_front() else { return Ok(()) };
            let wc = sys::ibv_wc {
                wr_id,
                opcode: sys::IBV_WC_RECV_RDMA_WITH_IMM,
                byte_len: length as u32,
                __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 { imm_data: request.imm_data },
                wc_flags: sys::IBV_WC_WITH_IMM,
                qp_num: peer,
                src_qp: requester,
                ..Default::default()
            };
            pieces.push(Piece::Receive { wc: Box::new(wc), solicited: request.solicited });
        }
        self.arrive(
            requester,
            peer,
            request.sequence,
            pieces,
            relaxed,
            rules.early_acknowledgement && !atomic,
        );
        if !rules.delays() {
            self.land_all(peer);
        }
        Ok(())
    }

    fn arrive(
        &mut self,
        requester: u32,
        peer: u32,
        sequence: u64,
        pieces: Vec<Piece>,
        relaxed: bool,
        early: bool,
    ) {
        if let Some(own) = self.qps.get_mut(&requester) {
            let executed = own.executed;
            if let Some(request) = own.sends.get_mut(executed) {
                request.awaited = if early { 0 } else { pieces.len() };
            }
            own.executed += 1;
        }
        for what in pieces {
            // The room of an adapter is bounded.
            while self.qps.get(&peer).is_some_and(|qp| qp.landings.len() >= IN_FLIGHT) {
                let eligible = self.eligible(peer);
                let index = eligible[self.random.usize(..eligible.len())];
                self.land(peer, index);
            }
            let Some(qp) = self.qps.get_mut(&peer) else { return };
            let request = (!early).then_some((requester, sequence));
            qp.landings.push_back(Landing { what, relaxed, request });
        }
    }

    /// Cuts a write into pieces that become visible one by one: at random places, none longer than a packet.
    fn cut(&mut self, address: usize, data: Vec<u8>, mtu: Option<usize>) -> Vec<Piece> {
        let Some(mtu) = mtu else { return vec![Piece::Write { address, data }] };
        // Long writes in few pieces.
        let unit = (data.len() / 32).next_multiple_of(64).clamp(64, mtu);
        let longest = mtu.max(data.len() / 64);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let units = 1 + self.random.usize(..longest.div_ceil(unit));
            // Pieces end between words of 8 bytes, which adapters write whole.
            let end = (at + units * unit - (address + at) % 8).clamp(at + 1, data.len());
            pieces.push(Piece::Write { address: address + at, data: data[at..end].to_vec() });
            at = end;
        }
        pieces
    }

    /// The memory that a key opens, if it does for this range, protection domain and access.
    pub(super) fn region(
        &self,
        key: u32,
        at: u64,
        length: usize,
        domain: usize,
        needed: u32,
    ) -> Result<Found, String> {
        let region = self.regions.get(&key).ok_or_else(|| format!("there is no key {key:#x}"))?;
        if region.domain != domain {
            return Err(format!("key {key:#x} is of another protection domain"));
        }
        if region.access & needed != needed {
            return Err(format!("key {key:#x} allows {:#x}, not {needed:#x}", region.access));
        }
        let offset = at.checked_sub(region.iova).map(|offset| offset as usize);
        let inside =
            offset.filter(|offset| offset.checked_add(length).is_some_and(|end| end <= region.length));
        let Some(offset) = inside else {
            return Err(format!(
                "{length} bytes at {at:#x} are not within key {key:#x}, {} bytes at {:#x}",
                region.length, region.iova
            ));
        };
        let relaxed = region.access & sys::IBV_ACCESS_RELAXED_ORDERING != 0;
        Ok(Found { address: region.address + offset, relaxed })
    }
}
