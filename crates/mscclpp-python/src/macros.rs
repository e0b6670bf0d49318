//! Macros about classes that kernels wait through.

/// Gives a class the method `abort()`, and with `check` also the method `check()`. The class has a method `waited()`,
/// which returns the object of the library that kernels wait through.
macro_rules! abortable {
    ($type:ident) => {
        #[pyo3::pymethods]
        impl $type {
            /// Ends every wait through this object, on this side and at the peer, and all later ones.
            #[pyo3(signature = (reason = "aborted by the program"))]
            fn abort(&self, py: pyo3::Python<'_>, reason: &str) -> pyo3::PyResult<()> {
                let waited = self.waited()?;
                py.detach(|| mscclpp::gpu::Abort::abort(&waited, reason));
                Ok(())
            }
        }
    };
    ($type:ident, check) => {
        $crate::macros::abortable!($type);

        #[pyo3::pymethods]
        impl $type {
            /// Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
            /// of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
            fn check(&self, py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
                let waited = self.waited()?;
                $crate::error::OrRaise::or_raise(py.detach(|| mscclpp::gpu::Abort::check(&waited)))
            }
        }
    };
}
pub(crate) use abortable;

/// Returns `$value` of `$object` if the object is of one of the classes; the first class that matches counts.
macro_rules! first_of {
    ($object:ident, $it:ident => $value:expr; $($class:ty),*) => {
        $(if let Ok(it) = $object.cast::<$class>() {
            let $it = it.get();
            return Ok($value);
        })*
    };
}
pub(crate) use first_of;
