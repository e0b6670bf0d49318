//! The methods that the four kinds of channels have in common.

/// Declares the class of a channel, without its constructor. The class may hold no channel: then calls raise an error
/// that says `$made`. `$about` returns the text that `repr` adds for a channel.
macro_rules! channel {
    (
        $(#[$doc:meta])*
        $type:ident as $name:literal of $channel:ty: $handle:ident, $made:literal, $about:expr
    ) => {
        $(#[$doc])*
        #[pyo3::pyclass(name = $name, module = "mscclpp._mscclpp", frozen)]
        pub(crate) struct $type {
            inner: $crate::owned::Owned<Option<$channel>>,
        }

        impl $type {
            fn of(channel: $channel) -> Self {
                Self { inner: $crate::owned::Owned::that_may_wait($name, Some(channel)) }
            }

            fn empty() -> Self {
                Self { inner: $crate::owned::Owned::new($name, None) }
            }

            pub(crate) fn waited(&self) -> pyo3::PyResult<$channel> {
                let empty = || $crate::error::misuse(concat!("this ", $name, " is empty: ", $made));
                self.inner.get()?.clone().ok_or_else(empty)
            }
        }

        #[pyo3::pymethods]
        impl $type {
            /// The handle that kernels use the channel with. It is valid as long as the channel lives.
            fn device_handle(&self) -> pyo3::PyResult<$handle> {
                Ok($handle(self.waited()?.device_handle()))
            }
        }

        $crate::owned::closable!($type, inner, |channel| channel.as_ref().map_or(", empty".to_owned(), $about));
        $crate::macros::abortable!($type, check);
    };
}
pub(crate) use channel;
