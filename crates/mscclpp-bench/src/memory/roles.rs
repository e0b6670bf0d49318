//! The choice of the blocks that put packets and of those that unpack the peer's.

use clap::ValueEnum;

use super::Packets;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Roles {
    /// All blocks put, and then all unpack.
    Together,
    /// Some of the blocks put while the others unpack.
    Split,
}

/// The size from which split roles are faster: the peer's packets are unpacked while they arrive, which gains more than
/// having more blocks for each task.
const SPLIT_FROM: u64 = 4 << 20;

impl Roles {
    /// The default roles for a size.
    pub(super) fn of(bytes: u64) -> Self {
        if bytes >= SPLIT_FROM { Self::Split } else { Self::Together }
    }

    /// The roles if only `workers` blocks have work: a single block does both.
    pub(super) fn among(self, workers: u32) -> Self {
        if workers < 2 { Self::Together } else { self }
    }

    /// The number of the `workers` that put, from the first on, and the index of the first that unpacks. With split roles,
    /// `putters` of them put if that is given; otherwise the number that was measured to be fastest, which is larger for
    /// packets of which flags are a larger part. At least one block has each role.
    pub(super) fn blocks(self, packets: Packets, workers: u32, putters: Option<u32>) -> (u32, u32) {
        if self.among(workers) == Self::Together {
            return (workers, 0);
        }
        let by_default = match packets {
            Packets::Ll8 | Packets::Ll16 => workers * 5 / 8,
            Packets::Ll128 => workers / 2,
        };
        let putters = putters.unwrap_or(by_default).clamp(1, workers - 1);
        (putters, putters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_roles_have_a_block_each() {
        let split = |packets, workers| Roles::Split.blocks(packets, workers, None);
        assert_eq!([2, 3, 4, 32].map(|n| split(Packets::Ll16, n).0), [1, 1, 2, 20]);
        assert_eq!(split(Packets::Ll128, 32), (16, 16), "the others unpack");
        assert_eq!(split(Packets::Ll128, 1), (1, 0), "both by one");
        let given = |putters| Roles::Split.blocks(Packets::Ll8, 4, Some(putters)).0;
        assert_eq!([0, 1, 3, 4, 4000].map(given), [1, 1, 3, 3, 3]);
        assert_eq!(Roles::Together.blocks(Packets::Ll8, 4, Some(1)), (4, 0));
    }

    #[test]
    fn large_messages_are_split_where_there_are_two_blocks() {
        assert_eq!(Roles::of((4 << 20) - 1), Roles::Together);
        assert_eq!(Roles::of(4 << 20).among(2), Roles::Split);
        assert_eq!(Roles::of(128 << 20).among(1), Roles::Together);
    }
}
