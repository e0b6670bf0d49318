//! Tests of a thread's current device.

use crate::device;
use std::thread;

#[test]
fn each_thread_has_a_device_of_its_own() {
    let platform = device::gpu().platform();
    let gpus = platform.gpus().unwrap();
    let last = gpus.last().expect("a device");
    last.make_current().unwrap();
    let current = move || platform.current_gpu().unwrap().id();
    assert_eq!(current(), last.id());
    assert_eq!(thread::spawn(current).join().unwrap(), 0, "a fresh thread");
    let adopted = last.clone();
    let of_adopted = thread::spawn(move || {
        adopted.adopt_thread().unwrap();
        current()
    });
    assert_eq!(of_adopted.join().unwrap(), last.id());
    gpus[0].make_current().unwrap();
    assert_eq!(current(), 0);
}
