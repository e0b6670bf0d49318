//! The functions by which tests control the fake. They are its own, found with `dlsym` like those of HIP.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char},
    thread::{self, ThreadId},
};

use parking_lot::Mutex;

use crate::{devices, memory, modules, rtc, streams};

/// The number of calls of each entry point.
static CALLS: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);

/// The calls that are to fail.
static FAILURES: Mutex<Vec<Failure>> = Mutex::new(Vec::new());

struct Failure {
    name: String,
    code: u32,
    /// The thread whose calls count; `None` for all threads.
    thread: Option<ThreadId>,
}

/// Counts a call of `name`. Returns the code that the call is to fail with, if it is to fail.
pub(crate) fn count(name: &'static str) -> Option<u32> {
    *CALLS.lock().get_or_insert_default().entry(name).or_default() += 1;
    let mut failures = FAILURES.lock();
    let here = thread::current().id();
    let is_meant =
        |planned: &Failure| planned.name == name && planned.thread.is_none_or(|thread| thread == here);
    let index = failures.iter().position(is_meant)?;
    Some(failures.remove(index).code)
}

/// Makes the next call of the entry point `name` fail with `code`: of the calling thread's calls if `here` is true, else of
/// all threads'.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakeHipFail(name: *const c_char, code: u32, here: bool) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let thread = here.then(|| thread::current().id());
    FAILURES.lock().push(Failure { name, code, thread });
}

/// Whether a failure that was asked for is still to come.
#[unsafe(no_mangle)]
extern "C" fn fakeHipIsFailurePlanned() -> bool {
    !FAILURES.lock().is_empty()
}

/// Returns how often the entry point `name` was called.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakeHipCalls(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    CALLS.lock().as_ref().and_then(|calls| calls.get(&*name).copied()).unwrap_or(0)
}

/// Counts the objects of each kind that exist: device memory, pinned memory, imported memory, streams, events,
/// graphs, graphs that can be launched, modules, programs.
#[unsafe(no_mangle)]
extern "C" fn fakeHipExisting(counts: &mut [u64; 9]) {
    let [device, pinned, imported] = memory::existing();
    let [streams, events, graphs, executables] = streams::existing();
    *counts = [
        device,
        pinned,
        imported,
        streams,
        events,
        graphs,
        executables,
        modules::existing(),
        rtc::existing(),
    ];
}

/// Limits the memory of each device to `bytes`.
#[unsafe(no_mangle)]
extern "C" fn fakeHipLimitMemory(bytes: u64) {
    devices::limit_memory(bytes);
}
