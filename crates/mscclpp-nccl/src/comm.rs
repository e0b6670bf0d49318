//! Communicators, and the handles by which C code names them.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{Bootstrap, Gpu, errors::BootstrapError, gpu::Abort};
use mscclpp_collectives::Error;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    abi::{Code, Handle},
    answers,
    config::Settings,
    failure::Failure,
    id::Spare,
    nccl::Handed,
    operators::Operators,
    ours::Ours,
    registrations::Registrations,
};

/// One rank's communicator, which is formed in the background after it is made.
pub(crate) struct Comm {
    /// The rank and the number of ranks. A split does not know them before its ranks have exchanged their colors.
    position: OnceLock<(usize, usize)>,
    pub(crate) gpu: Gpu,
    pub(crate) settings: Settings,
    pub(crate) operators: Operators,
    pub(crate) registrations: Registrations,
    /// The result of forming the communicator; empty while it is being formed.
    outcome: OnceLock<Result<Backend, Failure>>,
    changed: (Mutex<()>, Condvar),
    /// The job's bootstrap, from when the ranks have met until the communicator is formed.
    bootstrap: Mutex<Option<Arc<dyn Bootstrap>>>,
    aborted: AtomicBool,
    /// Why the communicator takes no more calls, as a participle for messages ("destroyed").
    ended: OnceLock<&'static str>,
    /// How many splits and shrinkings of this communicator are under way.
    pub(crate) splitting: AtomicUsize,
    /// How many splits were begun: the tags of their messages contain this number.
    pub(crate) splits: AtomicU32,
    /// How many shrinkings to the same ranks were begun.
    shrinkings: Mutex<HashMap<Vec<usize>, u32>>,
    /// The id of `ncclCommGetUniqueId` under which new ranks find this one, until `ncclCommGrow` takes it.
    pub(crate) growth: Mutex<Option<Spare>>,
    /// Whether the communicator takes no calls until `ncclCommResume`.
    suspended: AtomicBool,
    /// The first failure since the communicator was formed, which `ncclCommGetAsyncError` reports.
    failed: Mutex<Option<Failure>>,
}

/// The implementation that carries out the calls of a communicator.
pub(crate) enum Backend {
    /// The collectives of this repository.
    Ours(Box<Ours>),
    /// NCCL itself, to which the communicator was handed over.
    Handed(Handed),
}

impl Backend {
    /// The parts of the communicator, for `what`, if this library carries out its calls.
    ///
    /// # Errors
    /// If NCCL does.
    pub(crate) fn ours(&self, what: &str) -> Result<&Ours, Failure> {
        match self {
            Self::Ours(ours) => Ok(ours),
            Self::Handed(_) => {
                Err(Failure::usage(format!("not covered: {what}a communicator that NCCL has")))
            }
        }
    }
}

impl Comm {
    /// A communicator that is still to be formed. The thread that forms it sets its [position](Comm::set_position).
    pub(crate) fn new(gpu: Gpu, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            position: OnceLock::new(),
            gpu,
            settings,
            operators: Operators::default(),
            registrations: Registrations::default(),
            outcome: OnceLock::new(),
            changed: (Mutex::new(()), Condvar::new()),
            bootstrap: Mutex::default(),
            aborted: AtomicBool::new(false),
            ended: OnceLock::new(),
            splitting: AtomicUsize::new(0),
            splits: AtomicU32::new(0),
            shrinkings: Mutex::default(),
            growth: Mutex::default(),
            suspended: AtomicBool::new(false),
            failed: Mutex::default(),
        })
    }

    /// Sets the rank and the number of ranks. Called once, by the thread that forms the communicator.
    pub(crate) fn set_position(&self, rank: usize, ranks: usize) {
        let _ = self.position.set((rank, ranks));
    }

    /// The rank of this communicator, and the number of ranks.
    ///
    /// # Errors
    /// [`Code::INVALID_USAGE`] while a split does not know its position yet.
    pub(crate) fn position(&self) -> Result<(usize, usize), Failure> {
        self.position.get().copied().ok_or_else(|| self.unformed())
    }

    /// Counts a shrinking to these ranks. Returns how many there were before, which is the same on all of them.
    pub(crate) fn shrink_to(&self, members: &[usize]) -> u32 {
        let mut shrinkings = self.shrinkings.lock();
        let count = shrinkings.entry(members.to_vec()).or_default();
        *count += 1;
        *count - 1
    }

    /// The communicator's name in messages.
    pub(crate) fn name(&self) -> String {
        let name = self.settings.name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
        let position = self
            .position
            .get()
            .map_or_else(String::new, |(rank, ranks)| format!(" of rank {rank} of {ranks}"));
        format!("the communicator{name}{position}")
    }

    fn unformed(&self) -> Failure {
        Failure::usage(format!(
            "{} is still being formed; poll ncclCommGetAsyncError until it says ncclSuccess",
            self.name()
        ))
    }

    /// Notes the bootstrap of the ranks, which have met. If the communicator was aborted before, aborts the bootstrap.
    pub(crate) fn met(&self, bootstrap: &Arc<dyn Bootstrap>) {
        *self.bootstrap.lock() = Some(Arc::clone(bootstrap));
        // Pairs with the store in `abort`: either this load sees that store, or `abort` sees the bootstrap.
        if self.aborted.load(Ordering::SeqCst) {
            bootstrap.abort(ABORTED);
        }
    }

    /// Stores the result of forming the communicator, and wakes the threads that wait for it. Called once.
    pub(crate) fn set_outcome(&self, outcome: Result<Backend, Failure>) {
        // The backend alone keeps the bootstrap from here on. If forming failed, this drop is the last one, and says goodbye to
        // the other ranks before the program sees the failure and may end.
        let job = self.bootstrap.lock().take();
        drop(job);
        {
            let _lock = self.changed.0.lock();
            // Nobody else sets the outcome: one thread forms the communicator.
            let _ = self.outcome.set(outcome);
            self.changed.1.notify_all();
        }
        // Pairs with the store in `abort`, which may have found no outcome yet.
        if self.was_aborted() {
            self.abort();
        }
    }

    /// The result of forming the communicator, or `None` while it is being formed.
    pub(crate) fn outcome(&self) -> Option<&Result<Backend, Failure>> {
        self.outcome.get()
    }

    /// Waits until the communicator is formed. If that takes longer than `deadline`, aborts it.
    pub(crate) fn wait_formed(&self, deadline: Instant) -> Result<&Backend, Failure> {
        let mut lock = self.changed.0.lock();
        while self.outcome.get().is_none() {
            if self.changed.1.wait_until(&mut lock, deadline).timed_out() {
                drop(lock);
                self.abort();
                let text = format!("{} did not form in time (MSCCLPP_NCCL_TIMEOUT)", self.name());
                return Err(Failure::new(Code::REMOTE_ERROR, text));
            }
        }
        drop(lock);
        self.backend()
    }

    /// The implementation that carries out the communicator's calls.
    ///
    /// # Errors
    /// If the communicator is still being formed, could not be formed, or takes no more calls.
    pub(crate) fn backend(&self) -> Result<&Backend, Failure> {
        match self.ended.get() {
            Some(why) => Err(Failure::usage(format!("{} was {why}", self.name()))),
            None if self.is_suspended() => {
                Err(Failure::usage(format!("{} is suspended; call ncclCommResume", self.name())))
            }
            None => self.formed(),
        }
    }

    /// The implementation for splitting and shrinking the communicator, which work also when it takes no more calls.
    ///
    /// # Errors
    /// If the communicator is still being formed, or could not be formed.
    pub(crate) fn formed(&self) -> Result<&Backend, Failure> {
        match self.outcome.get() {
            Some(Ok(backend)) => Ok(backend),
            Some(Err(failure)) => Err(failure.clone()),
            None => Err(self.unformed()),
        }
    }

    /// Refuses the communicator's calls from now on, with a message that it was `why`.
    pub(crate) fn end(&self, why: &'static str) {
        // A communicator that has ended already keeps its first reason.
        let _ = self.ended.set(why);
    }

    /// Refuses the communicator's calls while it is suspended.
    pub(crate) fn suspend(&self, suspended: bool) {
        self.suspended.store(suspended, Ordering::Relaxed);
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed)
    }

    /// The state that `ncclCommGetAsyncError` reports.
    pub(crate) fn state(&self) -> Code {
        let code = match self.outcome.get() {
            None => return Code::IN_PROGRESS,
            Some(Err(failure)) => return failure.code,
            Some(Ok(Backend::Handed(handed))) => handed.state(),
            Some(Ok(Backend::Ours(ours))) => self.check(ours),
        };
        let failed = self.failed.lock().as_ref().map(|failure| failure.code);
        match (code, failed) {
            (Code::SUCCESS, Some(failed)) => failed,
            (Code::SUCCESS, None) if self.splitting.load(Ordering::Acquire) > 0 => Code::IN_PROGRESS,
            (code, _) => code,
        }
    }

    fn check(&self, ours: &Ours) -> Code {
        if self.ended.get().is_some() {
            // Calls that were made go on, and are still reported. That other ranks have left is no error any more.
            return if ours.is_idle().unwrap_or(true) { Code::SUCCESS } else { Code::IN_PROGRESS };
        }
        let lost = match ours.comm.bootstrap().failure() {
            // A rank that aborts is no failure here: programs end by aborting, each rank in its own time. Calls that wait, or are
            // made later, do fail.
            None | Some(BootstrapError::Aborted { .. }) => None,
            Some(lost) => Some(Failure::from(lost)),
        };
        let failure = lost.or_else(|| ours.check().err());
        let Some(failure) = failure else { return Code::SUCCESS };
        let code = failure.code;
        self.failed.lock().get_or_insert_with(|| {
            answers::remember(&failure);
            failure
        });
        code
    }

    /// Returns the failure of complete calls that did not match, unless the program was told before. Only checked calls are
    /// compared.
    ///
    /// # Errors
    /// [`Code::INVALID_USAGE`].
    pub(crate) fn tell_mismatch(&self, ours: &Ours) -> Result<(), Failure> {
        match Abort::check(&ours.collectives) {
            Err(error @ (Error::Mismatch { .. } | Error::Overlap { .. })) if self.failure().is_none() => {
                let failure = Failure::from(error);
                self.fail(&failure);
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// Records a failure of something that was done in the background.
    pub(crate) fn fail(&self, failure: &Failure) {
        answers::remember(failure);
        self.failed.lock().get_or_insert_with(|| failure.clone());
    }

    /// The failure of the communicator, if it has failed.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.outcome.get() {
            Some(Err(failure)) => Some(failure.clone()),
            _ => self.failed.lock().clone(),
        }
    }

    /// Aborts the communicator on all ranks: its kernels stop waiting, and if it is being formed, that ends. Blocks for about a
    /// second at most.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        match self.outcome.get() {
            Some(Ok(Backend::Ours(ours))) => {
                ours.abort(ABORTED);
                ours.comm.abort(ABORTED);
            }
            // `Handed::abort` has NCCL abort its own.
            Some(Ok(Backend::Handed(_)) | Err(_)) => {}
            None => self.end_job(ABORTED),
        }
    }

    /// Sends the other ranks the reason why forming the communicator failed here. Blocks for about a second at most.
    pub(crate) fn give_up(&self, why: &str) {
        self.end_job(why);
        let job = self.bootstrap.lock().take();
        drop(job);
    }

    fn end_job(&self, why: &str) {
        let bootstrap = self.bootstrap.lock().clone();
        if let Some(bootstrap) = bootstrap {
            bootstrap.abort(why);
        }
    }

    pub(crate) fn was_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// The time by which a communicator that is begun now must be formed.
    pub(crate) fn deadline(timeout: Duration) -> Instant {
        // The threads that form communicators watch the time-out too, and their messages say what is missing. So they go first.
        Instant::now() + timeout + Duration::from_secs(10)
    }
}

const ABORTED: &str = "ncclCommAbort was called";

/// The communicators of this process, by handle.
static COMMS: LazyLock<RwLock<HashMap<usize, Arc<Comm>>>> = LazyLock::new(RwLock::default);

/// Adds a communicator to the table, and returns its handle.
pub(crate) fn add(comm: &Arc<Comm>) -> Handle {
    let handle = Arc::as_ptr(comm).cast_mut().cast();
    COMMS.write().insert(handle as usize, Arc::clone(comm));
    handle
}

/// The communicator of a handle.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`] if there is none.
pub(crate) fn of(handle: Handle) -> Result<Arc<Comm>, Failure> {
    COMMS.read().get(&(handle as usize)).cloned().ok_or_else(|| unknown(handle))
}

/// The communicator of which a handle is a window.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`] if there is none.
pub(crate) fn with_window(window: Handle) -> Result<Arc<Comm>, Failure> {
    let comms = COMMS.read();
    let comm = comms.values().find(|comm| comm.registrations.windows.lock().contains_key(&window.addr()));
    comm.cloned().ok_or_else(|| Failure::argument(format!("`window` is {window:p}, which is no window")))
}

/// Removes a handle from the table, and returns its communicator.
///
/// # Errors
/// The same as of [`of`].
pub(crate) fn remove(handle: Handle) -> Result<Arc<Comm>, Failure> {
    COMMS.write().remove(&(handle as usize)).ok_or_else(|| unknown(handle))
}

/// All communicators of the table.
pub(crate) fn all() -> Vec<Arc<Comm>> {
    COMMS.read().values().cloned().collect()
}

/// Removes all handles from the table and returns their communicators, when the process ends. Returns none if another thread
/// holds the table's lock for longer than 100 milliseconds.
pub(crate) fn remove_all() -> Vec<Arc<Comm>> {
    let comms = COMMS.try_write_for(Duration::from_millis(100));
    comms.map(|mut comms| comms.drain().map(|(_, comm)| comm).collect()).unwrap_or_default()
}

fn unknown(handle: Handle) -> Failure {
    Failure::argument(match handle.is_null() {
        true => "`comm` is NULL".to_owned(),
        false => format!("`comm` is {handle:p}, which is no communicator: it was destroyed, or never made"),
    })
}

/// Converts a number of ranks or devices to a C `int`; one that does not fit becomes the largest.
pub(crate) fn as_int(number: usize) -> std::ffi::c_int {
    std::ffi::c_int::try_from(number).unwrap_or(std::ffi::c_int::MAX)
}
