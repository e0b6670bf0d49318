//! The adapter at a request's target: it checks the request and puts chunks of data on their way to memory.

use mscclpp_verbs_sys as sys;

use crate::{
    landing::{Landing, Piece},
    state::{Request, Source, State},
};

/// The most chunks that may be on their way to the memory of one queue pair.
const IN_FLIGHT: usize = 128;

/// Memory that a key gives access to.
pub(crate) struct Found {
    pub(crate) address: usize,
    relaxed: bool,
    elsewhere: bool,
}

impl Found {
    fn landing(&self, what: Piece) -> Landing {
        Landing { what, relaxed: self.relaxed, elsewhere: self.elsewhere, request: None }
    }
}

/// The reason and consequences of a failed request.
pub(crate) struct Refusal {
    /// The status with which the request completes.
    pub(crate) status: sys::ibv_wc_status,
    /// The event at the peer, whose queue pair fails then.
    pub(crate) event: Option<sys::ibv_event_type>,
    /// The status with which the peer's receive completes; its queue pair fails then too.
    pub(crate) receive: Option<sys::ibv_wc_status>,
    pub(crate) why: String,
}

impl Refusal {
    pub(crate) fn local(status: sys::ibv_wc_status, why: String) -> Self {
        Self { status, event: None, receive: None, why }
    }
}

fn request_error(why: &str) -> Refusal {
    let (status, event) = (sys::IBV_WC_REM_INV_REQ_ERR, Some(sys::IBV_EVENT_QP_REQ_ERR));
    Refusal { status, event, receive: None, why: format!("at the peer: {why}") }
}

pub(crate) fn takes_receive(opcode: sys::ibv_wr_opcode) -> bool {
    [sys::IBV_WR_RDMA_WRITE_WITH_IMM, sys::IBV_WR_SEND].contains(&opcode)
}

impl State {
    /// Handles a request that has reached the responder's adapter.
    pub(crate) fn respond(
        &mut self,
        requester: u32,
        peer: u32,
        request: &Request,
        data: Vec<u8>,
    ) -> Result<(), Refusal> {
        let own_mtu = self.qps[&requester].attr.path_mtu;
        let qp = &self.qps[&peer];
        let rules = self.devices[qp.device].config.reordering;
        let mtu = 128_usize << qp.attr.path_mtu;
        if own_mtu > qp.attr.path_mtu && data.len() > mtu {
            return Err(request_error("a packet is longer than the MTU of its path"));
        }
        let length = data.len() as u32;
        let mut pieces = match request.opcode {
            sys::IBV_WR_ATOMIC_FETCH_AND_ADD => self.add(peer, request)?,
            sys::IBV_WR_SEND => self.scatter(peer, &data)?,
            _ => self.write(peer, request, data, rules.relaxed.then_some(mtu))?,
        };
        if takes_receive(request.opcode) {
            let receive = self.qps.get_mut(&peer).and_then(|qp| qp.receives.pop_front());
            let sent = request.opcode == sys::IBV_WR_SEND;
            let wc = sys::ibv_wc {
                wr_id: receive.map_or(0, |receive| receive.wr_id),
                opcode: if sent { sys::IBV_WC_RECV } else { sys::IBV_WC_RECV_RDMA_WITH_IMM },
                byte_len: length,
                __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 { imm_data: request.imm_data },
                wc_flags: if sent { 0 } else { sys::IBV_WC_WITH_IMM },
                qp_num: peer,
                src_qp: requester,
                ..Default::default()
            };
            let what = Piece::Receive(Box::new(wc));
            pieces.push(Landing { what, relaxed: false, elsewhere: false, request: None });
        }
        let early = rules.early_acknowledgement && request.opcode != sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
        self.arrive(requester, peer, request.sequence, pieces, early);
        if !rules.delays() {
            self.land_all(peer);
        }
        Ok(())
    }

    fn write(
        &mut self,
        peer: u32,
        request: &Request,
        data: Vec<u8>,
        reordered: Option<usize>,
    ) -> Result<Vec<Landing>, Refusal> {
        if data.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.remote(peer, request, data.len(), sys::IBV_ACCESS_REMOTE_WRITE)?;
        let pieces = self.cut(found.address, data, reordered.filter(|_| found.relaxed));
        Ok(pieces.into_iter().map(|what| found.landing(what)).collect())
    }

    fn add(&self, peer: u32, request: &Request) -> Result<Vec<Landing>, Refusal> {
        let qp = &self.qps[&peer];
        if !self.devices[qp.device].config.atomics || qp.attr.max_dest_rd_atomic == 0 {
            return Err(request_error("the device or the queue pair takes no atomics"));
        }
        if !request.remote.is_multiple_of(8) {
            return Err(request_error("an atomic must be aligned to 8 bytes"));
        }
        let Source::Memory(places) = &request.source else {
            return Err(request_error("an atomic has no inline data"));
        };
        let found = self.remote(peer, request, 8, sys::IBV_ACCESS_REMOTE_ATOMIC)?;
        Ok(vec![found.landing(Piece::Add { address: found.address, add: request.add, original: places[0] })])
    }

    /// Finds the memory that a request names by its remote key.
    fn remote(&self, peer: u32, request: &Request, length: usize, needed: u32) -> Result<Found, Refusal> {
        let qp = &self.qps[&peer];
        let refuse = |why: String| Refusal {
            status: sys::IBV_WC_REM_ACCESS_ERR,
            event: Some(sys::IBV_EVENT_QP_ACCESS_ERR),
            receive: None,
            why: format!("at the peer: {why}"),
        };
        if qp.attr.qp_access_flags & needed == 0 {
            return Err(refuse(format!("the queue pair lacks access flag {needed:#x}")));
        }
        let mut found =
            self.region(request.key, request.remote, length, qp.domain, needed).map_err(refuse)?;
        found.relaxed |= self.devices[qp.device].config.reordering.nothing_strict;
        Ok(found)
    }

    /// Scatters the data of a send to the memory of the receive at the head.
    fn scatter(&self, peer: u32, data: &[u8]) -> Result<Vec<Landing>, Refusal> {
        let qp = &self.qps[&peer];
        let mut rest = data;
        let mut pieces = Vec::new();
        for place in qp.receives.front().into_iter().flat_map(|receive| &receive.places) {
            let (now, later) = rest.split_at(rest.len().min(place.length as usize));
            if !now.is_empty() {
                let found =
                    self.region(place.lkey, place.addr, now.len(), qp.domain, sys::IBV_ACCESS_LOCAL_WRITE);
                let found = found.map_err(|why| Refusal {
                    status: sys::IBV_WC_REM_OP_ERR,
                    event: None,
                    receive: Some(sys::IBV_WC_LOC_PROT_ERR),
                    why: format!("the memory of a receive: {why}"),
                })?;
                pieces.push(found.landing(Piece::Write { address: found.address, data: now.to_vec() }));
            }
            rest = later;
        }
        if rest.is_empty() {
            return Ok(pieces);
        }
        Err(Refusal {
            receive: Some(sys::IBV_WC_LOC_LEN_ERR),
            ..request_error("a receive is too short for what was sent")
        })
    }

    fn arrive(&mut self, requester: u32, peer: u32, sequence: u64, pieces: Vec<Landing>, early: bool) {
        if let Some(own) = self.qps.get_mut(&requester) {
            let executed = own.executed;
            if let Some(request) = own.sends.get_mut(executed) {
                request.awaited = if early { 0 } else { pieces.len() };
            }
            own.executed += 1;
        }
        for piece in pieces {
            // An adapter's buffers are limited, so there is a bound.
            while self.qps.get(&peer).is_some_and(|qp| qp.landings.len() >= IN_FLIGHT) {
                let eligible = self.eligible(peer);
                let index = eligible[self.random.usize(..eligible.len())];
                self.land(peer, index);
            }
            let Some(qp) = self.qps.get_mut(&peer) else { return };
            let request = (!early).then_some((requester, sequence));
            qp.landings.push_back(Landing { request, ..piece });
        }
    }

    /// Cuts a write into chunks that become visible one by one. The cuts are random, and no chunk is longer than a
    /// packet.
    fn cut(&mut self, address: usize, data: Vec<u8>, mtu: Option<usize>) -> Vec<Piece> {
        let Some(mtu) = mtu else { return vec![Piece::Write { address, data }] };
        // A long write becomes few chunks.
        let unit = (data.len() / 32).next_multiple_of(64).clamp(64, mtu);
        let longest = mtu.max(data.len() / 64);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let units = 1 + self.random.usize(..longest.div_ceil(unit));
            // Chunks end between words of 8 bytes, which adapters write whole.
            let end = (at + units * unit - (address + at) % 8).clamp(at + 1, data.len());
            pieces.push(Piece::Write { address: address + at, data: data[at..end].to_vec() });
            at = end;
        }
        pieces
    }

    /// Finds the memory that a key gives access to, for this range, protection domain and access.
    pub(crate) fn region(
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
        let elsewhere = relaxed || region.mapping.is_some();
        Ok(Found { address: region.address + offset, relaxed, elsewhere })
    }
}
