//! Refuses a compiled source that would run code as soon as it is loaded.
//!
//! Loading a module is safe, and launching a kernel is not. So no code of the source may run before a launch, as on CUDA,
//! whose compiler refuses variables that are not initialised by constants. The loader runs the functions in initialisation
//! lists (constructors, and initialisers of such variables), those in unloading lists, and those that choose between
//! versions of a function. All of these are looked for in the object of the source, where they have names, and in the
//! library, which is linked without start files, so that it has none of its own.

use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind,
    SymbolFlags, SymbolKind,
    elf::STT_GNU_IFUNC,
    read::elf::{ElfFile64, ElfSection64, ElfSymbol64, FileHeader as _},
};

/// The sections whose content the loader runs, or that name libraries to load; also with a dot and a number at the end.
const LISTS: [&str; 8] =
    [".init_array", ".preinit_array", ".ctors", ".init", ".fini_array", ".dtors", ".fini", ".deplibs"];

type Elf<'a> = ElfFile64<'a, Endianness>;
type Symbol<'a, 'b> = ElfSymbol64<'a, 'b, Endianness>;

/// Refuses an object that runs code when it is loaded or unloaded.
///
/// # Errors
/// The text names the function that runs, and the variables for which it runs.
pub(super) fn refuse(object: &[u8]) -> Result<(), String> {
    let elf = Elf::parse(object).map_err(|error| format!("the compiler's object cannot be read: {error}"))?;
    if let Some(symbol) = elf.symbols().find(is_ifunc) {
        return Err(format!(
            "{} would run when the module is loaded, to choose between versions of a function (an ifunc, as \
             `target_clones` makes it); write one version",
            name(&symbol)
        ));
    }
    let Some(list) = elf.sections().find(|section| section.size() > 0 && is_list(section)) else {
        return Ok(());
    };
    let functions: Vec<_> = list.relocations().filter_map(|(_, to)| target(&elf, &to)).collect();
    let variables: Vec<String> = functions.iter().flat_map(|function| variables(&elf, function)).collect();
    let functions = match functions.as_slice() {
        [] => format!("code of the section {}", list.name().unwrap_or_default()),
        functions => functions.iter().map(name).collect::<Vec<_>>().join(", "),
    };
    let variables = match variables.as_slice() {
        [] => "a variable of a module".to_owned(),
        variables => variables.join(", "),
    };
    Err(format!(
        "{functions} would run when the module is loaded or unloaded; as on a GPU, no code of a module does, and \
         {variables} must be initialised by a constant: give it its value in a kernel, or by Module::set_symbol"
    ))
}

/// The lists in which compilers put the start of the thread sanitizer, each with a new name of the same length.
const SANITIZERS: [(&[u8], &[u8]); 2] =
    [(b".init_array.00099\0", b".not_called.00099\0"), (b".init_array.0\0", b".not_called.0\0")];

/// Removes the call that would start the thread sanitizer from an object that is compiled for the race detector: its list
/// becomes a section that nobody reads.
///
/// # Errors
/// The reason why the object cannot be read, as text.
pub(super) fn drop_sanitizers(object: &mut [u8]) -> Result<(), String> {
    let names = {
        let elf =
            Elf::parse(&*object).map_err(|error| format!("the compiler's object cannot be read: {error}"))?;
        let names = elf.elf_header().shstrndx(Endianness::default(), &*object);
        let index =
            names.map_err(|error| format!("the compiler's object has no names of sections: {error}"))?;
        let section = elf.section_by_index(SectionIndex(index as usize)).ok();
        section.and_then(|section| section.file_range())
    };
    let Some((start, size)) = names else { return Ok(()) };
    let table = &mut object[start as usize..(start + size) as usize];
    for (list, other) in SANITIZERS {
        while let Some(at) = table.windows(list.len()).position(|name| name == list) {
            table[at..at + list.len()].copy_from_slice(other);
        }
    }
    Ok(())
}

fn is_ifunc(symbol: &Symbol<'_, '_>) -> bool {
    matches!(symbol.flags(), SymbolFlags::Elf { st_info, .. } if st_info.st_type() == STT_GNU_IFUNC)
}

fn is_list(section: &ElfSection64<'_, '_>) -> bool {
    let Ok(name) = section.name() else { return true };
    let rest = LISTS.iter().find_map(|list| name.strip_prefix(list));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn name(symbol: &Symbol<'_, '_>) -> String {
    symbol.name().unwrap_or("a function without a name").to_owned()
}

/// Returns the symbol that a relocation names, or the symbol at the place that it names by its section.
fn target<'a, 'b>(elf: &'b Elf<'a>, relocation: &object::Relocation) -> Option<Symbol<'a, 'b>> {
    let RelocationTarget::Symbol(index) = relocation.target() else { return None };
    let symbol = elf.symbol_by_index(index).ok()?;
    if symbol.kind() != SymbolKind::Section {
        return Some(symbol);
    }
    let section = symbol.section_index()?;
    // An address relative to the program counter counts from the end of the instruction, which has up to 8 bytes more.
    let place = |more: i64| u64::try_from(relocation.addend() + more).ok();
    let exact = |symbol: &Symbol<'_, '_>, place| symbol.address() == place;
    let mut starts = [0, 4, 8, 5, 6].into_iter().filter_map(place);
    starts.find_map(|place| in_section(elf, section).find(|symbol| exact(symbol, place))).or_else(|| {
        let place = place(4)?;
        in_section(elf, section).find(|s| (s.address()..s.address() + s.size()).contains(&place))
    })
}

/// Returns the functions and variables of a section.
fn in_section<'a, 'b>(elf: &'b Elf<'a>, section: SectionIndex) -> impl Iterator<Item = Symbol<'a, 'b>> {
    let is_one = move |symbol: &Symbol<'_, '_>| {
        symbol.section_index() == Some(section) && symbol.kind() != SymbolKind::Section && symbol.size() > 0
    };
    elf.symbols().filter(is_one)
}

/// Returns the variables of the source that the function refers to, without constants.
fn variables(elf: &Elf<'_>, function: &Symbol<'_, '_>) -> Vec<String> {
    let Some(section) = function.section_index().and_then(|index| elf.section_by_index(index).ok()) else {
        return Vec::new();
    };
    let own = function.address()..function.address() + function.size();
    let mut names = Vec::new();
    for (_, relocation) in section.relocations().filter(|(at, _)| own.contains(at)) {
        let Some(symbol) = target(elf, &relocation) else { continue };
        let kind =
            symbol.section_index().and_then(|index| elf.section_by_index(index).ok()).map(|s| s.kind());
        let is_variable = matches!(kind, Some(SectionKind::Data | SectionKind::UninitializedData));
        if is_variable && !names.contains(&name(&symbol)) {
            names.push(name(&symbol));
        }
    }
    names
}
