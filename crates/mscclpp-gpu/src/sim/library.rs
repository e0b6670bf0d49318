//! A compiled kernel library, loaded: its kernels and its variables.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_int, c_void},
    fs::File,
    io::Write,
    mem,
    ops::Range,
    os::fd::AsRawFd,
};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind, read::elf::ElfFile64};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    abi, races,
    ranges::{AccessibleRange, Whose},
    rewrite::DYNAMIC_SHARED,
};
use crate::{DevicePtr, Error, KernelParameter, Result};

/// One load of a library, with variables of its own. Unloaded when dropped.
pub(super) struct Library {
    kernels: Vec<Kernel>,
    variables: Vec<Variable>,
    /// The difference between addresses in memory and in the file.
    base: usize,
    /// The memory that cannot be written: constants, of which literals have no name.
    constants: Vec<Range<usize>>,
    /// The `__shared__` variables, with their places in a thread's copy.
    shared: Vec<SharedVariable>,
    /// The variables that kernels may touch, dropped before the library.
    _accessible: Vec<AccessibleRange>,
    _handle: Handle,
    /// The file, open as long as the library is loaded: its number is in the name by which the loader knows the library.
    /// None if the library is never unloaded.
    _copy: Option<File>,
}

/// A kernel, valid as long as its library.
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) call: unsafe extern "C" fn(*const *mut c_void),
    pub(super) parameters: Vec<KernelParameter>,
}

struct Variable {
    name: String,
    address: DevicePtr,
    size: u64,
}

#[derive(Clone, Copy)]
struct SharedVariable {
    offset: usize,
    /// The size; none for the dynamic part, whose size is different for each launch.
    size: Option<u64>,
}

/// The table that `compiler.rs` puts at the end of each source.
const TABLE: &[u8] = b"mscclpp_sim_table\0";

/// The name of a function of libraries that are compiled for the race detector.
const TOUCH: &[u8] = b"mscclpp_sim_touch_shared\0";

impl Library {
    /// Loads a copy of `bytes`, the result of `compiler.rs` for a source.
    ///
    /// # Safety
    /// `bytes` is the result of `compiler::compile`: whole, and with no code that runs when it is loaded or unloaded.
    pub(super) unsafe fn load(name: &str, bytes: &[u8]) -> Result<Self> {
        let failed = |what: &str, e: Box<dyn std::error::Error + Send + Sync>| {
            Error::system(format!("{what} of {name}"), e)
        };
        // The copy is a file of its own: the loader does not load a file a second time, and each load must have its own
        // variables.
        let copy = memfd_create("mscclpp-kernels", MemfdFlags::CLOEXEC)
            .map_err(|e| failed("memfd_create", e.into()))?;
        let mut copy = File::from(copy);
        copy.write_all(bytes).map_err(|e| failed("writing the compiled code", e.into()))?;
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        // SAFETY: the caller's promise: it has no initialisers.
        let handle = unsafe { Handle::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let handle = handle.map_err(|e| failed("loading the compiled code", e.into()))?;

        let elf = ElfFile64::<object::Endianness>::parse(bytes)
            .map_err(|e| failed("reading the symbols", e.into()))?;
        // SAFETY: a table with that name has this type (`compiler.rs`).
        let table = unsafe { handle.get::<*const abi::Kernel>(TABLE) };
        let table =
            table.map_err(|e| failed("finding the kernels", e.into()))?.as_raw_ptr().cast::<abi::Kernel>();
        let base = base_address(&elf, table as usize)
            .ok_or_else(|| failed("finding the kernels", "the table is not among the symbols".into()))?;
        let variables = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.is_definition() && symbol.size() > 0)
            .filter_map(|symbol| {
                let name = symbol.name().ok()?.to_owned();
                let address = DevicePtr(base as u64 + symbol.address());
                (!name.starts_with("mscclpp_sim_")).then_some(Variable { name, address, size: symbol.size() })
            })
            .collect();
        let copy = if races::is_on() {
            races::add_library(base, bytes);
            // Reports name places in it, also when it is no longer used.
            // SAFETY: the same as above; it is loaded already.
            mem::forget(unsafe { Handle::open(Some(&path), RTLD_NOW | RTLD_LOCAL) });
            mem::forget(copy);
            None
        } else {
            Some(copy)
        };
        // SAFETY: the library is loaded, and the table ends with a null.
        let kernels = unsafe { read_table(table) };
        Ok(Self {
            kernels,
            variables,
            base,
            constants: constants(&elf, base),
            shared: shared(&elf),
            _accessible: accessible(&elf, base),
            _handle: handle,
            _copy: copy,
        })
    }

    pub(super) fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    pub(super) fn variable_names(&self) -> Vec<&str> {
        self.variables.iter().map(|variable| variable.name.as_str()).collect()
    }

    pub(super) fn variable(&self, name: &str) -> Option<(DevicePtr, u64)> {
        let found = self.variables.iter().find(|variable| variable.name == name)?;
        Some((found.address, found.size))
    }

    /// Returns the memory with the byte at `address`, besides the variables that all threads share: one of the calling
    /// thread's `__shared__` variables, of which the dynamic part has `shared_bytes` (the byte may be after its end); or,
    /// for reads, constants.
    pub(super) fn range(&self, address: usize, is_store: bool, shared_bytes: u32) -> Option<(usize, u64)> {
        if let Some(constants) = self.constants.iter().find(|range| !is_store && range.contains(&address)) {
            return Some((constants.start, constants.len() as u64));
        }
        let (begin, bytes) = self.thread_locals()?;
        let offset = address.checked_sub(begin).filter(|offset| (*offset as u64) < bytes)?;
        let before = self.shared.iter().filter(|shared| shared.offset <= offset);
        let SharedVariable { offset, size } = before.max_by_key(|shared| shared.offset)?;
        Some((begin + offset, size.unwrap_or(u64::from(shared_bytes))))
    }

    /// Returns the calling thread's copy of the `__shared__` variables, if it has one yet.
    fn thread_locals(&self) -> Option<(usize, u64)> {
        let mut search = Search { segment: self.base, found: None };
        // SAFETY: the callback has the type that is asked for, and gets this search.
        unsafe { libc::dl_iterate_phdr(Some(find_thread_locals), (&raw mut search).cast()) };
        search.found
    }

    /// Returns each of the `__shared__` variables in the calling thread's copy, which this call makes.
    pub(super) fn shared_variables(&self, shared_bytes: u32) -> Vec<Range<usize>> {
        // SAFETY: a function with that name has this type (`races.cpp`). It writes a variable of its own, and so the thread gets
        // its copy of all.
        unsafe {
            if let Ok(touch) = self._handle.get::<unsafe extern "C" fn()>(TOUCH) {
                touch();
            }
        }
        let Some((begin, _)) = self.thread_locals() else { return Vec::new() };
        let range = |shared: &SharedVariable| {
            let start = begin + shared.offset;
            start..start + shared.size.unwrap_or(u64::from(shared_bytes)) as usize
        };
        self.shared.iter().map(range).filter(|range| !range.is_empty()).collect()
    }
}

/// Returns the variables that kernels may touch, also those without a name outside.
fn accessible(elf: &ElfFile64<'_, object::Endianness>, base: usize) -> Vec<AccessibleRange> {
    let mut sizes = BTreeMap::new();
    for symbol in elf.symbols().filter(|s| s.kind() == SymbolKind::Data && s.is_definition() && s.size() > 0)
    {
        // One variable may have several names.
        let size = sizes.entry(base + symbol.address() as usize).or_insert(0);
        *size = symbol.size().max(*size);
    }
    sizes.into_iter().map(|(begin, size)| AccessibleRange::new(begin, size, size, Whose::Ours)).collect()
}

fn constants(elf: &ElfFile64<'_, object::Endianness>, base: usize) -> Vec<Range<usize>> {
    let is_constant =
        |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & object::elf::PF_W.0 == 0);
    let constant = elf.segments().filter(|segment| is_constant(segment.flags()));
    let place = |begin: u64| base + begin as usize;
    constant.map(|s| place(s.address())..place(s.address() + s.size())).collect()
}

fn shared(elf: &ElfFile64<'_, object::Endianness>) -> Vec<SharedVariable> {
    elf.symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Tls && !is_made_by_compiler(symbol.name_bytes()))
        .map(|symbol| {
            let is_dynamic = symbol.name().is_ok_and(|name| name == DYNAMIC_SHARED);
            SharedVariable { offset: symbol.address() as usize, size: (!is_dynamic).then_some(symbol.size()) }
        })
        .collect()
}

/// Whether a thread-local variable was made by the compiler: those that tell whether others have been made, and the one
/// of [`TOUCH`].
fn is_made_by_compiler(name: object::Result<&[u8]>) -> bool {
    let is = |name: &[u8]| {
        name.starts_with(b"_ZGV") || name == b"__tls_guard" || name.starts_with(b"mscclpp_sim_touched")
    };
    name.is_ok_and(is)
}

/// Returns the difference between addresses in memory and in the file.
fn base_address(elf: &ElfFile64<'_, object::Endianness>, table: usize) -> Option<usize> {
    let name = TABLE.strip_suffix(b"\0")?;
    let symbol = elf.dynamic_symbols().find(|symbol| symbol.name_bytes().is_ok_and(|n| n == name))?;
    table.checked_sub(symbol.address() as usize)
}

/// # Safety
/// `table` points to entries that live, the last of which has no name.
unsafe fn read_table(mut table: *const abi::Kernel) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    // SAFETY: the caller's promise; each entry is one that the header's `Entry` makes: a literal, and an array of
    // `parameters` sizes.
    unsafe {
        while !(*table).name.is_null() {
            let entry = &*table;
            let of_each = |numbers| std::slice::from_raw_parts(numbers, entry.parameters as usize);
            kernels.push(Kernel {
                name: CStr::from_ptr(entry.name).to_string_lossy().into_owned(),
                call: entry.call,
                parameters: laid_out(of_each(entry.parameter_bytes), of_each(entry.parameter_alignments)),
            });
            table = table.add(1);
        }
    }
    kernels
}

/// Lays parameters out one after the other, each at its alignment.
fn laid_out(sizes: &[u64], alignments: &[u64]) -> Vec<KernelParameter> {
    let mut end = 0u64;
    let place = |(&size, &alignment): (&u64, &u64)| {
        let offset = end.next_multiple_of(alignment.max(1));
        end = offset + size;
        KernelParameter { offset, size }
    };
    sizes.iter().zip(alignments).map(place).collect()
}

struct Search {
    segment: usize,
    found: Option<(usize, u64)>,
}

unsafe extern "C" fn find_thread_locals(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives valid information, and back what it was given.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if info.dlpi_addr as usize != search.segment {
        return 0;
    }
    // SAFETY: the array has so many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let locals = headers.iter().find(|header| header.p_type == libc::PT_TLS);
    if let Some(locals) = locals.filter(|_| !info.dlpi_tls_data.is_null()) {
        search.found = Some((info.dlpi_tls_data as usize, locals.p_memsz));
    }
    1
}
