//! Tests of the service that answers peers, which is sent good and bad requests.

use std::time::{Duration, Instant};

use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, Error as CoreError, ProcessId, RegisteredMemory,
    Transport,
};
use mscclpp_gpu::Platform;
use mscclpp_net::env::BadVariable;

use crate::{
    CudaIpc, Error,
    hub::Hub,
    message::{EndpointBlob, Handle, RegionBlob, Request},
    region::Imports,
    socket,
};

fn context() -> Context {
    Context::builder().provider(CudaIpc::new()).platform(Platform::Sim).build()
}

/// Returns this transport's part of a serialized memory, which is at its end.
fn region_blob(memory: &RegisteredMemory) -> RegionBlob {
    let bytes = memory.serialize().unwrap();
    let address = bytes.windows(8).rposition(|w| w == b"mscclpp-").unwrap();
    RegionBlob::decode(&bytes[address - 41..], memory.size()).unwrap()
}

#[test]
fn a_request_with_the_wrong_token_is_refused() {
    let hub = Hub::start().unwrap();
    let EndpointBlob { token, address, .. } = hub.open_endpoint().unwrap();
    let wrong = Request::Link { token: token.map(|b| !b), from: 7 };
    assert!(matches!(socket::ask(&address, wrong), Err(Error::Refused { .. })));
    assert!(matches!(socket::ask(&address, Request::Fetch { token, id: 1 }), Err(Error::Refused { .. })));
    assert_eq!(socket::ask(&address, Request::Link { token, from: 7 }).unwrap().1, Handle::None);
}

#[test]
fn a_closed_endpoint_says_goodbye_and_then_refuses() {
    let hub = Hub::start().unwrap();
    let EndpointBlob { token, address, .. } = hub.open_endpoint().unwrap();
    let (socket, ..) = socket::ask(&address, Request::Link { token, from: 7 }).unwrap();
    hub.close_endpoint(token);
    let mut byte = [0];
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match socket::receive(&socket, &mut byte) {
            Ok((len, _)) => break assert_eq!((len, byte), (1, [b'B'])),
            Err(rustix::io::Errno::AGAIN) if Instant::now() < deadline => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(matches!(socket::ask(&address, Request::Link { token, from: 7 }), Err(Error::Refused { .. })));
}

#[test]
fn nobody_at_the_address_is_a_lost_peer() {
    let hub = Hub::start().unwrap();
    let EndpointBlob { token, address, .. } = hub.open_endpoint().unwrap();
    drop(hub);
    assert!(matches!(socket::ask(&address, Request::Link { token, from: 7 }), Err(Error::Gone { .. })));
}

#[test]
fn garbage_does_not_disturb_the_service() {
    let hub = Hub::start().unwrap();
    let EndpointBlob { token, address, .. } = hub.open_endpoint().unwrap();
    let silent: Vec<_> = (0..50).map(|_| socket::connect_to(&address).unwrap()).collect();
    for len in 0..300usize {
        let stranger = socket::connect_to(&address).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        socket::answer(&stranger, &bytes, None);
    }
    assert!(socket::ask(&address, Request::Link { token, from: 7 }).is_ok());
    drop(silent);
}

#[test]
fn a_dropped_registration_is_no_longer_served() {
    let context = context();
    let gpu = context.gpu(0).unwrap();
    let memory = context.register_buffer(&gpu.allocate(4096).unwrap(), Transport::CUDA_IPC).unwrap();
    let RegionBlob { token, allocation: id, address, .. } = region_blob(&memory);
    let (_, handle, descriptor) = socket::ask(&address, Request::Fetch { token, id }).unwrap();
    assert_eq!(handle, Handle::FileDescriptor);
    assert!(descriptor.is_some());
    // The endpoint keeps the service alive, so that only the registration is missing.
    let _endpoint =
        context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0))).unwrap();
    drop(memory);
    assert!(matches!(socket::ask(&address, Request::Fetch { token, id }), Err(Error::Refused { .. })));
}

#[test]
fn regions_of_one_allocation_share_its_export() {
    let context = context();
    let buffer = context.gpu(0).unwrap().allocate(4096).unwrap();
    // SAFETY: inside a live buffer.
    let register = |offset, len| unsafe {
        context.register_memory(buffer.ptr().add(offset), len, Transport::CUDA_IPC).unwrap()
    };
    let (first, second) = (register(0, 100), register(1000, 96));
    let (a, b) = (region_blob(&first), region_blob(&second));
    assert_eq!((a.token, a.allocation), (b.token, b.allocation));
    assert_eq!((a.offset, b.offset), (0, 1000));
}

#[test]
fn the_current_gpu_is_a_device_that_connects() {
    let context = context();
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::CURRENT_GPU);
    let endpoint = context.create_endpoint(config).unwrap();
    let current = Platform::Sim.current_gpu().unwrap();
    assert_eq!(endpoint.device(), Device::gpu(current.id()));
    context.connect(&endpoint, &endpoint).unwrap().check().unwrap();
}

/// Connects GPU 0 of a context with GPU 1 of another. Returns the connection and the endpoints of both ends.
fn connected(here: &Context, there: &Context) -> (Connection, [Endpoint; 2]) {
    let open = |context: &Context, gpu| {
        context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu))).unwrap()
    };
    let ends = [open(here, 0), open(there, 1)];
    (here.connect(&ends[0], &ends[1]).unwrap(), ends)
}

#[test]
fn a_copy_under_way_does_not_keep_an_export() {
    let (here, there) = (context(), context());
    let target = there.gpu(1).unwrap().allocate(64).unwrap();
    let target = there.register_buffer(&target, Transport::CUDA_IPC).unwrap();
    // Allocated before the connection, so that it is freed after the copy is complete.
    let source = here.gpu(0).unwrap().allocate(64).unwrap();
    // SAFETY: a live buffer.
    let register = || unsafe { here.register_memory(source.ptr(), 64, Transport::CUDA_IPC).unwrap() };
    let (connection, _ends) = connected(&here, &there);
    let first = register();
    let exported = region_blob(&first).allocation;
    connection.write(&target, 0, &first, 0, 64).unwrap();
    drop(first);
    // The second registration stands for other memory at the same address after the first was freed.
    assert_ne!(region_blob(&register()).allocation, exported);
}

#[test]
fn flushes_are_asked_for_once_per_operation() {
    let (here, there) = (context(), context());
    let (connection, _ends) = connected(&here, &there);
    let target = there.gpu(1).unwrap().allocate(64).unwrap();
    let target = there.register_buffer(&target, Transport::CUDA_IPC).unwrap();
    let source =
        here.register_buffer(&here.gpu(0).unwrap().allocate(64).unwrap(), Transport::CUDA_IPC).unwrap();
    let mut queue = connection.open_queue().unwrap();
    let route = queue.route(&target, &source).unwrap();
    queue.write(route, 0, 0, 64).unwrap();
    let ticket = queue.request_flush().unwrap();
    assert_eq!(queue.request_flush().unwrap(), ticket);
    queue.write(route, 0, 0, 64).unwrap();
    let later = queue.request_flush().unwrap();
    assert!(later > ticket);
    let deadline = Instant::now() + Duration::from_secs(30);
    while queue.progress().unwrap() < later {
        assert!(Instant::now() < deadline, "the copies do not end");
        std::thread::yield_now();
    }
}

#[test]
fn a_mapping_is_not_reused_for_more_than_was_mapped() {
    let (context, imports) = (context(), Imports::default());
    let gpu = context.gpu(0).unwrap();
    let memory = context.register_buffer(&gpu.allocate(4096).unwrap(), Transport::CUDA_IPC).unwrap();
    let honest = region_blob(&memory);
    let process = ProcessId::current().unwrap();
    let map = |blob: &RegionBlob| imports.mapping(process, blob, &gpu);
    let _mapped = map(&honest).unwrap();
    map(&RegionBlob { offset: 100, ..honest.clone() }).unwrap();
    let larger = RegionBlob { allocation_size: 1 << 40, offset: 1 << 30, ..honest.clone() };
    assert!(map(&larger).is_err(), "an address far behind the mapping would be given out");
    assert!(map(&RegionBlob { token: [0; 16], ..honest }).is_err());
}

#[test]
fn what_the_core_has_a_variant_for_is_told_with_it() {
    let malformed = Error::Malformed { what: "a region", problem: "it ends in the middle" };
    assert!(matches!(malformed.into(), CoreError::Malformed { what: "a region", .. }));
    let allowed = "0, 1, false or true";
    let environment =
        Error::Environment(BadVariable { variable: "A_SWITCH", value: "maybe".to_owned(), allowed });
    assert!(matches!(environment.into(), CoreError::Environment(BadVariable { variable: "A_SWITCH", .. })));
    let slow = Error::Timeout { address: "mscclpp-0".to_owned(), after: Duration::from_secs(10) };
    assert_eq!(
        CoreError::from(slow).to_string(),
        "asking the peer's process at socket \"mscclpp-0\" did not finish within 10s"
    );
}
