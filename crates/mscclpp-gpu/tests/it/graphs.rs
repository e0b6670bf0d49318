//! Capture and replay.

use crate::{device, words};
use mscclpp_gpu::Error;

#[test]
fn captured_work_runs_at_every_launch_and_not_before() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    // Each replay moves a window of 8 bytes along by one: a replay too many, too few or out of order is noticed.
    let line = gpu.allocate(2048).unwrap();
    let spare = gpu.allocate(2048).unwrap();
    line.fill(0, 8, 0xaa).unwrap();
    stream.begin_capture().unwrap();
    // SAFETY: the buffers outlive every launch.
    unsafe {
        stream.copy(spare.ptr(), line.ptr(), 2047).unwrap();
        stream.copy(line.ptr().add(1), spare.ptr(), 2047).unwrap();
        stream.fill(line.ptr(), 1, 0).unwrap();
    }
    let graph = stream.end_capture().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(words(&line)[0], u64::from_ne_bytes([0xaa; 8]), "captured, not run");

    for _ in 0..1000 {
        // SAFETY: the buffers outlive the launch.
        unsafe { graph.launch(&stream).unwrap() };
    }
    stream.synchronize().unwrap();
    let mut all = [0; 2048];
    line.read(0, &mut all).unwrap();
    let mut expected = [0; 2048];
    expected[1000..1008].fill(0xaa);
    assert_eq!(all, expected);
}

#[test]
fn a_graph_runs_on_other_streams_and_outlives_its_own() {
    let gpu = device::gpu();
    let word = gpu.allocate(8).unwrap();
    let graph = {
        let stream = gpu.stream().unwrap();
        stream.begin_capture().unwrap();
        // SAFETY: `word` outlives every launch.
        unsafe { stream.write_u64(word.ptr(), 42).unwrap() };
        stream.end_capture().unwrap()
    };
    let other = gpu.stream().unwrap();
    // SAFETY: the same as above.
    unsafe { graph.clone().launch(&other).unwrap() };
    drop(graph);
    other.synchronize().unwrap();
    assert_eq!(words(&word), [42]);
}

#[test]
fn captures_begin_and_end_in_turn() {
    let gpu = device::gpu();
    let stream = gpu.stream().unwrap();
    let misuse = |what: &str, failed: Option<Error>| {
        assert!(
            matches!(failed, Some(Error::InvalidArgument(_) | Error::Driver { .. })),
            "{what}: {failed:?}"
        );
    };
    misuse("end without begin", stream.end_capture().err());
    stream.begin_capture().unwrap();
    misuse("begin twice", stream.begin_capture().err());
    stream.end_capture().unwrap();
    misuse("end twice", stream.end_capture().err());
    stream.synchronize().unwrap();

    stream.begin_capture().unwrap();
    misuse("synchronise while capturing", stream.synchronize().err());
    // The call may have ended the capture, as it does on CUDA.
    let _ = stream.end_capture();
    stream.begin_capture().unwrap();
    misuse("query while capturing", stream.query().err());
    let _ = stream.end_capture();
    stream.synchronize().unwrap();
}

#[test]
fn events_do_not_cross_the_border_of_a_capture() {
    let gpu = mscclpp_gpu::Platform::Sim.gpu(0).unwrap();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (inside, outside) = (gpu.event(true).unwrap(), gpu.event(true).unwrap());
    b.record(&outside).unwrap();
    a.begin_capture().unwrap();
    a.record(&inside).unwrap();
    a.wait_event(&inside).expect("an edge between work of one stream");
    let refused = |what: &str, result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{what}: {result:?}");
    };
    refused("an outer event in a capture", a.wait_event(&outside));
    refused("a captured event in another stream", b.wait_event(&inside));
    refused("query of a captured event", inside.query().map(drop));
    let graph = a.end_capture().unwrap();
    refused("an event of a capture that has ended", a.wait_event(&inside));
    refused("its time", inside.elapsed_ms(&outside).map(drop));
    // An event that is recorded again is an event like any other.
    a.record(&inside).unwrap();
    b.wait_event(&inside).unwrap();
    // SAFETY: the graph has no operation at all.
    unsafe { graph.launch(&b).unwrap() };
    b.synchronize().unwrap();
}
