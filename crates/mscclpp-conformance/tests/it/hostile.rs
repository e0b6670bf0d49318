//! Bytes that no peer's library made: reading them gives an error of one kind, takes little memory, and never panics.

use std::cell::Cell;

use consumer_own_transport::knobs::{Reach, TestPost};
use mscclpp_core::{Context, Device, Endpoint, EndpointConfig, Error, RegisteredMemory, SemaphoreStub};
use mscclpp_gpu::Platform;
use mscclpp_test_support::{Noting, Random};

thread_local! {
    /// The largest allocation of this thread.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

extern "C" fn note(bytes: usize) {
    // The thread-local value does not exist any more while the thread ends.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

#[global_allocator]
static ALLOCATOR: Noting = Noting(note);

const INPUTS: usize = 10_000;
const MOST_MEMORY: usize = 1 << 20;

/// A kind of object that crosses process boundaries.
struct Kind {
    name: &'static str,
    read: fn(&[u8]) -> Result<Vec<u8>, Error>,
    valid: Vec<u8>,
}

fn kinds() -> [Kind; 4] {
    let context = Context::builder()
        .provider(TestPost::open(Reach::Stores).expect("a hub"))
        .platform(Platform::Sim)
        .build();
    let endpoint = context.create_endpoint(EndpointConfig::new(TestPost::TRANSPORT, Device::gpu(0))).unwrap();
    let buffer = context.gpu(0).unwrap().allocate(4096).unwrap();
    let memory = context.register_buffer(&buffer, TestPost::TRANSPORT).unwrap();
    let stub = SemaphoreStub::new(&context.connect(&endpoint, &endpoint).unwrap()).unwrap();
    [
        Kind {
            name: "endpoint",
            read: |bytes| Endpoint::deserialize(bytes)?.serialize(),
            valid: endpoint.serialize().unwrap(),
        },
        Kind {
            name: "memory",
            read: |bytes| RegisteredMemory::deserialize(bytes)?.serialize(),
            valid: memory.serialize().unwrap(),
        },
        Kind {
            name: "stub",
            read: |bytes| SemaphoreStub::deserialize(bytes)?.serialize(),
            valid: stub.serialize().unwrap(),
        },
        Kind {
            name: "stubs",
            read: |bytes| SemaphoreStub::serialize_all(&SemaphoreStub::deserialize_all(bytes)?),
            valid: SemaphoreStub::serialize_all(&[stub.clone(), stub]).unwrap(),
        },
    ]
}

/// Spoils `valid` in a random way.
fn spoil(valid: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    match random.below(9) {
        0 => bytes.truncate(random.below(valid.len())),
        1 => {
            let len = 1 + random.below(100);
            bytes.extend(random.bytes(len));
        }
        2 => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        3 => bytes[4..6].copy_from_slice(&(random.word() as u16).to_le_bytes()),
        4 => bytes = others[random.below(others.len())].clone(),
        5 => {
            // This puts a huge number anywhere: lengths and counts are among the places.
            let at = random.below(bytes.len() - 4);
            let huge = [u32::MAX, u32::MAX / 2, 0x4000_0000, 65_536][random.below(4)];
            bytes[at..][..4].copy_from_slice(&huge.to_le_bytes());
        }
        6 => {
            let at = random.below(bytes.len() - 8);
            bytes[at..][..8].copy_from_slice(&(u64::MAX - random.below(1024) as u64).to_le_bytes());
        }
        7 => {
            let len = random.below(600);
            bytes = random.bytes(len);
        }
        _ => {
            // This makes a good envelope around noise.
            let len = random.below(600);
            bytes.truncate(8);
            bytes.extend((len as u32).to_le_bytes());
            bytes.extend(random.bytes(len));
        }
    }
    bytes
}

/// Reads `bytes`, and checks that an error is the right one and that reading them took little memory.
fn read(kind: &Kind, bytes: &[u8]) -> bool {
    LARGEST.set(0);
    let result = (kind.read)(bytes);
    let largest = LARGEST.get();
    assert!(largest <= MOST_MEMORY, "{}: {largest} bytes were allocated at once for {bytes:02x?}", kind.name);
    match result {
        Ok(again) => {
            assert_eq!(again, bytes, "{}: what was read is not what was there", kind.name);
            true
        }
        Err(Error::Malformed { .. }) => false,
        Err(other) => panic!("{}: {other:?} for {bytes:02x?}", kind.name),
    }
}

pub(crate) fn malformed_inputs_are_errors() {
    let seed = 0x006d_7363_636c_7070;
    println!("seed {seed:#x}, {INPUTS} inputs of each kind");
    let kinds = kinds();
    for (i, kind) in kinds.iter().enumerate() {
        let mut random = Random::with_seed(seed);
        let others: Vec<Vec<u8>> =
            (0..kinds.len()).filter(|other| *other != i).map(|other| kinds[other].valid.clone()).collect();
        assert!(read(kind, &kind.valid), "{}: what is right is read", kind.name);
        let refused = (0..INPUTS).filter(|_| !read(kind, &spoil(&kind.valid, &others, &mut random))).count();
        println!("{}: {refused} of {INPUTS} refused, the others well-formed", kind.name);
        assert!(refused > INPUTS / 2, "most of these are malformed");
    }
}

pub(crate) fn what_is_certainly_wrong_is_refused() {
    let kinds = kinds();
    for kind in &kinds {
        for len in 0..kind.valid.len() {
            assert!(!read(kind, &kind.valid[..len]), "{}: {len} bytes of {}", kind.name, kind.valid.len());
        }
        assert!(!read(kind, &[&kind.valid[..], &[0]].concat()), "{}: a byte too many", kind.name);
        for other in kinds.iter().filter(|other| other.name != kind.name) {
            assert!(!read(kind, &other.valid), "{} read as {}", other.name, kind.name);
        }
        // The whole header is checked.
        for at in 0..12 {
            for bit in 0..8 {
                let mut bytes = kind.valid.clone();
                bytes[at] ^= 1 << bit;
                assert!(!read(kind, &bytes), "{}: bit {bit} of byte {at}", kind.name);
            }
        }
        // The content is longer than any reader takes, with a correct length.
        let mut huge = kind.valid.clone();
        huge.resize(12 + 65_537, 0);
        huge[8..12].copy_from_slice(&65_537u32.to_le_bytes());
        assert!(!read(kind, &huge), "{}: over the limit", kind.name);
    }
}
