//! Semaphores that the host signals, through the connection's link.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

use mscclpp_gpu::DevicePtr;
use mscclpp_os::waiting::{Backoff, LongWait};

use crate::{
    Error, HostToDeviceSemaphoreHandle, Result, Semaphore,
    protocol::SemaphoreWords,
    slab::{EXPECTED, INBOUND, INBOUND_BY_LINK},
};

/// A semaphore that hosts signal and on which kernels wait: `Host2DeviceSemaphore` of the C++ and Python API. It
/// works over every transport. Several objects made from one [`Semaphore`] share its tokens.
///
/// Port channels use the same [device handle](HostToDeviceSemaphoreHandle); their proxy signals instead of
/// [`Self::signal`].
#[derive(Debug, Clone)]
pub struct HostToDeviceSemaphore {
    semaphore: Semaphore,
    handle: HostToDeviceSemaphoreHandle,
}

impl HostToDeviceSemaphore {
    /// Makes one from `semaphore`, whose local endpoint is on a GPU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a local endpoint on the CPU.
    pub fn new(semaphore: &Semaphore) -> Result<Self> {
        Ok(Self { handle: HostToDeviceSemaphoreHandle::of(semaphore)?, semaphore: semaphore.clone() })
    }

    /// Signals the peer, after all earlier [writes](crate::Connection::write) of the connection. Blocks, for 30
    /// seconds at most, only while the transport is full, or while a dropped queue or service still has operations on
    /// their way to the peer, with signals of this semaphore among them. Any thread may call it;
    /// threads that signal at the same time wait for each other.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like; [`Error::Timeout`] if that takes longer: nothing was sent, and the call can
    /// be repeated; [`Error::InvalidArgument`] while a proxy service signals over the semaphore.
    pub fn signal(&self) -> Result<()> {
        self.semaphore.signal_from_host()
    }

    /// The semaphore that this one was made from.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// The handle that kernels need, as plain data. `self` must live until the kernels that use it are complete. As
    /// an argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> HostToDeviceSemaphoreHandle {
        self.handle
    }
}

impl HostToDeviceSemaphoreHandle {
    /// Makes the handle of a semaphore, even of one that hosts do not signal.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a semaphore whose local endpoint is on the CPU.
    pub fn of(semaphore: &Semaphore) -> Result<Self> {
        semaphore.here()?;
        let connection = semaphore.connection();
        if connection.local_gpu().is_none() {
            return Err(Error::InvalidArgument(format!(
                "the local endpoint of the connection to {} is on the CPU, where no kernel can wait; use a \
                 HostToHostSemaphore",
                connection.label()
            )));
        }
        let block = semaphore.block();
        Ok(Self {
            inbound_token: block.word(INBOUND).as_mut_ptr(),
            expected_inbound_token: block.word(EXPECTED).as_mut_ptr(),
            status: semaphore.status().ptr().as_mut_ptr(),
            port: std::ptr::null(),
        })
    }

    /// Returns the word to which kernels of this side add 1, with release at system scope, to signal the peer of
    /// `semaphore` themselves. `None` if they do not reach the word, or not with atomics.
    #[must_use]
    pub fn direct_token(semaphore: &Semaphore) -> Option<DevicePtr> {
        semaphore.remote_token_by_device()
    }
}

/// A semaphore that hosts signal and on which hosts wait: `Host2HostSemaphore` of the C++ and Python API. Its local
/// endpoint is on the CPU, so it is not for CUDA IPC. Several objects made from one [`Semaphore`] share its tokens.
///
/// The peer may have a [`HostToDeviceSemaphore`] at its end, if that is on a GPU.
#[derive(Debug, Clone)]
pub struct HostToHostSemaphore {
    semaphore: Semaphore,
}

impl HostToHostSemaphore {
    /// Makes one from `semaphore`, whose local endpoint is on the CPU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a local endpoint on a GPU.
    pub fn new(semaphore: &Semaphore) -> Result<Self> {
        if semaphore.connection().local_gpu().is_some() {
            return Err(Error::InvalidArgument(format!(
                "the local endpoint of the connection to {} is on a GPU, where kernels wait; use a \
                 HostToDeviceSemaphore, or an endpoint on Device::CPU",
                semaphore.connection().label()
            )));
        }
        Ok(Self { semaphore: semaphore.clone() })
    }

    /// Signals the peer, as [`HostToDeviceSemaphore::signal`] does.
    ///
    /// # Errors
    /// The same as [`HostToDeviceSemaphore::signal`].
    pub fn signal(&self) -> Result<()> {
        self.semaphore.signal_from_host()
    }

    /// Takes a signal if there is one; data that the peer wrote before the signal is then visible. Does not block.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like, if there is no signal and none can come.
    pub fn poll(&self) -> Result<bool> {
        let words = self.words()?;
        if words.poll(Ordering::Acquire) {
            return Ok(true);
        }
        self.semaphore.connection().progress_inbound();
        if words.poll(Ordering::Acquire) {
            return Ok(true);
        }
        match self.semaphore.check() {
            // The status word is that of another thread's `wait`: on the CPU no kernel waits.
            Ok(()) | Err(Error::DeviceWaitTimedOut { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for a signal and takes it; data that the peer wrote before the signal is then visible. Waits for
    /// `max_spin_count` polls at most, or without a bound if that is negative. Ends when the connection fails or the
    /// semaphore is aborted. A long wait is logged, as
    /// [`ContextBuilder::log_waits_after`](crate::ContextBuilder::log_waits_after) says.
    ///
    /// # Errors
    /// [`Error::Timeout`]: nothing was taken and the call can be repeated; [`Error::PeerLost`] and the like.
    pub fn wait(&self, max_spin_count: i64) -> Result<()> {
        let connection = self.semaphore.connection();
        // Some clocks are slow to read: the clock is read only once there is something to wait for.
        let (mut start, mut long, mut backoff) = (None, None, Backoff::default());
        let pause = || {
            let start = *start.get_or_insert_with(Instant::now);
            if !connection.progress_inbound() && backoff.wait() {
                let first = connection.context().waits_are_logged_after();
                let long = long.get_or_insert_with(|| LongWait::since(start, first));
                let what = || format!("{}: a signal, over {}", connection.label(), connection.transport());
                long.log(Instant::now(), None, what);
            }
        };
        if self.words()?.wait(Ordering::Acquire, max_spin_count, pause) {
            return Ok(());
        }
        match self.semaphore.check() {
            // The status word for a time-out may have been reset by another thread's time-out.
            Ok(()) | Err(Error::DeviceWaitTimedOut { .. }) => Err(Error::Timeout {
                operation: format!("waiting for a signal from {}", connection.label()),
                after: start.as_ref().map(Instant::elapsed).unwrap_or_default(),
            }),
            Err(error) => Err(error),
        }
    }

    /// The semaphore that this one was made from.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    fn words(&self) -> Result<SemaphoreWords<'_, AtomicU64, AtomicU32>> {
        self.semaphore.here()?;
        let (block, status) = (self.semaphore.block(), self.semaphore.status());
        let word = |offset| {
            let missing = "a semaphore of an endpoint on the CPU has its token in host memory";
            block.host_word(offset).ok_or_else(|| Error::InvalidArgument(missing.to_owned()))
        };
        let inbound = word(INBOUND)?;
        Ok(SemaphoreWords {
            inbound,
            inbound_by_link: Some(word(INBOUND_BY_LINK)?),
            expected: word(EXPECTED)?,
            status: status.words()?,
        })
    }
}
