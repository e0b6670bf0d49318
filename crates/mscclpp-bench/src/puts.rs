//! Puts over connections, from rank 0's memory to rank 1's.

use std::time::Duration;

use mscclpp::errors::CoreError;

use crate::{
    data::{GUARD, HostMemory, Memory},
    one_way::Transfer,
    prelude::*,
};

/// The time limit for all rounds of one time.
const LIMIT: Duration = Duration::from_secs(120);

/// Puts of messages, each divided among the connections.
pub(crate) struct Puts<'a> {
    ranks: &'a Ranks,
    connections: Vec<Connection>,
    mine: RegisteredMemory,
    peers: RegisteredMemory,
    memory: Box<dyn Memory>,
}

impl<'a> Puts<'a> {
    /// Connects host memories, for messages of up to `largest` bytes.
    pub(crate) fn between_nodes(
        ranks: &'a Ranks,
        config: &EndpointConfig,
        connections: u32,
        largest: u64,
    ) -> Result<Self> {
        let memory = HostMemory::new(largest + 2 * GUARD);
        let mine = memory.register(ranks, config.transport)?;
        Self::new(ranks, config, connections, mine, memory)
    }

    /// Connects device memories, for messages of up to `largest` bytes.
    pub(crate) fn between_gpus(
        pair: &'a Pair,
        transport: Transport,
        connections: u32,
        largest: u64,
    ) -> Result<Self> {
        let memory = pair.gpu.allocate(largest + 2 * GUARD)?;
        let mine = pair.ranks.comm.register_buffer(&memory, transport)?;
        let config = EndpointConfig::new(transport, Device::gpu(pair.gpu.id()));
        Self::new(&pair.ranks, &config, connections, mine, memory)
    }

    fn new(
        ranks: &'a Ranks,
        config: &EndpointConfig,
        connections: u32,
        mine: RegisteredMemory,
        memory: impl Memory + 'static,
    ) -> Result<Self> {
        let connections = (0..connections).map(|_| ranks.connect(config.clone())).collect::<Result<_>>()?;
        let peers = ranks.share(&mine)?;
        Ok(Self { ranks, connections, mine, peers, memory: Box::new(memory) })
    }

    fn put(&self, bytes: u64, rounds: u32) -> Result<(), CoreError> {
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
        // The receiver does nothing: the transport receives.
        if self.ranks.rank == 0 {
            self.put(bytes, rounds).map_err(|error| self.ranks.comm.explain(error))?;
        }
        Ok(())
    }
}
