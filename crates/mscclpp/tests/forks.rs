//! The behaviour of ranks, connections, channels and services in a forked child, on GPUs and on simulated devices.
//!
//! Each trial forks a parent of its own, which has two ranks, connected in every possible way.

mod support;

use std::{process::ExitCode, sync::Arc, thread, time::Duration};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp::{
    Error, Result,
    bootstrap::{TcpBootstrap, UniqueId},
    channels::{HostToDeviceSemaphore, HostToHostSemaphore, SendQueue},
    gpu::Abort,
    prelude::*,
    proxy::{Fifo, Proxy, ProxyHandlerResult, ProxyTrigger},
};
use mscclpp_test_support::in_fork;
use support::{LIMIT, device_of, platform};

/// The longest time of a child: more than any step takes in one, and short enough to wait for one that hangs.
const CHILD: Duration = Duration::from_secs(15);
const LEN: u64 = 4096;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The trials run on this thread, which is the only one that exists in the forked processes.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::test("every_use_in_a_child_names_the_fork", || of(every_use_in_a_child_names_the_fork)),
        Trial::test("a_child_leaves_what_its_parent_has_alone", || {
            of(a_child_leaves_what_its_parent_has_alone)
        }),
        Trial::test("a_child_may_begin_anew_without_devices", || of(a_child_may_begin_anew_without_devices)),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a test in a parent of its own.
fn of(test: impl FnOnce()) -> std::result::Result<(), Failed> {
    in_fork(LIMIT, || {
        test();
        String::new()
    });
    Ok(())
}

/// One of two ranks with its objects. Nobody signals over `idle`.
struct Rank {
    bootstrap: Arc<TcpBootstrap>,
    comm: Communicator,
    endpoint: Endpoint,
    connections: [Connection; 2],
    memory: RegisteredMemory,
    theirs: RegisteredMemory,
    semaphores: [Semaphore; 2],
    stub: SemaphoreStub,
    channel: MemoryChannel,
    to_device: HostToDeviceSemaphore,
    to_host: HostToHostSemaphore,
    queue: SendQueue,
    service: ProxyService,
    port: PortChannel,
    proxy: Proxy<fn(ProxyTrigger) -> ProxyHandlerResult>,
    fifo: Fifo,
    pending: Pending<RegisteredMemory>,
}

impl Rank {
    fn new(rank: usize, id: &UniqueId) -> Result<Self> {
        let peer = 1 - rank;
        let bootstrap = Arc::new(TcpBootstrap::new(rank, 2, id, LIMIT)?);
        let comm = Communicator::with_context(bootstrap.clone(), Context::on(platform()));
        let device = Device::gpu(device_of(rank));
        let connect =
            |transport, device| comm.connect(EndpointConfig::new(transport, device), peer, 0)?.wait();
        let connections = [connect(Transport::CUDA_IPC, device)?, connect(Transport::ETHERNET, device)?];
        let between_nodes = connect(Transport::ETHERNET, Device::CPU)?;
        let gpu = comm.context().gpu(device_of(rank))?;
        let memory = comm.register_buffer(&gpu.allocate(LEN)?, Transport::CUDA_IPC | Transport::ETHERNET)?;
        comm.send_memory(&memory, peer, 0)?;
        let theirs = comm.recv_memory(peer, 0)?.wait()?;
        let build = |connection| comm.build_semaphore(connection)?.wait();
        let semaphores = [build(&connections[0])?, build(&connections[1])?];
        let (by_service, of_hosts) = (build(&connections[1])?, build(&between_nodes)?);
        let service = ProxyService::new(&gpu)?;
        let id = service.add_semaphore(&by_service)?;
        let port = service.port_channel(id, service.add_memory(&theirs)?, service.add_memory(&memory)?)?;
        service.start_proxy(true)?;
        let handler: fn(ProxyTrigger) -> ProxyHandlerResult = |_| ProxyHandlerResult::Continue;
        let proxy = Proxy::new(&gpu, handler)?;
        proxy.start(true)?;
        Ok(Self {
            endpoint: comm
                .context()
                .create_endpoint(EndpointConfig::new(Transport::ETHERNET, Device::CPU))?,
            stub: SemaphoreStub::new(&connections[0])?,
            channel: MemoryChannel::new(&semaphores[0], &theirs, &memory, None)?,
            to_device: HostToDeviceSemaphore::new(&semaphores[1])?,
            to_host: HostToHostSemaphore::new(&of_hosts)?,
            queue: connections[1].open_queue()?,
            fifo: Fifo::new(&gpu, 16)?,
            pending: comm.recv_memory(peer, 7)?,
            bootstrap,
            comm,
            connections,
            memory,
            theirs,
            semaphores,
            service,
            port,
            proxy,
        })
    }

    /// Makes both ranks of a job.
    fn both() -> [Self; 2] {
        let id = TcpBootstrap::create_unique_id().unwrap();
        let there = thread::spawn(move || Self::new(1, &id).unwrap());
        [Self::new(0, &id).unwrap(), there.join().unwrap()]
    }

    /// Uses all objects together with the other rank, which does the same.
    fn works(&mut self) -> Result<()> {
        self.bootstrap.barrier()?;
        for connection in &self.connections {
            connection.write(&self.theirs, 0, &self.memory, LEN / 2, LEN / 4)?;
            connection.flush(LIMIT)?;
        }
        self.to_host.signal()?;
        self.to_host.wait(-1)?;
        self.semaphores.iter().try_for_each(Semaphore::check)?;
        self.service.stop_proxy()?;
        self.service.start_proxy(true)?;
        self.port.check()?;
        self.proxy.stop()?;
        self.proxy.start(true)?;
        Ok(self.bootstrap.barrier()?)
    }
}

fn both_work(ranks: &mut [Rank; 2]) {
    thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(move || rank.works().unwrap());
        }
    });
}

fn every_use_in_a_child_names_the_fork() {
    let mut ranks = Rank::both();
    both_work(&mut ranks);
    let (parent, platform, config) = (std::process::id(), platform(), support::endpoint_of(0));
    let said = in_fork(CHILD, || {
        let Rank { bootstrap, comm, endpoint, connections, memory, theirs, semaphores, stub, .. } =
            &mut ranks[0];
        let (context, connection, ethernet) = (comm.context(), &connections[0], &connections[1]);
        let mut uses: Vec<(&str, Result<()>)> = vec![
            ("barrier", bootstrap.barrier().map_err(Into::into)),
            ("send", bootstrap.send(&[1], 1, 9).map_err(Into::into)),
            ("recv", bootstrap.recv_timeout(1, 9, CHILD).map(drop).map_err(Into::into)),
            ("group_barrier", bootstrap.group_barrier(&[0, 1]).map_err(Into::into)),
            ("failure", bootstrap.failure().map_or(Ok(()), |error| Err(error.into()))),
            ("connect", comm.connect(config.clone(), 1, 0).map(drop)),
            ("send_memory", comm.send_memory(memory, 1, 0)),
            ("recv_memory", comm.recv_memory(1, 0).map(drop)),
            ("build_semaphore", comm.build_semaphore(connection).map(drop)),
            ("gpu", context.gpu(0).map(drop).map_err(Into::into)),
            ("create_endpoint", context.create_endpoint(config.clone()).map(drop).map_err(Into::into)),
            ("Context::connect", context.connect(endpoint, endpoint).map(drop).map_err(Into::into)),
            ("Endpoint::serialize", endpoint.serialize().map(drop).map_err(Into::into)),
            ("write", connection.write(theirs, 0, memory, 0, 8).map_err(Into::into)),
            ("flush", connection.flush(CHILD).map_err(Into::into)),
            ("write over Ethernet", ethernet.write(theirs, 0, memory, 0, 8).map_err(Into::into)),
            ("flush over Ethernet", ethernet.flush(CHILD).map_err(Into::into)),
            ("Connection::check", connection.check().map_err(Into::into)),
            ("open_queue", ethernet.open_queue().map(drop).map_err(Into::into)),
            ("RegisteredMemory::serialize", memory.serialize().map(drop).map_err(Into::into)),
            ("map_memory", context.map_memory(memory, memory.gpu().unwrap()).map(drop).map_err(Into::into)),
            ("Semaphore::check", semaphores[0].check().map_err(Into::into)),
            ("signaller", semaphores[1].signaller().map(drop).map_err(Into::into)),
            ("Stub::serialize", stub.serialize().map(drop).map_err(Into::into)),
            ("Stub::new", SemaphoreStub::new(connection).map(drop).map_err(Into::into)),
            ("BaseMemoryChannel", BaseMemoryChannel::new(&semaphores[0]).map(drop).map_err(Into::into)),
        ];
        let Rank { channel, to_device, to_host, queue, service, port, proxy, fifo, pending, .. } =
            &mut ranks[0];
        uses.extend([
            ("MemoryChannel::check", channel.check().map_err(Into::into)),
            ("HostToDevice::signal", to_device.signal().map_err(Into::into)),
            ("HostToHost::signal", to_host.signal().map_err(Into::into)),
            ("HostToHost::poll", to_host.poll().map(drop).map_err(Into::into)),
            ("HostToHost::wait", to_host.wait(-1).map_err(Into::into)),
            ("request_flush", queue.request_flush().map(drop).map_err(Into::into)),
            ("progress", queue.progress().map(drop).map_err(Into::into)),
            ("health", service.health().map_err(Into::into)),
            ("stop_proxy", service.stop_proxy().map_err(Into::into)),
            ("start_proxy", service.start_proxy(true).map_err(Into::into)),
            ("next_memory_id", service.next_memory_id(1).map(drop).map_err(Into::into)),
            ("stats", service.stats().last_error.map_or(Ok(()), |error| Err(error.into()))),
            ("PortChannel::check", port.check().map_err(Into::into)),
            ("Proxy::stop", proxy.stop().map_err(Into::into)),
            ("Proxy::start", proxy.start(true).map_err(Into::into)),
            ("Fifo::check", fifo.check().map_err(Into::into)),
            ("Pending::wait", pending.wait().map(drop)),
            // A new context has new objects.
            ("a new context's gpu", Context::on(platform).gpu(0).map(drop).map_err(Into::into)),
        ]);
        assert!(!service.is_running(), "it has no thread here");
        assert!(service.stats().connections.is_empty() && service.dump().contains("is a fork of process"));
        assert!(fifo.poll().is_none());
        // These calls return no error, and do nothing.
        let (comm, reason) = (&ranks[0].comm, "in a child");
        ranks[0].semaphores[0].abort(reason);
        ranks[0].service.abort(reason);
        ranks[0].proxy.abort(reason);
        ranks[0].fifo.pop();
        ranks[0].fifo.abort();
        ranks[0].connections[1].fail(mscclpp::errors::CoreError::Aborted { reason: reason.to_owned() });
        ranks[0].connections[0].tell_failure(reason);
        comm.abort(reason);
        let named = format!("is a fork of process {parent}");
        let is_named =
            |error: &Error| error.to_string().contains(&named) && error.to_string().contains("spawn");
        uses.iter()
            .filter(|(_, result)| !result.as_ref().is_err_and(is_named))
            .map(|(what, result)| format!("{what} gives {result:?}; "))
            .collect()
    });
    assert_eq!(said, "", "in a forked child");
    both_work(&mut ranks);
}

fn a_child_leaves_what_its_parent_has_alone() {
    let mut ranks = Some(Rank::both());
    in_fork(CHILD, || {
        // As far as the child knows, nobody else owns any of the objects.
        drop(ranks.take());
        String::new()
    });
    let mut ranks = ranks.expect("the parent's own");
    both_work(&mut ranks);
    // The peers are notified when the parent ends.
    let [here, there] = ranks;
    drop(here);
    for connection in &there.connections {
        mscclpp_test_support::until("the other side has closed", || connection.check().is_err());
    }
}

/// Signals over a connection of a rank without devices with itself.
fn signal_over_ethernet(context: &Context) {
    let end = || context.create_endpoint(EndpointConfig::new(Transport::ETHERNET, Device::CPU)).unwrap();
    let (a, b) = (end(), end());
    let answer = thread::scope(|scope| {
        let there = scope.spawn(|| context.connect(&b, &a).unwrap());
        [context.connect(&a, &b).unwrap(), there.join().unwrap()]
    });
    let [a, b] = answer.map(|connection| SemaphoreStub::new(&connection).unwrap());
    let [here, there] = [(&a, &b), (&b, &a)].map(|(ours, theirs)| Semaphore::new(ours, theirs).unwrap());
    HostToHostSemaphore::new(&here).unwrap().signal().unwrap();
    HostToHostSemaphore::new(&there).unwrap().wait(-1).unwrap();
}

fn a_child_may_begin_anew_without_devices() {
    let context = Context::on(Platform::Sim);
    signal_over_ethernet(&context);
    let id = TcpBootstrap::create_unique_id().unwrap();
    let alone = TcpBootstrap::new(0, 1, id, LIMIT).unwrap();
    in_fork(CHILD, || {
        signal_over_ethernet(&Context::on(Platform::Sim));
        let id = TcpBootstrap::create_unique_id().unwrap();
        thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || TcpBootstrap::new(rank, 2, id, LIMIT).unwrap().barrier().unwrap());
            }
        });
        String::new()
    });
    signal_over_ethernet(&context);
    alone.barrier().unwrap();
}
