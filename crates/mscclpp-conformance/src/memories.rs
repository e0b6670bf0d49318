//! Memories: registering them, sending them, and using the wrong one.

use mscclpp_core::{Error, RegisteredMemory, TransportFlags};

use crate::{
    Cases, Setup,
    pair::{
        End, PATIENCE, Pair, SharedMemory, assert_error, assert_same, builder, device, eventually, noise,
        other_transport, received, travel,
    },
};

pub(crate) const CASES: Cases = cases!["memories":
    a_memory_survives_its_journey,
    a_pointer_is_there_once_mapped,
    a_context_maps_a_memory_without_a_connection,
    part_of_an_allocation_is_a_memory_too,
    one_memory_serves_several_transports,
    bad_registrations_are_refused,
    registered_for_nothing_it_is_for_local_use,
    peers_cannot_use_what_is_for_local_use,
    an_unregistered_transport_is_refused,
    a_source_must_be_registered_here,
    a_memory_of_another_process_is_refused,
    a_dropped_registration_is_noticed,
    a_false_length_is_refused,
];

fn a_memory_survives_its_journey(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let SharedMemory { buffer, memory, at_peer } = pair.b.share(12345);
    let bytes = memory.serialize().expect("serializing");
    assert!(bytes.len() <= 16 << 10, "a memory of {} bytes is too much to send around", bytes.len());
    for memory in [&memory, &at_peer] {
        assert_eq!(memory.size(), 12345);
        assert_eq!(memory.transports(), TransportFlags::from(setup.transport()));
    }
    assert!(memory.is_local() && !at_peer.is_local());
    assert_eq!(memory.data(), Some(buffer.ptr()));
    assert_eq!(at_peer.data(), None, "nothing is mapped before its first use");
    assert_eq!(at_peer.serialize().expect("serializing again"), bytes);
}

fn a_pointer_is_there_once_mapped(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (used, asked_for, source) = (pair.b.share(64), pair.b.share(64), pair.a.share(64));
    pair.ab.write(&used.at_peer, 0, &source.memory, 0, 0).expect("a write of nothing");
    let ptr = pair.ab.peer_ptr(&asked_for.at_peer).expect("asking for a pointer");
    for (memory, ptr) in [(&used.at_peer, used.at_peer.data()), (&asked_for.at_peer, ptr)] {
        assert_eq!(ptr.is_some(), setup.maps_peer_memory());
        assert_eq!((memory.data(), pair.ab.peer_ptr(memory).expect("asking again")), (ptr, ptr));
    }
}

/// Checks that the mapping is the same as a connection's.
fn a_context_maps_a_memory_without_a_connection(setup: &dyn Setup) {
    let (a, b) = (End::open(setup, 0), End::open(setup, 1));
    let shared = b.share(64);
    assert_eq!(b.context.map_memory(&shared.memory, &b.gpu).expect("its owner"), Some(shared.buffer.ptr()));
    assert!(b.context.may_map(&shared.memory));
    assert!(a.context.may_map(&shared.at_peer) || !setup.maps_peer_memory());
    let ptr = a.context.map_memory(&shared.at_peer, &a.gpu).expect("mapping");
    assert_eq!(ptr.is_some(), setup.maps_peer_memory());
    assert_eq!(shared.at_peer.data(), ptr);
    assert_eq!(a.context.map_memory(&shared.at_peer, &a.gpu).expect("mapping again"), ptr);
    let ab = a.context.connect(&a.endpoint, &received(&b.endpoint)).expect("connecting");
    assert_eq!(ab.peer_ptr(&shared.at_peer).expect("asking"), ptr);
    // One of this memory's transports reaches no peer.
    let both = setup.transport() | other_transport(setup);
    let for_both = b.context.register_buffer(&shared.buffer, both).expect("a registration");
    let both = travel(&for_both);
    match setup.maps_peer_memory() {
        true => assert!(a.context.map_memory(&both, &a.gpu).expect("over the other").is_some()),
        false => assert_error!(a.context.map_memory(&both, &a.gpu), Error::Unreachable { .. }),
    }
    let nothing = mscclpp_core::Context::builder().build();
    assert!(!nothing.may_map(&shared.at_peer));
    assert_error!(nothing.map_memory(&travel(&shared.memory), &a.gpu), Error::NoProvider { .. });
}

/// Writes to parts at every alignment, and checks that their neighbours stay as they were.
fn part_of_an_allocation_is_a_memory_too(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let source = pair.a.share_bytes(&noise(8192));
    for (offset, len) in [(0, 1), (1, 1), (7, 100), (4096, 4096), (4095, 4098), (16383, 1)] {
        let before = noise(16384);
        let buffer = pair.b.gpu.allocate(16384).expect("a buffer");
        buffer.write(0, &before).expect("filling");
        let ptr = buffer.ptr().add(offset);
        // SAFETY: the range is inside `buffer`, which outlives the registration.
        let memory =
            unsafe { pair.b.context.register_memory(ptr, len, setup.transport()) }.expect("registering");
        pair.ab.write(&travel(&memory), 0, &source.memory, 3, len).expect("writing a part");
        pair.ab.flush(PATIENCE).expect("flush");
        let mut expected = before;
        let (offset, len) = (offset as usize, len as usize);
        expected[offset..][..len].copy_from_slice(&source.bytes()[3..][..len]);
        let mut got = vec![0; expected.len()];
        buffer.read(0, &mut got).expect("reading back");
        assert_same(&got, &expected, &format!("a part of {len} bytes at {offset}"));
        drop(memory);
    }
}

fn one_memory_serves_several_transports(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let both = setup.transport() | other_transport(setup);
    let buffer = pair.b.gpu.allocate(256).expect("a buffer");
    let memory = pair.b.context.register_buffer(&buffer, both).expect("registering for two transports");
    let at_peer = travel(&memory);
    assert_eq!(at_peer.transports(), both);
    let source = pair.a.share_bytes(&[9; 256]);
    pair.ab.write(&at_peer, 0, &source.memory, 0, 256).expect("write");
    pair.ab.flush(PATIENCE).expect("flush");
    let mut got = [0; 256];
    buffer.read(0, &mut got).expect("reading back");
    assert_eq!(got, [9; 256]);
}

fn bad_registrations_are_refused(setup: &dyn Setup) {
    let context = builder(setup).build();
    let gpu = context.gpu(device(setup, 0).id.unwrap_or(0)).expect("a GPU");
    let buffer = gpu.allocate(64).expect("a buffer");
    assert_error!(context.register_buffer(&buffer, other_transport(setup)), Error::NoProvider { .. });
    for (ptr, len) in [(buffer.ptr(), 0), (mscclpp_gpu::DevicePtr::NULL, 64), (buffer.ptr(), u64::MAX)] {
        // SAFETY: these calls are refused before anything is accessed.
        let result = unsafe { context.register_memory(ptr, len, setup.transport()) };
        assert_error!(result, Error::InvalidArgument(_));
    }
}

/// Checks that such memory has an address, and that the transport writes from it if it reads any memory; else that
/// the error says what to do.
fn registered_for_nothing_it_is_for_local_use(setup: &dyn Setup) {
    const LEN: u64 = 5000;
    let pair = Pair::connect(setup);
    let target = pair.b.share(LEN);
    let data = noise(LEN as usize);
    let buffer = pair.a.gpu.allocate(LEN + 3).expect("a buffer");
    buffer.write(3, &data).expect("filling");
    let whole = pair.a.context.register_buffer(&buffer, TransportFlags::NONE).expect("a registration");
    let ptr = buffer.ptr().add(3);
    // SAFETY: the range is inside `buffer`, which outlives the registration.
    let part = unsafe { pair.a.context.register_memory(ptr, LEN, TransportFlags::NONE) };
    let part = part.expect("a registration");
    for (memory, ptr, len) in [(&whole, buffer.ptr(), LEN + 3), (&part, ptr, LEN)] {
        assert_eq!((memory.data(), memory.size(), memory.is_local()), (Some(ptr), len, true));
        assert!(memory.transports().none());
        assert_eq!(memory.gpu().map(|gpu| gpu.properties().uuid), Some(pair.a.gpu.properties().uuid));
    }
    let mut queue = pair.ab.open_queue().expect("a queue");
    if !setup.writes_from_local_memory() {
        let error = pair.ab.write(&target.at_peer, 0, &part, 0, LEN).expect_err("it must be registered");
        assert!(matches!(error, Error::NotRegistered { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("the source is registered for no transport"), "{text}");
        assert!(text.contains(&format!("register it for {}", setup.transport())), "{text}");
        assert_error!(queue.route(&target.at_peer, &part), Error::NotRegistered { .. });
        return pair.ab.check().expect("that is no failure of the connection");
    }
    pair.ab.write(&target.at_peer, 0, &whole, 3, LEN).expect("a write");
    pair.ab.flush(PATIENCE).expect("a flush");
    assert_same(&target.bytes(), &data, "written by the connection");
    target.buffer.fill(0, LEN, 0).expect("clearing");
    let route = queue.route(&target.at_peer, &part).expect("a route");
    queue.write(route, 0, 0, LEN).expect("a write");
    // The queue keeps the memory.
    drop(part);
    let ticket = queue.request_flush().expect("a ticket");
    assert!(eventually(PATIENCE, || queue.progress().expect("progress") >= ticket), "a flush hangs");
    assert_same(&target.bytes(), &data, "written by a queue");
}

fn peers_cannot_use_what_is_for_local_use(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let source = pair.a.share(64);
    let buffer = pair.b.gpu.allocate(64).expect("a buffer");
    let memory = pair.b.context.register_buffer(&buffer, TransportFlags::NONE).expect("a registration");
    let at_peer = travel(&memory);
    assert!(at_peer.transports().none() && at_peer.data().is_none() && at_peer.size() == 64);
    let error = pair.ab.write(&at_peer, 0, &source.memory, 0, 64).expect_err("no peer may write there");
    assert!(matches!(error, Error::NotRegistered { .. }), "{error}");
    assert!(error.to_string().contains("the destination is registered for no transport"), "{error}");
    assert_error!(pair.ab.update_and_sync(&at_peer, 0, &mut 0, 1), Error::NotRegistered { .. });
    assert_error!(pair.ab.peer_ptr(&at_peer), Error::NotRegistered { .. });
    let error = pair.a.context.map_memory(&at_peer, &pair.a.gpu).expect_err("nothing to map");
    assert!(error.to_string().contains("for local use alone"), "{error}");
    assert!(!pair.a.context.may_map(&at_peer));
    // The peer's memory is not one of that side's own there, either.
    assert_error!(pair.ba.write(&source.at_peer, 0, &at_peer, 0, 64), Error::InvalidArgument(_));
    pair.ab.check().expect("bad arguments do not fail the connection");
}

fn an_unregistered_transport_is_refused(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (good, source) = (pair.b.share(64), pair.a.share(64));
    let elsewhere = |end: &End| {
        let buffer = end.gpu.allocate(64).expect("a buffer");
        end.context
            .register_buffer(&buffer, other_transport(setup))
            .expect("registering for the other transport")
    };
    let target = travel(&elsewhere(&pair.b));
    assert_error!(pair.ab.write(&target, 0, &source.memory, 0, 64), Error::NotRegistered { .. });
    assert_error!(pair.ab.update_and_sync(&target, 0, &mut 0, 1), Error::NotRegistered { .. });
    let wrong_source = elsewhere(&pair.a);
    assert_error!(pair.ab.write(&good.at_peer, 0, &wrong_source, 0, 64), Error::NotRegistered { .. });
    pair.ab.check().expect("bad arguments do not fail the connection");
}

fn a_source_must_be_registered_here(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (target, source) = (pair.b.share(64), pair.a.share(64));
    assert_error!(pair.ab.write(&target.at_peer, 0, &source.at_peer, 0, 64), Error::InvalidArgument(_));
}

fn a_memory_of_another_process_is_refused(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (target, source) = (pair.b.share(64), pair.a.share(64));
    let mut bytes = target.memory.serialize().expect("serializing");
    let process = pair.b.endpoint.info().process.to_bytes();
    let at = bytes.windows(16).position(|window| window == process).expect("the process id is in there");
    bytes[at] ^= 1;
    let foreign = RegisteredMemory::deserialize(&bytes).expect("well-formed, but of somebody else");
    assert_error!(pair.ab.write(&foreign, 0, &source.memory, 0, 64), Error::InvalidArgument(_));
    assert_error!(pair.ab.update_and_sync(&foreign, 0, &mut 0, 1), Error::InvalidArgument(_));
}

/// Checks that a use after the drop is an error if it is the first, and does no harm if the memory was used before.
fn a_dropped_registration_is_noticed(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let source = pair.a.share_bytes(&[1; 64]);
    let SharedMemory { buffer, memory, at_peer } = pair.b.share(64);
    drop((buffer, memory));
    let refused = pair.ab.write(&at_peer, 0, &source.memory, 0, 64);
    assert!(refused.is_err(), "a memory was imported that is not registered any more");
    pair.ab.check().expect("a stale memory does not fail the connection");

    let SharedMemory { buffer, memory, at_peer } = pair.b.share(64);
    pair.ab.write(&at_peer, 0, &source.memory, 0, 64).expect("write");
    pair.ab.flush(PATIENCE).expect("flush");
    drop((buffer, memory));
    // Whether this is an error depends on whether the platform lets the transport see it. If it does, the connection
    // may fail, as with adapters, whose queue pairs can do nothing more after a key was refused.
    let _ = pair.ab.write(&at_peer, 0, &source.memory, 0, 64);
    let _ = pair.ab.flush(PATIENCE);

    // The source may be dropped as soon as the write is complete.
    let pair = Pair::connect(setup);
    let source = pair.a.share_bytes(&[1; 64]);
    let target = pair.b.share(64);
    pair.ab.write(&target.at_peer, 0, &source.memory, 0, 64).expect("write");
    pair.ab.flush(PATIENCE).expect("flush");
    drop(source);
    assert_eq!(target.bytes(), [1; 64]);
}

/// Checks that this side does not write beyond a peer's memory if the peer claims more than it registered.
fn a_false_length_is_refused(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (target, source) = (pair.b.share(4096), pair.a.share(1 << 20));
    let mut bytes = target.memory.serialize().expect("serializing");
    let at =
        bytes.windows(8).position(|window| window == 4096u64.to_le_bytes()).expect("the length is in there");
    for claimed in [4097u64, 1 << 20, u64::MAX] {
        bytes[at..][..8].copy_from_slice(&claimed.to_le_bytes());
        let liar = RegisteredMemory::deserialize(&bytes).expect("well-formed, but false");
        let offset = (claimed - 1).min(1 << 19);
        let refused = pair.ab.write(&liar, offset, &source.memory, 0, 1);
        assert!(refused.is_err(), "{claimed} bytes were believed of a memory of 4096");
    }
}
