use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, BitXorAssign, Not},
    str::FromStr,
};

/// The means by which two endpoints reach each other.
///
/// A transport is a number, with names for the well-known ones, so that a provider outside this project can have its
/// own ([`Transport::custom`]). Two transports are equal if their numbers are equal.
#[derive(Clone, Copy)]
pub struct Transport {
    code: u8,
    /// The name of a custom transport, if it was given one.
    name: Option<&'static str>,
}

const FIRST_CUSTOM: u8 = 16;
const LAST: u8 = FIRST_CUSTOM + 15;

impl Transport {
    /// No transport was chosen yet.
    pub const UNKNOWN: Self = Self::numbered(0);
    /// Loads, stores and copies to the peer's device memory, mapped here.
    pub const CUDA_IPC: Self = Self::numbered(1);
    /// InfiniBand or RoCE device 0.
    pub const IB0: Self = Self::numbered(2);
    /// InfiniBand or RoCE device 1.
    pub const IB1: Self = Self::numbered(3);
    /// InfiniBand or RoCE device 2.
    pub const IB2: Self = Self::numbered(4);
    /// InfiniBand or RoCE device 3.
    pub const IB3: Self = Self::numbered(5);
    /// InfiniBand or RoCE device 4.
    pub const IB4: Self = Self::numbered(6);
    /// InfiniBand or RoCE device 5.
    pub const IB5: Self = Self::numbered(7);
    /// InfiniBand or RoCE device 6.
    pub const IB6: Self = Self::numbered(8);
    /// InfiniBand or RoCE device 7.
    pub const IB7: Self = Self::numbered(9);
    /// TCP.
    pub const ETHERNET: Self = Self::numbered(10);

    const fn numbered(code: u8) -> Self {
        Self { code, name: None }
    }

    /// Transport number `n` (0 to 15) of those that are free for providers outside this project.
    ///
    /// # Panics
    /// Panics if `n` is over 15.
    #[must_use]
    pub const fn custom(n: u8) -> Self {
        assert!(n <= LAST - FIRST_CUSTOM, "custom transports are numbered 0 to 15");
        Self::numbered(FIRST_CUSTOM + n)
    }

    /// Returns a custom transport with a name for errors and logs. The name is not sent to peers, and a set of
    /// transports does not keep it.
    ///
    /// ```
    /// # use mscclpp_core::Transport;
    /// const POSTMAN: Transport = Transport::custom(3).named("Postman");
    /// assert_eq!(POSTMAN.to_string(), "Postman");
    /// assert_eq!(POSTMAN, Transport::custom(3));
    /// ```
    ///
    /// # Panics
    /// Panics if it is not a custom transport: the others have names already.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        assert!(self.code >= FIRST_CUSTOM, "only custom transports are given names");
        Self { code: self.code, name: Some(name) }
    }

    /// Whether the transport is one of `IB0` to `IB7`.
    #[must_use]
    pub const fn is_ib(self) -> bool {
        self.code >= Self::IB0.code && self.code <= Self::IB7.code
    }

    pub(crate) const fn code(self) -> u8 {
        self.code
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            0..=10 | FIRST_CUSTOM..=LAST => Some(Self::numbered(code)),
            _ => None,
        }
    }
}

impl PartialEq for Transport {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for Transport {}

impl PartialOrd for Transport {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Transport {
    fn cmp(&self, other: &Self) -> Ordering {
        self.code.cmp(&other.code)
    }
}

impl Hash for Transport {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.code.hash(state);
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.name) {
            (0, _) => f.pad("Unknown"),
            (1, _) => f.pad("CudaIpc"),
            (n @ 2..=9, _) => f.pad(&format!("IB{}", n - Self::IB0.code)),
            (10, _) => f.pad("Ethernet"),
            (_, Some(name)) => f.pad(name),
            (n, None) => f.pad(&format!("Custom{}", n - FIRST_CUSTOM)),
        }
    }
}

/// A text that names no transport.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no transport: there are CudaIpc, IB0 to IB7, and Ethernet")]
pub struct UnknownTransport(String);

impl FromStr for Transport {
    type Err = UnknownTransport;

    /// Reads the names that `Display` writes, for the transports of this project. Upper and lower case are the same.
    ///
    /// ```
    /// # use mscclpp_core::Transport;
    /// assert_eq!("IB2".parse(), Ok(Transport::IB2));
    /// assert_eq!("cudaipc".parse(), Ok(Transport::CUDA_IPC));
    /// assert!("IB8".parse::<Transport>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        let known = TransportFlags::ALL.iter().find(|known| known.to_string().eq_ignore_ascii_case(text));
        known.ok_or_else(|| UnknownTransport(text.to_owned()))
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of transports.
///
/// The operators `|`, `&` and `^`, with their assigning forms, and `==` take another set or a single [`Transport`] on
/// their right. On the left of `|`, `&` and `^`, too, a transport stands for the set that holds only it
/// ([`Transport::UNKNOWN`] for the empty set).
///
/// ```
/// # use mscclpp_core::{Transport, TransportFlags};
/// let mut flags = Transport::CUDA_IPC | Transport::IB0;
/// assert!(flags.has(Transport::IB0) && flags.count() == 2);
/// assert!((flags & TransportFlags::ALL_IB).has(Transport::IB0));
/// flags &= !Transport::IB0;
/// assert_eq!(flags, Transport::CUDA_IPC);
/// flags ^= Transport::CUDA_IPC;
/// assert!(flags.none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransportFlags(u32);

impl TransportFlags {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// `IB0` to `IB7`.
    pub const ALL_IB: Self = Self(0xff << Transport::IB0.code);
    /// Every transport that this project knows: CUDA IPC, InfiniBand and Ethernet.
    pub const ALL: Self =
        Self(Self::ALL_IB.0 | 1 << Transport::CUDA_IPC.code | 1 << Transport::ETHERNET.code);

    /// Whether `transport` is in the set.
    #[must_use]
    pub const fn has(self, transport: Transport) -> bool {
        transport.code != 0 && self.0 & 1 << transport.code != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn none(self) -> bool {
        self.0 == 0
    }

    /// Whether anything is in the set.
    #[must_use]
    pub const fn any(self) -> bool {
        self.0 != 0
    }

    /// Whether everything of [`TransportFlags::ALL`] is in the set.
    #[must_use]
    pub const fn all(self) -> bool {
        self.0 & Self::ALL.0 == Self::ALL.0
    }

    /// The number of transports in the set.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The transports in the set.
    pub fn iter(self) -> impl Iterator<Item = Transport> {
        (1..=LAST).map(Transport::numbered).filter(move |t| self.has(*t))
    }
}

impl From<Transport> for TransportFlags {
    fn from(transport: Transport) -> Self {
        Self(if transport == Transport::UNKNOWN { 0 } else { 1 << transport.code })
    }
}

/// Implements an operator on sets, with a set or a transport on either side, and its assigning form.
macro_rules! set_operator {
    ($operator:ident $method:ident, $assign:ident $assign_method:ident) => {
        impl<T: Into<TransportFlags>> $operator<T> for TransportFlags {
            type Output = Self;
            fn $method(self, other: T) -> Self {
                Self(self.0.$method(other.into().0))
            }
        }

        impl<T: Into<TransportFlags>> $operator<T> for Transport {
            type Output = TransportFlags;
            fn $method(self, other: T) -> TransportFlags {
                TransportFlags::from(self).$method(other)
            }
        }

        impl<T: Into<TransportFlags>> $assign<T> for TransportFlags {
            fn $assign_method(&mut self, other: T) {
                *self = self.$method(other);
            }
        }
    };
}

set_operator!(BitOr bitor, BitOrAssign bitor_assign);
set_operator!(BitAnd bitand, BitAndAssign bitand_assign);
set_operator!(BitXor bitxor, BitXorAssign bitxor_assign);

impl Not for TransportFlags {
    type Output = Self;
    /// The transports of [`TransportFlags::ALL`] that are not in the set. Custom transports are never among them: `&`
    /// with the complement removes them.
    fn not(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }
}

impl Not for Transport {
    type Output = TransportFlags;
    /// The transports of [`TransportFlags::ALL`] except this one.
    fn not(self) -> TransportFlags {
        !TransportFlags::from(self)
    }
}

impl PartialEq<Transport> for TransportFlags {
    /// Whether the set holds that transport alone.
    fn eq(&self, other: &Transport) -> bool {
        *self == Self::from(*other)
    }
}

impl FromIterator<Transport> for TransportFlags {
    fn from_iter<I: IntoIterator<Item = Transport>>(transports: I) -> Self {
        transports.into_iter().fold(Self::NONE, |flags, t| flags | t)
    }
}

impl fmt::Display for TransportFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.none() {
            return f.write_str("none");
        }
        for (i, transport) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(" | ")?;
            }
            write!(f, "{transport}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TransportFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_round_trip() {
        for code in 0..=255 {
            if let Some(transport) = Transport::from_code(code) {
                assert_eq!(transport.code(), code);
            }
        }
        assert_eq!(Transport::IB7.to_string(), "IB7");
        assert_eq!(Transport::custom(15).to_string(), "Custom15");
        assert_eq!(Transport::from_code(11), None);
        assert_eq!(Transport::from_code(32), None);
    }

    #[test]
    fn a_name_is_shown_and_makes_no_difference() {
        let named = Transport::custom(3).named("Courier");
        assert_eq!((named.to_string(), format!("{named:?}")), ("Courier".to_owned(), "Courier".to_owned()));
        assert_eq!(named, Transport::custom(3));
        assert!(TransportFlags::from(named).has(Transport::custom(3)));
        assert!(named < Transport::custom(4) && named > Transport::ETHERNET);
        assert!(std::panic::catch_unwind(|| Transport::ETHERNET.named("TCP")).is_err());
    }

    #[test]
    fn flags_are_sets() {
        let flags = Transport::CUDA_IPC | Transport::custom(3);
        assert_eq!(flags.iter().collect::<Vec<_>>(), [Transport::CUDA_IPC, Transport::custom(3)]);
        assert!(!flags.all() && TransportFlags::ALL.all());
        assert_eq!((!TransportFlags::NONE), TransportFlags::ALL);
        assert_eq!(TransportFlags::ALL_IB.count(), 8);
        assert!(!TransportFlags::from(Transport::UNKNOWN).any());
        assert_eq!(flags.to_string(), "CudaIpc | Custom3");
    }

    #[test]
    fn operators_take_sets_and_transports_on_either_side() {
        let (ipc, ib, both) = (Transport::CUDA_IPC, Transport::IB3, Transport::CUDA_IPC | Transport::IB3);
        assert_eq!((ipc | ib, ipc | both, both | ib), (both, both, both));
        assert_eq!((both & ipc, ipc & both, ipc & ib), (ipc.into(), ipc.into(), TransportFlags::NONE));
        assert_eq!(
            (both ^ ipc, ipc ^ both, ipc ^ ib, ipc ^ ipc),
            (ib.into(), ib.into(), both, TransportFlags::NONE)
        );
        let mut flags = TransportFlags::NONE;
        flags |= ipc;
        flags |= TransportFlags::ALL_IB;
        assert_eq!(flags.count(), 9);
        flags &= both;
        assert_eq!(flags, both);
        flags ^= ib;
        assert!(flags == ipc && flags != ib && flags != both);
        flags ^= both;
        assert_eq!(flags, ib);
        flags &= ipc;
        assert!(flags.none() && flags == Transport::UNKNOWN);
        assert_eq!((!ipc | ipc, !ipc & ipc), (TransportFlags::ALL, TransportFlags::NONE));
        assert_eq!(both & !ib, ipc);
        assert!((Transport::custom(0) & !ipc).none(), "custom transports are in no complement");
    }
}
