//! The texts of errors: what `main` prints, and hints. Ranks are threads of this process.

use std::sync::Arc;

use crate::support::{device_of, endpoint_of, platform, ranks};
use mscclpp::{Error, Report, prelude::*};

#[test]
fn a_message_of_the_programs_own_on_a_tag_of_the_communicator_is_recognised() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), 1 - comm.bootstrap().rank());
        for message in [&b"hello"[..], b"", &[0; 64]] {
            comm.bootstrap().send(message, peer, 4).unwrap();
            let error = comm.recv_memory(peer, 4).unwrap().wait().unwrap_err();
            let text = Report(&error).to_string();
            let hint = format!("if rank {peer} sends messages of its own with tag 4, give them another tag");
            assert!(text.contains(&hint), "{text}");
            assert_eq!(text.contains("it is the text \"hello\""), message == b"hello", "{text}");
        }
        // An error about an object that a communicator sent gets no such hint.
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let memory = comm.register_buffer(&gpu.allocate(8).unwrap(), Transport::CUDA_IPC).unwrap();
        comm.send_memory(&memory, peer, 4).unwrap();
        let error = comm.connect(endpoint_of(rank), peer, 4).unwrap().wait().unwrap_err();
        assert!(!Report(&error).to_string().contains("of its own"), "{error:?}");
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn what_main_prints_of_an_error_is_its_message_with_the_causes_each_once() {
    let comm =
        Communicator::with_context(Arc::new(LocalBootstrap::group(1).remove(0)), Context::on(platform()));
    comm.bootstrap().send(b"hello", 0, 0).unwrap();
    let error = comm.recv_memory(0, 0).unwrap().wait().unwrap_err();
    let printed = format!("{error:?}");
    assert_eq!(printed, Report(&error).to_string());
    for part in ["recv_memory with rank 0", "cannot read a registered memory", "it is the text \"hello\""] {
        assert_eq!(printed.matches(part).count(), 1, "{printed}");
    }
    let boxed: Box<dyn std::error::Error> = error.into();
    assert_eq!(format!("{boxed:?}"), printed, "as `Result<(), Box<dyn Error>>` prints it");
    let unknown: Result<_, Error> = comm.connect(endpoint_of(0), 7, 0);
    assert_eq!(
        format!("{:?}", unknown.unwrap_err()),
        "invalid argument: connect: there is no rank 7 in a job of 1"
    );
}
