//! What a job took is given back.

mod ranks;

use mscclpp_bootstrap::Bootstrap;
use ranks::{on_threads, tcp_job};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn round() {
    let job = tcp_job(3);
    on_threads(3, |rank| {
        job[rank].barrier().unwrap();
        job[rank].send(&[1], (rank + 1) % 3, 0).unwrap();
        job[rank].recv((rank + 2) % 3, 0).unwrap();
    });
    drop(job);
}

#[test]
fn descriptors_and_threads_stay_flat() {
    for _ in 0..10 {
        round();
    }
    let before = (descriptors(), threads());
    for _ in 0..300 {
        round();
    }
    assert_eq!((descriptors(), threads()), before);

    // While a job is there and only collectives were used: an eventfd, an epoll instance, a listener and up to three
    // connections a rank.
    let job = tcp_job(64);
    on_threads(64, |rank| job[rank].barrier().unwrap());
    let per_rank = (descriptors() - before.0) as f64 / 64.0;
    assert!(per_rank <= 6.0, "{per_rank} descriptors a rank");
    assert_eq!(threads() - before.1, 64);
}
