//! Objects by which kernels wait, and whose waits the host can end.

use std::time::Instant;

use crate::{Error, KernelWait, Result, object::each_once};

/// An object by which kernels wait, and whose waits the host can end: a semaphore, a channel, a proxy service, a
/// communicator, or a list of these. It is given to
/// [`Stream::synchronize_or_abort`](crate::Stream::synchronize_or_abort).
pub trait Abort {
    /// The error of a failed check.
    type Error: From<Error>;

    /// Ends the waits of kernels for good: they return false. `reason` becomes part of the error that says why.
    fn abort(&self, reason: &str);

    /// Checks that the waits of kernels got what they waited for. Call it once the kernels are complete.
    ///
    /// # Errors
    /// The reason why a wait ended early: a lost peer, an abort, or a bound that was reached.
    fn check(&self) -> Result<(), Self::Error>;

    /// Waits until others, such as the thread of a proxy service, have carried out the requests of complete kernels, or
    /// have failed at them: then [`Abort::check`] knows. Waits until `deadline` at most, and returns false if it takes
    /// longer. The default is for objects without such requests.
    fn settle(&self, deadline: Instant) -> bool {
        let _ = deadline;
        true
    }

    /// Returns the peers for which kernels may wait, under the names that messages use: `rank 1`.
    fn peers(&self) -> Vec<String>;

    /// Returns the waits of kernels, as far as something shows whether they wait: see
    /// [`KernelObject::waits`](crate::KernelObject::waits).
    fn waits(&self) -> Vec<KernelWait> {
        Vec::new()
    }
}

/// The list aborts and checks all its objects; the first error found is returned.
impl<A: Abort> Abort for [A] {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        self.iter().for_each(|each| each.abort(reason));
    }

    fn check(&self) -> Result<(), A::Error> {
        self.iter().try_for_each(Abort::check)
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.iter().all(|each| each.settle(deadline))
    }

    fn peers(&self) -> Vec<String> {
        each_once(self.iter().flat_map(Abort::peers))
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.iter().flat_map(Abort::waits).collect()
    }
}

/// Implements [`Abort`] for a type that leads to an object with it.
#[doc(hidden)]
#[macro_export]
macro_rules! abort_as_its_content {
    ($($(#[$doc:meta])* [$($generics:tt)*] $outer:ty, $error:ty: |$it:ident| $content:expr;)*) => { $(
        $(#[$doc])*
        impl<$($generics)*> $crate::Abort for $outer {
            type Error = $error;

            fn abort(&self, reason: &str) {
                let $it = self;
                $crate::Abort::abort($content, reason);
            }

            fn check(&self) -> Result<(), $error> {
                let $it = self;
                $crate::Abort::check($content)
            }

            fn settle(&self, deadline: ::std::time::Instant) -> bool {
                let $it = self;
                $crate::Abort::settle($content, deadline)
            }

            fn peers(&self) -> Vec<String> {
                let $it = self;
                $crate::Abort::peers($content)
            }

            fn waits(&self) -> Vec<$crate::KernelWait> {
                let $it = self;
                $crate::Abort::waits($content)
            }
        }
    )* };
}

abort_as_its_content! {
    [A: Abort] Vec<A>, A::Error: |list| list.as_slice();
    [A: Abort, const N: usize] [A; N], A::Error: |array| array.as_slice();
    [A: Abort + ?Sized] &A, A::Error: |object| *object;
}
