//! Enumerations that look to Python like those of pybind11: members with `name` and `value`, made from their number.

/// Declares an enumeration with everything that Python programs do with its members. Where `is` names an enumeration
/// of the library, its variants are converted to the members and back.
macro_rules! enumeration {
    (
        $(#[$doc:meta])* $type:ident as $name:literal of $of:ident {
            $($member:ident = $value:literal is $variant:ident),* $(,)?
        }
    ) => {
        $crate::enums::enumeration! { $(#[$doc])* $type as $name { $($member = $value),* } }

        impl From<$of> for $type {
            fn from(it: $of) -> Self {
                match it {
                    $($of::$variant => Self::$member,)*
                }
            }
        }

        impl From<$type> for $of {
            fn from(it: $type) -> Self {
                match it {
                    $($type::$member => Self::$variant,)*
                }
            }
        }
    };
    (
        $(#[$doc:meta])* $type:ident as $name:literal { $($member:ident = $value:literal),* $(,)? }
    ) => {
        $(#[$doc])*
        #[pyo3::pyclass(eq, eq_int, hash, frozen, from_py_object, name = $name, module = "mscclpp._mscclpp")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(clippy::upper_case_acronyms, reason = "the public names")]
        pub(crate) enum $type {
            $($member = $value,)*
        }

        #[pyo3::pymethods]
        impl $type {
            #[new]
            fn of_value(value: isize) -> pyo3::PyResult<Self> {
                match value {
                    $($value => Ok(Self::$member),)*
                    _ => Err(pyo3::exceptions::PyValueError::new_err(format!(
                        "{value} is no {}; there are {:?}",
                        $name,
                        [$((stringify!($member), $value as isize)),*],
                    ))),
                }
            }

            /// The member's name.
            #[getter]
            pub(crate) fn name(&self) -> &'static str {
                match self {
                    $(Self::$member => stringify!($member),)*
                }
            }

            /// The member's number.
            #[getter]
            fn value(&self) -> isize {
                *self as isize
            }

            fn __index__(&self) -> isize {
                *self as isize
            }

            #[classattr]
            fn __members__(py: pyo3::Python<'_>) -> pyo3::PyResult<pyo3::Py<pyo3::types::PyDict>> {
                let members = pyo3::types::PyDict::new(py);
                $(pyo3::types::PyDictMethods::set_item(&members, stringify!($member), Self::$member)?;)*
                Ok(members.unbind())
            }

            fn __reduce__(slf: &pyo3::Bound<'_, Self>) -> (pyo3::Py<pyo3::types::PyType>, (isize,)) {
                (pyo3::types::PyAnyMethods::get_type(slf.as_any()).unbind(), (*slf.get() as isize,))
            }
        }
    };
}

pub(crate) use enumeration;
