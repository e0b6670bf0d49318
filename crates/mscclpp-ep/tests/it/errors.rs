//! Wrong arguments, ranks that differ, tokens that are too many, ranks that do not come.

use std::time::Duration;

use mscclpp::{ErrorKind, prelude::*};
use mscclpp_ep::{
    Combine, Dispatch, Error, Experts, ExpertsBuilder, Layout, Memory, NumberType, Payload, Quantisation,
};
use mscclpp_test_support::LIMIT;

use crate::support::{memory, ranks};

/// Four experts, two choices, up to 4 tokens of 8 floats.
fn builder(comm: &Communicator, gpu: &Gpu) -> ExpertsBuilder {
    let builder = Experts::builder(comm, gpu).experts(4).top_k(2).hidden(8).number_type(NumberType::F32);
    builder.capacity(4).timeout(LIMIT)
}

/// Tokens of which each has these choices, and numbers that are its own number.
fn tokens(gpu: &Gpu, choices: &[i32]) -> Dispatch {
    let ids: Vec<u8> = choices.iter().flat_map(|id| id.to_le_bytes()).collect();
    let count = choices.len() / 2;
    let rows: Vec<u8> = (0..count).flat_map(|token| [token as f32; 8]).flat_map(f32::to_le_bytes).collect();
    Dispatch::new(count, &memory(gpu, &ids), &memory(gpu, &rows))
}

fn text<T>(result: Result<T, Error>) -> String {
    result.map(drop).expect_err("it is wrong").to_string()
}

#[test]
fn settings_that_cannot_be_are_errors_with_their_values() {
    ranks(1, |comm, gpu| {
        let wrong = |builder: ExpertsBuilder| text(builder.scratch_bytes(2));
        let usual = || builder(comm, gpu);
        assert_eq!(wrong(usual().experts(0)), "experts(0); give 1 to 32768");
        assert_eq!(wrong(usual().top_k(65)), "top_k(65); give 1 to 64");
        assert_eq!(wrong(usual().hidden(6)), "hidden(6); give a multiple of 4, up to 1048576");
        assert_eq!(wrong(usual().micro_batches(3)), "micro_batches(3); give 1 or 2");
        assert_eq!(
            wrong(usual().expert_map([0, 1, 2, 0])),
            "expert_map of 4 experts with ranks up to 2; there are 4 experts and 2 ranks"
        );
        assert_eq!(
            wrong(usual().quantise(Quantisation::E4m3)),
            "quantise() is for tokens of type Bf16 or F16"
        );
        assert_eq!(wrong(usual().also(6)), "a row of 6 bytes; give a multiple of 4, up to 4194304");
        assert_eq!(
            wrong(usual().also(4).also(4).also(4).also(4)),
            "5 tensors travel for a token, and 4 are the most"
        );
        assert!(wrong(usual().capacity(1 << 30)).contains("capacity(1073741824)"));
        assert!(wrong(usual().experts(2000)).starts_with("2000 experts, up to 1000 of a rank, need "));
        assert_eq!(text(usual().scratch_bytes(17)), "experts of 17 ranks; 16 are the most");
        assert_eq!(text(usual().experts(0).connect()), "experts(0); give 1 to 32768");
        // Each of 2 x 4 rows has 4 bytes and 12 for each of 2 choices, and takes 32.
        let tables = usual().table_bytes(2).unwrap();
        assert!((2 * 4 * 32..2 * 4 * 32 + 1024).contains(&tables), "{tables}");
    });
}

#[test]
fn ranks_that_give_different_settings_are_named_with_both_values() {
    type Change = fn(ExpertsBuilder) -> ExpertsBuilder;
    let changes: [(&str, u64, u64, Change); 5] = [
        ("capacity", 4, 8, |own| own.capacity(8)),
        ("experts", 4, 6, |own| own.experts(6)),
        ("top_k", 2, 3, |own| own.top_k(3)),
        ("hidden", 8, 12, |own| own.hidden(12)),
        ("micro_batches", 1, 2, |own| own.micro_batches(2)),
    ];
    for (what, usual, other, change) in changes {
        let errors = ranks(2, |comm, gpu| {
            let own = builder(comm, gpu);
            text(if comm.bootstrap().rank() == 0 { own } else { change(own) }.connect())
        });
        let expected = [
            format!("rank 0 and rank 1 set up experts with different {what}: {usual} and {other}"),
            format!("rank 1 and rank 0 set up experts with different {what}: {other} and {usual}"),
        ];
        assert_eq!(errors, expected);
    }
    let errors = ranks(2, |comm, gpu| {
        let map = if comm.bootstrap().rank() == 0 { [0, 0, 1, 1] } else { [0, 1, 0, 1] };
        text(builder(comm, gpu).expert_map(map).connect())
    });
    assert!(errors[0].contains("different expert_map (a digest): "), "{errors:?}");
}

#[test]
fn arguments_that_do_not_fit_are_refused_and_change_nothing() {
    ranks(1, |comm, gpu| {
        let (experts, other) =
            (builder(comm, gpu).connect().unwrap(), builder(comm, gpu).tag(1).connect().unwrap());
        let stream = gpu.stream().unwrap();
        let rows = gpu.allocate(4 * 4 * 32).unwrap();
        let dispatch = |dispatch: Dispatch| text(experts.dispatch(&dispatch, &stream));
        let usual = || tokens(gpu, &[0, 1, 2, 3]);
        assert_eq!(
            dispatch(Dispatch::new(4, &gpu.allocate(16).unwrap(), &rows)),
            "topk_ids has 16 bytes of memory, and the call needs 32"
        );
        let short = gpu.allocate(32).unwrap();
        assert_eq!(
            dispatch(Dispatch::new(2, &short, &short)),
            "tensor 0 of dispatch has 32 bytes of memory, and the call needs 64"
        );
        assert_eq!(
            dispatch(usual().weights(&gpu.allocate(4).unwrap())),
            "topk_weights has 4 bytes of memory, and the call needs 16"
        );
        assert_eq!(dispatch(usual().with(&rows)), "dispatch takes 1 tensors, and got 2");
        assert_eq!(
            dispatch(usual().into(Layout::Expert, &short)),
            "tensor 0 that comes to dispatch has 32 bytes of memory, and the call needs 512"
        );
        assert_eq!(
            dispatch(usual().into(Layout::Token, &rows).and(&rows)),
            "Token needs memory for 1 tensors that come, and got 2"
        );
        for alignment in [0, 65537] {
            assert_eq!(
                dispatch(usual().into(Layout::Flat { alignment }, &rows)),
                format!("Layout::Flat with an alignment of {alignment}; give 1 to 65536")
            );
        }
        assert_eq!(
            dispatch(usual().micro_batch(1)),
            "micro-batch 1 of experts that are set up with micro_batches(1)"
        );
        let odd = Memory::slice(&rows, 2..400).unwrap();
        assert!(dispatch(usual().into(Layout::Token, odd)).contains("which is no multiple of 8"));
        assert_eq!(text(Memory::slice(&rows, 8..513)), "bytes 8 to 513 are not within a buffer of 512 bytes");

        let routed = experts.dispatch(&usual().into(Layout::Token, &rows), &stream).unwrap();
        let combine = |combine: Combine<'_>| text(experts.combine(&combine, &stream));
        assert_eq!(
            combine(Combine::new(&routed, &rows, &short)),
            "the result of combine has 32 bytes of memory, and the call needs 64"
        );
        assert_eq!(
            combine(Combine::new(&routed, &short, &rows)),
            "the rows of combine has 32 bytes of memory, and the call needs 512"
        );
        assert_eq!(
            combine(Combine::new(&routed, &rows, &rows).exact()),
            "an exact combine is for Layout::Expert or Layout::Flat"
        );
        let of_experts = experts.dispatch(&usual().into(Layout::Expert, &rows), &stream).unwrap();
        assert_eq!(
            combine(Combine::new(&of_experts, &rows, &rows).exact()),
            "an exact combine is for experts that are set up with exact(true)"
        );
        assert_eq!(
            dispatch(usual().into(Layout::Token, &rows).column_major(true)),
            "column_major() is for the second tensor of layouts that copy; there is none here"
        );
        assert_eq!(
            dispatch(usual().add_waits_to(Memory::slice(&rows, 0..4).unwrap())),
            "the memory for waits has 4 bytes of memory, and the call needs 8"
        );
        assert_eq!(
            combine(Combine::new(&of_experts, &rows, &rows).row_weights(&rows, &rows)),
            "weights of rows are for Layout::Rank and Layout::Token, and for combines without weights"
        );
        assert_eq!(
            combine(Combine::new(&routed, &rows, &rows).bias(&rows).bias(&rows).bias(&rows)),
            "combine with 3 biases; 2 are the most"
        );
        assert_eq!(
            text(experts.with_payload(&Payload::new().row_bytes(256))),
            "a payload whose rows need 1024 bytes of memory; those of the set-up have 128"
        );
        let (half, receive) = experts.dispatch_send(&usual().into(Layout::Token, &rows), &stream).unwrap();
        let unfinished = "a call of micro-batch 0 before the last one has received: put its second half into a stream first";
        assert_eq!(dispatch(usual()), unfinished);
        assert_eq!(combine(Combine::new(&half, &rows, &rows)), unfinished);
        assert_eq!(
            text(experts.dispatch_again(&routed, &[(&rows).into()], &[(&rows).into()], &stream)),
            unfinished
        );
        receive.receive(&stream).unwrap();
        assert_eq!(
            text(other.combine(&Combine::new(&routed, &rows, &rows), &stream)),
            "a routing of other experts: give one that these have made"
        );
        let of_other = other.dispatch(&usual().into(Layout::Token, &rows), &stream).unwrap();
        other.synchronize(&stream).expect("its own call");
        drop(other);
        assert_eq!(text(of_other.release(&stream)), "the experts that made this routing were dropped");
        assert_eq!(text(routed.received(0)), "received() is for Layout::Rank, and this dispatch had Token");
        experts.synchronize(&stream).expect("the calls that were right");
        assert_eq!(routed.rows_of_ranks().unwrap(), [2]);
    });
}

/// The calls after such a call are right again.
#[test]
fn more_tokens_than_the_capacity_are_an_error_on_all_ranks_and_send_nothing() {
    ranks(3, |comm, gpu| {
        let experts = builder(comm, gpu).connect().unwrap();
        let stream = gpu.stream().unwrap();
        let rows = gpu.allocate(3 * 4 * 32).unwrap();
        let called =
            |choices: &[i32]| experts.dispatch(&tokens(gpu, choices).into(Layout::Token, &rows), &stream);
        let expected = "rank 1 called dispatch with more than 4 tokens, which is the capacity: it sent none";
        if experts.rank() == 1 {
            assert_eq!(text(called(&[0; 10])), expected);
            experts.synchronize(&stream).expect("this rank has been told");
        } else {
            let routed = called(&[0, -1]).unwrap();
            assert_eq!(text(experts.synchronize(&stream)), expected);
            let came = if experts.rank() == 0 { [1, 0, 1] } else { [0; 3] };
            assert_eq!(routed.rows_of_ranks().unwrap(), came);
        }
        let routed = called(&[0, -1]).unwrap();
        experts.synchronize(&stream).expect("all is right again");
        assert_eq!(routed.rows_of_ranks().unwrap(), [u32::from(experts.rank() == 0); 3]);
    });
}

#[test]
fn a_choice_that_is_no_expert_counts_as_none_and_is_an_error_once() {
    ranks(2, |comm, gpu| {
        let experts = builder(comm, gpu).connect().unwrap();
        let stream = gpu.stream().unwrap();
        for wrong in [4, -2, i32::MAX, i32::MIN] {
            let routed = experts.dispatch(&tokens(gpu, &[0, 2, wrong, 3]), &stream).unwrap();
            let error = experts.synchronize(&stream).expect_err("it is no expert");
            assert_eq!(error.to_string(), "token 1 has a choice that is neither -1 nor one of the 4 experts");
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            let own = experts.rank() as u32;
            assert_eq!(routed.rows_of_ranks().unwrap(), [1 + own; 2]);
            routed.release(&stream).unwrap();
            experts.synchronize(&stream).expect("it is said once");
        }
    });
}

fn dropped(choices: usize) -> String {
    format!(
        "more rows came than the memory of the layout holds, and {choices} choices of tokens have none: give dispatch memory for \
         more; Layout says how many rows are always enough"
    )
}

#[test]
fn rows_for_which_there_is_no_memory_are_dropped_and_an_error() {
    ranks(2, |comm, gpu| {
        let experts = builder(comm, gpu).connect().unwrap();
        let stream = gpu.stream().unwrap();
        let rows = gpu.allocate(3 * 32).unwrap();
        rows.fill(0, rows.len(), 0).unwrap();
        let memory = Memory::slice(&rows, 0..64).unwrap();
        // Two rows come from each rank, of which this one has memory for two.
        let dispatch = tokens(gpu, &[0, 2, 1, 3]).into(Layout::Token, memory);
        let routed = experts.dispatch(&dispatch, &stream).unwrap();
        assert_eq!(text(experts.synchronize(&stream)), dropped(2));
        let mut numbers = [0f32; 24];
        rows.read_params(0, &mut numbers).unwrap();
        assert_eq!((numbers[0], numbers[8], numbers[16]), (0.0, 1.0, 0.0));
        assert_eq!(routed.rows_of_ranks().unwrap(), [2, 2]);
        // A later call counts anew.
        let memory = Memory::slice(&rows, 0..32).unwrap();
        let dispatch = tokens(gpu, &[0, 2, 1, 3]).into(Layout::Token, memory);
        experts.dispatch(&dispatch, &stream).unwrap();
        assert_eq!(text(experts.synchronize(&stream)), dropped(3));
        // Dropped rows are not summed: those of rank 1.
        let sums = gpu.allocate(2 * 32).unwrap();
        experts.combine(&Combine::new(&routed, &rows, &sums), &stream).unwrap();
        experts.synchronize(&stream).unwrap();
        let mut numbers = [9f32; 16];
        sums.read_params(0, &mut numbers).unwrap();
        let second = if experts.rank() == 0 { 2.0 } else { 0.0 };
        assert_eq!((numbers[0], numbers[8]), (0.0, second));
    });
}

/// With few tokens, whose rows travel as packets, and with many.
#[test]
fn other_rows_for_which_there_is_less_memory_are_dropped_too() {
    ranks(2, |comm, gpu| {
        for capacity in [4, 200] {
            let experts = builder(comm, gpu).capacity(capacity).connect().unwrap();
            let stream = gpu.stream().unwrap();
            let (first, rows) = (gpu.allocate(4 * 32).unwrap(), gpu.allocate(4 * 32).unwrap());
            rows.fill(0, rows.len(), 0).unwrap();
            let dispatch = tokens(gpu, &[0, 2, 1, 3]).into(Layout::Token, &first);
            let routed = experts.dispatch(&dispatch, &stream).unwrap();
            experts.synchronize(&stream).unwrap();
            let given = memory(gpu, &[5f32; 16].map(f32::to_le_bytes).concat());
            let less = Memory::slice(&rows, 0..32).unwrap();
            experts.dispatch_again(&routed, &[(&given).into()], &[less], &stream).unwrap();
            assert_eq!(text(experts.synchronize(&stream)), dropped(3));
            let mut numbers = [9f32; 32];
            rows.read_params(0, &mut numbers).unwrap();
            assert_eq!((numbers[..8].to_vec(), numbers[8..].to_vec()), (vec![5.0; 8], vec![0.0; 24]));
        }
    });
}

#[test]
fn a_rank_that_sends_rows_of_another_payload_is_named() {
    ranks(2, |comm, gpu| {
        let experts = builder(comm, gpu).row_bytes(2048).connect().unwrap();
        let stream = gpu.stream().unwrap();
        let (rows, out) = (gpu.allocate(2048).unwrap(), gpu.allocate(8 * 2048).unwrap());
        let ids = memory(gpu, &[0, 0, 0, 0, 2, 0, 0, 0]);
        let payload = Payload::new().row_bytes([16, 2048][experts.rank()]);
        let other = experts.with_payload(&payload).unwrap();
        other.dispatch(&Dispatch::new(1, &ids, &rows).into(Layout::Token, &out), &stream).unwrap();
        assert_eq!(
            text(experts.synchronize(&stream)),
            format!(
                "rank {} sent rows of another payload: all ranks use the same one in the same call",
                1 - experts.rank()
            )
        );
        let routed =
            experts.with_payload(&Payload::new()).unwrap().dispatch(&tokens(gpu, &[0, 2]), &stream).unwrap();
        experts.synchronize(&stream).expect("both are the same");
        // A routing is good for each payload, but not where rows are seen in place.
        assert_eq!(
            text(other.dispatch_again(&routed, &[(&rows).into()], &[], &stream)),
            "rows of another payload than that of the dispatch cannot come in Layout::Rank"
        );
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_and_the_experts_fail_from_then_on() {
    ranks(3, |comm, gpu| {
        let experts = builder(comm, gpu).timeout(Duration::from_secs(2)).connect().unwrap();
        let stream = gpu.stream().unwrap();
        if experts.rank() != 1 {
            experts.dispatch(&tokens(gpu, &[0, 1, 2, 3]), &stream).unwrap();
            let error = experts.synchronize(&stream).expect_err("rank 1 does not call");
            assert!(matches!(error, Error::Failed { .. }), "{error}");
            assert_eq!(error.kind(), ErrorKind::Aborted);
            assert!(error.to_string().contains("rank 1"), "{error}");
            let again = experts.dispatch(&tokens(gpu, &[0, 1]), &stream).expect_err("they have failed");
            assert!(matches!(again, Error::Failed { .. }), "{again}");
        }
        // Rank 1 does not leave before the others have given up.
        comm.bootstrap().barrier().expect("all are done");
    });
}

/// The second half of a call would wait for what the first half did not send.
#[test]
fn what_follows_a_half_that_has_given_up_ends_too() {
    ranks(2, |comm, gpu| {
        let experts = builder(comm, gpu).capacity(200).timeout(Duration::from_secs(5)).connect().unwrap();
        let stream = gpu.stream().unwrap();
        let routed = experts.dispatch(&tokens(gpu, &[0, 2]), &stream).unwrap();
        experts.synchronize(&stream).unwrap();
        comm.bootstrap().barrier().expect("both have got the first rows");
        if experts.rank() == 0 {
            // Rank 1 does not release its rows.
            routed.release(&stream).unwrap();
            let (_, receive) = experts.dispatch_send(&tokens(gpu, &[0, 2]), &stream).unwrap();
            receive.receive(&stream).unwrap();
            let error = experts.synchronize(&stream).expect_err("rank 1 does not release");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            assert!(stream.query_timeout(LIMIT).unwrap(), "the kernels wait on");
        }
        comm.bootstrap().barrier().expect("all is done");
    });
}

#[test]
fn rows_that_are_used_after_they_were_given_back_are_an_error() {
    // Rows that are made of packets stay until the next dispatch.
    for (capacity, stay) in [(1000, false), (2, true)] {
        ranks(2, |comm, gpu| {
            let experts = builder(comm, gpu).capacity(capacity).connect().unwrap();
            let stream = gpu.stream().unwrap();
            let first = experts.dispatch(&tokens(gpu, &[0, 2]), &stream).unwrap();
            first.check_received(&stream).unwrap();
            first.release(&stream).unwrap();
            experts.synchronize(&stream).expect("they were there");
            let gone = "rows of a dispatch in micro-batch 0 were used where they came (Layout::Rank) after a combine or a release() had \
                        given them back, or after the next dispatch: kernels that read them come before these";
            if !stay {
                first.check_received(&stream).unwrap();
                let error = experts.synchronize(&stream).expect_err("they were given back");
                assert_eq!((error.to_string().as_str(), error.kind()), (gone, ErrorKind::InvalidUsage));
            }
            let second = experts.dispatch(&tokens(gpu, &[0, 2]), &stream).unwrap();
            second.check_received(&stream).unwrap();
            experts.synchronize(&stream).expect("these are there");
            first.check_received(&stream).unwrap();
            assert_eq!(text(experts.synchronize(&stream)), gone);
            second.release(&stream).unwrap();
            experts.synchronize(&stream).expect("it is said once");
        });
    }
}

#[test]
fn counts_come_to_the_host_behind_their_dispatch_and_with_each_replay() {
    ranks(2, |comm, gpu| {
        let experts = builder(comm, gpu).connect().unwrap();
        let stream = gpu.stream().unwrap();
        let ids = gpu.allocate(16).unwrap();
        let chosen = |choices: [i32; 4]| ids.write_params(0, &choices).unwrap();
        chosen([0, 2, 1, 3]);
        let rows = gpu.allocate(64).unwrap();
        let dispatch = Dispatch::new(2, &ids, &rows);
        let called = || -> Result<_, mscclpp_ep::Error> {
            let routed = experts.dispatch(&dispatch, &stream)?;
            let counts = routed.counts_to_host(&stream)?;
            routed.release(&stream)?;
            Ok(counts)
        };
        let counts = called().unwrap();
        experts.synchronize(&stream).unwrap();
        assert_eq!((counts.rows_of_experts(), counts.rows_of_ranks()), (vec![2, 2], vec![2, 2]));
        stream.begin_capture().unwrap();
        let counts = called().unwrap();
        let graph = stream.end_capture().unwrap();
        for choices in [[0, 2, 0, 3], [1, 3, 0, 2]] {
            chosen(choices);
            // SAFETY: all that the graph uses lives.
            unsafe { graph.launch(&stream) }.unwrap();
            experts.synchronize(&stream).unwrap();
            // Both ranks have the same choices.
            let of = |expert| 2 * choices.iter().filter(|choice| **choice == expert).count() as u32;
            let own = 2 * experts.rank() as i32;
            assert_eq!(counts.rows_of_experts(), [of(own), of(own + 1)]);
        }
    });
}

/// With rows that are packets, nothing is given back.
#[test]
fn rows_that_were_not_given_back_are_an_error_at_the_next_dispatch() {
    ranks(1, |comm, gpu| {
        let experts = builder(comm, gpu).capacity(1000).connect().unwrap();
        let stream = gpu.stream().unwrap();
        let called = || experts.dispatch(&tokens(gpu, &[0, -1]), &stream);
        let routed = called().unwrap();
        routed.release(&stream).unwrap();
        called().unwrap();
        experts.synchronize(&stream).expect("the first rows were given back");
        called().unwrap();
        let error = text(experts.synchronize(&stream));
        assert!(error.contains("the last dispatch of micro-batch 0"), "{error}");
        assert_eq!(text(called()), error);
    });
}
