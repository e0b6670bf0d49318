//! Communicators. C code names them by [handles](table).

mod table;

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{Bootstrap, Gpu, errors::BootstrapError, gpu::Abort};
use mscclpp_collectives::Error;
use parking_lot::{Condvar, Mutex};

use crate::{
    abi::Code, answers, config::Settings, env::Env, failure::Failure, id::Spare, nccl::Handed,
    operators::Operators, ours::Ours, registrations::Registrations, report,
};

pub(crate) use self::table::{add, all, of, remove, remove_all, with_window};

/// Why a communicator takes no more calls after `ncclCommFinalize`.
pub(crate) const FINALIZED: &str = "finalized";

/// One rank's communicator, which is formed in the background after it is made.
pub(crate) struct Comm {
    /// The rank and the number of ranks. A split does not know them before its ranks have exchanged their colors.
    position: OnceLock<(usize, usize)>,
    pub(crate) gpu: Gpu,
    pub(crate) settings: Settings,
    pub(crate) operators: Operators,
    pub(crate) registrations: Registrations,
    /// The time by which the communicator must be formed.
    deadline: Instant,
    /// The result of forming the communicator; empty while it is being formed. Set under the lock of `aborted`.
    outcome: OnceLock<Result<Backend, Failure>>,
    formed: Condvar,
    /// Why the communicator was aborted before it was formed, if it was: its outcome is then a failure.
    aborted: Mutex<Option<String>>,
    /// The job's bootstrap, from when the ranks have met until the communicator is formed.
    bootstrap: Mutex<Option<Arc<dyn Bootstrap>>>,
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

    /// Ends what was formed, on all ranks.
    fn abort(&self, why: &str) {
        match self {
            Self::Ours(ours) => {
                ours.abort(why);
                ours.comm.abort(why);
            }
            Self::Handed(handed) => {
                if let Err(failure) = handed.abort() {
                    report::warn(&failure.text);
                }
            }
        }
    }
}

impl Comm {
    /// A communicator that is still to be formed. The thread that forms it sets its [position](Comm::set_position).
    pub(crate) fn new(gpu: Gpu, settings: Settings, env: &Env) -> Arc<Self> {
        Arc::new(Self {
            position: OnceLock::new(),
            // The thread that forms it watches the time-out too, and its messages say what is missing. So it goes first.
            deadline: Instant::now() + env.timeout + Duration::from_secs(10),
            gpu,
            settings,
            operators: Operators::default(),
            registrations: Registrations::default(),
            outcome: OnceLock::new(),
            formed: Condvar::new(),
            aborted: Mutex::default(),
            bootstrap: Mutex::default(),
            ended: OnceLock::new(),
            splitting: AtomicUsize::new(0),
            splits: AtomicU32::new(0),
            shrinkings: Mutex::default(),
            growth: Mutex::default(),
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
        // An abort that is not seen here sees the bootstrap, which is set before: both are under locks.
        if let Some(why) = self.aborted() {
            bootstrap.abort(&why);
        }
    }

    /// Stores the result of forming the communicator, and wakes the threads that wait for it. If it was aborted meanwhile, ends
    /// what was formed, and stores a failure. Called once, by the thread that forms it.
    pub(crate) fn set_outcome(&self, outcome: Result<Backend, Failure>) {
        // From here on, only the backend holds the bootstrap. If forming failed, there is no backend: this drop ends the job, and
        // the other ranks get a goodbye before the program learns of the failure and may end.
        let job = self.bootstrap.lock().take();
        drop(job);
        let mut outcome = outcome;
        loop {
            let aborted = self.aborted.lock();
            match (&*aborted, &outcome) {
                (Some(why), Ok(formed)) => {
                    let why = why.clone();
                    drop(aborted);
                    formed.abort(&why);
                    let text = format!("{} was aborted while it was being formed: {why}", self.name());
                    outcome = Err(Failure::new(Code::REMOTE_ERROR, text));
                }
                _ => {
                    // Nobody else sets the outcome: one thread forms the communicator.
                    let _ = self.outcome.set(outcome);
                    self.formed.notify_all();
                    return;
                }
            }
        }
    }

    /// The result of forming the communicator, or `None` while it is being formed.
    pub(crate) fn outcome(&self) -> Option<&Result<Backend, Failure>> {
        self.outcome.get()
    }

    /// Waits until the communicator is formed. If that takes too long, aborts it.
    pub(crate) fn wait_formed(&self) -> Result<&Backend, Failure> {
        let mut lock = self.aborted.lock();
        while self.outcome.get().is_none() {
            if self.formed.wait_until(&mut lock, self.deadline).timed_out() {
                drop(lock);
                return self.give_up_late().map_or_else(|| self.backend(), Err);
            }
        }
        drop(lock);
        self.backend()
    }

    /// Aborts the communicator, which is late, and returns the failure. Returns none if it was formed, or failed, meanwhile.
    fn give_up_late(&self) -> Option<Failure> {
        if !self.abort_unformed("it did not form within MSCCLPP_NCCL_TIMEOUT") {
            return None;
        }
        let text = format!("{} did not form in time (MSCCLPP_NCCL_TIMEOUT)", self.name());
        let failure = Failure::new(Code::REMOTE_ERROR, text);
        self.fail(&failure);
        Some(failure)
    }

    /// The implementation that carries out the communicator's calls.
    ///
    /// # Errors
    /// If the communicator is still being formed, could not be formed, or takes no more calls.
    pub(crate) fn backend(&self) -> Result<&Backend, Failure> {
        if let Some(why) = self.ended.get() {
            return Err(Failure::usage(format!("{} was {why}", self.name())));
        }
        match self.formed()? {
            Backend::Ours(ours) if ours.collectives.is_suspended() => {
                Err(Failure::usage(format!("{} is suspended; call ncclCommResume", self.name())))
            }
            backend => Ok(backend),
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

    /// The parts of the communicator, for `what`.
    ///
    /// # Errors
    /// The same as of [`Comm::formed`]; and if NCCL has the communicator.
    pub(crate) fn ours(&self, what: &str) -> Result<&Ours, Failure> {
        self.formed()?.ours(what)
    }

    /// Refuses the communicator's calls from now on, with a message that it was `why`.
    pub(crate) fn end(&self, why: &'static str) {
        // A communicator that has ended already keeps its first reason.
        let _ = self.ended.set(why);
    }

    /// The state that `ncclCommGetAsyncError` reports. Aborts a communicator that does not form in time.
    pub(crate) fn state(&self) -> Code {
        let code = match self.outcome.get() {
            None if Instant::now() < self.deadline => return Code::IN_PROGRESS,
            None => {
                if self.aborted().is_none() && self.give_up_late().is_none() {
                    // The outcome is set now.
                    return self.state();
                }
                return Code::REMOTE_ERROR;
            }
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
        let failure = match self.ended.get() {
            Some(_) if matches!(ours.is_idle(), Ok(false)) => return Code::IN_PROGRESS,
            // Calls that were made before have gone on. That other ranks have left is no error any more.
            Some(&FINALIZED) => ours.is_idle().and_then(|_| ours.check()).err(),
            Some(_) => None,
            None => {
                let lost = match ours.comm.bootstrap().failure() {
                    // A rank that aborts is no failure here: programs end by aborting, each rank in its own time. Calls that
                    // wait, or are made later, do fail.
                    None | Some(BootstrapError::Aborted { .. }) => None,
                    Some(lost) => Some(Failure::from(lost)),
                };
                lost.or_else(|| ours.check().err())
            }
        };
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

    /// Aborts the communicator on all ranks, which are told `why`: its kernels stop waiting, and if it is being formed, that
    /// ends. Blocks for about a second at most. One that NCCL has goes on: `Handed::abort` ends it, and its handle too.
    pub(crate) fn abort(&self, why: &str) {
        if self.abort_unformed(why) {
            return;
        }
        if let Some(Ok(backend @ Backend::Ours(_))) = self.outcome.get() {
            backend.abort(why);
        }
    }

    /// Aborts the communicator unless it is formed already, or has failed. Returns whether it did.
    pub(crate) fn abort_unformed(&self, why: &str) -> bool {
        let mut aborted = self.aborted.lock();
        // The outcome is set under the lock, so `set_outcome` sees this abort.
        if self.outcome.get().is_some() {
            return false;
        }
        aborted.get_or_insert_with(|| why.to_owned());
        drop(aborted);
        self.end_job(why);
        true
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

    /// Why the communicator was aborted before it was formed, if it was.
    pub(crate) fn aborted(&self) -> Option<String> {
        self.aborted.lock().clone()
    }
}

/// Converts a number of ranks or devices to a C `int`; one that does not fit becomes the largest.
pub(crate) fn as_int(number: usize) -> std::ffi::c_int {
    std::ffi::c_int::try_from(number).unwrap_or(std::ffi::c_int::MAX)
}

#[cfg(test)]
mod tests {
    use mscclpp::{LocalBootstrap, Platform};

    use super::*;

    fn comm() -> Comm {
        let env = Env::of_process().unwrap();
        let comm = Comm::new(Platform::Sim.gpu(0).unwrap(), Settings::of(env), env);
        Arc::into_inner(comm).unwrap()
    }

    #[test]
    fn a_communicator_that_is_not_formed_in_time_fails_for_who_polls_it() {
        let mut ranks = LocalBootstrap::group(2).into_iter();
        let (here, there) = (ranks.next().unwrap(), ranks.next().unwrap());
        let mut comm = comm();
        comm.met(&(Arc::new(here) as Arc<dyn Bootstrap>));
        assert_eq!(comm.state(), Code::IN_PROGRESS);
        comm.deadline = Instant::now();
        assert_eq!([comm.state(), comm.state()], [Code::REMOTE_ERROR; 2]);
        assert!(comm.failure().unwrap().text.contains("MSCCLPP_NCCL_TIMEOUT"));
        let told = there.failure().unwrap().to_string();
        assert!(told.contains("it did not form within MSCCLPP_NCCL_TIMEOUT"), "{told}");
    }
}
