//! How a communicator is formed: its ranks meet, exchange greetings, and set up collectives. This happens on a thread in the
//! background, so that one thread of the program can make many ranks.

use std::{
    ffi::c_int,
    hash::{BuildHasher, DefaultHasher, Hasher, RandomState},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use mscclpp::{
    Bootstrap, Communicator, Context, ContextExt, Error as Below, Gpu, LocalBootstrap, Platform,
    TcpBootstrap,
    bootstrap::{Forming, MeetingPlace},
    errors::{BootstrapError, CoreError},
};
use mscclpp_collectives::{Collectives, Error};
use parking_lot::Mutex;

use crate::{
    abi::{Code, Config, Handle, UniqueId},
    answers,
    choice::Choice,
    comm::{Backend, Comm},
    config::{self, Settings},
    dump, ending,
    env::Env,
    failure::{Failure, guarded},
    fallback, group,
    hello::{self, Hello},
    id::{self, Spare},
    ours::Ours,
    pointers::OutPointer,
    recorder::Recorder,
    report,
    statistics::{Statistics, protocols},
};

/// How often a rank that waits for the others checks whether they have met, and whether it was aborted.
const POLL: Duration = Duration::from_micros(500);

/// The largest number that [`mscclpp_collectives::CollectivesBuilder::calls_at_once`] takes.
const MOST_CALLS_AT_ONCE: u32 = 32;

/// A job whose ranks are still meeting, or have met.
pub(crate) enum Job {
    /// With whether the job meets at the address in `NCCL_COMM_ID`.
    Forming(Box<Forming>, bool),
    Met(Arc<dyn Bootstrap>),
}

/// `ncclCommInitRank`, with or without a configuration: makes a communicator on the calling thread's device.
///
/// # Safety
/// `config` is what [`config::read`] asks for.
pub(crate) unsafe fn init_rank(
    place: OutPointer<Handle>,
    ranks: c_int,
    id: &UniqueId,
    rank: c_int,
    config: *const Config,
) -> Result<Code, Failure> {
    let env = begin()?;
    // SAFETY: the caller's promise.
    let settings = unsafe { config::read(config, &Settings::of(env), env)? };
    let (Ok(n), Ok(r)) = (usize::try_from(ranks), usize::try_from(rank)) else {
        return Err(Failure::argument(format!("rank {rank} of {ranks}")));
    };
    if r >= n {
        return Err(Failure::argument(format!("rank {rank} of {ranks}: ranks are counted from 0")));
    }
    let gpu = Platform::detect()?.current_gpu()?;
    let job = join(r, n, id, env)?;
    let comm = start(Comm::new(gpu, settings, env), (r, n), job, env)?;
    group::created(place, comm)
}

/// Begins to join the job that an id names.
pub(crate) fn join(rank: usize, ranks: usize, id: &UniqueId, env: &Env) -> Result<Job, Failure> {
    let place = id::meeting_place(id)?;
    if ranks == 1 {
        // There is no other rank to meet, even if another process made the id.
        id::forget(id);
        let alone = LocalBootstrap::group(1).pop();
        return alone.map(|alone| Job::Met(Arc::new(alone))).ok_or_else(|| Failure::argument("no ranks"));
    }
    let builder = id::settings(TcpBootstrap::builder(rank, ranks), env)?;
    let by_address = matches!(place, MeetingPlace::Address(_));
    let forming = builder.start(place).map_err(|error| of_address(by_address, error))?;
    Ok(Job::Forming(Box::new(forming), by_address))
}

/// The failure of a job. One that meets at an address names the variable that has the address.
fn of_address(by_address: bool, error: BootstrapError) -> Failure {
    let failure = Failure::from(Below::from(error));
    match by_address {
        true => Failure { text: format!("NCCL_COMM_ID: {}", failure.text), ..failure },
        false => failure,
    }
}

/// `ncclCommInitAll`: makes the communicators of all ranks in this process, one on each of `devices`.
pub(crate) fn init_all(places: &[OutPointer<Handle>], devices: Option<&[c_int]>) -> Result<Code, Failure> {
    let env = begin()?;
    let platform = Platform::detect()?;
    let open = |r: usize| -> Result<Gpu, Failure> {
        let device = match devices {
            None => r,
            Some(devices) => usize::try_from(devices[r])
                .map_err(|_| Failure::argument(format!("`devlist` has device {}", devices[r])))?,
        };
        Ok(platform.gpu(device)?)
    };
    let gpus = (0..places.len()).map(open).collect::<Result<Vec<_>, _>>()?;
    let mut answer = Ok(Code::SUCCESS);
    group::start();
    for (bootstrap, (gpu, place)) in
        LocalBootstrap::group(gpus.len()).into_iter().zip(gpus.iter().zip(places))
    {
        let comm = Comm::new(gpu.clone(), Settings { blocking: true, ..Settings::of(env) }, env);
        let position = (bootstrap.rank(), gpus.len());
        let started = start(comm, position, Job::Met(Arc::new(bootstrap)), env);
        answer = answer.and(started.and_then(|comm| group::created(*place, comm)));
    }
    let ended = group::end();
    answer.and(ended)
}

/// Prepares the process before a communicator or memory is made: its end, its log and its environment.
pub(crate) fn begin() -> Result<&'static Env, Failure> {
    answers::used_here();
    ending::leave_at_exit();
    report::begin();
    let env = Env::of_process()?;
    dump::begin(env);
    Ok(env)
}

/// Starts the thread that forms a communicator.
fn start(
    comm: Arc<Comm>,
    position: (usize, usize),
    job: Job,
    env: &'static Env,
) -> Result<Arc<Comm>, Failure> {
    comm.set_position(position.0, position.1);
    in_background(&comm, (), move |comm, ()| form(comm, job, env))?;
    Ok(comm)
}

/// The result of forming a communicator. An inner failure is one that every rank finds from the greetings, so nobody is told. An
/// outer one is this rank's own, which it tells the others.
pub(crate) type Outcome = Result<Result<Backend, Failure>, Failure>;

/// Starts a thread that runs `make` and stores its result as the communicator's outcome. `kept` is dropped after that.
pub(crate) fn in_background<K: Send + 'static>(
    comm: &Arc<Comm>,
    kept: K,
    make: impl FnOnce(&Comm, &K) -> Outcome + Send + 'static,
) -> Result<(), Failure> {
    let comm = Arc::clone(comm);
    spawn(move || {
        let outcome = guarded("forming a communicator", || make(&comm, &kept));
        if let Err(failure) = &outcome {
            // The other ranks must not wait for this one.
            comm.give_up(&failure.text);
        }
        let outcome = outcome.and_then(|outcome| outcome);
        if let Err(failure) = &outcome {
            answers::remember(failure);
        }
        comm.set_outcome(outcome);
        drop(kept);
    })
}

/// Starts a thread that works for communicators in the background.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = thread::Builder::new().name("mscclpp-nccl".to_owned()).spawn(work);
    thread.map(drop).map_err(|error| Failure::new(Code::SYSTEM_ERROR, format!("starting a thread: {error}")))
}

/// Waits until the ranks have met.
fn meet(comm: &Comm, job: Job) -> Result<Arc<dyn Bootstrap>, Failure> {
    let bootstrap: Arc<dyn Bootstrap> = match job {
        Job::Met(bootstrap) => bootstrap,
        Job::Forming(forming, by_address) => {
            // The loop ends at the latest with the time-out of the job.
            while !forming.poll() {
                if let Some(why) = comm.aborted() {
                    forming.abort(&why);
                    return Err(Failure::new(
                        Code::REMOTE_ERROR,
                        format!("aborted before its ranks had met: {why}"),
                    ));
                }
                thread::sleep(POLL);
            }
            Arc::new(forming.wait().map_err(|error| of_address(by_address, error))?)
        }
    };
    comm.met(&bootstrap);
    Ok(bootstrap)
}

/// Forms the communicator of a job: with the collectives of this repository, or, if these do not cover its ranks, with NCCL.
pub(crate) fn form(comm: &Comm, job: Job, env: &'static Env) -> Outcome {
    let begun = Instant::now();
    let (rank, ranks) = comm.position()?;
    let bootstrap = meet(comm, job)?;
    let spare = (ranks > 1).then(|| Spare::create(env)).transpose()?;
    let node = match id::node(env)? {
        Some(node) => node.to_owned(),
        None => mscclpp::provider::host_id().map_err(Below::from)?,
    };
    let mut hash_of_node = DefaultHasher::new();
    hash_of_node.write(node.as_bytes());
    let hello = Hello {
        uuid: comm.gpu.properties().uuid,
        node: hash_of_node.finish(),
        p2p_disabled: env.p2p_disabled && ranks > 1,
        same_gpu: env.same_gpu,
        fallback: env.fallback.is_some(),
        min_blocks: comm.settings.min_blocks,
        max_blocks: comm.settings.max_blocks,
        hash: RandomState::new().build_hasher().finish(),
        spare: spare.as_ref().map(Spare::id),
    };
    let all = bootstrap.all_gather(&hello.to_bytes())?;
    let all = all.iter().enumerate().map(|(rank, bytes)| Hello::parse(rank, bytes));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if let Some(why) = hello::uncovered(&all) {
        if let Some(rank) = all.iter().position(|hello| !hello.fallback) {
            return Ok(Err(Failure::usage(format!(
                "{why}; with MSCCLPP_NCCL_FALLBACK on all ranks NCCL does it, and rank {rank} has none"
            ))));
        }
        return Ok(Ok(Backend::Handed(fallback::hand_over(comm, &*bootstrap, &why)?)));
    }
    if let Err(failure) = hello::check_devices(&all, rank, &comm.gpu) {
        return Ok(Err(failure));
    }
    let (least, most) = hello::blocks(&all);
    let communicator = Communicator::with_context(bootstrap, Context::on(comm.gpu.platform()));
    let mut builder = Collectives::builder(&communicator, &comm.gpu)
        // Programs that use NCCL run its calls beside other kernels, such as matrix multiplications.
        .overlap(true)
        .calls_at_once((env.calls_at_once * hello::sharing(&all)).min(MOST_CALLS_AT_ONCE))
        .node(node);
    if let Some(mebibytes) = env.scratch {
        builder = builder.scratch(u64::from(mebibytes) << 20);
    }
    if let Some(publish) = env.graph_register {
        builder = builder.publish_captured(publish);
    }
    if env.adapters {
        builder = builder.between_nodes_by_nearest_adapter();
    }
    if let Some(most) = most {
        builder = builder.max_blocks(most);
    }
    if let Some(least) = least {
        builder = builder.selector(Choice { least: Some(least), ..Choice::default() });
    }
    let collectives = match builder.connect() {
        // All ranks find it.
        Err(error @ Error::Below(mscclpp::Error::Differ { .. })) => return Ok(Err(named(error))),
        Err(error @ Error::Below(mscclpp::Error::Core(CoreError::NoProvider { .. }))) if env.adapters => {
            let failure = Failure::from(error);
            return Err(Failure { text: format!("MSCCLPP_NCCL_NETWORK=ib: {}", failure.text), ..failure });
        }
        connected => connected?,
    };
    let links: Vec<String> = match report::is_info() {
        true => {
            let network = if env.adapters { "InfiniBand" } else { "Ethernet" };
            let link = |(other, hello)| link(comm, other, hello, (&all[rank], network));
            all.iter().enumerate().map(link).collect()
        }
        false => Vec::new(),
    };
    let ours = Ours {
        nodes: all.iter().map(|hello| hello.node).collect(),
        hash: all[0].hash,
        least_blocks: least,
        signals: OnceLock::new(),
        connecting: Mutex::default(),
        statistics: Statistics::new(),
        recorder: Recorder::new(env.dump.is_some()),
        comm: communicator,
        collectives,
        spares: all.into_iter().map(|hello| hello.spare).collect(),
        spare: spare.map(Arc::new),
    };
    if report::is_info() {
        report::info(&formed(comm, &ours, &links, begun.elapsed()));
    }
    Ok(Ok(Backend::Ours(Box::new(ours))))
}

/// The failure of a set-up. If ranks have different settings, it names the variable of the setting.
fn named(error: Error) -> Failure {
    let Error::Below(mscclpp::Error::Differ { what, .. }) = &error else { return error.into() };
    let variable = match *what {
        "scratch" => "MSCCLPP_NCCL_SCRATCH (or NCCL_BUFFSIZE)",
        "check_calls" => "MSCCLPP_CHECK_CALLS",
        "calls_at_once" => "MSCCLPP_NCCL_CALLS_AT_ONCE",
        "platforms (1 is simulated)" => "MSCCLPP_PLATFORM",
        "nodes_model (latency)" => "MSCCLPP_NCCL_NETWORK",
        _ => return error.into(),
    };
    let failure = Failure::from(error);
    Failure { text: format!("{}; give all ranks the same {variable}", failure.text), ..failure }
}

/// The line that reports a new communicator.
fn formed(comm: &Comm, ours: &Ours, links: &[String], took: Duration) -> String {
    let mebibytes = ours.device_bytes() >> 20;
    format!(
        "{}: on {}, {mebibytes} MiB of its memory, formed in {took:.1?}; {}; all_reduce by {}",
        comm.name(),
        comm.gpu,
        links.join(", "),
        protocols(&ours.collectives)
    )
}

/// Describes how a rank's device is reached.
fn link(
    comm: &Comm,
    rank: usize,
    Hello { node, uuid, .. }: &Hello,
    (own, network): (&Hello, &str),
) -> String {
    let how = match comm.gpu.peer_access_by_uuid(uuid) {
        _ if *node != own.node => return format!("rank {rank} by {network} to another node"),
        _ if *uuid == comm.gpu.properties().uuid => "this device",
        Ok(Some(access)) if access.native_atomics => "peer memory with atomics",
        Ok(Some(access)) if access.reachable => "peer memory without atomics",
        Ok(Some(_)) => "no peer memory",
        Ok(None) | Err(_) => "peer memory of a device that this process does not see",
    };
    format!("rank {rank} by {how}")
}
