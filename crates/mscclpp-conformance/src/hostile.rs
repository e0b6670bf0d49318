//! Made-up bytes in place of what a peer's library sends: they are an error or harmless, never a panic, never a hang.

use std::time::Duration;

use mscclpp_core::{Context, Endpoint, Error, RegisteredMemory, Semaphore, SemaphoreStub};

use crate::{
    Cases, Setup,
    pair::{End, PATIENCE, Pair, assert_error, received, within},
};

pub(crate) const CASES: Cases = cases!["hostile":
    endpoints_are_parsed_as_hostile,
    memories_are_parsed_as_hostile,
    stubs_are_parsed_as_hostile,
    a_token_at_an_odd_address_is_refused,
];

/// The limit for all variants of one serialization together.
const LIMIT: Duration = Duration::from_secs(240);

/// Returns every truncation, every byte with one bit and with all bits flipped, and a byte too many.
fn variants(bytes: &[u8]) -> Vec<Vec<u8>> {
    let truncated = (0..bytes.len()).map(|len| bytes[..len].to_vec());
    let flipped = (0..bytes.len()).flat_map(|at| {
        [1 << (at % 8), 0xff].map(|mask| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= mask;
            bytes
        })
    });
    truncated.chain(flipped).chain([[bytes, &[0]].concat()]).collect()
}

fn endpoints_are_parsed_as_hostile(setup: &dyn Setup) {
    let (a, b) = (End::open(setup, 0), End::open(setup, 1));
    let bytes = b.endpoint.serialize().expect("serializing");
    let context: Context = a.context.clone();
    let local = a.endpoint.clone();
    within(LIMIT, "connecting to made-up endpoints", move || {
        for bytes in variants(&bytes) {
            if let Ok(endpoint) = Endpoint::deserialize(&bytes) {
                // Some flips make another valid endpoint; only a hang would be a failure.
                let _ = context.connect(&local, &endpoint);
            }
        }
    });
    still_works(&a, &b);
}

fn memories_are_parsed_as_hostile(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (target, source) = (pair.b.share(4096), pair.a.share(4096));
    let bytes = target.memory.serialize().expect("serializing");
    let (connection, local) = (pair.ab.clone(), source.memory.clone());
    within(LIMIT, "importing made-up memories", move || {
        for bytes in variants(&bytes) {
            if let Ok(memory) = RegisteredMemory::deserialize(&bytes) {
                // Nothing is written: a variant may name another live memory of this process.
                let _ = connection.write(&memory, 0, &local, 0, 0);
            }
        }
    });
    assert_eq!(target.bytes(), [0; 4096]);
    still_works(&pair.a, &pair.b);
}

fn stubs_are_parsed_as_hostile(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let ours = SemaphoreStub::new(&pair.ab).expect("a stub");
    let bytes = SemaphoreStub::new(&pair.ba).expect("a stub").serialize().expect("serializing");
    within(LIMIT, "joining made-up stubs", move || {
        for bytes in variants(&bytes) {
            if let Ok(theirs) = SemaphoreStub::deserialize(&bytes) {
                let _ = Semaphore::new(&ours, &theirs);
            }
        }
    });
    still_works(&pair.a, &pair.b);
}

/// Tries a stub whose memory starts at an address where no atomic operation is possible.
fn a_token_at_an_odd_address_is_refused(setup: &dyn Setup) {
    if !setup.maps_peer_memory() {
        return;
    }
    let pair = Pair::connect(setup);
    let buffer = pair.b.gpu.allocate(8192).expect("a buffer");
    let ours = SemaphoreStub::new(&pair.ab).expect("a stub");
    let good = SemaphoreStub::new(&pair.ba).expect("a stub").serialize().expect("serializing");
    // SAFETY: the range is inside `buffer`, which outlives the registration.
    let odd = unsafe { pair.b.context.register_memory(buffer.ptr().add(4), 4096, setup.transport()) };
    let memory = odd.as_ref().expect("registering").serialize().expect("serializing");
    // The new stub consists of the good one's fields before its memory (the last is the offset, here 0), then the odd
    // memory.
    let mut bytes = good[..12 + 16].to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((memory.len() as u32).to_le_bytes());
    bytes.extend(memory);
    let content = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&content.to_le_bytes());
    let theirs = SemaphoreStub::deserialize(&bytes).expect("well-formed, but useless");
    assert_error!(Semaphore::new(&ours, &theirs), Error::Malformed { .. });
}

/// Checks that both ends still work: they connect, and bytes arrive.
fn still_works(a: &End, b: &End) {
    let connection = a.context.connect(&a.endpoint, &received(&b.endpoint)).expect("connecting after");
    let (source, target) = (a.share_bytes(&[6; 100]), b.share(100));
    connection.write(&target.at_peer, 0, &source.memory, 0, 100).expect("write");
    connection.flush(PATIENCE).expect("flush");
    assert_eq!(target.bytes(), [6; 100]);
}
