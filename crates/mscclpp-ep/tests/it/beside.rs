//! Experts beside collectives, each on a stream of its own.

use mscclpp_collectives::{Collectives, DeviceSlice, ReduceOp};
use mscclpp_test_support::Random;

use crate::{
    checked::{
        check_dispatch, check_sums, combine, connect, copies, dispatch, put, to_combine, tokens_of_all,
    },
    rounds::any_of,
    support::ranks,
};

/// Half of the ranks put the collective into its stream first, and half the dispatch: each kernel waits for the same one of the
/// other ranks, so both must run at the same time.
#[test]
fn ranks_may_put_experts_and_collectives_into_two_streams_in_any_order() {
    const NUMBERS: usize = 1000;
    let mut random = Random::new();
    let (model, options) = any_of(2 + random.below(3), &mut random);
    let seed = random.word();
    ranks(model.ranks, |comm, gpu| {
        let experts = connect(&model, &options, comm, gpu);
        let collectives = Collectives::builder(comm, gpu).connect().expect("collectives");
        let streams = [(); 2].map(|()| gpu.stream().expect("a stream"));
        let (rank, mut random) = (experts.rank(), Random::with_seed(seed));
        let numbers = gpu.allocate(4 * NUMBERS as u64).expect("memory");
        let slice = DeviceSlice::<u32>::new(&numbers).expect("a slice");
        for turn in 0..5 {
            let all = tokens_of_all(&model, &options, &mut random);
            let given = |rank: usize| (0..NUMBERS as u32).map(move |i| i * (1 + rank as u32) + turn);
            numbers.write_params(0, &given(rank).collect::<Vec<_>>()).expect("numbers");
            let reduce = || {
                collectives.all_reduce(&slice, &slice, ReduceOp::Sum, &streams[1]).expect("an all_reduce");
            };
            if rank % 2 == 0 {
                reduce();
            }
            let (routed, call) =
                dispatch(&experts, &model, &options, &all[rank], (gpu, &streams[0]), (0, false));
            if rank % 2 == 1 {
                reduce();
            }
            let (rows, copies) = (model.rows(&all, rank), copies(&model, &routed, &call, (gpu, &streams[0])));
            let (memories, sums) = to_combine(&model, &options, &all[rank], &call, &rows, rank, gpu);
            put(&experts, &options, &combine(&routed, &options, &memories, &sums), &streams[0]);
            experts.synchronize(&streams[0]).expect("a round");
            check_dispatch(&model, &routed, &call, &copies, &rows, rank);
            check_sums(&model, &options, &all[rank], (&memories, &sums), rank, "beside");
            collectives.synchronize(&streams[1]).expect("the all_reduce");
            let mut found = vec![0u32; NUMBERS];
            numbers.read_params(0, &mut found).expect("numbers");
            let sum = |i| (0..model.ranks).map(|rank| given(rank).nth(i).unwrap_or(0)).sum::<u32>();
            assert!(found.iter().enumerate().all(|(i, number)| *number == sum(i)), "rank {rank}: {found:?}");
        }
    });
}
