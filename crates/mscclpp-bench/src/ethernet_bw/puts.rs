//! Puts over Ethernet connections.

use std::time::Duration;

use mscclpp::prelude::*;

use crate::{
    Result,
    data::{GUARD, Memory},
    host_memory::HostMemory,
    one_way::Transfer,
    pair::Pair,
    ranks::Ranks,
};

/// For all rounds of one time.
const LIMIT: Duration = Duration::from_secs(120);

/// From rank 0 to rank 1, each message in as many parts as there are connections.
pub(super) struct Puts<'a> {
    ranks: &'a Ranks,
    connections: Vec<Connection>,
    mine: RegisteredMemory,
    peers: RegisteredMemory,
    memory: Box<dyn Memory>,
}

impl<'a> Puts<'a> {
    /// From host memory to host memory, of up to `largest` bytes.
    pub(super) fn between_hosts(ranks: &'a Ranks, connections: u32, largest: u64) -> Result<Self> {
        let memory = Box::new(HostMemory::new(largest + 2 * GUARD));
        let mine = memory.register(ranks, Transport::ETHERNET)?;
        Self::new(ranks, Device::CPU, connections, mine, memory)
    }

    /// From a device's memory to the other's.
    pub(super) fn between_gpus(pair: &'a Pair, connections: u32, largest: u64) -> Result<Self> {
        let memory = pair.gpu.allocate(largest + 2 * GUARD)?;
        let mine = pair.ranks.comm.register_buffer(&memory, Transport::ETHERNET)?;
        Self::new(&pair.ranks, Device::gpu(pair.gpu.id()), connections, mine, Box::new(memory))
    }

    fn new(
        ranks: &'a Ranks,
        device: Device,
        connections: u32,
        mine: RegisteredMemory,
        memory: Box<dyn Memory>,
    ) -> Result<Self> {
        let config = EndpointConfig::new(Transport::ETHERNET, device);
        let connections = (0..connections)
            .map(|_| Ok(ranks.comm.connect(config.clone(), ranks.other(), 0)?.wait()?))
            .collect::<Result<_>>()?;
        let peers = ranks.share(&mine)?;
        Ok(Self { ranks, connections, mine, peers, memory })
    }

    fn put(&self, bytes: u64, rounds: u32) -> mscclpp::Result<(), mscclpp::errors::CoreError> {
        let part = bytes.div_ceil(self.connections.len() as u64);
        for _ in 0..rounds {
            let mut at = 0;
            for connection in &self.connections {
                let size = part.min(bytes - at);
                if size > 0 {
                    connection.write(&self.peers, GUARD + at, &self.mine, at, size)?;
                }
                at += size;
            }
        }
        self.connections.iter().try_for_each(|connection| connection.flush(LIMIT))
    }
}

impl Transfer for Puts<'_> {
    fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    fn carry(&self, bytes: u64, rounds: u32) -> Result<()> {
        // The receiver's side is the transport's affair.
        if self.ranks.rank == 0 {
            self.put(bytes, rounds).map_err(|error| self.ranks.comm.explain(error))?;
        }
        Ok(())
    }
}
