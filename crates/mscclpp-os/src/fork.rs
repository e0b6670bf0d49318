//! Sockets that forked children do not keep open.
//!
//! A peer learns from the end of a connection that this process has ended. A forked child has a copy of each descriptor, so a
//! connection would last as long as the child. So sockets are noted here, and a child gives its copies up as soon as it begins.
//!
//! The handler in the child takes no lock, allocates nothing, and makes system calls alone, as a child of a process with threads
//! must. It runs in children of `fork` alone: other programs that are started get no socket, as all are closed on exec.
#![allow(unsafe_code, reason = "a handler of forks, which only the C library offers")]

use std::{
    ffi::c_int,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Once, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// How many descriptors a part of the table is for, and how many parts there are.
const PART: usize = 1024;
const PARTS: usize = 1024;

/// The number of the file of each socket, at the number of its descriptor; 0 for none. A socket that was closed stays here: a
/// descriptor that has its number now is of another file.
static SOCKETS: [OnceLock<Box<[AtomicU64; PART]>>; PARTS] = [const { OnceLock::new() }; PARTS];

/// Notes that children that are forked from now on are to give up their copies of `socket`. In a child the descriptor leads to
/// `/dev/null`, so that its number is not used again as long as an object in the child's memory could close it.
pub fn keep_from_children(socket: impl AsFd) {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        // SAFETY: the function does what a child may do, and is there as long as this library is loaded; then the C library
        // forgets it.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            let error = std::io::Error::from_raw_os_error(refused);
            tracing::warn!(target: "mscclpp::conn", %error, "forks of this process will keep its connections open");
        }
    });
    let descriptor = socket.as_fd().as_raw_fd();
    let Some(file) = file_of(descriptor) else { return };
    let Ok(number) = usize::try_from(descriptor) else { return };
    if let Some(part) = SOCKETS.get(number / PART) {
        part.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PART]))[number % PART]
            .store(file, Ordering::Relaxed);
    }
}

/// Returns the number of the file behind a descriptor, if that is a socket.
fn file_of(descriptor: c_int) -> Option<u64> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the system writes a whole value to the place, or fails; a number that is no descriptor is an error.
    let found = unsafe {
        if libc::fstat(descriptor, found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    (found.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(found.st_ino)
}

extern "C" fn in_child() {
    // SAFETY: the name ends with a zero. If the call fails, the result is no descriptor.
    let nowhere = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for (part, files) in SOCKETS.iter().enumerate() {
        for (at, file) in files.get().iter().flat_map(|files| files.iter()).enumerate() {
            let (number, file) = ((part * PART + at) as c_int, file.swap(0, Ordering::Relaxed));
            if file != 0 && file_of(number) == Some(file) {
                // SAFETY: the descriptor is the child's copy of a socket that nothing in the child uses: all that used it is an
                // error there.
                unsafe {
                    if libc::dup3(nowhere, number, libc::O_CLOEXEC) < 0 {
                        libc::close(number);
                    }
                }
            }
        }
    }
    if nowhere >= 0 {
        // SAFETY: it was opened here.
        unsafe { libc::close(nowhere) };
    }
}
