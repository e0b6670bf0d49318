//! Tests of library calls that fail while a connection is made: each is an error that names the call, and nothing is
//! left behind.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_conformance::pair::received;
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, Error, IbConfig, IbMode, RegisteredMemory, Report,
    Transport,
};
use mscclpp_gpu::{DevicePtr, Platform};
use mscclpp_test_support::{LIMIT, until, within};
use mscclpp_verbs_sys as sys;

use crate::{
    ends::{End, Pair, Words},
    world::World,
};
use mscclpp_fake_ib::{Call, Config};

/// Makes both ends of a connection, registers memory, and opens a queue. Returns the first error.
fn set_up(world: &World, mode: IbMode) -> mscclpp_core::Result<()> {
    let memory = [const { AtomicU64::new(0) }; 16];
    let end = |transport: Transport| -> mscclpp_core::Result<(Context, Endpoint, RegisteredMemory)> {
        let context =
            Context::builder().provider(world.builder(mode).build()).platform(Platform::Sim).build();
        let config = EndpointConfig::new(transport, Device::CPU).ib(IbConfig::new());
        let endpoint = context.create_endpoint(config)?;
        let (ptr, len) = (DevicePtr::from_ptr(memory.as_ptr()), size_of_val(&memory) as u64);
        // SAFETY: the words are atomics, and outlive the registration.
        let memory = unsafe { context.register_memory(ptr, len, transport) }?;
        Ok((context, endpoint, memory))
    };
    let (a, b) = (end(Transport::IB0)?, end(Transport::IB1)?);
    let connect = |from: &(Context, Endpoint, _), to: &Endpoint| -> mscclpp_core::Result<Connection> {
        from.0.connect(&from.1, &received(to))
    };
    let (ab, _ba) = (connect(&a, &b.1)?, connect(&b, &a.1)?);
    let theirs = RegisteredMemory::deserialize(&b.2.serialize()?)?;
    ab.write(&theirs, 64, &a.2, 0, 64)?;
    ab.flush(LIMIT)
}

fn assert_fails(mode: IbMode, (device, call, nth, errno): (usize, Call, u64, i32), parts: &[&str]) {
    let world = World::new(Config::new(2));
    world.fake.fail_call(device, call, nth, errno);
    let error = set_up(&world, mode).expect_err("a call fails");
    let error = Report(&error).to_string();
    println!("{call:?} of device {device}: {error}");
    for part in parts {
        assert!(error.contains(part), "{call:?} {nth}: {part} is missing: {error}");
    }
    world.assert_empty();
    assert_eq!(set_up(&world, mode).map_err(|error| error.to_string()), Ok(()), "it works afterwards");
}

#[test]
fn each_call_of_this_side_that_fails_is_named() {
    let text = |errno| std::io::Error::from_raw_os_error(errno).to_string();
    for (call, nth, errno, name) in [
        (Call::GetDeviceList, 1, libc::EPERM, "ibv_get_device_list"),
        // Devices are also opened when they are listed, and one that cannot be opened is left out.
        (Call::OpenDevice, 2, libc::EACCES, "ibv_open_device"),
        (Call::AllocPd, 2, libc::ENOMEM, "ibv_alloc_pd"),
        (Call::QueryDevice, 2, libc::EIO, "ibv_query_device"),
        (Call::QueryPort, 2, libc::EIO, "ibv_query_port of port 1"),
        (Call::RegMr, 1, libc::ENOMEM, "cannot register 128 bytes"),
        (Call::RegMr, 2, libc::EFAULT, "cannot register 128 bytes"),
        (Call::RegMr, 3, libc::ENOMEM, "cannot register"),
        (Call::CreateCq, 1, libc::ENOMEM, "ibv_create_cq"),
        (Call::CreateQp, 1, libc::ENOMEM, "ibv_create_qp"),
        (Call::ModifyQp, 1, libc::EIO, "ibv_modify_qp to INIT"),
        (Call::ModifyQp, 2, libc::EHOSTUNREACH, "ibv_modify_qp to RTR"),
        (Call::ModifyQp, 3, libc::EIO, "ibv_modify_qp to RTS"),
        (Call::PollCq, 1, libc::EIO, "ibv_poll_cq"),
        (Call::PostSend, 1, libc::EIO, "ibv_post_send"),
    ] {
        let device = if call == Call::GetDeviceList { "the verbs library" } else { "fake0" };
        assert_fails(IbMode::Host, (0, call, nth, errno), &[name, device, &text(errno)]);
    }
}

#[test]
fn each_call_of_the_peer_that_fails_is_refused_with_its_cause() {
    let text = |errno| std::io::Error::from_raw_os_error(errno).to_string();
    for (mode, call, nth, errno) in [
        (IbMode::Host, Call::CreateCompChannel, 1, libc::ENOMEM),
        (IbMode::Host, Call::CreateCq, 1, libc::ENOMEM),
        (IbMode::Host, Call::CreateQp, 1, libc::ENOMEM),
        (IbMode::Host, Call::ModifyQp, 1, libc::EIO),
        (IbMode::Host, Call::ModifyQp, 2, libc::EHOSTUNREACH),
        (IbMode::Host, Call::ModifyQp, 3, libc::EIO),
        (IbMode::HostNoAtomic, Call::PostRecv, 3, libc::ENOMEM),
        (IbMode::HostNoAtomic, Call::ReqNotifyCq, 1, libc::EIO),
    ] {
        let parts = ["refused a queue", "its log says more", &text(errno)];
        assert_fails(mode, (1, call, nth, errno), &parts);
    }
}

/// The side that refuses says that the fault is its own, and its adapter serves the next queue.
#[test]
fn a_side_that_refuses_a_queue_says_so_of_itself_and_takes_the_next() {
    for (call, name) in
        [(Call::CreateCompChannel, "ibv_create_comp_channel"), (Call::CreateCq, "ibv_create_cq")]
    {
        let world = World::new(Config::new(2));
        world.fake.fail_call(1, call, 1, libc::ENOMEM);
        let Pair { ab, ba, a, b } = world.pair(IbMode::Host, IbConfig::new());
        ab.open_queue().expect_err("it is refused");
        until("the end of the way back", || ba.check().is_err());
        let error = Report(&ba.check().expect_err("it has failed")).to_string();
        assert!(error.contains(name) && !error.contains("the peer refused"), "{error}");
        let [a, b] = [a, b]
            .map(|end| End::open(end.context, EndpointConfig::new(end.endpoint.transport(), Device::CPU)));
        Pair::of(a, b).ab.open_queue().expect("a queue");
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_left_out() {
    let world = World::new(Config::new(2));
    world.fake.fail_call(0, Call::OpenDevice, 1, libc::EACCES);
    let names = world.builder(IbMode::Host).build().device_names();
    assert_eq!(names, Ok(vec!["fake1".to_owned()]));
}

/// Parts of memories and endpoints that another transport made are refused as such.
#[test]
fn parts_that_this_transport_did_not_make_are_malformed() {
    let world = World::new(Config::new(2));
    let pair = world.pair(IbMode::Host, IbConfig::new());
    let spoilt = |bytes: mscclpp_core::Result<Vec<u8>>| {
        let mut bytes = bytes.expect("serializing");
        let magic = bytes.windows(4).position(|part| part == b"MSIB").expect("the transport's part");
        bytes[magic] = b'X';
        bytes
    };
    let (own, theirs) = (Words::new(&pair.a, 16), Words::new(&pair.b, 16));
    let memory = RegisteredMemory::deserialize(&spoilt(theirs.memory.serialize())).expect("an envelope");
    let endpoint = Endpoint::deserialize(&spoilt(pair.b.endpoint.serialize())).expect("an envelope");
    for (what, result) in [
        ("a registered memory", pair.ab.write(&memory, 0, &own.memory, 0, 64)),
        ("an endpoint", pair.a.context.connect(&pair.a.endpoint, &endpoint).map(drop)),
    ] {
        let error = result.expect_err(what);
        assert!(matches!(&error, Error::Malformed { what: of, .. } if *of == what), "{error}");
        assert!(error.to_string().contains("not made by this transport"), "{error}");
    }
}

/// Queue pairs that benchmarks post to and poll themselves work.
#[test]
fn bare_queue_pairs_carry_what_is_posted_on_them() {
    let world = World::new(Config::new(2));
    let open = |transport| world.builder(IbMode::Host).build().open_bare(transport).expect("a device");
    let [a, b] = [Transport::IB0, Transport::IB1].map(open);
    assert!(a.has_atomics() && a.depth() > 0 && a.name != b.name);
    let words: Box<[AtomicU64; 2]> = Box::new([AtomicU64::new(77), AtomicU64::new(0)]);
    let start = words.as_ptr().expose_provenance() as u64;
    // SAFETY: the memory consists of atomics, which are dropped after the registrations.
    let [at_a, at_b] =
        [&a, &b].map(|device| unsafe { device.register(start, 16, true) }.expect("a registration"));
    let [from, to] = [&a, &b].map(|device| device.queue_pair(4, 1, 64).expect("a queue pair"));
    from.connect(to.path()).expect("one way");
    to.connect(from.path()).expect("the other way");

    let mut place = sys::ibv_sge { addr: start, length: 8, lkey: at_a.local_key() };
    let mut write = sys::ibv_send_wr {
        sg_list: &raw mut place,
        num_sge: 1,
        opcode: sys::IBV_WR_RDMA_WRITE,
        send_flags: sys::IBV_SEND_SIGNALED,
        ..Default::default()
    };
    write.wr.rdma.remote_addr = start + 8;
    write.wr.rdma.rkey = at_b.remote_key();
    let (verbs, qp, [sent, _]) = from.raw();
    let (mut bad, mut done) = (std::ptr::null_mut(), sys::ibv_wc::default());
    // SAFETY: all objects live; the request names registered memory.
    assert_eq!(unsafe { verbs.post_send(qp, &raw mut write, &raw mut bad) }, 0);
    // SAFETY: there is room for one completion.
    let is_done = within(LIMIT, || unsafe { verbs.poll_cq(sent, 1, &raw mut done) } == 1);
    assert!(is_done && done.status == sys::IBV_WC_SUCCESS, "{}", done.status);
    world.fake.settle();
    assert_eq!(words[1].load(Ordering::Acquire), 77);
}
