//! If CUDA IPC cannot connect two ends, the call fails with an error that says why: devices without peer access, and
//! CPUs.

use std::sync::atomic::AtomicU64;

use libtest_mimic::{Failed, Trial};
use mscclpp_conformance::pair::received;
use mscclpp_core::{Context, Device, Endpoint, EndpointConfig, Error, Transport, TransportFlags};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::{DevicePtr, Platform};
use mscclpp_test_support::{Child, child};

/// The role of a process in which devices have no access to each other's memory. It is followed by the name of a test.
pub(crate) const ROLE: &str = "unreachable";

type Test = fn() -> Result<(), Failed>;

const TESTS: [(&str, Test); 4] = [
    ("devices_without_peer_access_do_not_connect", devices_without_peer_access_do_not_connect),
    ("memory_without_peer_access_is_not_written", memory_without_peer_access_is_not_written),
    ("host_memory_is_not_written_from", host_memory_is_not_written_from),
    ("cpus_do_not_connect", cpus_do_not_connect),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |(name, _)| {
        Trial::test(format!("unreachable::{name}"), move || {
            let mut program = child::this_program();
            program.env("MSCCLPP_SIM_PEER_ACCESS", "none");
            Child::start_by(program, &[ROLE, name]).expect_success();
            Ok(())
        })
    };
    TESTS.map(trial).into()
}

pub(crate) fn run(name: &str) {
    let (_, test) = TESTS.iter().find(|(of, _)| *of == name).expect("a test of that name");
    test().unwrap_or_else(|failed| panic!("{name}: {failed:?}"));
}

fn context() -> Context {
    Context::builder().provider(CudaIpc::new()).platform(Platform::Sim).build()
}

fn endpoint(context: &Context, device: Device) -> Endpoint {
    context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, device)).expect("an endpoint")
}

fn devices_without_peer_access_do_not_connect() -> Result<(), Failed> {
    let (here, there) = (context(), context());
    let [first, second] = [0, 1].map(|gpu| endpoint(&here, Device::gpu(gpu)));
    let like_first = endpoint(&there, Device::gpu(0));
    match here.connect(&first, &received(&second)).map(|_| ()) {
        Err(error @ Error::Unreachable { .. }) => {
            let words = error.to_string();
            assert!(words.contains("sim device 0") && words.contains("MSCCLPP_SIM_PEER_ACCESS"), "{words}");
            assert!(words.ends_with("connect these devices over Ethernet or IB"), "{words}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    here.connect(&first, &received(&like_first))?;
    Ok(())
}

/// Uses memory on another device than the endpoint, which is allowed in general.
fn memory_without_peer_access_is_not_written() -> Result<(), Failed> {
    let (here, there) = (context(), context());
    let (end, other) = (endpoint(&here, Device::gpu(0)), endpoint(&there, Device::gpu(0)));
    let connection = here.connect(&end, &received(&other))?;
    let [near, far] = [0, 1].map(|gpu| {
        let buffer = here.gpu(gpu).and_then(|gpu| Ok(gpu.allocate(64)?)).expect("a buffer");
        here.register_buffer(&buffer, Transport::CUDA_IPC).expect("registered")
    });
    match connection.write(&far, 0, &near, 0, 64) {
        Err(Error::Gpu(mscclpp_gpu::Error::NoPeerAccess { from, to, .. })) => {
            assert_eq!((&*from, &*to), ("sim device 0 (sim)", "sim device 1 (sim)"));
        }
        other => return Err(format!("{other:?}").into()),
    }
    connection.write(&near, 0, &near, 0, 64)?;
    Ok(())
}

/// Registers host memory for local use, as is possible with any memory. This transport does not write from it.
fn host_memory_is_not_written_from() -> Result<(), Failed> {
    static WORDS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    let context = context();
    let end = endpoint(&context, Device::gpu(0));
    let connection = context.connect(&end, &received(&end))?;
    let target = context.register_buffer(&context.gpu(0)?.allocate(64)?, Transport::CUDA_IPC)?;
    let ptr = DevicePtr::from_ptr(WORDS.as_ptr());
    // SAFETY: static memory of atomics.
    let local = unsafe { context.register_memory(ptr, 64, TransportFlags::NONE) }?;
    assert_eq!((local.data(), local.gpu().is_none()), (Some(ptr), true));
    for refused in [
        // SAFETY: as above.
        unsafe { context.register_memory(ptr, 64, Transport::CUDA_IPC) }.map(|_| ()),
        connection.write(&target, 0, &local, 0, 64),
    ] {
        let error = refused.expect_err("no device memory").to_string();
        assert!(error.contains("is no device memory"), "{error}");
    }
    Ok(())
}

fn cpus_do_not_connect() -> Result<(), Failed> {
    let (here, there) = (context(), context());
    for (local, remote, word) in [
        (Device::CPU, Device::CPU, "both endpoints are on CPUs"),
        (Device::CPU, Device::gpu(0), "this endpoint is on a CPU"),
        (Device::gpu(0), Device::CPU, "the peer's endpoint is on a CPU"),
    ] {
        let (local, remote) = (endpoint(&here, local), endpoint(&there, remote));
        match here.connect(&local, &received(&remote)).map(|_| ()) {
            Err(Error::Unreachable { reason, .. })
                if reason.contains(word) && reason.ends_with("use Ethernet or IB") => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}
