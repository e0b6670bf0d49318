//! Averages have NCCL's meaning, by every protocol, in every kind that reduces, on one node and on several.

use std::fmt::Debug;

use crate::support::{Told, builder_with_lanes, by_nodes, ranks, slice, zeros};
use half::{bf16, f16};
use mscclpp::prelude::*;
use mscclpp_collectives::{Collectives, Element, NodesModel, Protocol, ReduceOp, Selection};
use mscclpp_test_support::Random;

/// Not a multiple of what a word holds, nor of what a rank gets in two steps.
const LEN: usize = 333;

const PROTOCOLS: [(Protocol, bool); 6] = [
    (Protocol::Ll16, false),
    (Protocol::Ll128, false),
    (Protocol::Simple, false),
    (Protocol::SimpleByBulk, false),
    (Protocol::Ll128, true),
    (Protocol::Simple, true),
];

/// Ranks that are connected, and what they do averages by.
enum Connected {
    ByProtocols(Collectives, Told),
    Otherwise(Collectives),
}

/// How averages are made.
trait Average: Element + PartialEq + Debug {
    /// Some of which overflow, are negative, or depend on what is rounded first.
    fn number(random: &mut Random) -> Self;
    /// The average of the numbers of each node's ranks, node by node.
    fn of(nodes: &[&[Self]]) -> Self;
}

macro_rules! whole {
    ($($type:ty),*) => { $(
        impl Average for $type {
            fn number(random: &mut Random) -> Self {
                match random.below(5) {
                    0 => Self::MAX,
                    1 => Self::MIN,
                    2 => Self::MAX - (random.word() % 9) as Self,
                    _ => random.word() as Self,
                }
            }

            /// Added in the type itself, which wraps, then divided, cutting towards zero.
            fn of(nodes: &[&[Self]]) -> Self {
                let all = nodes.concat();
                all.iter().fold(0, |sum: Self, number| sum.wrapping_add(*number)) / all.len() as Self
            }
        }
    )* };
}
whole!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! wide {
    ($($type:ty),*) => { $(
        impl Average for $type {
            fn number(random: &mut Random) -> Self {
                if random.below(5) == 0 { Self::MAX } else { random.of(0..=4000) as Self * 0.1 - 30.0 }
            }

            /// Each number is multiplied by 1/N. The sums of the nodes are added in their order.
            fn of(nodes: &[&[Self]]) -> Self {
                let part = 1.0 / nodes.iter().map(|node| node.len()).sum::<usize>() as Self;
                let add = |numbers: Vec<Self>| numbers.into_iter().reduce(|a, b| a + b).unwrap();
                let of_node = |node: &&[Self]| add(node.iter().map(|number| number * part).collect());
                add(nodes.iter().map(of_node).collect())
            }
        }
    )* };
}
wide!(f32, f64);

macro_rules! narrow {
    ($($type:ty),*) => { $(
        impl Average for $type {
            fn number(random: &mut Random) -> Self {
                match random.below(6) {
                    0 => Self::MAX,
                    // The smallest numbers, whose averages have fewer bits.
                    1 => Self::from_bits(random.of(1..=99) as u16),
                    _ => Self::from_f32(random.of(0..=4000) as f32 * 0.1 - 30.0),
                }
            }

            /// Added as f32, and divided. What a node gives to others is rounded.
            fn of(nodes: &[&[Self]]) -> Self {
                let ranks = nodes.iter().map(|node| node.len()).sum::<usize>() as f32;
                let add = |numbers: &[Self]| numbers.iter().map(|it| it.to_f32()).reduce(|a, b| a + b).unwrap();
                match nodes {
                    [node] => Self::from_f32(add(node) / ranks),
                    _ => {
                        let sums: Vec<_> = nodes.iter().map(|node| Self::from_f32(add(node))).collect();
                        Self::from_f32(add(&sums) / ranks)
                    }
                }
            }
        }
    )* };
}
narrow!(f16, bf16);

impl Connected {
    fn collectives(&self) -> &Collectives {
        match self {
            Self::ByProtocols(collectives, _) | Self::Otherwise(collectives) => collectives,
        }
    }

    /// Averages of a type, of every kind, by every second protocol, or on nodes for every second seed. `nodes` says how many
    /// ranks each node has.
    fn check<T: Average>(&self, gpu: &Gpu, nodes: &[usize], seed: u64) {
        let half = seed.wrapping_add(T::DATA_TYPE as u64) as usize % 2;
        let told = match self {
            Self::ByProtocols(_, told) => told,
            Self::Otherwise(_) if half == 0 => return self.check_kinds::<T>(gpu, nodes, seed, ""),
            Self::Otherwise(_) => return,
        };
        for (protocol, two_steps) in PROTOCOLS.into_iter().skip(half).step_by(2) {
            told.tell(Selection { protocol, two_steps, blocks: 2, threads: 64 });
            self.check_kinds::<T>(gpu, nodes, seed, &format!("{protocol:?}, two steps: {two_steps}"));
        }
    }

    fn check_kinds<T: Average>(&self, gpu: &Gpu, nodes: &[usize], seed: u64, by: &str) {
        let collectives = self.collectives();
        let (rank, n) = (collectives.rank(), nodes.iter().sum::<usize>());
        let mut random = Random::with_seed(seed);
        let all: Vec<Vec<T>> =
            (0..n).map(|_| (0..n * LEN).map(|_| T::number(&mut random)).collect()).collect();
        let average = |i: usize| {
            let numbers: Vec<T> = all.iter().map(|numbers| numbers[i]).collect();
            let mut rest = numbers.as_slice();
            let of_node = |ranks: &usize| rest.split_off(..*ranks).expect("its ranks");
            T::of(&nodes.iter().map(of_node).collect::<Vec<_>>())
        };
        let expected: Vec<T> = (0..n * LEN).map(average).collect();
        let stream = gpu.stream().expect("a stream");
        let (given, part) = (slice(gpu, &all[rank]), zeros::<T>(gpu, LEN));
        let [everywhere, at_root] = [(); 2].map(|()| zeros::<T>(gpu, n * LEN));
        let root = n - 1;
        collectives.all_reduce(&given, &everywhere, ReduceOp::Avg, &stream).unwrap();
        collectives.reduce_scatter(&given, &part, ReduceOp::Avg, &stream).unwrap();
        collectives.reduce(&given, (rank == root).then_some(&at_root), ReduceOp::Avg, root, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        let check = |what: &str, found: Vec<T>, expected: &[T]| {
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_eq!(
                    found,
                    expected,
                    "{what} of {:?} on nodes of {nodes:?} ranks, rank {rank}, number {i}; {by}",
                    T::DATA_TYPE
                );
            }
        };
        check("all_reduce", everywhere.read().unwrap(), &expected);
        check("reduce_scatter", part.read().unwrap(), &expected[rank * LEN..][..LEN]);
        if rank == root {
            check("reduce", at_root.read().unwrap(), &expected);
        }
    }
}

/// One to five ranks of a node, and ranks on several nodes, in all patterns between these, by seeds of which every second one is
/// odd.
fn on_all(check: impl Fn(&Connected, &Gpu, &[usize], u64) + Sync) {
    let seed = Random::new().word();
    for n in 1..=5 {
        ranks(n, |comm, gpu| {
            let told =
                Told::new(Selection { protocol: Protocol::Simple, two_steps: false, blocks: 1, threads: 32 });
            let builder = builder_with_lanes(comm, gpu).selector(told.clone());
            let collectives = builder.connect().expect("collectives");
            check(&Connected::ByProtocols(collectives, told), gpu, &[n], seed.wrapping_add(n as u64));
        });
    }
    let ethernet = NodesModel::ETHERNET;
    let doubling = NodesModel { message: 500.0, latency: 1.0, ..ethernet };
    let shares = NodesModel { bandwidth: 0.0001, ..ethernet };
    let layouts: [(&[u8], NodesModel); 8] = [
        (&[0, 1], ethernet),
        (&[0, 0, 1], ethernet),
        (&[0, 1, 1, 1], ethernet),
        (&[0, 0, 1, 1], ethernet),
        (&[0, 1, 2, 3], doubling),
        (&[0, 0, 1, 1, 2, 2, 3, 3], doubling),
        (&[0, 1, 2], shares),
        (&[0, 0, 1, 1, 2, 2], shares),
    ];
    for (i, (nodes, model)) in (0..).zip(layouts) {
        let sizes: Vec<_> = nodes.chunk_by(|a, b| a == b).map(<[u8]>::len).collect();
        ranks(nodes.len(), |comm, gpu| {
            let builder = by_nodes::on(nodes, comm, gpu).nodes_model(model);
            let collectives = builder.connect().expect("collectives");
            check(&Connected::Otherwise(collectives), gpu, &sizes, seed.wrapping_add(i));
            comm.bootstrap().barrier().expect("all ranks");
        });
    }
}

#[test]
fn averages_of_integers_wrap_and_cut_towards_zero() {
    assert_eq!([i8::of(&[&[127, 1]]), i8::of(&[&[-100, -29], &[0]]), i8::of(&[&[-3, -4]])], [-64, 42, -3]);
    on_all(|it, gpu, nodes, seed| {
        it.check::<i8>(gpu, nodes, seed);
        it.check::<u8>(gpu, nodes, seed);
        it.check::<i16>(gpu, nodes, seed);
        it.check::<u16>(gpu, nodes, seed);
        it.check::<i32>(gpu, nodes, seed);
        it.check::<u32>(gpu, nodes, seed);
        it.check::<i64>(gpu, nodes, seed);
        it.check::<u64>(gpu, nodes, seed);
    });
}

#[test]
fn averages_of_f32_and_f64_multiply_first() {
    // The sum would be infinite.
    assert_eq!((f32::of(&[&[f32::MAX; 2]]), f64::of(&[&[f64::MAX], &[f64::MAX]])), (f32::MAX, f64::MAX));
    on_all(|it, gpu, nodes, seed| {
        it.check::<f32>(gpu, nodes, seed);
        it.check::<f64>(gpu, nodes, seed);
    });
}

#[test]
fn averages_of_16_bit_floats_are_divided_at_the_end() {
    assert_eq!(f16::of(&[&[f16::MAX; 2]]), f16::MAX);
    on_all(|it, gpu, nodes, seed| {
        it.check::<f16>(gpu, nodes, seed);
        it.check::<bf16>(gpu, nodes, seed);
    });
}
