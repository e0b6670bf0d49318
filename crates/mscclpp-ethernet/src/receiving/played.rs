//! A receiving end in memory: the code that runs on sockets, fed by a test or a fuzzer instead.

use std::{collections::VecDeque, io, sync::Arc};

use fastrand::Rng;
use mscclpp_core::MemoryRegion;
use mscclpp_gpu::DevicePtr;
use mscclpp_net::links::header::{Inbound, Outbound, SealKey};

use crate::{
    regions::{KnownRegions, Regions},
    settings::Settings,
    socket::Piece,
};

use super::{
    placer::Placer,
    receiver::{End, Receiver},
    wire::Wire,
};

/// The bytes that have arrived, handed out in chunks of any size, and the answers to them.
pub(crate) struct Played {
    incoming: VecDeque<u8>,
    answers: Vec<u8>,
    random: Rng,
}

impl Wire for Played {
    unsafe fn receive(&mut self, pieces: &[Piece], _: &mut dyn FnMut() -> bool) -> io::Result<usize> {
        let mut left = (1 + self.random.usize(..3000)).min(self.incoming.len());
        let mut count = 0;
        for piece in pieces {
            let taken = left.min(piece.len);
            let bytes: Vec<u8> = self.incoming.drain(..taken).collect();
            // SAFETY: the caller promises that the pieces are writable.
            unsafe { piece.start.copy_from_nonoverlapping(bytes.as_ptr(), taken) };
            left -= taken;
            count += taken;
        }
        Ok(count)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.answers.extend(bytes);
        Ok(())
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// A process's table of regions with one region in it, whose memory has guards before and behind it.
pub(crate) struct Stage {
    memory: Box<[u64]>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) region: Arc<MemoryRegion>,
}

/// The region's length in bytes.
pub(crate) const LEN: u64 = 4096;
const GUARD: usize = 4096;
const PATTERN: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// The key of the played connections.
pub(crate) const SEAL: SealKey = *b"sixteen byte key";

impl Stage {
    pub(crate) fn new() -> Self {
        let mut memory = vec![PATTERN; (2 * GUARD + LEN as usize) / 8].into_boxed_slice();
        memory[GUARD / 8..][..LEN as usize / 8].fill(0);
        let start = DevicePtr(memory.as_mut_ptr().addr() as u64 + GUARD as u64);
        // SAFETY: the memory is kept beside the region.
        let region = unsafe { MemoryRegion::of_host(start, LEN) }.expect("random numbers");
        let regions = Arc::new(Regions::default());
        regions.register(&region);
        Self { memory, regions, region }
    }

    /// Plays `bytes` to a receiving end. Returns how receiving ended, and the answers.
    pub(crate) fn play(&self, bytes: &[u8], seed: u64) -> (End, Vec<u8>) {
        let wire = Played {
            incoming: bytes.iter().copied().collect(),
            answers: Vec::new(),
            random: Rng::with_seed(seed),
        };
        let mut receiver = Receiver::new(
            wire,
            Inbound::new(&SEAL),
            Outbound::new(&SEAL),
            KnownRegions::new(self.regions.clone(), None),
            Placer::new(Settings::default()),
        );
        let end = receiver.run();
        (end, std::mem::take(&mut receiver.wire_mut().answers))
    }

    /// The content of the region.
    ///
    /// # Panics
    /// If memory around the region was touched.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: this is the value's own memory, which was also written through the region's address.
        let memory: Vec<u64> =
            (0..self.memory.len()).map(|i| unsafe { self.memory.as_ptr().add(i).read_volatile() }).collect();
        let (before, rest) = memory.split_at(GUARD / 8);
        let (region, behind) = rest.split_at(LEN as usize / 8);
        assert!(
            before.iter().chain(behind).all(|word| *word == PATTERN),
            "memory outside the region was written"
        );
        region.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}
