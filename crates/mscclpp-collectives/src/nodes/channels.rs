//! The port channels to all ranks on other nodes, and the launches that use them: see `collective_nodes_device.hpp`.

use std::sync::{Arc, atomic::Ordering};

use mscclpp::{
    Communicator, Device, DeviceBuffer, DevicePtr, EndpointConfig, Gpu, Kernel, LaunchConfig, Module,
    Platform, PortChannel, PortChannelHandle, ProxyService, RegisteredMemory, Semaphore, Transport,
    errors::ProxyError,
    gpu::{Abort, KernelArgument, KernelObject, Owner, PinnedBuffer},
};

use crate::{
    DataType, Error, ReduceOp, Result,
    handle::{ACROSS_HEAD, ACROSS_RING, CollectiveAcross, MAX_RANKS_OF_NODES, Transfer},
    one_node::WordOperation,
    rank::{Call, Lengths, RankState},
};

use super::{
    steps::{Across, Origin, Reduction},
    topology::Topology,
};

/// Channels of a link: for collectives, and for messages of the rank with the lower number and of the other one.
const CHANNELS: usize = 3;
/// Rings of a link: the two channels for messages have one together, since each of them uses the other half of it.
const RINGS: u64 = 2;
/// The least and the most that a place holds.
const LEAST_PLACE: u64 = 1 << 10;
const MOST_PLACE: u64 = 1 << 20;
/// The least that a message is cut into for several lanes, and the least that is worth a trigger of its own in one lane.
const LEAST_SHARE: u64 = 32 << 10;
const LEAST_CHUNK: u64 = 128 << 10;
/// The number of chunks into which a lane cuts its share of a large message.
const CHUNKS_OF_A_LANE: u64 = 8;
const LANES_ON_GPUS: u32 = 4;

const HANDLE: u64 = size_of::<PortChannelHandle>() as u64;

/// The use of a transfer over a link.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Use {
    Collective,
    /// A message of the own rank to the peer, or of the peer.
    Message {
        sent: bool,
    },
}

/// How the ranks of different nodes are connected.
#[derive(Clone, Copy)]
pub(crate) struct Network {
    pub(crate) transport: Transport,
    pub(crate) tag: u32,
    /// The number of connections between two ranks.
    pub(crate) connections: u32,
}

/// The port channels of a rank to those on other nodes, with their memory and kernels.
pub(crate) struct Channels {
    /// Launches keep it.
    pub(super) owner: Owner,
    /// For each link, channel and lane.
    channels: Vec<PortChannel>,
    rings: Rings,
    handles: DeviceBuffer,
    counts: DeviceBuffer,
    /// See `CollectiveAcross`.
    found: PinnedBuffer,
    move_across: Kernel,
    /// The kernels by [`WordOperation`], as far as these reduce.
    reduce_across: [Kernel; 4],
    /// The call without its transfers.
    pub(super) call: CollectiveAcross,
    /// Memory for steps: see [`Maker`](super::steps::Maker).
    pub(super) scratch: DeviceBuffer,
}

/// The memory of a rank's rings: memory that the transport reads and writes without copies of its own.
enum Rings {
    /// Device memory, for adapters.
    Device(DeviceBuffer),
    /// Pinned host memory, for sockets. Kernels bring data there, and take it from there, where a copy engine would have
    /// to do that too.
    Pinned(PinnedBuffer),
}

/// The service, which launches keep, as their kernels use it.
struct Kept(#[allow(dead_code, reason = "kernels use it")] ProxyService);

impl KernelObject for Kept {}

impl Rings {
    fn allocate(gpu: &Gpu, transport: Transport, bytes: u64) -> Result<Self> {
        Ok(match transport == Transport::ETHERNET {
            true => Self::Pinned(gpu.allocate_pinned(bytes)?),
            false => Self::Device(gpu.allocate(bytes)?),
        })
    }

    fn register(&self, comm: &Communicator, transport: Transport) -> Result<RegisteredMemory> {
        Ok(match self {
            Self::Device(rings) => comm.register_buffer(rings, transport)?,
            Self::Pinned(rings) => comm.register_pinned(rings, transport)?,
        })
    }

    fn are_on_host(&self) -> bool {
        matches!(self, Self::Pinned(_))
    }

    fn ptr(&self) -> DevicePtr {
        match self {
            Self::Device(rings) => rings.ptr(),
            Self::Pinned(rings) => rings.ptr(),
        }
    }

    /// Returns the memory, for launches to keep.
    fn owner(&self) -> Option<Owner> {
        match self {
            Self::Device(rings) => KernelArgument::owner(&rings),
            Self::Pinned(rings) => KernelArgument::owner(&rings),
        }
    }
}

impl Channels {
    /// Sets them up together with the ranks on other nodes, in as many bytes as the rank has for scratch. Launches
    /// have `epochs`, and keep `kept`. `on_failure` is called when the service fails.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are too few; those of connecting, and of the service.
    pub(crate) fn connect(
        rank: &RankState,
        topology: &Topology,
        Network { transport, tag, connections }: Network,
        epochs: DevicePtr,
        kept: Vec<Owner>,
        on_failure: impl Fn(&ProxyError) + Send + Sync + 'static,
    ) -> Result<Self> {
        let RankState { comm, gpu, group, .. } = rank;
        let (lanes, connections) = lanes_and_connections(gpu, topology, connections);
        let remote = topology.remote();
        let (place, scratch_bytes) =
            place_and_scratch(topology.most_links() as u64, lanes.into(), rank.scratch_bytes)?;
        let outbox = remote.len() as u64 * RINGS * u64::from(lanes) * ACROSS_RING * place;
        let module = Module::load_once(gpu, &mscclpp_kernels::COLLECTIVES_OF_NODES)?;
        let rings = Rings::allocate(gpu, transport, 2 * outbox)?;
        let scratch = gpu.allocate(scratch_bytes)?;
        let channels = remote.len() * CHANNELS * lanes as usize;
        let handles = gpu.allocate(channels as u64 * HANDLE)?;
        // Fresh memory is zero.
        let counts = gpu.allocate(8 * channels as u64)?;
        let found = gpu.allocate_pinned(16 * (1 + remote.len() * CHANNELS) as u64)?;
        let registered = rings.register(comm, transport)?;
        let lanes_of_each = (lanes / connections) as usize;
        let connect = |_| {
            let config =
                EndpointConfig::new(transport, Device::gpu(gpu.id())).tokens_on_host(rings.are_on_host());
            let peers = remote.iter().map(|r| group.ranks()[*r]);
            let mesh = comm.mesh(config).peers(peers).tag(tag).memory(&registered);
            mesh.semaphores(CHANNELS * lanes_of_each).connect()
        };
        let meshes = (0..connections).map(connect).collect::<Result<Vec<_>, _>>()?;

        let service = ProxyService::builder(gpu).on_failure(on_failure).build();
        let service = service.map_err(mscclpp::Error::from)?;
        let src = service.add_memory(&registered).map_err(mscclpp::Error::from)?;
        let mut all = Vec::with_capacity(channels);
        for n in 0..remote.len() {
            let of_link = || -> Result<Vec<PortChannel>, ProxyError> {
                let links: Vec<_> = meshes.iter().map(|mesh| &mesh.links()[n]).collect();
                let dst = links.iter().map(|link| service.add_memory(&link.memories[0]));
                let dst = dst.collect::<Result<Vec<_>, _>>()?;
                // The lanes of a channel take turns on the connections.
                let channel = |at: usize| {
                    let (connection, lane) = (at % links.len(), at / links.len());
                    let semaphore = service.add_semaphore(&links[connection].semaphores[lane])?;
                    service.port_channel(semaphore, dst[connection], src)
                };
                (0..CHANNELS * lanes as usize).map(channel).collect()
            };
            all.extend(of_link().map_err(mscclpp::Error::from)?);
        }
        for (i, channel) in all.iter().enumerate() {
            handles.write_params(i as u64 * HANDLE, &[channel.device_handle()])?;
        }
        service.start_proxy(true).map_err(mscclpp::Error::from)?;
        // Everybody can take what is put before anybody puts.
        group.all(true)?;
        let reduce = |words: &str| module.kernel(&format!("reduce_across_{words}"));
        let call = CollectiveAcross {
            transfers: [Transfer::NONE; MAX_RANKS_OF_NODES],
            channels: handles.ptr(),
            counts: counts.ptr(),
            memory: rings.ptr(),
            inbox: 0,
            outbox,
            place,
            most: 0,
            count: 0,
            lanes,
            own: 0,
            data_type: 0,
            op: 0,
            divisor: group.ranks().len() as u32,
            scale: 0,
            scaled: 0,
            messages: 0,
            epochs,
            found: found.ptr(),
        };
        let of_channels = all.iter().filter_map(|channel| KernelArgument::owner(&channel));
        let buffers = [&scratch, &handles, &counts];
        let of_buffers = buffers.iter().filter_map(KernelArgument::owner);
        let of_host = rings.owner().into_iter().chain((&found).owner());
        let owners = of_channels.chain(of_buffers).chain(of_host).chain(kept);
        // The service must be the last, as owners are dropped in their order: it outlives the channels and their memory.
        let owners: Vec<Owner> = owners.chain([Arc::new(Kept(service)) as Owner]).collect();
        Ok(Self {
            owner: Arc::new(owners),
            channels: all,
            scratch,
            rings,
            handles,
            counts,
            found,
            move_across: module.kernel("move_across")?,
            reduce_across: [reduce("any")?, reduce("f16_sum")?, reduce("bf16_sum")?, reduce("f32_sum")?],
            call,
        })
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        let rings = if let Rings::Device(rings) = &self.rings { rings.len() } else { 0 };
        rings + self.scratch.len() + self.handles.len() + self.counts.len()
    }

    pub(crate) fn semaphores(&self) -> impl Iterator<Item = &Semaphore> {
        self.channels.iter().map(PortChannel::semaphore)
    }

    pub(crate) fn check_waits(&self) -> Result<(), mscclpp::Error> {
        Ok(self.channels.iter().try_for_each(Abort::check)?)
    }

    /// The lengths of a message of a rank on another node, if they differ.
    pub(super) fn other_length(&self, rank: &RankState, topology: &Topology) -> Result<Option<Lengths>> {
        // Pairs with the kernel's release, behind the lengths.
        let number = self.found.word(0)?.load(Ordering::Acquire);
        let Some(channel) = number.checked_sub(1) else { return Ok(None) };
        let length = |n: u64| Ok::<_, Error>(self.found.word(16 * number + 8 * n)?.load(Ordering::Relaxed));
        let peer = topology.remote()[channel as usize / CHANNELS];
        Ok(Some(Lengths { from: rank.group.ranks()[peer], sent: length(0)?, taken: length(1)? }))
    }

    fn transfer(&self, topology: &Topology, it: Across, of: Use) -> Transfer {
        let Across { peer, send, recv, send_bytes, recv_bytes } = it;
        let (here, there) = topology.link(peer);
        let own = topology.locals()[topology.index];
        // The first of a link's channels for messages is that of the lower rank.
        let (channel, ring) = match of {
            Use::Collective => (0, 0),
            Use::Message { sent } if sent == (own < peer) => (1, 1),
            Use::Message { .. } => (2, 1),
        };
        Transfer {
            send,
            recv,
            send_bytes,
            recv_bytes,
            channel: (here * CHANNELS + channel) as u32,
            ring: (here as u64 * RINGS) as u32 + ring,
            their_ring: (there as u64 * RINGS) as u32 + ring,
            chunk: self.chunk(send_bytes.max(recv_bytes), of),
        }
    }

    /// The size of the chunks of a message: both sides know the same.
    fn chunk(&self, bytes: u64, of: Use) -> u32 {
        let head = if of == Use::Collective { 0 } else { ACROSS_HEAD };
        chunk_of(bytes, self.call.lanes.into(), self.call.place - head) as u32
    }

    /// Puts transfers, each over a channel of its own, into the stream: all of collectives, or all messages.
    ///
    /// # Safety
    /// The memory lives until the launch is complete, and the device reaches it.
    pub(super) unsafe fn exchange(
        &self,
        rank: &RankState,
        topology: &Topology,
        moves: &[(Across, Use)],
        raw: Option<(ReduceOp, DataType)>,
        call: &Call<'_>,
    ) -> Result<()> {
        let mut across = self.scaled(raw);
        across.messages = moves.iter().any(|(_, of)| *of != Use::Collective).into();
        for (transfer, (it, of)) in across.transfers.iter_mut().zip(moves) {
            *transfer = self.transfer(topology, *it, *of);
            across.count += 1;
        }
        let config = LaunchConfig::linear(across.count * across.lanes, rank.threads());
        let args = call.keeping(&self.owner).with(across);
        // SAFETY: it is its parameter; the caller answers for the memory.
        unsafe { call.launch(&self.move_across, config, &args)? };
        Ok(())
    }

    /// # Safety
    /// The same as of [`Channels::exchange`].
    pub(super) unsafe fn reduce(
        &self,
        rank: &RankState,
        topology: &Topology,
        reduction: &Reduction,
        call: &Call<'_>,
    ) -> Result<()> {
        let Reduction { ref sources, own, recv, bytes, most, op, data_type, raw } = *reduction;
        let mut across = self.scaled(raw.then_some((op, data_type)));
        let chunk = self.chunk(most, Use::Collective);
        for (n, (transfer, source)) in across.transfers.iter_mut().zip(sources).enumerate() {
            *transfer = match *source {
                Origin::Here(send) => Transfer { send, chunk, ..Transfer::NONE },
                Origin::Peer { peer, send, send_bytes } => {
                    let it = Across { peer, send, recv: DevicePtr::NULL, send_bytes, recv_bytes: bytes };
                    Transfer { chunk, ..self.transfer(topology, it, Use::Collective) }
                }
            };
            if n == own {
                (transfer.recv, transfer.recv_bytes) = (recv, bytes);
            }
        }
        (across.count, across.own, across.most) = (sources.len() as u32, own as u32, most);
        (across.data_type, across.op) = (data_type as u32, op.number());
        // Averages of all nodes are made by the kernel for any operation.
        let words =
            if op == ReduceOp::Avg { WordOperation::Any } else { WordOperation::of(Some(op), data_type) };
        let kernel = match words {
            WordOperation::F16Sum => &self.reduce_across[1],
            WordOperation::Bf16Sum => &self.reduce_across[2],
            WordOperation::F32Sum => &self.reduce_across[3],
            WordOperation::Any | WordOperation::Move => &self.reduce_across[0],
        };
        let config = LaunchConfig::linear(across.lanes, rank.threads());
        let args = call.keeping(&self.owner).with(across);
        // SAFETY: it is its parameter; the caller answers for the memory.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(())
    }

    /// A call that multiplies the program's numbers, if they are `raw`.
    fn scaled(&self, raw: Option<(ReduceOp, DataType)>) -> CollectiveAcross {
        let (scale, scaled) = raw.map_or((0, 0), |(op, data_type)| op.scale(data_type));
        CollectiveAcross {
            data_type: raw.map_or(0, |(_, data_type)| data_type as u32),
            scaled,
            scale,
            ..self.call
        }
    }
}

/// The size of the chunks of a message that `lanes` lanes share, where a place has so many bytes.
fn chunk_of(bytes: u64, lanes: u64, place: u64) -> u64 {
    let share = bytes.div_ceil(lanes);
    let least = share.clamp(LEAST_SHARE, LEAST_CHUNK);
    share.div_ceil(CHUNKS_OF_A_LANE).max(least).next_multiple_of(16).min(place)
}

/// How many lanes a channel has, so many that all blocks of a launch fit on a device at once; and by how many connections
/// they go, each with as many of them.
fn lanes_and_connections(gpu: &Gpu, topology: &Topology, connections: u32) -> (u32, u32) {
    let most_lanes = if gpu.platform() == Platform::Sim { 1 } else { LANES_ON_GPUS };
    let fit = (MAX_RANKS_OF_NODES as u32 / topology.most_links() as u32).max(1);
    let connections = connections.clamp(1, fit);
    (fit.min(most_lanes).max(connections) / connections * connections, connections)
}

/// The bytes of a place, and of the memory for steps: three quarters are for rings, at both ends of each.
fn place_and_scratch(links: u64, lanes: u64, bytes: u64) -> Result<(u64, u64)> {
    let places = 2 * links * RINGS * lanes * ACROSS_RING;
    let place = (bytes / 4 * 3 / places).min(MOST_PLACE) / 16 * 16;
    let scratch = (bytes - places * place).min(1 << 30) / 16 * 16;
    if place >= LEAST_PLACE {
        return Ok((place, scratch));
    }
    Err(Error::InvalidArgument(format!(
        "{bytes} bytes of scratch are too few for {links} ranks on other nodes; {} are enough",
        places * LEAST_PLACE * 4 / 3 + 4
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_few_until_they_are_large() {
        let chunks = |kib: u64, lanes| {
            (chunk_of(kib << 10, lanes, MOST_PLACE) >> 10, chunk_of(kib << 10, lanes, 4096))
        };
        let cases = [
            (1, 1, 32),
            (64, 1, 64),
            (256, 1, 128),
            (1 << 10, 1, 128),
            (4 << 10, 1, 512),
            (64 << 10, 1, 1024),
            (64, 4, 32),
            (256, 4, 64),
            (1 << 10, 4, 128),
            (4 << 10, 4, 128),
            (16 << 10, 4, 512),
        ];
        for (kib, lanes, chunk) in cases {
            assert_eq!(chunks(kib, lanes), (chunk, 4096), "{kib} KiB by {lanes} lanes");
        }
    }

    #[test]
    fn places_and_scratch_stay_in_the_budget() {
        for links in [1, 2, 9, 56] {
            for lanes in [1, 4] {
                let least = 2 * links * RINGS * lanes * ACROSS_RING * LEAST_PLACE * 4 / 3 + 4;
                for bytes in [least, 16 << 20, 128 << 20, 4 << 30] {
                    let Ok((place, scratch)) = place_and_scratch(links, lanes, bytes) else {
                        assert!(bytes < least, "{links} {lanes} {bytes}");
                        continue;
                    };
                    let all = 2 * links * RINGS * lanes * ACROSS_RING * place + scratch;
                    assert!(all <= bytes && place.is_multiple_of(16) && scratch >= 16);
                    // Offsets of port channels have 32 bits.
                    assert!(all - scratch < 1 << 32);
                }
                let error = place_and_scratch(links, lanes, 4096).unwrap_err().to_string();
                assert!(error.contains(&format!("{least} are enough")), "{error}");
            }
        }
    }
}
