//! Streams and events: order, errors of use, default stream. Tests that need a kernel are in `kernels.rs`.

use crate::{device, words};
use std::{ptr, time::Duration};

use mscclpp_gpu::{Error, Event, Platform, Stream};

const SECONDS: Duration = Duration::from_secs(60);

#[test]
fn a_stream_keeps_its_order() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    let (current, log) = (gpu.allocate(8).unwrap(), gpu.allocate(8 * 1000).unwrap());
    for i in 0..1000 {
        // SAFETY: both buffers outlive the work, and nothing else touches them.
        unsafe {
            stream.write_u64(current.ptr(), i + 1).unwrap();
            stream.copy(log.ptr().add(8 * i), current.ptr(), 8).unwrap();
            stream.fill(current.ptr(), 8, 0xff).unwrap();
        }
    }
    stream.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&log), (1..=1000).collect::<Vec<_>>());
    assert_eq!(words(&current), [u64::MAX]);
    assert!(stream.query().unwrap());
}

#[test]
fn two_values_are_written_in_their_order() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    let log = gpu.allocate(16).unwrap();
    let (first, second) = (log.ptr(), log.ptr().add(8));
    // SAFETY: the buffer outlives the work, and nothing else touches it.
    unsafe {
        stream.write_two_u64([(first, 1), (second, 2)]).unwrap();
        stream.write_two_u64([(second, 3), (second, 4)]).unwrap();
        for at in [1, 4, 7] {
            let place = first.add(at);
            for refused in [stream.write_u64(place, 5), stream.write_two_u64([(second, 6), (place, 5)])] {
                assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
            }
        }
    }
    stream.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&log), [1, 4]);
}

#[test]
fn copies_and_fills_at_odd_addresses() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    let (from, to) = (gpu.allocate(64).unwrap(), gpu.allocate(64).unwrap());
    let data: Vec<u8> = (1..=64).collect();
    from.write(0, &data).unwrap();
    for (dst, src, len) in [(0usize, 0usize, 64usize), (1, 1, 33), (3, 6, 41), (8, 1, 50), (17, 40, 0)] {
        to.fill(0, 64, 0xee).unwrap();
        // SAFETY: the ranges are inside the buffers, which outlive the work.
        unsafe { stream.copy(to.ptr().add(dst as u64), from.ptr().add(src as u64), len as u64).unwrap() };
        stream.synchronize().unwrap();
        let mut expected = [0xee; 64];
        expected[dst..dst + len].copy_from_slice(&data[src..src + len]);
        let mut back = [0; 64];
        to.read(0, &mut back).unwrap();
        assert_eq!(back, expected, "{len} bytes from {src} to {dst}");
    }
}

#[test]
fn clones_are_the_same_queue() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    let word = gpu.allocate(8).unwrap();
    let submit = |stream: &Stream, value| {
        // SAFETY: `word` outlives the work.
        unsafe { stream.write_u64(word.ptr(), value).unwrap() }
    };
    let clone = stream.clone();
    for i in 0..100 {
        submit(if i % 2 == 0 { &stream } else { &clone }, i);
    }
    drop(stream);
    clone.synchronize().unwrap();
    assert_eq!(words(&word), [99]);
}

#[test]
fn events_order_streams_and_tell_when() {
    let gpu = device::gpu();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (big, out) = (gpu.allocate(16 << 20).unwrap(), gpu.allocate(8).unwrap());
    let (start, end) = (gpu.event(true).unwrap(), gpu.event(true).unwrap());
    assert!(start.query().unwrap(), "never recorded");
    for round in 1..=10u8 {
        a.record(&start).unwrap();
        // SAFETY: the buffers outlive the work; `b` reads `big` behind the event.
        unsafe {
            a.fill(big.ptr(), 16 << 20, round).unwrap();
            a.record(&end).unwrap();
            b.wait_event(&end).unwrap();
            b.copy(out.ptr(), big.ptr().add((16 << 20) - 8), 8).unwrap();
        }
        b.synchronize_timeout(SECONDS).unwrap();
        assert_eq!(words(&out), [u64::from_ne_bytes([round; 8])]);
        end.synchronize_timeout(SECONDS).unwrap();
        assert!(end.query().unwrap());
        let forth = end.elapsed_ms(&start).unwrap();
        assert!(forth > 0.0, "16 MiB were filled in {forth} ms");
    }
}

#[test]
fn an_event_has_a_time_only_when_it_can() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    let (timed, other, untimed) =
        (gpu.event(true).unwrap(), gpu.event(true).unwrap(), gpu.event(false).unwrap());
    stream.record(&timed).unwrap();
    stream.record(&untimed).unwrap();
    stream.synchronize().unwrap();
    let unusable = |result: Result<f32, Error>| {
        assert!(matches!(result, Err(Error::InvalidArgument(_) | Error::Driver { .. })), "{result:?}");
    };
    unusable(timed.elapsed_ms(&other));
    unusable(timed.elapsed_ms(&untimed));
    unusable(untimed.elapsed_ms(&timed));
    stream.record(&other).unwrap();
    stream.synchronize().unwrap();
    assert!(other.elapsed_ms(&timed).unwrap() >= 0.0);
}

#[test]
fn the_default_stream_is_one() {
    let gpu = device::gpu();
    let word = gpu.allocate(8).unwrap();
    let (one, two) = (gpu.default_stream().unwrap(), gpu.default_stream().unwrap());
    // SAFETY: `word` outlives the work.
    unsafe {
        for i in 0..50 {
            one.write_u64(word.ptr(), 2 * i).unwrap();
            two.write_u64(word.ptr(), 2 * i + 1).unwrap();
        }
    }
    one.synchronize().unwrap();
    assert_eq!(words(&word), [99]);
    assert!(one.raw().is_null());
}

#[test]
fn synchronising_the_device_covers_every_stream() {
    // Streams of other tests fail: no other test uses this simulated device.
    let gpu = match device::platform() {
        Platform::Sim => Platform::Sim.gpu(3).unwrap(),
        _ => device::gpu(),
    };
    let log = gpu.allocate(64).unwrap();
    for (i, offset) in (0..64).step_by(8).enumerate() {
        let stream = gpu.stream().unwrap();
        for value in 0..100 {
            // SAFETY: `log` outlives the work.
            unsafe { stream.write_u64(log.ptr().add(offset), value + i as u64).unwrap() };
        }
        // The stream is dropped, its work is not.
    }
    gpu.synchronize().unwrap();
    assert_eq!(words(&log), (99..107).collect::<Vec<_>>());
}

#[test]
fn simulated_devices_have_no_raw_streams_and_events() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    // SAFETY: refused whatever they are.
    let (stream, event) =
        unsafe { (Stream::from_raw(&gpu, ptr::null_mut()), Event::from_raw(&gpu, ptr::null_mut())) };
    assert!(matches!(stream, Err(Error::InvalidArgument(_))), "{stream:?}");
    assert!(matches!(event, Err(Error::InvalidArgument(_))), "{event:?}");
}

/// Work that was put into a stream comes before what follows in the streams that are joined with it, also if something
/// behind it failed.
#[test]
fn joined_streams_are_in_order_behind_what_failed_half_way() {
    let gpu = device::gpu();
    let (stream, other, another) =
        (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.default_stream().unwrap());
    let (word, log) = (gpu.allocate(8).unwrap(), gpu.allocate(16).unwrap());
    for round in 1..=200 {
        let failed: Result<(), Error> = stream.join(&[&other, &another], || {
            for i in (0..50).rev() {
                // SAFETY: the memory outlives the work, and the streams are in order.
                unsafe { stream.write_u64(word.ptr(), round + i)? };
            }
            Err(Error::InvalidArgument("the second half".to_owned()))
        });
        assert!(
            matches!(&failed, Err(Error::InvalidArgument(why)) if why == "the second half"),
            "{failed:?}"
        );
        for (i, joined) in (0..).zip([&other, &another]) {
            // SAFETY: as above; each copy has a word of its own.
            unsafe { joined.copy(log.ptr().add(8 * i), word.ptr(), 8).unwrap() };
        }
        stream.join(&[&other, &another], || Ok::<_, Error>(())).unwrap();
        stream.synchronize_timeout(SECONDS).unwrap();
        assert_eq!(words(&log), [round; 2]);
    }
}

/// `cudaStreamPerThread` and `hipStreamPerThread` are one stream of each thread, whatever value stands for it.
#[test]
fn the_per_thread_stream_is_one_of_each_thread() {
    const PER_THREAD: *mut std::ffi::c_void = ptr::without_provenance_mut(2);
    let gpu = device::gpu();
    if gpu.platform() == Platform::Sim {
        return;
    }
    let of_this_thread = || {
        // SAFETY: the handle stands for a stream of the thread, which goes on.
        unsafe { Stream::from_raw(&gpu, PER_THREAD).unwrap() }
    };
    let word = gpu.allocate(8).unwrap();
    let own = of_this_thread();
    assert!(own.is(&of_this_thread()) && own.is_foreign());
    std::thread::scope(|scope| {
        let work = || {
            let theirs = of_this_thread();
            assert!(!theirs.is(&own));
            let graph = {
                let captures = gpu.stream().unwrap();
                captures.begin_capture().unwrap();
                captures.end_capture().unwrap()
            };
            let refused = [
                own.synchronize(),
                own.query().map(drop),
                own.is_capturing().map(drop),
                // SAFETY: an empty graph.
                unsafe { graph.launch(&own) },
            ];
            for refused in refused {
                let error = refused.expect_err("it is another thread's").to_string();
                assert!(error.contains("per-thread stream of ThreadId("), "{error}");
            }
            // SAFETY: the memory outlives the work.
            unsafe { theirs.write_u64(word.ptr(), 7).unwrap() };
            let event = gpu.event(false).unwrap();
            theirs.record(&event).unwrap();
            event
        };
        let event = scope.spawn(work).join().unwrap();
        own.wait_event(&event).unwrap();
    });
    // SAFETY: as above.
    unsafe { own.copy(word.ptr(), word.ptr(), 0).unwrap() };
    own.synchronize().unwrap();
    assert_eq!(words(&word), [7]);
}
