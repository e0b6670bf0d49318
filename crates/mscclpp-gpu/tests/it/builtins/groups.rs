//! Cooperative groups: a block, and its tiles.

use mscclpp_gpu::{KernelArgs, LaunchConfig};

use super::{Builtins, download, upload};

/// Returns the results of each thread of tiles of a size, where thread t of the block gave `values[t]`.
fn expected_in_tiles(size: usize, values: &[u32], rank: usize) -> [u32; 10] {
    let (tile, own) = (rank / size, rank % size);
    let values_of_tile = &values[tile * size..][..size];
    let ballot = values_of_tile.iter().rev().fold(0, |bits, value| bits << 1 | u32::from(value % 3 == 0));
    [
        own as u32,
        tile as u32,
        (values.len() / size) as u32,
        values_of_tile.iter().sum(),
        values_of_tile[size - 1],
        // At the ends of the tile the shuffle returns the thread's own value.
        values_of_tile[own.saturating_sub(1)],
        values_of_tile[(own + 1).min(size - 1)],
        values_of_tile.iter().any(|value| value % 8 == 0).into(),
        values_of_tile.iter().all(|value| value % 2 == 0).into(),
        ballot,
    ]
}

#[test]
fn groups_meet_and_exchange_values() {
    let text = include_str!("group_builtins.cu");
    let Some(builtins) = Builtins::with_toolkit("group_builtins.cu", text) else { return };
    for block in [[128, 1, 1], [16, 6, 1], [4, 4, 4], [32, 1, 1]] {
        let threads = block.iter().product::<u32>() as usize;
        // All values of the second eight threads are even.
        let values: Vec<u32> =
            (0..threads as u32).map(|t| if t / 8 == 1 { 2 * t + 18 } else { t * t / 3 }).collect();
        let input = upload(&builtins.gpu, &values);
        let output = upload(&builtins.gpu, &vec![0u32; 33 * threads]);
        let config = LaunchConfig { grid: [1, 1, 1], block, shared_bytes: 0 };
        builtins.launch("groups", config, &KernelArgs::new().with(input.ptr()).with(output.ptr()));
        for (rank, results) in download::<u32>(&output).chunks(33).enumerate() {
            let mut expected = vec![threads as u32, values[threads - 1 - rank], rank as u32 % block[0]];
            for size in [32, 8, 1] {
                expected.extend(expected_in_tiles(size, &values, rank));
            }
            assert_eq!(results, expected, "thread {rank} of {block:?}");
        }
    }
}
