//! Memory shared by two processes: exported by one, sent over a Unix socket, imported by the other.
//!
//! The other process is this program again, with the socket as its standard input.

use std::{
    fs::File,
    io::{IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::device;
use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::{
    DevicePtr, Error, ExportHandle, Gpu, ImportedMemory, KernelArgs, KernelSource, LaunchConfig,
    MemoryExport, Module, Platform, SystemFailure,
};
use mscclpp_test_support::{Child, child::this_program};
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, SealFlags},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};

const SECONDS: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 300;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("another_process_reads_and_writes_exported_memory", reads_and_writes),
        outlives(),
        Trial::test("a_kernel_sees_data_before_the_signal_of_another_process", data_before_signal),
        Trial::test("memory_cannot_be_shrunk_under_its_importers", cannot_be_shrunk),
        Trial::test("hostile_descriptors_are_refused", hostile_descriptors),
    ]
}

/// Memory by IPC handles does not outlive its owner: memory that its owner frees is gone.
fn outlives() -> Trial {
    let trial = Trial::test("imported_memory_outlives_the_exporter", outlives_the_exporter);
    let kinds = device::gpu().properties().export_kinds;
    match kinds.file_descriptor {
        true => trial,
        false => trial.with_kind("needs memory that file descriptors name").with_ignored_flag(true),
    }
}

/// The other process, and the socket to it.
struct Importer {
    process: Child,
    socket: UnixStream,
}

impl Importer {
    fn start(role: &str, platform: Platform) -> Result<Self, Failed> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(SECONDS))?;
        let mut program = this_program();
        program.env("MSCCLPP_PLATFORM", platform.to_string());
        let process = Child::start_with(program, &["sharing", role], OwnedFd::from(theirs));
        Ok(Self { process, socket })
    }

    fn send(&self, export: &MemoryExport) -> Result<(), Failed> {
        let mut text = [0; TEXT];
        text[..8].copy_from_slice(&export.allocation_size.to_ne_bytes());
        text[8..16].copy_from_slice(&export.offset.to_ne_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let mut fds = Vec::new();
        match &export.handle {
            ExportHandle::FileDescriptor(fd) => fds.push(fd.as_fd()),
            ExportHandle::IpcHandle(bytes) => text[16..].copy_from_slice(bytes),
            ExportHandle::Fabric(_) => return Err("a fabric handle".into()),
        }
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&self.socket, &[IoSlice::new(&text)], &mut control, SendFlags::empty())?;
        Ok(())
    }

    fn expect(&mut self, byte: u8) -> Result<(), Failed> {
        let mut said = [0];
        self.socket.read_exact(&mut said)?;
        if said[0] != byte {
            return Err(format!("the importer said {said:?} instead of {byte}").into());
        }
        Ok(())
    }

    fn finish(mut self) {
        self.process.expect_success();
    }
}

/// The size of a message: size, offset and, for memory that is shared by one, an IPC handle.
const TEXT: usize = 16 + 64;

/// The memory that the other process has imported from the first one.
struct Imported {
    gpu: Gpu,
    memory: ImportedMemory,
    offset: u64,
    socket: UnixStream,
}

impl Imported {
    fn receive() -> Self {
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
        let mut text = [0; TEXT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .unwrap();
        assert_eq!(received.bytes, TEXT);
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let gpu = device::platform().gpu(0).unwrap();
        let size = u64::from_ne_bytes(text[..8].try_into().unwrap());
        let offset = u64::from_ne_bytes(text[8..16].try_into().unwrap());
        let handle = match fd {
            Some(fd) => ExportHandle::FileDescriptor(fd),
            None => ExportHandle::IpcHandle(text[16..].try_into().unwrap()),
        };
        let memory = gpu.import(&handle, size).unwrap();
        Self { gpu, memory, offset, socket }
    }

    fn ptr(&self) -> DevicePtr {
        self.memory.ptr().add(self.offset)
    }

    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let (copy, stream) = (self.gpu.allocate(len).unwrap(), self.gpu.stream().unwrap());
        // SAFETY: the test's exporter sent that much memory, and both live until the stream is synchronised.
        unsafe { stream.copy(copy.ptr(), self.ptr().add(offset), len).unwrap() };
        stream.synchronize().unwrap();
        let mut bytes = vec![0; len as usize];
        copy.read(0, &mut bytes).unwrap();
        bytes
    }

    fn say(&mut self, byte: u8) {
        self.socket.write_all(&[byte]).unwrap();
    }

    fn await_word_from_exporter(&mut self) {
        self.socket.read_exact(&mut [0]).unwrap();
    }
}

pub(crate) fn importer(role: &str) {
    let mut theirs = Imported::receive();
    match role {
        "read and write" => {
            assert_eq!(theirs.read(0, 1000), pattern(1000));
            let stream = theirs.gpu.stream().unwrap();
            // SAFETY: the exporter sent at least 1000 bytes and does not touch them until it is told.
            unsafe { stream.fill(theirs.ptr().add(3), 500, 0x5a).unwrap() };
            stream.synchronize().unwrap();
            theirs.say(1);
        }
        "outlive" => {
            theirs.say(1);
            theirs.await_word_from_exporter();
            assert_eq!(theirs.read(0, 1000), pattern(1000));
        }
        "signal" => {
            let stream = theirs.gpu.stream().unwrap();
            for round in 1..=ROUNDS {
                // SAFETY: word 0 is for the other side to acknowledge, word 1 for signals, data follows; it is mapped
                // until the end.
                unsafe {
                    stream.fill(theirs.ptr().add(16), 4096, round as u8).unwrap();
                    stream.write_u64(theirs.ptr().add(8), round).unwrap();
                    stream.synchronize().unwrap();
                    wait_for(theirs.ptr(), round);
                }
            }
        }
        _ => panic!("no such role: {role}"),
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + 7) as u8).collect()
}

fn reads_and_writes() -> Result<(), Failed> {
    let gpu = device::gpu();
    let buffer = gpu.allocate(100_000)?;
    buffer.write(54_321, &pattern(1000))?;
    // SAFETY: inside `buffer`, which is live.
    let export = unsafe { gpu.export(buffer.ptr().add(54_321), 1000)? };
    let mut other = Importer::start("read and write", gpu.platform())?;
    other.send(&export)?;
    other.expect(1)?;
    other.finish();
    let mut expected = pattern(1000);
    expected[3..503].fill(0x5a);
    let mut back = vec![0; 1002];
    buffer.read(54_320, &mut back)?;
    assert_eq!(back[1..1001], expected);
    assert_eq!([back[0], back[1001]], [0, 0]);
    Ok(())
}

fn outlives_the_exporter() -> Result<(), Failed> {
    let gpu = device::gpu();
    let buffer = gpu.allocate(1000)?;
    buffer.write(0, &pattern(1000))?;
    // SAFETY: `buffer` is live.
    let export = unsafe { gpu.export(buffer.ptr(), 1000)? };
    let mut other = Importer::start("outlive", gpu.platform())?;
    other.send(&export)?;
    other.expect(1)?;
    drop((export, buffer));
    other.socket.write_all(&[1])?;
    other.finish();
    Ok(())
}

/// Waits until the word is `value`, for some seconds.
unsafe fn wait_for(ptr: DevicePtr, value: u64) {
    let start = Instant::now();
    // SAFETY: the callers name live, aligned words, only accessed with atomics.
    let word = unsafe { AtomicU64::from_ptr(ptr.as_mut_ptr()) };
    while word.load(Ordering::Acquire) != value {
        assert!(start.elapsed() < SECONDS, "{} instead of {value}", word.load(Ordering::Relaxed));
        std::thread::yield_now();
    }
}

/// Checks the data of every signal and acknowledges it.
const CHECK_SIGNALS: KernelSource<'_> = KernelSource::new(
    "check_signals.cu",
    r#"
    #include <assert.h>
    #include <mscclpp/poll_device.hpp>
    using namespace mscclpp;

    extern "C" __global__ void check_signals(uint64_t* memory, uint64_t rounds) {
      for (uint64_t round = 1; round <= rounds; ++round) {
        const auto come = [&] { return atomicLoad(memory + 1, memoryOrderAcquire) == round; };
        assert(pollUntil(come, 1000000, nullptr));
        for (int i = 0; i < 512; ++i) assert(memory[2 + i] == (round & 255) * 0x0101010101010101);
        atomicStore(memory, round, memoryOrderRelease);
      }
    }
    "#,
);

fn data_before_signal() -> Result<(), Failed> {
    // The other side polls the memory, which is possible only for a simulated device.
    let gpu = Platform::Sim.gpu(0)?;
    let buffer = gpu.allocate(16 + 4096)?;
    // SAFETY: `buffer` is live.
    let export = unsafe { gpu.export(buffer.ptr(), buffer.len())? };
    let module = Module::load(&gpu, &CHECK_SIGNALS)?;
    let stream = gpu.stream()?;
    let args = KernelArgs::new().with(buffer.ptr()).with(ROUNDS);
    let other = Importer::start("signal", gpu.platform())?;
    other.send(&export)?;
    // SAFETY: its arguments; `buffer` outlives the wait below, at the end of which the kernel has ended.
    unsafe { module.kernel("check_signals")?.launch(&stream, LaunchConfig::linear(1, 1), &args)? };
    stream.synchronize()?;
    other.finish();
    Ok(())
}

fn cannot_be_shrunk() -> Result<(), Failed> {
    let gpu = Platform::Sim.gpu(0)?;
    let buffer = gpu.allocate(8192)?;
    // SAFETY: `buffer` is live.
    let export = unsafe { gpu.export(buffer.ptr(), 8192)? };
    let ExportHandle::FileDescriptor(fd) = export.handle else { return Err("not a descriptor".into()) };
    for size in [0, 4096, 1 << 20] {
        assert_eq!(rustix::fs::ftruncate(&fd, size), Err(rustix::io::Errno::PERM), "to {size} bytes");
    }
    buffer.fill(0, 8192, 1)?;
    Ok(())
}

fn hostile_descriptors() -> Result<(), Failed> {
    let gpu = Platform::Sim.gpu(0)?;
    let memfd = |size: u64, seals: SealFlags| -> Result<OwnedFd, Failed> {
        let fd = rustix::fs::memfd_create("not-ours", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, size)?;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok(fd)
    };
    let import = |fd: OwnedFd, size| gpu.import(&ExportHandle::FileDescriptor(fd), size);
    let refused = |what: &str, result: Result<ImportedMemory, Error>, why: &str| match result {
        Err(Error::InvalidArgument(message)) if message.contains(why) => {}
        other => panic!("{what}: {other:?}"),
    };
    import(memfd(8192, SealFlags::SHRINK)?, 8192)?;
    refused("not sealed", import(memfd(8192, SealFlags::empty())?, 8192), "without SHRINK");
    refused("sealed otherwise", import(memfd(8192, SealFlags::GROW)?, 8192), "without SHRINK");
    for size in [0, 8193, 1 << 40, u64::MAX] {
        refused("another size", import(memfd(8192, SealFlags::SHRINK)?, size), "the descriptor has 8192");
    }
    let file = OwnedFd::from(File::open(this_program().get_program())?);
    refused("a file", import(file, 4096), "seals");
    let (end, _other) = UnixStream::pair()?;
    refused("a socket", import(end.into(), 4096), "seals");
    for handle in [ExportHandle::IpcHandle([1; 64]), ExportHandle::Fabric([1; 64])] {
        refused("another kind", gpu.import(&handle, 4096), "file descriptors only");
    }

    // A descriptor that may only be read cannot be mapped for writing.
    let sealed = memfd(8192, SealFlags::SHRINK)?;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&sealed));
    let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    match import(read_only, 8192) {
        Err(Error::System(SystemFailure { operation, .. })) => {
            assert!(operation.starts_with("mmap"), "{operation}");
        }
        other => panic!("read-only: {other:?}"),
    }
    Ok(())
}
