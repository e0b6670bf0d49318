//! The parts that the tests share: ranks as threads, numbers of each type, memory.

use std::sync::Arc;

use half::{bf16, f16};
use mscclpp::{DeviceBuffer, prelude::*};
use mscclpp_ep::{Memory, NumberType};
use mscclpp_test_support::{Turn, in_threads};

/// GPUs where there are some, else simulated devices.
pub(crate) fn platform() -> Platform {
    Platform::detect_or_sim().expect("a usable platform")
}

/// Runs `n` ranks as threads of this process, each on a device of its own as far as there are some. Returns what they return.
pub(crate) fn ranks<T: Send>(n: usize, rank: impl Fn(&Communicator, &Gpu) -> T + Sync) -> Vec<T> {
    let _turn = Turn::take(platform() != Platform::Sim);
    let devices = platform().device_count().expect("devices");
    in_threads(LocalBootstrap::group(n).into_iter().enumerate(), |(r, bootstrap)| {
        let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform()));
        let gpu = comm.context().gpu(r % devices).expect("a device");
        // A rank that panics must not leave the others waiting.
        let abort = AbortOnPanic(comm.clone());
        let result = rank(&comm, &gpu);
        // Ranks leave together, unless the test has ended the job.
        if let Err(error) = comm.bootstrap().barrier() {
            assert!(comm.bootstrap().failure().is_some(), "{error:?}");
        }
        drop(abort);
        result
    })
}

struct AbortOnPanic(Communicator);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a test failed");
        }
    }
}

/// The bytes of a number.
pub(crate) fn narrow(of: NumberType, number: f32) -> Vec<u8> {
    match of {
        NumberType::Bf16 => bf16::from_f32(number).to_le_bytes().to_vec(),
        NumberType::F16 => f16::from_f32(number).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    }
}

/// The bytes of numbers of 4 bytes.
pub(crate) fn bytes<T: Copy>(numbers: &[T], to_bytes: impl Fn(T) -> [u8; 4]) -> Vec<u8> {
    numbers.iter().flat_map(|number| to_bytes(*number)).collect()
}

/// The numbers of a row.
pub(crate) fn widen(of: NumberType, row: &[u8]) -> Vec<f32> {
    match of {
        NumberType::F32 => row.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        NumberType::F16 => row.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => row.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    }
}

/// Device memory with these bytes. There is memory also for none.
pub(crate) fn memory(gpu: &Gpu, bytes: &[u8]) -> DeviceBuffer {
    let buffer = gpu.allocate((bytes.len() as u64).max(16)).expect("memory");
    buffer.write(0, bytes).expect("bytes");
    buffer
}

/// The same, which begins so many bytes behind the beginning of an allocation.
pub(crate) fn memory_at(gpu: &Gpu, offset: u64, bytes: &[u8]) -> Memory {
    let buffer = memory(gpu, &[&vec![0; offset as usize], bytes].concat());
    Memory::slice(&buffer, offset..offset + bytes.len() as u64).expect("the end of the memory")
}

/// Device memory of so many bytes, all 0xee: what nobody writes must stay so.
pub(crate) fn unwritten(gpu: &Gpu, bytes: u64) -> DeviceBuffer {
    let buffer = gpu.allocate(bytes.max(16)).expect("memory");
    buffer.fill(0, buffer.len(), 0xee).expect("bytes");
    buffer
}

pub(crate) fn read(buffer: &DeviceBuffer, offset: u64, bytes: u64) -> Vec<u8> {
    let mut read = vec![0; bytes as usize];
    buffer.read(offset, &mut read).expect("bytes");
    read
}
