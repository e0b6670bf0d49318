//! The tables of routings, in device memory.

use std::sync::Arc;

use mscclpp::{DeviceBuffer, Gpu, KernelArgs, Stream};
use parking_lot::Mutex;

use crate::Result;

/// Memory for the tables of routings that nobody uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<DeviceBuffer>>>);

/// How many tables that nobody uses are kept.
const KEPT: usize = 16;

impl Pool {
    /// Tables for a dispatch. They come back when no routing and no graph has them. The calls that were given them may still
    /// be under way then: the dispatch that gets them next comes behind these on the device, as all calls of the same experts
    /// follow each other.
    pub(crate) fn take(&self, gpu: &Gpu, bytes: u64) -> Result<Arc<Tables>> {
        let free = self.0.lock().pop();
        let buffer = free.map_or_else(|| gpu.allocate(bytes), Ok)?;
        Ok(Arc::new(Tables { buffer, pool: self.clone() }))
    }
}

/// The tables of one routing.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) buffer: DeviceBuffer,
    pool: Pool,
}

impl Drop for Tables {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock();
        if free.len() < KEPT {
            free.push(self.buffer.clone());
        }
    }
}

/// The arguments, which keep the tables if the launch is captured: a graph uses them whenever it is replayed.
pub(crate) fn keeping_if_captured(
    args: KernelArgs,
    tables: &Arc<Tables>,
    stream: &Stream,
) -> Result<KernelArgs> {
    Ok(if stream.is_capturing()? { args.keeping(tables.clone()) } else { args })
}
