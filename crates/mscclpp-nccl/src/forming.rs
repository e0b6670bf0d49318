//! How a communicator comes to be: its ranks meet, tell each other what they are, and set up collectives. A thread of its own does
//! it, so that one thread of the program can make many ranks.

use std::{
    ffi::c_int,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mscclpp::{
    Bootstrap, Communicator, Context, ContextExt, Gpu, LocalBootstrap, Platform, TcpBootstrap,
    bootstrap::Forming,
};
use mscclpp_collectives::{Collectives, Query, Selection, Selector, Tuned};

use crate::{
    abi::{Code, Config, Handle, Place, UniqueId},
    comm::{self, Backend, Comm, Ours},
    config::{self, Settings},
    ending,
    env::Env,
    failure::{self, Failure, guarded},
    fallback, group,
    hello::{self, Hello},
    id::{self, Spare},
    report,
    statistics::{Statistics, protocols},
};

/// How often a rank that forms looks whether it was aborted, or has met the others.
const POLL: Duration = Duration::from_micros(500);

/// What [`mscclpp_collectives::CollectivesBuilder::calls_at_once`] takes.
const MOST_CALLS_AT_ONCE: u32 = 32;

/// A job that ranks are joining, or have joined.
pub(crate) enum Job {
    Forming(Box<Forming>),
    Met(Arc<dyn Bootstrap>),
}

/// `ncclCommInitRank` and its kin, for a rank on the calling thread's device.
///
/// # Safety
/// As [`config::read`].
pub(crate) unsafe fn init_rank(
    place: Place<Handle>,
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
    let comm = start(Comm::new(gpu, settings), (r, n), job, env)?;
    group::created(place, comm)
}

/// Begins to join the job of an id.
pub(crate) fn join(rank: usize, ranks: usize, id: &UniqueId, env: &Env) -> Result<Job, Failure> {
    let place = id::meeting_place(id)?;
    if ranks == 1 {
        // There is nobody to meet, also if another process made the id.
        id::forget(id);
        let alone = LocalBootstrap::group(1).pop();
        return alone.map(|alone| Job::Met(Arc::new(alone))).ok_or_else(|| Failure::argument("no ranks"));
    }
    let builder = id::settings(TcpBootstrap::builder(rank, ranks), env)?;
    Ok(Job::Forming(Box::new(builder.start(place)?)))
}

/// `ncclCommInitAll`: all ranks in this process, one on each of these devices.
pub(crate) fn init_all(places: &[Place<Handle>], devices: Option<&[c_int]>) -> Result<Code, Failure> {
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
        let comm = Comm::new(gpu.clone(), Settings { blocking: true, ..Settings::of(env) });
        let position = (bootstrap.rank(), gpus.len());
        let started = start(comm, position, Job::Met(Arc::new(bootstrap)), env);
        answer = answer.and(started.and_then(|comm| group::created(*place, comm)));
    }
    let ended = group::end();
    answer.and(ended)
}

/// What every way to a communicator begins with.
pub(crate) fn begin() -> Result<&'static Env, Failure> {
    failure::used_here();
    ending::leave_at_exit();
    report::begin();
    Env::of_process()
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

/// What becomes of forming a communicator: the inner failure is one that all ranks come to by themselves.
pub(crate) type Outcome = Result<Result<Backend, Failure>, Failure>;

/// Runs what makes a communicator, on a thread of its own. `kept` is dropped when it is known what has become of it.
pub(crate) fn in_background<K: Send + 'static>(
    comm: &Arc<Comm>,
    kept: K,
    make: impl FnOnce(&Comm, &K) -> Outcome + Send + 'static,
) -> Result<(), Failure> {
    let comm = Arc::clone(comm);
    let thread = thread::Builder::new().name("mscclpp-nccl".to_owned()).spawn(move || {
        let outcome = guarded("forming a communicator", || make(&comm, &kept));
        if let Err(failure) = &outcome {
            // The others must not wait for this rank.
            comm.give_up(&failure.text);
        }
        let outcome = outcome.and_then(|outcome| outcome);
        if let Err(failure) = &outcome {
            failure::remember(failure);
        }
        comm.set_outcome(outcome);
        drop(kept);
    });
    thread.map(drop).map_err(|error| Failure::new(Code::SYSTEM_ERROR, format!("starting a thread: {error}")))
}

/// Waits until the ranks have met.
fn meet(comm: &Comm, job: Job) -> Result<Arc<dyn Bootstrap>, Failure> {
    let bootstrap: Arc<dyn Bootstrap> = match job {
        Job::Met(bootstrap) => bootstrap,
        Job::Forming(forming) => {
            // It is over when its time-out is.
            while !forming.poll() {
                if comm.was_aborted() {
                    forming.abort("ncclCommAbort was called");
                    return Err(Failure::new(Code::REMOTE_ERROR, "aborted before its ranks had met"));
                }
                thread::sleep(POLL);
            }
            Arc::new(forming.wait()?)
        }
    };
    comm.met(&bootstrap);
    Ok(bootstrap)
}

/// From a job to collectives, or to NCCL's.
pub(crate) fn form(comm: &Comm, job: Job, env: &'static Env) -> Outcome {
    let begun = Instant::now();
    let (rank, ranks) = comm.position()?;
    let bootstrap = meet(comm, job)?;
    let spare = (ranks > 1).then(|| Spare::create(env)).transpose()?;
    let hello = Hello {
        uuid: comm.gpu.properties().uuid,
        p2p_disabled: env.p2p_disabled && ranks > 1,
        same_gpu: env.same_gpu,
        fallback: env.fallback.is_some(),
        min_blocks: comm.settings.min_blocks,
        max_blocks: comm.settings.max_blocks,
        spare: spare.as_ref().map(Spare::id),
    };
    let all = bootstrap.all_gather(&hello.to_bytes())?;
    let all = all.iter().enumerate().map(|(rank, bytes)| Hello::parse(rank, bytes));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if let Some(why) = hello::uncovered(&all, bootstrap.n_ranks_per_ipc_domain()) {
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
    let devices: Vec<[u8; 16]> = all.iter().map(|hello| hello.uuid).collect();
    let communicator = Communicator::with_context(bootstrap, Context::on(comm.gpu.platform()));
    let mut builder = Collectives::builder(&communicator, &comm.gpu)
        // What they overlap with in trainings are matrix multiplications, and so it is with NCCL's kernels.
        .overlap(true)
        .calls_at_once((env.calls_at_once * hello::sharing(&all)).min(MOST_CALLS_AT_ONCE))
        .check_calls(env.check_calls);
    if let Some(host) = id::host(env)? {
        builder = builder.node(host);
    }
    if let Some(mebibytes) = env.scratch {
        builder = builder.scratch(u64::from(mebibytes) << 20);
    }
    if let Some(most) = most {
        builder = builder.max_blocks(most);
    }
    if let Some(least) = least {
        builder = builder.selector(AtLeast(least));
    }
    let collectives = builder.connect()?;
    let ours = Ours {
        statistics: Statistics::new(),
        comm: communicator,
        collectives,
        spares: all.into_iter().map(|hello| hello.spare).collect(),
        _spare: spare,
    };
    if report::is_info() {
        report::info(&formed(comm, &ours, &devices, begun.elapsed()));
    }
    Ok(Ok(Backend::Ours(Box::new(ours))))
}

/// As the measured tables say, with so many blocks at least.
#[derive(Debug)]
struct AtLeast(u32);

impl Selector for AtLeast {
    fn choose(&self, query: &Query) -> Selection {
        let selection = Tuned.choose(query);
        Selection { blocks: selection.blocks.max(self.0), ..selection }
    }
}

/// The line about a communicator.
fn formed(comm: &Comm, ours: &Ours, devices: &[[u8; 16]], took: Duration) -> String {
    let mebibytes = ours.collectives.device_bytes() >> 20;
    let links: Vec<String> = devices.iter().enumerate().map(|(rank, uuid)| link(comm, rank, uuid)).collect();
    format!(
        "{}: on {}, {mebibytes} MiB of its memory, formed in {took:.1?}; {}; all_reduce by {}",
        comm.name(),
        comm.gpu,
        links.join(", "),
        protocols(&ours.collectives)
    )
}

/// How a rank's device is reached.
fn link(comm: &Comm, rank: usize, uuid: &[u8; 16]) -> String {
    let how = match comm.gpu.peer_access_by_uuid(uuid) {
        _ if *uuid == comm.gpu.properties().uuid => "this device",
        Ok(Some(access)) if access.native_atomics => "peer memory with atomics",
        Ok(Some(access)) if access.reachable => "peer memory without atomics",
        Ok(Some(_)) => "no peer memory",
        Ok(None) | Err(_) => "peer memory of a device that this process does not see",
    };
    format!("rank {rank} by {how}")
}

/// Waits for what was created, unless that goes on by itself: what a creating call answers.
pub(crate) fn created(place: Place<Handle>, comm: &Arc<Comm>, handle: Handle) -> Result<Code, Failure> {
    if !comm.settings.blocking {
        return Ok(Code::IN_PROGRESS);
    }
    let timeout = Env::of_process()?.timeout;
    match comm.wait_formed(Comm::deadline(timeout)) {
        Ok(_) => Ok(Code::SUCCESS),
        Err(failure) => {
            place.set(std::ptr::null_mut());
            // Nobody else can have removed it but who destroyed it.
            let _ = comm::remove(handle);
            Err(failure)
        }
    }
}
