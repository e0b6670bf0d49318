//! Values with one encoding each for messages to other processes, and a reader with bounds. All numbers are
//! little-endian.

use std::net::IpAddr;

/// The error for malformed bytes from outside; the text says what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A value that has one encoding. [`wire_struct!`](crate::wire_struct) and [`wire_enum!`](crate::wire_enum) implement
/// this trait for types that consist of such values.
pub trait Wire: Sized {
    /// Appends the encoded value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads the bytes that [`put`](Self::put) wrote. Any other bytes are malformed.
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Returns the bytes of this value alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes). Nothing may follow them.
    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = reader.take()?;
        reader.end()?;
        Ok(value)
    }
}

/// Takes values off the front of a slice. It never reads past the end, and allocates no more than the bytes that are
/// there.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Makes a reader at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the bytes that have not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads the next value.
    pub fn take<T: Wire>(&mut self) -> Result<T, Malformed> {
        T::take(self)
    }

    /// Reads the next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(head)
    }

    /// Ends the reading. Bytes that are left over are an error.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("it is too long")) }
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (head, rest) = reader.rest.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        reader.rest = rest;
        Ok(*head)
    }
}

macro_rules! wire_numbers {
    ($($number:ty),*) => { $(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                self.to_le_bytes().put(out);
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self::from_le_bytes(reader.take()?))
            }
        }
    )* };
}
wire_numbers!(u8, u16, u32, u64);

/// A rank, a count or a length, in four bytes. Writing a larger number panics: the limits of what the library counts are far
/// below, and a number of a program is checked where it comes in.
impl Wire for usize {
    fn put(&self, out: &mut Vec<u8>) {
        let Ok(number) = u32::try_from(*self) else {
            panic!("{self} does not fit into four bytes, which hold {} at most", u32::MAX);
        };
        number.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.take::<u32>()? as Self)
    }
}

/// One byte, 0 or 1.
impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.take::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }
}

/// The most bytes of a text that are written; longer texts are cut.
pub const MAX_TEXT: usize = 1024;

/// Two bytes of length, then UTF-8. At most [`MAX_TEXT`] bytes are written. Bytes that are read and are not UTF-8 are
/// replaced.
impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        let mut end = self.len().min(MAX_TEXT);
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        (end as u16).put(out);
        out.extend(&self.as_bytes()[..end]);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = reader.take::<u16>()?;
        Ok(Self::from_utf8_lossy(reader.bytes(length.into())?).into_owned())
    }
}

/// One byte, 4 or 6, then the octets.
impl Wire for IpAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::V4(v4) => (4_u8, v4.octets()).put(out),
            Self::V6(v6) => (6_u8, v6.octets()).put(out),
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.take::<u8>()? {
            4 => Ok(reader.take::<[u8; 4]>()?.into()),
            6 => Ok(reader.take::<[u8; 16]>()?.into()),
            _ => Err(Malformed("an address is of no known family")),
        }
    }
}

macro_rules! wire_tuples {
    ($(($($part:ident)+))*) => { $(
        #[allow(non_snake_case, reason = "a part is called like its type")]
        impl<$($part: Wire),+> Wire for ($($part,)+) {
            fn put(&self, out: &mut Vec<u8>) {
                let ($($part,)+) = self;
                $($part.put(out);)+
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(($(reader.take::<$part>()?,)+))
            }
        }
    )* };
}
wire_tuples!((A B) (A B C) (A B C D) (A B C D E));

/// Implements [`Wire`](crate::wire::Wire) for a struct: its fields, in the order given here. Fields behind a
/// semicolon were added in later versions: they get their default values where the bytes end before them.
///
/// ```
/// use mscclpp_net::{wire::Wire, wire_struct};
///
/// struct Point { x: u16, y: u16 }
/// wire_struct!(Point { x, y });
/// assert_eq!(Point { x: 1, y: 2 }.to_bytes(), [1, 0, 2, 0]);
/// ```
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(; $($later:ident),*)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
                $($($crate::wire::Wire::put(&self.$later, out);)*)?
            }

            fn take(reader: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::Malformed> {
                $(let $field = reader.take()?;)*
                $($(let $later = if reader.rest().is_empty() { Default::default() } else { reader.take()? };)*)?
                Ok(Self { $($field),* $(, $($later),*)? })
            }
        }
    };
}

/// Implements [`Wire`](crate::wire::Wire) for an enum: a byte that says which variant it is, then its fields. The
/// text is the error for any other byte.
///
/// ```
/// use mscclpp_net::{wire::{Malformed, Wire}, wire_enum};
///
/// #[derive(Debug, PartialEq)]
/// enum Shape { Dot, Circle { radius: u16 } }
/// wire_enum!(Shape or "a shape is of no known kind" { 1 => Dot, 2 => Circle { radius } });
/// assert_eq!(Shape::Circle { radius: 5 }.to_bytes(), [2, 5, 0]);
/// assert_eq!(Shape::parse(&[3]), Err(Malformed("a shape is of no known kind")));
/// ```
#[macro_export]
macro_rules! wire_enum {
    ($name:ident or $unknown:literal { $($number:literal => $variant:ident $({ $($field:ident),* })?),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        out.push($number);
                        $($($crate::wire::Wire::put($field, out);)*)?
                    })*
                }
            }

            fn take(reader: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::Malformed> {
                match reader.take::<u8>()? {
                    $($number => {
                        $($(let $field = reader.take()?;)*)?
                        Ok(Self::$variant $({ $($field),* })?)
                    })*
                    _ => Err($crate::wire::Malformed($unknown)),
                }
            }
        }
    };
}
