//! The courier's queues: commands, and the worker that carries them out.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use mscclpp_core::{
    Error, Result,
    provider::{Link, Memories, Operation, Queue, RouteId, Routes, TokenMemory},
};
use mscclpp_gpu::DevicePtr;

use super::{Endpoint, Keep, Region};

/// A command for a queue's worker. It keeps the memories alive until it is done.
enum Order {
    Copy { to: (Keep, DevicePtr), from: (Keep, DevicePtr), len: u64 },
    Update { to: (Keep, DevicePtr), value: u64 },
    Flush { ticket: u64 },
}

pub(super) struct CourierLink {
    pub(super) limit: u64,
    pub(super) tokens: TokenMemory,
    pub(super) held: Arc<AtomicBool>,
    pub(super) largest: Arc<AtomicU64>,
    pub(super) open: Arc<()>,
    /// This side's endpoint, and the number of the peer's.
    pub(super) ends: (Weak<Endpoint>, u64),
}

impl Link for CourierLink {
    fn token_memory(&self) -> Result<TokenMemory> {
        Ok(self.tokens)
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let (orders, worker) = mpsc::channel();
        let progress = Arc::new(Progress::default());
        let (seen, held) = (progress.clone(), self.held.clone());
        // The worker ends when the queue, which has the only sender, is dropped and everything is carried out.
        let work = move || {
            for order in worker {
                while held.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                carry_out(&order, &seen);
                seen.done.fetch_add(1, Ordering::Release);
            }
        };
        let started = thread::Builder::new().name("courier".to_owned()).spawn(work);
        started.map_err(|e| Error::system("starting a courier", e))?;
        Ok(Box::new(CourierQueue {
            orders,
            limit: self.limit,
            given: 0,
            progress,
            routes: Routes::default(),
            largest: self.largest.clone(),
        }))
    }

    /// Tells of the failure only within a process.
    fn tell_failure(&self, reason: &str) {
        let (local, peer) = &self.ends;
        let Some(local) = local.upgrade() else { return };
        let monitors = local.monitors_of(*peer);
        monitors.iter().for_each(|monitor| monitor.peer_failed(reason.as_bytes()));
    }
}

/// The progress of a worker. Its releases pair with the acquires of the threads that look.
#[derive(Default)]
struct Progress {
    done: AtomicU64,
    ticket: AtomicU64,
}

struct CourierQueue {
    orders: mpsc::Sender<Order>,
    limit: u64,
    given: u64,
    progress: Arc<Progress>,
    routes: Routes<CourierRoute>,
    largest: Arc<AtomicU64>,
}

/// Both ends of a route, as commands need them.
struct CourierRoute {
    dst: (Keep, DevicePtr),
    src: Option<(Keep, DevicePtr)>,
}

fn carry_out(order: &Order, progress: &Progress) {
    match order {
        Order::Copy { to: (_, dst), from: (_, src), len } => {
            for i in 0..*len {
                // SAFETY: the ranges are inside both regions, which `order` keeps; memory of simulated devices is
                // mapped in this process and accessed with atomics.
                unsafe {
                    let byte = AtomicU8::from_ptr(src.add(i).as_mut_ptr()).load(Ordering::Relaxed);
                    AtomicU8::from_ptr(dst.add(i).as_mut_ptr()).store(byte, Ordering::Relaxed);
                }
            }
        }
        Order::Update { to: (_, dst), value } => {
            // SAFETY: as above; the core has checked that the offset is a multiple of 8, and `prepare` that the start
            // address is.
            unsafe { AtomicU64::from_ptr(dst.as_mut_ptr()) }.store(*value, Ordering::Release);
        }
        Order::Flush { ticket } => progress.ticket.store(*ticket, Ordering::Release),
    }
}

impl CourierQueue {
    fn route(&self, route: RouteId) -> Result<&CourierRoute> {
        self.routes.get(route).ok_or_else(|| Error::InvalidArgument(format!("{route:?} was not prepared")))
    }

    fn order(&self, operation: Operation) -> Result<Order> {
        let at = |(keep, start): &(Keep, DevicePtr), offset| (keep.clone(), start.add(offset));
        Ok(match operation {
            Operation::Write { route, dst_offset, src_offset, len } => {
                let CourierRoute { dst, src } = self.route(route)?;
                let missing = || Error::InvalidArgument(format!("{route:?} has no source"));
                let src = src.as_ref().ok_or_else(missing)?;
                Order::Copy { to: at(dst, dst_offset), from: at(src, src_offset), len }
            }
            Operation::Update { route, offset, value, .. } => {
                Order::Update { to: at(&self.route(route)?.dst, offset), value }
            }
            Operation::Flush { ticket } => Order::Flush { ticket },
            other => return Err(Error::InvalidArgument(format!("a courier cannot do {other:?}"))),
        })
    }
}

// ANCHOR: queue
impl Queue for CourierQueue {
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> Result<()> {
        let foreign = |error| Error::transport(super::Courier::TRANSPORT, error);
        let (dst, src): (&Region, Option<&Region>) = memories.own().map_err(foreign)?;
        if src.is_none() && !dst.at.0.is_multiple_of(8) {
            return Err(Error::InvalidArgument(format!("{:?} is no multiple of 8", dst.at)));
        }
        let part = |region: &Region| (region.keep.clone(), region.at);
        self.routes.insert(route, CourierRoute { dst: part(dst), src: src.map(part) });
        Ok(())
    }

    fn release(&mut self, route: RouteId) {
        self.routes.remove(route);
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        self.largest.fetch_max(batch.len() as u64, Ordering::Relaxed);
        let under_way = self.given - self.progress.done.load(Ordering::Acquire);
        let room = self.limit.saturating_sub(under_way);
        let mut taken = 0;
        for operation in batch.iter().take(usize::try_from(room).unwrap_or(usize::MAX)) {
            match self.order(*operation) {
                Ok(order) => self.orders.send(order).map_err(|e| Error::system("giving an order", e))?,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
            taken += 1;
            self.given += 1;
        }
        Ok(taken)
    }

    fn progress(&mut self) -> Result<u64> {
        Ok(self.progress.ticket.load(Ordering::Acquire))
    }
}
// ANCHOR_END: queue
