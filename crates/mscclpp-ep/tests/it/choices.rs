//! Counts of choices.

use mscclpp_ep::{ChoiceCounter, Choices, IdType, Memory};
use mscclpp_test_support::Random;

use crate::support::{bytes, memory, ranks, read, unwritten};

#[test]
fn choices_are_counted_for_each_rank_and_expert() {
    ranks(1, |_, gpu| {
        let (counter, stream) =
            (ChoiceCounter::new(gpu).expect("the kernel"), gpu.stream().expect("a stream"));
        let mut random = Random::new();
        for _ in 0..40 {
            let (n_ranks, local, top_k) = (1 + random.below(16), 1 + random.below(9), 1 + random.below(40));
            let (tokens, experts) = (random.below(200), n_ranks * local);
            // One number more than the experts, and -1.
            let ids: Vec<i64> = (0..tokens * top_k).map(|_| random.below(experts + 2) as i64 - 1).collect();
            let mut expected = vec![0u32; 1 + n_ranks + experts];
            let mut is_in = vec![0u8; tokens * n_ranks];
            expected[0] = tokens as u32;
            for (i, expert) in ids.iter().enumerate().filter(|(_, id)| (0..experts as i64).contains(*id)) {
                expected[1 + n_ranks + *expert as usize] += 1;
                is_in[i / top_k * n_ranks + *expert as usize / local] = 1;
            }
            is_in
                .chunks(n_ranks)
                .for_each(|of| (0..n_ranks).for_each(|r| expected[1 + r] += u32::from(of[r])));

            let (counts, is_in_rank) =
                (unwritten(gpu, 4 * expected.len() as u64), unwritten(gpu, is_in.len() as u64));
            let wide: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let narrow: Vec<u8> = ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect();
            let (id_type, ids) = [(IdType::I64, wide), (IdType::I32, narrow)][random.below(2)].clone();
            let choices = Choices::new((tokens, top_k), &memory(gpu, &ids), experts, n_ranks).ids_of(id_type);
            counter.count(&choices, &(&counts).into(), &(&is_in_rank).into(), &stream).expect("a launch");
            stream.synchronize().expect("the counts");
            let what = format!("{tokens} tokens with {top_k} choices of {local} experts of {n_ranks} ranks");
            assert_eq!(
                read(&counts, 0, 4 * expected.len() as u64),
                bytes(&expected, u32::to_le_bytes),
                "{what}"
            );
            assert_eq!(read(&is_in_rank, 0, is_in.len() as u64), is_in, "{what}");
        }
    });
}

#[test]
fn choices_that_do_not_fit_are_refused_with_their_numbers() {
    ranks(1, |_, gpu| {
        let (counter, stream) =
            (ChoiceCounter::new(gpu).expect("the kernel"), gpu.stream().expect("a stream"));
        let (ids, counts) = (unwritten(gpu, 64), unwritten(gpu, 64));
        let wrong = |(tokens, experts, n_ranks): (usize, usize, usize), most: u64| {
            let choices = Choices::new((tokens, 2), &ids, experts, n_ranks);
            let into = Memory::slice(&counts, 0..most).expect("a part");
            counter.count(&choices, &into, &into, &stream).expect_err("it is wrong").to_string()
        };
        assert_eq!(
            wrong((1, 5, 2), 64),
            "5 experts of 2 ranks; give 1 to 16 ranks, and as many experts for each"
        );
        assert_eq!(
            wrong((1, 34, 17), 64),
            "34 experts of 17 ranks; give 1 to 16 ranks, and as many experts for each"
        );
        assert_eq!(wrong((1, 20_000, 1), 64), "20000 experts of 1 ranks; give at most 11263");
        assert_eq!(
            wrong((1 << 30, 4, 2), 64),
            "1073741824 tokens with 2 choices; give fewer than 2^31 choices"
        );
        assert_eq!(wrong((9, 4, 2), 64), "topk_ids has 64 bytes of memory, and the call needs 72");
        assert_eq!(
            wrong((1, 4, 2), 24),
            "the memory for counts has 24 bytes of memory, and the call needs 28"
        );
    });
}
