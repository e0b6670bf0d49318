//! The memory of simulated devices in a forked child. It is shared between processes, so a child that wrote to it would write
//! to its parent's. The API refuses that, but not to code that has an address, such as an array of NumPy. So a child may not
//! touch that memory at all, and if it does, a message says why the child ends.
//!
//! The code that runs here in a child takes no lock, allocates nothing, and calls the system alone, as a child of a process
//! with threads must. It runs in children of `fork` alone, which have mappings of their own: children of `vfork` and
//! `posix_spawn`, whose mappings are their parent's until they start another program, call no such handlers.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use super::ranges;

/// The handler of the signal before this one.
static mut BEFORE: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();
static IS_SET: AtomicBool = AtomicBool::new(false);

const WHY: &[u8] =
    b"mscclpp: this process is a fork, and has touched memory of its parent's simulated devices; start processes as new \
      programs (Python: multiprocessing.get_context(\"spawn\")), or fork before the first use of a device\n";

/// Forbids children that are forked from now on to touch shared memory.
pub(super) fn keep_out_children() {
    static KEPT_OUT: Once = Once::new();
    KEPT_OUT.call_once(|| {
        // SAFETY: the function does what a child may do, and is there as long as this library is loaded.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            let error = std::io::Error::from_raw_os_error(refused);
            tracing::warn!(target: "mscclpp::gpu", %error, "forks of this process could touch memory of its devices");
        }
    });
}

extern "C" fn in_child() {
    let protect = |begin: usize, bytes: usize| {
        // SAFETY: a whole mapping of this library's, which in a child nothing uses. It can fail only if there is no such mapping.
        unsafe { libc::mprotect(ptr::without_provenance_mut(begin), bytes, libc::PROT_NONE) };
    };
    // A child that finds a fault handler in place is a child's child, and has no other memory.
    if ranges::for_each_shared(protect) && !IS_SET.swap(true, Ordering::Relaxed) {
        // SAFETY: zeros are a valid value; the handler has the type that the flag says; nothing else uses the static until then.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &raw const action, (&raw mut BEFORE).cast());
        }
    }
}

/// Prints the reason, and leaves the rest to the handler before: the access is made again, and fails again.
extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system's, for this call; `BEFORE` was set with this handler, and is read alone.
    unsafe {
        if ranges::is_shared((*info).si_addr().addr()) {
            libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len());
        }
        libc::sigaction(libc::SIGSEGV, (&raw const BEFORE).cast(), ptr::null_mut());
    }
}
