//! RDMA adapters simulated in this process, behind the table of [`Verbs`]. They show what soft RoCE never shows:
//! data that overtakes other data, and faults that a real adapter has only when it is broken.
//!
//! A [`Fake`] is a world of devices that reach each other. Its [`table`](Fake::table) is used like libibverbs. It has
//! devices, protection domains, memory with keys that are checked, completion queues with channels, and queue pairs
//! of reliable connections. It carries out sends and RDMA writes, both also with immediate data, and atomic
//! additions; other operations are refused when posted. All memory is this process's. Objects are never freed, so
//! that a use after their end is noticed: it is noted as misuse, and the [`Fake`] then panics at its end.
//!
//! # Order
//! Requests posted to a queue pair are carried out in the order of posting, and complete in that order: InfiniBand
//! Architecture Specification, volume 1, "Transaction ordering". There is no order between queue pairs.
//!
//! Data that has arrived becomes visible in memory later, by the rules of [`Reordering`]; without reordering, at
//! once. With `Reordering::relaxed`, the rules for data that arrives by one queue pair are:
//! - Data for memory registered without relaxed ordering is visible after everything that came before. PCI Express
//!   Base Specification, "Transaction ordering rules": a posted request without the attribute relaxed ordering passes
//!   no posted request.
//! - Data for memory registered with `IBV_ACCESS_RELAXED_ORDERING` may overtake what came before, whatever memory
//!   that goes to. The same rules: a posted request with the attribute may pass. The chunks of one write then become
//!   visible in any order; InfiniBand promises no order within a write, and in a relaxed region none between writes.
//! - Nothing overtakes an atomic that came before it, which the manual page of `ibv_reg_mr` promises. An atomic to
//!   relaxed memory itself may overtake writes.
//! - Completions of receives are visible after all data before them, which InfiniBand promises. With
//!   `Reordering::completions` this does not hold for data that goes to relaxed regions or to those registered by a
//!   descriptor, which stand for a GPU's memory: that memory and the host's, which holds the completions, are two
//!   destinations, between which PCI Express keeps no order, so InfiniBand's promise ends at the bridge.
//!   [`Fake::flush_memory`] stands for the driver's call that waits for such data.
//!
//! With `Reordering::early_acknowledgement` a write is acknowledged when it has arrived: a completion at the
//! requester says that the peer's adapter has the data, not that it is visible there. Atomics are acknowledged with
//! their result.
//!
//! The next event is chosen at random among all that are possible. Every event happens at some time.

mod completion;
mod config;
mod device;
mod faults;
mod landing;
mod memory;
mod post;
mod queue;
mod queue_pair;
mod responder;
mod slots;
mod state;
mod text;
mod wire;

use std::{ffi::c_int, thread::JoinHandle, time::Duration};

use mscclpp_verbs_sys::{self as sys, Verbs};

pub use self::{
    completion::VENDOR_ERROR,
    config::{Config, DeviceConfig, Execution, GidConfig, PortConfig, Reordering},
    faults::Call,
    state::{Counters, Live},
    wire::Step,
};
use self::{slots::Slot, state::World};

/// The number of steps that the thread makes before it lets other threads run.
const STEPS_AT_ONCE: usize = 8;

/// The number of steps without effect after which nothing more is expected.
const WITHOUT_EFFECT: usize = 5000;

/// A world of simulated adapters. Dropping it stops it, and panics if a program misused the library.
pub struct Fake {
    world: &'static World,
    slot: Slot,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Makes a world.
    pub fn new(config: Config) -> Self {
        let world = World::new(config.clone());
        {
            let mut state = world.lock();
            for (index, device) in config.devices.into_iter().enumerate() {
                let device = device::create(world, index, device);
                state.devices.push(device);
            }
        }
        let thread = (config.execution == Execution::Thread).then(|| std::thread::spawn(|| work(world)));
        Self { world, slot: Slot::take(world), thread }
    }

    /// Returns the table of the world's entry points.
    pub fn table(&self) -> Verbs {
        Verbs {
            get_device_list: self.slot.get_device_list(),
            free_device_list: device::free_device_list,
            get_device_name: device::get_device_name,
            open_device: device::open_device,
            close_device: device::close_device,
            query_device: device::query_device,
            query_port_compat: device::query_port_compat,
            query_gid: device::query_gid,
            get_async_event: device::get_async_event,
            ack_async_event: device::ack_async_event,
            alloc_pd: memory::alloc_pd,
            dealloc_pd: memory::dealloc_pd,
            reg_mr: memory::reg_mr,
            dereg_mr: memory::dereg_mr,
            create_comp_channel: queue::create_comp_channel,
            destroy_comp_channel: queue::destroy_comp_channel,
            create_cq: queue::create_cq,
            destroy_cq: queue::destroy_cq,
            get_cq_event: queue::get_cq_event,
            ack_cq_events: queue::ack_cq_events,
            create_qp: queue_pair::create_qp,
            modify_qp: queue_pair::modify_qp,
            query_qp: queue_pair::query_qp,
            destroy_qp: queue_pair::destroy_qp,
            port_state_str: text::port_state_str,
            event_type_str: text::event_type_str,
            reg_mr_iova2: Some(memory::reg_mr_iova2),
            query_gid_table: Some(device::query_gid_table),
            reg_dmabuf_mr: Some(memory::reg_dmabuf_mr),
            origin: "a simulated adapter".to_owned(),
            missing: Vec::new(),
        }
    }

    /// Returns a table that lives for ever.
    pub fn verbs(&self) -> &'static Verbs {
        Box::leak(Box::new(self.table()))
    }

    /// Makes the `nth` call from now on fail, on `device` (for [`Call::GetDeviceList`], 0).
    pub fn fail_call(&self, device: usize, call: Call, nth: u64, errno: c_int) {
        self.world.lock().faults.add(device, call, nth, errno);
    }

    /// Makes the `nth` request that `device` carries out from now on complete with `status`, without having any
    /// effect.
    pub fn fail_completion(&self, device: usize, nth: u64, status: sys::ibv_wc_status) {
        self.world.lock().faults.add_completion(device, nth, status);
    }

    /// Takes a port down or up, which makes an event.
    pub fn set_port(&self, device: usize, port: u8, active: bool) {
        let mut state = self.world.lock();
        state.devices[device].active[usize::from(port) - 1] = active;
        let event = if active { sys::IBV_EVENT_PORT_ACTIVE } else { sys::IBV_EVENT_PORT_ERR };
        state.device_event(device, event, port);
        self.world.work.notify_all();
    }

    /// Fails a device: nothing reaches it any more, its queue pairs fail, and an event reports that.
    pub fn fail_device(&self, device: usize) {
        let mut state = self.world.lock();
        state.devices[device].failed = true;
        state.device_event(device, sys::IBV_EVENT_DEVICE_FATAL, 0);
        let of_device = state.qps.iter().filter(|(_, qp)| qp.device == device).map(|(number, _)| *number);
        for number in of_device.collect::<Vec<_>>() {
            state.fail(number);
        }
        self.world.work.notify_all();
    }

    /// Fails the completion queues of a device: they raise events, and take no more completions.
    pub fn fail_completion_queues(&self, device: usize) {
        let mut state = self.world.lock();
        let cqs: Vec<_> = state.cqs.iter().map(|(cq, found)| (*cq, found.context)).collect();
        for (cq, context) in cqs {
            if state.device(context) == device {
                state.fail_cq(cq);
            }
        }
    }

    /// Returns the device and the number of each queue pair.
    pub fn queue_pairs(&self) -> Vec<(usize, u32)> {
        self.world.lock().qps.iter().map(|(number, qp)| (qp.device, *number)).collect()
    }

    /// Fails a queue pair for no outside reason, and raises an event.
    pub fn fail_queue_pair(&self, number: u32) {
        self.world.lock().fail_responder(number, sys::IBV_EVENT_QP_FATAL);
        self.world.work.notify_all();
    }

    /// Makes one step.
    pub fn step(&self) -> Step {
        self.world.lock().step()
    }

    /// Makes steps until nothing more happens.
    pub fn settle(&self) {
        let mut without_effect = 0;
        while without_effect < WITHOUT_EFFECT {
            match self.step() {
                Step::Done => without_effect = 0,
                Step::Waiting => without_effect += 1,
                Step::Idle => return,
            }
        }
    }

    /// Makes everything visible that has arrived, as `cuFlushGPUDirectRDMAWrites` does.
    pub fn flush_memory(&self) {
        self.world.lock().land_everything();
    }

    /// Returns how many events of each kind there were.
    pub fn counters(&self) -> Counters {
        self.world.lock().counters
    }

    /// Returns how many objects of each kind there are.
    pub fn live(&self) -> Live {
        self.world.lock().live()
    }

    /// Takes the list of misuses, so that the world's end does not panic for them.
    pub fn take_misuse(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().misuse)
    }

    /// Describes the requests under way, for the messages of tests whose wait has failed.
    pub fn describe(&self) -> String {
        self.world.lock().describe()
    }

    /// Returns why calls and requests were refused, for the messages of tests.
    pub fn refusals(&self) -> Vec<String> {
        self.world.lock().refusals.clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.world.lock().ended = true;
        self.world.work.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the thread of the simulated adapters panicked");
        }
        let misuse = self.take_misuse();
        if !misuse.is_empty() && !std::thread::panicking() {
            panic!("misuse of verbs: {}", misuse.join("; "));
        }
    }
}

/// Carries out what is posted, until the world ends.
fn work(world: &'static World) {
    let mut state = world.lock();
    while !state.ended {
        let mut last = state.step();
        for _ in 1..STEPS_AT_ONCE {
            if last != Step::Done {
                break;
            }
            last = state.step();
        }
        let pause = match last {
            Step::Done => {
                // Other threads want the lock too.
                drop(state);
                std::thread::yield_now();
                state = world.lock();
                continue;
            }
            Step::Waiting => Duration::from_micros(50),
            Step::Idle => Duration::from_millis(100),
        };
        state = match world.work.wait_timeout(state, pause) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
}
