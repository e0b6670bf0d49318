use std::{sync::mpsc, thread, time::Duration};

use super::*;

struct At(Option<DevicePtr>);

impl RemoteRegion for At {
    fn ptr(&self) -> Option<DevicePtr> {
        self.0
    }
}

/// A memory of another process, over two transports.
fn of_a_peer() -> RegisteredMemory {
    let info = MemoryInfo {
        process: ProcessId::from_bytes([7; 16]),
        region: 1,
        len: 64,
        host: "there".to_owned(),
        platform: Platform::Sim,
        device_uuid: [1; 16],
        blobs: vec![(Transport::ETHERNET, vec![1]), (Transport::CUDA_IPC, vec![2])],
    };
    RegisteredMemory::of(info, None)
}

#[test]
fn asking_for_the_address_does_not_wait_for_who_maps_the_memory() {
    let memory = of_a_peer();
    // Asks for the address in another thread, in the middle of the mapping, which goes on when there is an answer.
    let import = |transport, at: Option<DevicePtr>| {
        let (asked, answer) = mpsc::channel();
        let asking = memory.clone();
        let mapped = memory.imported("a memory", transport, None, |_| {
            thread::spawn(move || asked.send(asking.data()));
            assert_eq!(answer.recv_timeout(Duration::from_secs(20)), Ok(None));
            Ok(Arc::new(At(at)))
        });
        assert_eq!(mapped.expect("mapped").ptr(), at);
    };
    import(Transport::ETHERNET, None);
    assert_eq!(memory.data(), None, "this transport maps nothing");
    import(Transport::CUDA_IPC, Some(DevicePtr(4096)));
    assert_eq!(memory.data(), Some(DevicePtr(4096)));
}

#[test]
fn memory_that_a_transport_has_to_keep_cannot_be_suspended() {
    let memory = of_a_peer();
    // SAFETY: nothing is mapped, in spite of the address, and nothing accesses it.
    let suspend = || unsafe { memory.suspend() };
    suspend().expect("nothing is imported yet");
    memory
        .imported("a memory", Transport::CUDA_IPC, None, |_| Ok(Arc::new(At(Some(DevicePtr(4096))))))
        .expect("imported");
    let refused = suspend().expect_err("this transport cannot");
    assert!(refused.to_string().contains("cannot be suspended"), "{refused}");
    memory.resume().expect("it is not suspended");
}
