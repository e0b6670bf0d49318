//! The shape and the arguments of a launch.

use std::{
    any::{Any, type_name},
    mem::MaybeUninit,
    sync::Arc,
};

use crate::{
    DeviceBuffer, DevicePtr, Error, Gpu, KernelArgument, Owner, Platform, Result, argument::Kept,
    fork::OfProcess,
};

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads each, in one dimension.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// That devices of the platform can run it. What a device allows a kernel may be less.
    pub(crate) fn check(&self, kernel: &str, platform: Platform) -> Result<()> {
        let Self { grid, block, .. } = self;
        let most = if platform == Platform::Hip { [MAX_THREADS; 3] } else { MAX_BLOCK };
        let refused = |why: String| Err(Error::InvalidArgument(format!("launch of {kernel}: {why}")));
        if (0..3).any(|i| !(1..=MAX_GRID[i]).contains(&grid[i])) {
            return refused(format!("a grid of {grid:?} blocks; each must be 1 to {MAX_GRID:?}"));
        }
        let threads = block.iter().fold(1, |n: u32, dim| n.saturating_mul(*dim));
        if (0..3).any(|i| !(1..=most[i]).contains(&block[i])) || threads > MAX_THREADS {
            return refused(format!(
                "blocks of {block:?} threads; each must be 1 to {most:?}, all {MAX_THREADS} at most"
            ));
        }
        Ok(())
    }
}

// CUDA's limits, the same on all of its devices. AMD GPUs allow more threads in z.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u32 = 1024;

/// A parameter of a kernel: where it is among all of them, laid out as the members of a struct, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParameter {
    /// Bytes from the start of the first one.
    pub offset: u64,
    /// In bytes.
    pub size: u64,
}

/// A value that can be an argument of a kernel.
///
/// For structs it is derived, which checks at compile time what it promises: a layout that device code has too, fields that
/// are such values, and no padding.
///
/// ```
/// use mscclpp_gpu::{DevicePtr, KernelParam};
///
/// /// The same as in the kernel's source: `struct Part { float* data; uint32_t first; uint32_t count; };`
/// #[derive(Clone, Copy, KernelParam)]
/// #[repr(C)]
/// struct Part {
///     data: DevicePtr,
///     first: u32,
///     count: u32,
/// }
/// assert_eq!(Part { data: DevicePtr(0), first: 3, count: 4 }.to_bytes().len(), 16);
/// ```
///
/// ```
/// # use mscclpp_gpu::KernelParam;
/// # #[derive(Clone, Copy, KernelParam)]
/// # #[repr(transparent)]
/// # pub(crate) struct Id(pub(crate) u32);
/// # /// With all that may stand in front of a type, and signs in types.
/// # #[derive(Clone, Copy, KernelParam)]
/// # #[repr(C, align(8))]
/// # pub struct Parts {
/// #     /// A pointer.
/// #     pub(crate) all: *mut ::core::option::Option<(u8, u8)>,
/// #     ids: [Id; Self::MOST],
/// # }
/// # impl Parts {
/// #     const MOST: usize = 2;
/// # }
/// # assert_eq!(size_of::<Parts>(), 16);
/// ```
///
/// Not with four bytes that are nobody's:
///
/// ```compile_fail,E0080
/// # use mscclpp_gpu::{DevicePtr, KernelParam};
/// #[derive(Clone, Copy, KernelParam)]
/// #[repr(C)]
/// struct Part {
///     data: DevicePtr,
///     first: u32,
/// }
/// ```
///
/// nor with a field that is no such value:
///
/// ```compile_fail,E0277
/// # use mscclpp_gpu::KernelParam;
/// #[derive(Clone, Copy, KernelParam)]
/// #[repr(C)]
/// struct Flag(bool);
/// ```
///
/// nor in a layout that Rust chooses:
///
/// ```compile_fail
/// # use mscclpp_gpu::KernelParam;
/// #[derive(Clone, Copy, KernelParam)]
/// struct Flag(u8);
/// ```
///
/// # Safety
/// The type must be plain data without padding, so that all its bytes may be read, and any bytes must be a value. Its size
/// and layout must be the same in device code.
pub unsafe trait KernelParam: Copy + 'static {
    /// The value's bytes, as kernels read them from memory.
    ///
    /// ```
    /// # use mscclpp_gpu::KernelParam;
    /// assert_eq!(1u32.to_bytes(), 1u32.to_ne_bytes());
    /// ```
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        Self::slice_to_bytes(std::slice::from_ref(self))
    }

    /// The bytes of all of them, one after the other.
    #[must_use]
    fn slice_to_bytes(params: &[Self]) -> Vec<u8> {
        // SAFETY: the memory of the slice, all bytes of which are initialised (the trait's promise).
        unsafe { std::slice::from_raw_parts(params.as_ptr().cast(), size_of_val(params)) }.to_vec()
    }
}

macro_rules! kernel_param {
    ($($t:ty),*) => { $(
        // SAFETY: a primitive of the same size and layout in CUDA C++.
        unsafe impl KernelParam for $t {}
    )* };
}
kernel_param!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, usize, isize, DevicePtr);
// SAFETY: one element behind the other on both sides.
unsafe impl<T: KernelParam, const N: usize> KernelParam for [T; N] {}
// SAFETY: pointers are 8 bytes on both sides.
unsafe impl<T: 'static> KernelParam for *mut T {}
// SAFETY: pointers are 8 bytes on both sides.
unsafe impl<T: 'static> KernelParam for *const T {}

/// The arguments of a launch, and what must live until it is complete.
///
/// Values are copied when they are given. For an object, such as a buffer or a channel, the kernel gets the address or
/// the device handle, and launches keep the object alive until they are complete. A graph in which a launch is captured
/// keeps it as long as the graph exists, and until the graph's own launches are complete. The same arguments may be
/// used for any number of launches, and may be dropped after the first.
///
/// ```
/// # use mscclpp_gpu::{KernelArgs, Platform};
/// # let gpu = Platform::Host.gpu(0)?;
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
    /// The first argument that has no value: its place, its type, and why.
    refused: Option<(usize, &'static str, Error)>,
}

/// One argument: its bytes in 16-byte aligned storage, as device parameters are aligned to 16 at most.
///
/// Storage of no type, so that pointers stay pointers when it is copied.
#[derive(Debug, Clone)]
pub(crate) struct ArgBytes {
    storage: Box<[MaybeUninit<u128>]>,
    len: usize,
    /// For messages.
    type_name: &'static str,
}

impl KernelArgs {
    /// No arguments yet.
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

    /// Adds a pointer to an array in `gpu`'s memory that has what kernels get for each of `objects`, such as a slice of
    /// channels, semaphores or buffers: their device handles or addresses. If there are none, it is null.
    ///
    /// The array is made and filled now, which blocks for a moment, and like the objects it is kept until launches are
    /// complete. It is the same for all launches with these arguments; so make them once for many.
    ///
    /// ```
    /// # use mscclpp_gpu::{KernelArgs, KernelSource, LaunchConfig, Module, Platform};
    /// # let gpu = Platform::Host.gpu(0)?;
    /// # let source = r#"extern "C" __global__ void sum(int** parts, int count) {
    /// #     for (int i = 1; i < count; ++i) *parts[0] += *parts[i];
    /// # }"#;
    /// # let kernel = Module::load(&gpu, &KernelSource::new("sum.cu", source))?.kernel("sum")?;
    /// # let stream = gpu.stream()?;
    /// let parts = [gpu.allocate(4)?, gpu.allocate(4)?, gpu.allocate(4)?];
    /// for (part, value) in parts.iter().zip([1, 20, 300]) {
    ///     part.write_params(0, &[value])?;
    /// }
    /// // `__global__ void sum(int** parts, int count)` adds all to the first.
    /// let args = KernelArgs::new().with_array(&gpu, &parts).with(parts.len() as i32);
    /// // SAFETY: these are the kernel's parameters.
    /// unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args)? };
    /// stream.synchronize()?;
    /// let mut sum = [0i32];
    /// parts[0].read_params(0, &mut sum)?;
    /// assert_eq!(sum, [321]);
    /// # Ok::<(), mscclpp_gpu::Error>(())
    /// ```
    ///
    /// If an object has no value, or there is no memory, launches with these arguments fail.
    #[must_use]
    pub fn with_array<I>(mut self, gpu: &Gpu, objects: I) -> Self
    where
        I: IntoIterator<Item: KernelArgument>,
    {
        let (mut owners, mut params) = (Vec::new(), Ok(Vec::new()));
        for object in objects {
            owners.extend(object.owner());
            params = params.and_then(|mut params| {
                params.push(object.param()?);
                Ok(params)
            });
        }
        let array = params.and_then(|params| uploaded(gpu, &params));
        self.push::<I, _>(array.as_ref().map_or_else(
            |error| Err(error.clone()),
            |array| Ok(array.as_ref().map_or(DevicePtr::NULL, DeviceBuffer::ptr)),
        ));
        owners.extend(array.ok().flatten().map(|array| array.owner()));
        self.owners.push(Arc::new(owners));
        self
    }

    /// Adds what became of an argument of type `A`.
    fn push<A, P: KernelParam>(&mut self, value: Result<P>) {
        let type_name = type_name::<A>();
        match value {
            Ok(value) => self.values.push(ArgBytes::of(value, type_name)),
            Err(error) => {
                self.refused.get_or_insert((self.values.len(), type_name, error));
            }
        }
    }

    /// Makes launches with these arguments also keep `object` alive, which is not an argument itself: memory whose address
    /// the kernel finds somewhere, an `Arc`, or a tuple or list of these. Nothing is known of waits through it.
    #[must_use]
    pub fn keeping<T: Any + Send + Sync>(mut self, object: T) -> Self {
        self.owners.push(Arc::new(Kept(object)));
        self
    }

    /// Makes launches with these arguments also keep objects that could be arguments and are none, such as the channels whose
    /// device handles the kernel finds in memory. What becomes of waits through them is known, as of arguments: see
    /// [`Stream::synchronize`](crate::Stream::synchronize).
    #[must_use]
    pub fn keeping_each<I>(mut self, objects: I) -> Self
    where
        I: IntoIterator<Item: KernelArgument>,
    {
        self.owners.extend(objects.into_iter().filter_map(|object| object.owner()));
        self
    }

    /// As [`KernelArgs::keeping`], for an object that says for whom kernels wait through it. An [`Owner`] that is given to
    /// many launches is kept once.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owners.push(owner);
        self
    }

    /// How many arguments there are.
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

    /// What must live until a launch is complete.
    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// That each argument has a value, and that they are as many and as large as the parameters, if these are known.
    /// `names` are those of the parameters, or none; asked for if something is wrong.
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
                    Error::InvalidArgument(format!("{}: {why}", argument(*place, Some(type_name))))
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
        Err(Error::InvalidArgument(format!(
            "{why}; its parameters have {taken:?} bytes, the arguments {given:?}"
        )))
    }
}

/// These in `gpu`'s memory; nothing for none.
fn uploaded<P: KernelParam>(gpu: &Gpu, params: &[P]) -> Result<Option<DeviceBuffer>> {
    if params.is_empty() {
        return Ok(None);
    }
    let array = gpu.allocate(size_of_val(params) as u64)?;
    array.write_params(0, params)?;
    Ok(Some(array))
}

/// The name of a type without the modules that it is in.
fn short(type_name: &str) -> String {
    let mut short = String::new();
    for part in type_name.split_inclusive("::") {
        match part.strip_suffix("::") {
            // The path ends behind its last sign that is no letter, as in `&Arc<module`.
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
