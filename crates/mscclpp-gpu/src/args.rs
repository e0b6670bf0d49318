use std::{
    any::{Any, type_name},
    mem::MaybeUninit,
    sync::Arc,
};

use crate::{
    Error, KernelArgument, KernelParam, KernelParameter, Owner, Result, fork::OfProcess, object::Kept,
};

/// The arguments of a launch, and the objects that must live until it is complete.
///
/// Values are copied when they are given. For an object, such as a buffer or a channel, the kernel gets the address or
/// the device handle, and launches keep the object alive until they are complete. A graph in which a launch is captured
/// keeps it as long as the graph exists, and until the graph's own launches are complete. The same arguments may be
/// used for any number of launches, and may be dropped after the first.
///
/// ```
/// # use mscclpp_gpu::{KernelArgs, Platform};
/// # let gpu = Platform::Sim.gpu(0)?;
/// let (data, table) = (gpu.allocate(1024)?, gpu.allocate(64)?);
/// // The kernel gets `data`, and an address inside `table`, which must live as long.
/// let args = KernelArgs::new().with(&data).with(100i32).with(table.ptr().add(8)).keeping(table);
/// assert_eq!(args.len(), 3);
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct KernelArgs {
    values: Vec<ArgBytes>,
    owners: OfProcess<Vec<Owner>>,
    /// The first argument that has no value: its place, its type, and the reason.
    refused: Option<(usize, &'static str, Error)>,
}

/// One argument: its bytes in 16-byte aligned storage, as device parameters are aligned to 16 at most.
///
/// The storage has no type, so that pointers stay pointers when it is copied.
#[derive(Debug, Clone)]
pub(crate) struct ArgBytes {
    storage: Box<[MaybeUninit<u128>]>,
    len: usize,
    /// The name of the argument's type, for messages.
    type_name: &'static str,
}

impl KernelArgs {
    /// Makes an empty list of arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `argument` after these: a value, or a reference to an object such as a buffer or a channel.
    ///
    /// If an argument has no value, such as the address of a memory that is not mapped, launches with these arguments
    /// fail.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "a number, or a reference")]
    pub fn with<A: KernelArgument>(mut self, argument: A) -> Self {
        self.push::<A, _>(argument.param());
        self.owners.extend(argument.owner());
        self
    }

    /// Adds the value, or the error, of an argument of type `A`.
    pub(crate) fn push<A, P: KernelParam>(&mut self, value: Result<P>) {
        let type_name = type_name::<A>();
        match value {
            Ok(value) => self.values.push(ArgBytes::of(value, type_name)),
            Err(error) => {
                self.refused.get_or_insert((self.values.len(), type_name, error));
            }
        }
    }

    /// Makes launches with these arguments also keep `object` alive, which is not an argument itself: memory whose
    /// address the kernel finds somewhere, an `Arc`, or a tuple or list of these. Waits of kernels through it are not
    /// checked.
    #[must_use]
    pub fn keeping<T: Any + Send + Sync>(mut self, object: T) -> Self {
        self.owners.push(Arc::new(Kept(object)));
        self
    }

    /// Makes launches with these arguments also keep objects that could be arguments and are none, such as the channels
    /// whose device handles the kernel finds in memory. Waits through them are checked, like those through arguments: see
    /// [`Stream::synchronize`](crate::Stream::synchronize).
    #[must_use]
    pub fn keeping_each<I>(mut self, objects: I) -> Self
    where
        I: IntoIterator<Item: KernelArgument>,
    {
        self.owners.extend(objects.into_iter().filter_map(|object| object.owner()));
        self
    }

    /// Keeps an object alive as [`KernelArgs::keeping`] does, for an object that names the peers for which kernels wait
    /// through it. An [`Owner`] that is given to many launches is kept once.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owners.push(owner);
        self
    }

    /// The number of arguments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no arguments.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds an argument that is given as its bytes, for programs that know a parameter's size but not its type.
    ///
    /// ```
    /// # use mscclpp_gpu::KernelArgs;
    /// let args = KernelArgs::new().with_bytes(&100i32.to_ne_bytes());
    /// assert_eq!(args.len(), 1);
    /// ```
    #[must_use]
    pub fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.values.push(ArgBytes::copied(bytes, "bytes"));
        self
    }

    pub(crate) fn values(&self) -> &[ArgBytes] {
        &self.values
    }

    /// Returns the objects that must live until a launch is complete.
    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Checks that each argument has a value, and that their number and sizes are those of the parameters, if these are
    /// known. `names` returns the names of the parameters, or none; it is called if something is wrong.
    pub(crate) fn check(
        &self,
        kernel: &str,
        parameters: Option<&[KernelParameter]>,
        names: impl Fn() -> Vec<String>,
    ) -> Result<()> {
        let argument = |place: usize, type_name: Option<&str>| {
            let of = names().get(place).cloned().into_iter().chain(type_name.map(short));
            let of: Vec<String> = of.collect();
            let of = if of.is_empty() { String::new() } else { format!(" ({})", of.join(": ")) };
            format!("launch of {kernel}: argument {place}{of}")
        };
        if let Some((place, type_name, error)) = &self.refused {
            return Err(match error {
                Error::InvalidArgument(why) => {
                    Error::invalid(format!("{}: {why}", argument(*place, Some(type_name))))
                }
                other => other.clone(),
            });
        }
        let Some(parameters) = parameters else { return Ok(()) };
        let given = self.values.iter().map(|value| value.len() as u64);
        let taken = parameters.iter().map(|parameter| parameter.size);
        if given.clone().eq(taken.clone()) {
            return Ok(());
        }
        let (given, taken): (Vec<_>, Vec<_>) = (given.collect(), taken.collect());
        let place = given.iter().zip(&taken).take_while(|(given, taken)| given == taken).count();
        let why = match (self.values.get(place), parameters.get(place)) {
            (Some(value), Some(parameter)) => format!(
                "{} has {} bytes, and its parameter {}",
                argument(place, Some(value.type_name)),
                value.len,
                parameter.size
            ),
            (Some(value), None) => format!("{} has no parameter", argument(place, Some(value.type_name))),
            (None, _) => format!("{} is missing", argument(place, None)),
        };
        Err(Error::invalid(format!("{why}; its parameters have {taken:?} bytes, the arguments {given:?}")))
    }
}

/// Returns the name of a type without the modules that it is in.
fn short(type_name: &str) -> String {
    let mut short = String::new();
    for part in type_name.split_inclusive("::") {
        match part.strip_suffix("::") {
            // The path ends after its last character that is no letter, as in `&Arc<module`.
            Some(path) => {
                let name = path.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
                short.push_str(name);
            }
            None => short.push_str(part),
        }
    }
    short
}

impl ArgBytes {
    fn of<T: KernelParam>(value: T, type_name: &'static str) -> Self {
        const { assert!(align_of::<T>() <= 16) };
        // SAFETY: `value` is plain data without padding (`KernelParam`).
        let bytes = unsafe { std::slice::from_raw_parts((&raw const value).cast(), size_of::<T>()) };
        Self::copied(bytes, type_name)
    }

    fn copied(bytes: &[u8], type_name: &'static str) -> Self {
        let mut storage = vec![MaybeUninit::new(0u128); bytes.len().div_ceil(16)].into_boxed_slice();
        // SAFETY: `storage` has at least as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), storage.as_mut_ptr().cast::<u8>(), bytes.len());
        }
        Self { storage, len: bytes.len(), type_name }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.storage.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
