//! Collectives of ranks whose devices do not reach each other's memory: everything is a message through port channels, and
//! what is reduced is reduced here. See `collective_ports_device.hpp`.

use std::sync::Arc;

use mscclpp::{
    Communicator, Device, DeviceBuffer, DevicePtr, EndpointConfig, Gpu, Kernel, LaunchConfig, Module,
    PortChannel, PortChannelHandle, ProxyService, Semaphore, Stream, Transport,
    errors::{GpuError, ProxyError},
    gpu::{Abort, KernelArgument, KernelObject, KernelWait, Owner},
};

use crate::{
    Error, ReduceOp, Result,
    calls::CollectivesState,
    group::Group,
    handle::{CollectiveCall, CollectiveHandle, MAX_RANKS, Message, PortCall, RING, Segment},
    messages::{Batch, Messages},
    plan::Plan,
};

/// The most that a place holds, and the most that is reduced at once, of each rank.
const CHUNK_MAX: u64 = 1 << 20;
const PART_MAX: u64 = 64 << 20;

/// The engine of a rank whose device does not reach the memory of the others.
pub(crate) struct Ports {
    service: Arc<ProxyService>,
    transport: Transport,
    /// For chunks and for credits, of each peer.
    channels: Vec<[PortChannel; 2]>,
    memory: DeviceBuffer,
    handles: DeviceBuffer,
    move_by_ports: Kernel,
    reduce_segments: Kernel,
    /// The call without its messages.
    call: PortCall,
    /// Where the numbers of all ranks come to that are reduced, and how much of each: a multiple of a ring, so that
    /// who sends need not know of it.
    parts: DevicePtr,
    part: u64,
}

/// Keeps the service, too, as long as kernels use it.
pub(crate) struct Served {
    owners: Vec<Owner>,
    _service: Arc<ProxyService>,
}

impl Served {
    pub(crate) fn new(owners: Vec<Owner>, service: &Arc<ProxyService>) -> Self {
        Self { owners, _service: service.clone() }
    }
}

impl KernelObject for Served {
    fn peers(&self) -> Vec<String> {
        self.owners.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.owners.waits()
    }

    fn may_have_failed(&self) -> bool {
        self.owners.may_have_failed()
    }

    fn check(&self) -> Result<(), GpuError> {
        self.owners.check()
    }
}

impl Ports {
    /// Sets them up in `scratch_bytes` bytes, with the other ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are too few; those of connecting, and of the service.
    pub(crate) fn connect(
        comm: &Communicator,
        gpu: &Gpu,
        group: &Group,
        (transport, tag): (Transport, u32),
        scratch_bytes: u64,
    ) -> Result<Self> {
        let ranks = group.ranks.len() as u64;
        let (chunk, part) = chunks_and_parts(ranks, scratch_bytes)?;
        let rings = (ranks - 1) * RING * chunk;
        let module = Module::load_once(gpu, &mscclpp_kernels::COLLECTIVES_BY_PORTS)?;
        let memory = gpu.allocate(2 * rings + ranks * part)?;
        let handles = gpu.allocate(2 * ranks * HANDLE)?;
        let registered = comm.register_buffer(&memory, transport)?;
        let peers = group.others().map(|r| group.ranks[r]);
        let config = EndpointConfig::new(transport, Device::gpu(gpu.id()));
        let mesh = comm.mesh(config).peers(peers).tag(tag).memory(&registered).semaphores(2).connect()?;

        let service = ProxyService::new(gpu).map_err(mscclpp::Error::from)?;
        let channels = mesh.links().iter().map(|link| {
            let (src, dst) = (service.add_memory(&registered)?, service.add_memory(&link.memories[0])?);
            let channel =
                |i: usize| service.port_channel(service.add_semaphore(&link.semaphores[i])?, dst, src);
            Ok([channel(0)?, channel(1)?])
        });
        let channels = channels.collect::<Result<Vec<_>, ProxyError>>().map_err(mscclpp::Error::from)?;
        for (r, channels) in group.others().zip(&channels) {
            let both = channels.each_ref().map(PortChannel::device_handle);
            handles.write_params(2 * r as u64 * HANDLE, &both)?;
        }
        service.start_proxy(true).map_err(mscclpp::Error::from)?;
        // Everybody can take what is put before anybody puts.
        group.all(true)?;
        let call = PortCall {
            messages: [[[Message::NONE; 2]; 2]; MAX_RANKS],
            channels: handles.ptr(),
            scratch: memory.ptr(),
            inbox: 0,
            outbox: rings,
            chunk,
            rank: group.rank as u32,
            ranks: ranks as u32,
            data_type: 0,
            scaled: 0,
            scale: 0,
            epochs: DevicePtr::NULL,
        };
        Ok(Self {
            service: Arc::new(service),
            transport,
            channels,
            parts: memory.ptr().add(2 * rings),
            memory,
            handles,
            move_by_ports: module.kernel("move_by_ports")?,
            reduce_segments: module.kernel("reduce_segments")?,
            call,
            part,
        })
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.memory.len() + self.handles.len()
    }

    /// Returns what launches keep.
    pub(crate) fn owner(&self) -> Owner {
        let channels = self.channels.iter().flatten().filter_map(|channel| KernelArgument::owner(&channel));
        let owners = channels.chain((&self.memory).owner()).chain((&self.handles).owner()).collect();
        Arc::new(Served::new(owners, &self.service))
    }

    pub(crate) fn semaphores(&self) -> impl Iterator<Item = &Semaphore> {
        self.channels.iter().flatten().map(PortChannel::semaphore)
    }

    pub(crate) fn check_waits(&self) -> Result<(), mscclpp::Error> {
        Ok(self.channels.iter().flatten().try_for_each(Abort::check)?)
    }

    /// Moves messages between pairs of ranks; those that are sent are multiplied first, as `op` says.
    ///
    /// # Safety
    /// Their memory lives until the launch is complete, and the device reaches it.
    pub(crate) unsafe fn move_messages(
        &self,
        inner: &CollectivesState,
        messages: Batch,
        scaled: Option<&Plan>,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let (scale, is_scaled) =
            scaled.and_then(|plan| plan.op.map(|op| op.scale(plan.data_type))).unwrap_or((0, 0));
        let call = PortCall {
            messages,
            data_type: scaled.map_or(0, |plan| plan.data_type as u32),
            scaled: is_scaled,
            scale,
            epochs: inner.counters.epochs(),
            ..self.call
        };
        let config = LaunchConfig::linear(2 * call.ranks, inner.threads());
        let args = inner.keeping(buffers).with(call);
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { self.move_by_ports.launch(stream, config, &args)? };
        Ok(())
    }

    /// An exchange, as messages.
    ///
    /// # Safety
    /// As for [`Ports::move_messages`].
    pub(crate) unsafe fn exchange(
        &self,
        inner: &CollectivesState,
        plan: &Plan,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let (rank, ranks) = (inner.group.rank, inner.group.ranks.len());
        let (segments, own) = (&plan.segments[..ranks], plan.segments[rank]);
        // What comes from a rank.
        let taken = |of: &Segment| if plan.op.is_some() { own.recv_bytes } else { of.recv_bytes };
        if plan.op.is_none() && own.send != own.recv && own.recv_bytes > 0 {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(own.recv, own.send, own.recv_bytes)? };
        }
        // What is reduced, or would overwrite what is sent, comes elsewhere first, part by part. Nobody else need know.
        let aside = plan.op.is_some() || plan.overwrites_what_it_sends(rank, ranks);
        let others = || segments.iter().enumerate().filter(|(p, _)| *p != rank);
        let most = others().map(|(_, segment)| segment.send_bytes.max(taken(segment))).max().unwrap_or(0);
        let part = if aside { self.part } else { most.max(1) };
        let place = |p: usize| self.parts.add(p as u64 * self.part);
        for at in (0..most).step_by(usize::try_from(part).unwrap_or(usize::MAX)) {
            let of_part = |bytes: u64| bytes.saturating_sub(at).min(part);
            let mut messages = Messages::new(ranks);
            for (p, segment) in others() {
                let (sent, received) = (of_part(segment.send_bytes), of_part(taken(segment)));
                messages.add(p, false, Message { memory: segment.send.add(at), bytes: sent });
                let memory = if aside { place(p) } else { segment.recv };
                messages.add(p, true, Message { memory, bytes: received });
            }
            for batch in messages.batches(rank) {
                // SAFETY: the caller's promise; the parts are this rank's own, and calls come one after the other.
                unsafe { self.move_messages(inner, batch, Some(plan), stream, buffers)? };
            }
            if let Some(op) = plan.op {
                // SAFETY: as above.
                unsafe { self.reduce(inner, plan, op, at, stream, buffers)? };
            } else if aside {
                for (p, segment) in others() {
                    let bytes = of_part(segment.recv_bytes);
                    if bytes > 0 {
                        // SAFETY: as above.
                        unsafe { stream.copy(segment.recv.add(at), place(p), bytes)? };
                    }
                }
            }
        }
        Ok(())
    }

    /// Reduces the parts of all ranks, which begin `at` bytes from the beginning of what they send.
    ///
    /// # Safety
    /// As for [`Ports::exchange`].
    unsafe fn reduce(
        &self,
        inner: &CollectivesState,
        plan: &Plan,
        op: ReduceOp,
        at: u64,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let (rank, ranks) = (inner.group.rank, inner.group.ranks.len());
        let own = plan.segments[rank];
        let bytes = own.recv_bytes.saturating_sub(at).min(self.part);
        if bytes == 0 {
            return Ok(());
        }
        let mut segments = [Segment::NONE; MAX_RANKS];
        for (p, segment) in segments[..ranks].iter_mut().enumerate() {
            segment.send = self.parts.add(p as u64 * self.part);
        }
        segments[rank] =
            Segment { send: own.send.add(at), recv: own.recv.add(at), send_bytes: bytes, recv_bytes: bytes };
        let (scale, scaled) = op.scale(plan.data_type);
        let call = CollectiveCall {
            segments,
            most_bytes: 0,
            chunk: 0,
            data_type: plan.data_type as u32,
            op: op.number(),
            scale,
            scaled,
            one_way: 0,
            checked: 0,
            in_place: 0,
            signature: [0; 2],
        };
        let threads = inner.threads();
        let blocks = (bytes / 8 / u64::from(threads)).clamp(1, 64) as u32;
        let args = inner.keeping(buffers).with(CollectiveHandle::of(rank, ranks)).with(call);
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { self.reduce_segments.launch(stream, LaunchConfig::linear(blocks, threads), &args)? };
        Ok(())
    }
}

const HANDLE: u64 = size_of::<PortChannelHandle>() as u64;

/// The bytes of a place and of a part: half of the bytes is for rings, of which there are two for each peer.
fn chunks_and_parts(ranks: u64, scratch_bytes: u64) -> Result<(u64, u64)> {
    let chunk = (scratch_bytes / 2 / (2 * (ranks - 1) * RING)).min(CHUNK_MAX) / 16 * 16;
    // A launch begins with the first place of a ring, and so does what a rank takes of a message in a launch of its own.
    let ring = RING * chunk;
    let part = (scratch_bytes / 2 / ranks).min(PART_MAX).checked_div(ring).unwrap_or(0) * ring;
    if chunk >= LEAST_CHUNK && part > 0 {
        return Ok((chunk, part));
    }
    Err(Error::InvalidArgument(format!(
        "{scratch_bytes} bytes of scratch are too few for {ranks} ranks and port channels; {} are enough",
        ranks * RING * 4 * LEAST_CHUNK
    )))
}

const LEAST_CHUNK: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_parts_stay_within_the_scratch() {
        for ranks in [2, 3, 8, 16] {
            let least = ranks * RING * 4 * LEAST_CHUNK;
            for scratch_bytes in [least, 1 << 20, 16 << 20, 128 << 20, 8 << 30] {
                let (chunk, part) = chunks_and_parts(ranks, scratch_bytes).unwrap();
                let all = 2 * (ranks - 1) * RING * chunk + ranks * part;
                // Offsets of port channels have 32 bits.
                assert!(all <= scratch_bytes && all < 1 << 32, "{ranks} {scratch_bytes}: {chunk} {part}");
                assert!(chunk % 16 == 0 && part % (RING * chunk) == 0 && part > 0);
            }
            let error = chunks_and_parts(ranks, 4096).unwrap_err().to_string();
            assert!(error.contains(&format!("{least} are enough")), "{error}");
        }
    }
}
