//! Communicators, and the handles that C code has of them.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{Bootstrap, Communicator, Gpu, errors::BootstrapError, gpu::Abort};
use mscclpp_collectives::Collectives;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    abi::{Code, Handle, UniqueId},
    config::Settings,
    failure::{self, Failure},
    fallback::Handed,
    id::Spare,
    memory::Registrations,
    operators::Operators,
    statistics::Statistics,
};

/// A communicator of one rank.
pub(crate) struct Comm {
    /// Its rank and how many there are: of a split, not known at once.
    position: OnceLock<(usize, usize)>,
    pub(crate) gpu: Gpu,
    pub(crate) settings: Settings,
    pub(crate) operators: Operators,
    pub(crate) registrations: Registrations,
    /// What became of forming it.
    outcome: OnceLock<Result<Backend, Failure>>,
    changed: (Mutex<()>, Condvar),
    /// Of the job, from when its ranks have met.
    bootstrap: Mutex<Option<Arc<dyn Bootstrap>>>,
    aborted: AtomicBool,
    /// Why its calls are over.
    ended: OnceLock<&'static str>,
    /// How many splits of it go on.
    pub(crate) splitting: AtomicUsize,
    /// How many splits, and how many shrinkings, were begun: for the tags of their messages.
    pub(crate) splits: AtomicU32,
    pub(crate) shrinkings: AtomicU32,
    /// What failed last of what was done in the background.
    failed: Mutex<Option<Failure>>,
}

/// What carries out the calls of a communicator.
pub(crate) enum Backend {
    /// The collectives of this repository.
    Ours(Box<Ours>),
    /// NCCL's.
    Handed(Handed),
}

/// What a communicator has whose ranks are all covered.
pub(crate) struct Ours {
    pub(crate) comm: Communicator,
    pub(crate) collectives: Collectives,
    /// The ids under which ranks can be found if the job has failed.
    pub(crate) spares: Vec<Option<UniqueId>>,
    /// This rank's.
    pub(crate) _spare: Option<Spare>,
    pub(crate) statistics: Statistics,
}

impl Comm {
    /// One that is to be formed. Who forms it gives it its [position](Comm::set_position).
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
            shrinkings: AtomicU32::new(0),
            failed: Mutex::default(),
        })
    }

    /// It is that of `rank` among so many.
    pub(crate) fn set_position(&self, rank: usize, ranks: usize) {
        // Called once, by who forms it.
        let _ = self.position.set((rank, ranks));
    }

    /// Its rank, and how many ranks there are.
    ///
    /// # Errors
    /// While a split is being formed.
    pub(crate) fn position(&self) -> Result<(usize, usize), Failure> {
        self.position.get().copied().ok_or_else(|| self.unformed())
    }

    /// Its name in messages.
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

    /// Its job, once its ranks have met. If it was aborted before, so is the job.
    pub(crate) fn met(&self, bootstrap: &Arc<dyn Bootstrap>) {
        *self.bootstrap.lock() = Some(Arc::clone(bootstrap));
        // Pairs with the store in `abort`: one of the two sees what the other did.
        if self.aborted.load(Ordering::SeqCst) {
            bootstrap.abort(ABORTED);
        }
    }

    /// What became of forming it. Called once.
    pub(crate) fn set_outcome(&self, outcome: Result<Backend, Failure>) {
        // From here on only what was made has the job. If nothing was, this says goodbye, before the program hears of it and may end.
        let job = self.bootstrap.lock().take();
        drop(job);
        {
            let _lock = self.changed.0.lock();
            // Only who forms it sets it.
            let _ = self.outcome.set(outcome);
            self.changed.1.notify_all();
        }
        // Pairs with the store in `abort`, which has found nothing made yet.
        if self.was_aborted() {
            self.abort();
        }
    }

    /// What it is made of; nothing while it is being formed.
    pub(crate) fn outcome(&self) -> Option<&Result<Backend, Failure>> {
        self.outcome.get()
    }

    /// Waits until it is formed, until `deadline` at most: then it is aborted.
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

    /// What carries out its calls.
    ///
    /// # Errors
    /// While it is being formed, if that failed, and when its calls are over.
    pub(crate) fn backend(&self) -> Result<&Backend, Failure> {
        match self.ended.get() {
            Some(why) => Err(Failure::usage(format!("{} was {why}", self.name()))),
            None => self.formed(),
        }
    }

    /// What it is made of, for new communicators of its ranks: also when its calls are over.
    ///
    /// # Errors
    /// While it is being formed, and if that failed.
    pub(crate) fn formed(&self) -> Result<&Backend, Failure> {
        match self.outcome.get() {
            Some(Ok(backend)) => Ok(backend),
            Some(Err(failure)) => Err(failure.clone()),
            None => Err(self.unformed()),
        }
    }

    /// From now on its calls are refused: it was this.
    pub(crate) fn end(&self, why: &'static str) {
        // The first reason counts.
        let _ = self.ended.set(why);
    }

    /// What `ncclCommGetAsyncError` says.
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
            // What was called goes on. Whether others have left already is nothing to tell any more.
            return if ours.collectives.is_idle().unwrap_or(true) {
                Code::SUCCESS
            } else {
                Code::IN_PROGRESS
            };
        }
        let lost = match ours.comm.bootstrap().failure() {
            // Programs end by it, each rank in its own time: it is an error for who was waiting, or calls again.
            None | Some(BootstrapError::Aborted { .. }) => None,
            Some(lost) => Some(Failure::from(lost)),
        };
        let failure = lost.or_else(|| Abort::check(&ours.collectives).err().map(Failure::from));
        let Some(failure) = failure else { return Code::SUCCESS };
        let code = failure.code;
        self.failed.lock().get_or_insert_with(|| {
            failure::remember(&failure);
            failure
        });
        code
    }

    /// Something that was done in the background failed.
    pub(crate) fn fail(&self, failure: &Failure) {
        failure::remember(failure);
        self.failed.lock().get_or_insert_with(|| failure.clone());
    }

    /// Why it failed, if it has.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.outcome.get() {
            Some(Err(failure)) => Some(failure.clone()),
            _ => self.failed.lock().clone(),
        }
    }

    /// Gives up, here and on all ranks: the waits of kernels end, and so does forming it. Blocks for about a second at most.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        match self.outcome.get() {
            Some(Ok(Backend::Ours(ours))) => {
                ours.collectives.abort(ABORTED);
                ours.comm.abort(ABORTED);
            }
            // NCCL aborts it itself.
            Some(Ok(Backend::Handed(_)) | Err(_)) => {}
            None => self.end_job(ABORTED),
        }
    }

    /// Forming it has failed: the other ranks are told why. Blocks for about a second at most.
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

    /// How long it may take to form.
    pub(crate) fn deadline(timeout: Duration) -> Instant {
        // The threads that form it keep the time, and know more about what is missing.
        Instant::now() + timeout + Duration::from_secs(10)
    }
}

const ABORTED: &str = "ncclCommAbort was called";

/// The communicators of this process, by handle.
static COMMS: LazyLock<RwLock<HashMap<usize, Arc<Comm>>>> = LazyLock::new(RwLock::default);

/// The handle of a communicator, from now on.
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

/// The communicator of a handle, which is none any more.
///
/// # Errors
/// As [`of`].
pub(crate) fn remove(handle: Handle) -> Result<Arc<Comm>, Failure> {
    COMMS.write().remove(&(handle as usize)).ok_or_else(|| unknown(handle))
}

/// All of them, which are none any more: for the end of the process. None if another thread has the table for long.
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

/// A number of ranks or devices for C code.
pub(crate) fn as_int(number: usize) -> std::ffi::c_int {
    std::ffi::c_int::try_from(number).unwrap_or(std::ffi::c_int::MAX)
}
