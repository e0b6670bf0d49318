//! Processes of two users do not talk: both the process that connects and the one that accepts check the socket's user.
//!
//! On Linux a user belongs to a thread, so threads of one process stand for the processes here.

use std::{
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use mscclpp_core::{Context, Device, Endpoint, EndpointConfig, Error, Transport, TransportError};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::Platform;
use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with},
    thread::set_thread_uid,
};

/// Two users who need not exist, neither of them root.
const OWNER: u32 = 61_001;
const OTHER: u32 = 61_002;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    let may = thread::spawn(|| become_user(OTHER).is_ok()).join().expect("a thread that tries");
    let trials = [
        Trial::test("other_user::a_peer_of_another_user_is_not_asked", a_peer_of_another_user_is_not_asked),
        Trial::test(
            "other_user::a_peer_of_another_user_is_turned_away",
            a_peer_of_another_user_is_turned_away,
        ),
    ];
    let trials = trials.into_iter().map(|trial| match may {
        true => trial,
        false => trial.with_kind("needs the right to become another user").with_ignored_flag(true),
    });
    trials.collect()
}

fn become_user(user: u32) -> rustix::io::Result<()> {
    set_thread_uid(rustix::fs::Uid::from_raw(user))
}

fn run_as<T: Send + 'static>(user: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(move || {
        become_user(user).expect("the right to become another user");
        work()
    });
    thread.join().expect("what that user does")
}

/// Opens an endpoint, and with it the service that peers talk to, whose thread belongs to the same user.
fn open() -> (Context, Endpoint) {
    let context = Context::builder().provider(CudaIpc::new()).platform(Platform::Sim).build();
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0));
    let endpoint = context.create_endpoint(config).expect("an endpoint");
    (context, endpoint)
}

fn a_peer_of_another_user_is_not_asked() -> Result<(), Failed> {
    let (_context, endpoint) = run_as(OWNER, open);
    let bytes = endpoint.serialize()?;
    let connect_to = |bytes: Vec<u8>| {
        let remote = Endpoint::deserialize(&bytes).expect("an endpoint");
        let (context, own) = open();
        context.connect(&own, &remote).map(|_| ())
    };
    let sent = bytes.clone();
    match run_as(OTHER, move || connect_to(sent)) {
        Err(Error::Transport(TransportError { transport, error: source }))
            if transport == Transport::CUDA_IPC =>
        {
            let error = source.downcast_ref::<mscclpp_cuda_ipc::Error>();
            let (theirs, ours) = (OWNER, OTHER);
            let named = matches!(
                error,
                Some(mscclpp_cuda_ipc::Error::WrongUser { theirs: t, ours: o, .. }) if (*t, *o) == (theirs, ours)
            );
            assert!(named, "{source}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    run_as(OWNER, move || connect_to(bytes))?;
    Ok(())
}

/// Checks that the owner refuses a peer that does not check users, unlike this library's own peers above.
fn a_peer_of_another_user_is_turned_away() -> Result<(), Failed> {
    let (_context, endpoint) = run_as(OWNER, open);
    let bytes = endpoint.serialize()?;
    let name = bytes.windows(8).rposition(|window| window == b"mscclpp-").expect("the name of a socket");
    let name = bytes[name..name + 40].to_vec();
    let said = run_as(OTHER, move || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        connect(&socket, &SocketAddrUnix::new_abstract_name(&name).expect("a name")).expect("connected");
        let deadline = Instant::now() + LIMIT;
        let mut packets = Vec::new();
        loop {
            let mut bytes = [0; 100];
            match recv(&socket, &mut bytes, RecvFlags::empty()) {
                Ok((_, 0)) => return packets,
                Ok((_, len)) => packets.push(bytes[..len].to_vec()),
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => thread::yield_now(),
                Err(error) => panic!("{error}, after {packets:?}"),
            }
        }
    });
    // A refusal, for the reason "it belongs to another user", and nothing after it.
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((&said[0][..4], said[0][5]), (&b"MSCI"[..], 4), "behind the version: {said:?}");
    Ok(())
}
