//! Who of a block puts packets, and who unpacks the peer's.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Roles {
    /// All threads put, and then all unpack.
    Together,
    /// The first half of the warps put while the others unpack.
    Split,
}

/// From about here on messages are better off with split roles: what the peer sends then is unpacked while it arrives,
/// which gains more than more threads that do the same. LL16 gains from 2 MiB on, LL128 from 8 MiB on.
const SPLIT_FROM: u64 = 4 << 20;

const WARP: u32 = 32;

impl Roles {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::Split => "split",
        }
    }

    /// Those that are taken by default.
    pub(super) fn of(bytes: u64, threads: u32) -> Self {
        if bytes >= SPLIT_FROM && Self::Split.fit(threads) { Self::Split } else { Self::Together }
    }

    /// Whether blocks of so many threads can have them: it takes a warp for each.
    pub(super) fn fit(self, threads: u32) -> bool {
        self == Self::Together || threads >= 2 * WARP
    }

    /// How many threads of a block of `threads`, from its first on, put, and the number of the first that unpacks.
    /// Where roles are split, `putters` of them put, if that is given.
    pub(super) fn threads(self, threads: u32, putters: Option<u32>) -> (u32, u32) {
        if self == Self::Together {
            return (threads, 0);
        }
        let putters = putters.unwrap_or(threads / 2).min(threads - WARP);
        let putters = (putters / WARP * WARP).max(WARP);
        (putters, putters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_roles_are_whole_warps() {
        let split = |threads| Roles::Split.threads(threads, None);
        assert_eq!([64, 96, 128, 1024].map(|n| split(n).0), [32, 32, 64, 512]);
        assert_eq!(split(1024), (512, 512), "the others unpack");
        let given = |putters| Roles::Split.threads(128, Some(putters)).0;
        assert_eq!([0, 33, 64, 97, 4000].map(given), [32, 32, 64, 96, 96]);
        assert_eq!(Roles::Together.threads(96, Some(32)), (96, 0));
    }

    #[test]
    fn large_messages_are_split_where_there_are_two_warps() {
        assert_eq!(Roles::of((4 << 20) - 1, 1024), Roles::Together);
        assert_eq!(Roles::of(4 << 20, 1024), Roles::Split);
        assert_eq!(Roles::of(128 << 20, 32), Roles::Together);
        assert!(!Roles::Split.fit(32) && Roles::Together.fit(32));
    }
}
