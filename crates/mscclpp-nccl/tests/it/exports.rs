//! The symbols that the library exports, compared with those of NCCL: what 2.28.9 and 2.32.3 export (`nm -D --defined-only` of
//! PyPI's `nvidia-nccl-cu13`), and what the headers of 2.32.3 declare beyond that.

use std::{collections::BTreeSet, fs};

use crate::support::nccl::{nccl, path};
use object::{
    Endianness,
    elf::{DT_SONAME, FileHeader64, SHN_UNDEF, STB_LOCAL},
    read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, Sym as _},
};

fn of_nccl() -> BTreeSet<String> {
    include_str!("symbols.txt").lines().map(str::to_owned).collect()
}

#[test]
fn every_function_of_nccl_is_found_by_its_name() {
    let names = of_nccl();
    assert_eq!(names.len(), 195);
    let missing: Vec<_> = names.iter().filter(|name| !nccl().has(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn nothing_else_is_exported_but_what_simulated_devices_need() {
    let bytes = fs::read(path()).expect("the library");
    let data = bytes.as_slice();
    let header = FileHeader64::<Endianness>::parse(data).expect("an ELF file");
    let endian = header.endian().expect("an order of bytes");
    let sections = header.sections(endian, data).expect("sections");
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM).expect("dynamic symbols");
    let exported =
        symbols.iter().filter(|symbol| symbol.st_shndx(endian) != SHN_UNDEF && symbol.st_bind() != STB_LOCAL);
    let names = exported.map(|symbol| symbols.symbol_name(endian, symbol).expect("a name"));
    let names: BTreeSet<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let (of_host, others): (BTreeSet<_>, BTreeSet<_>) =
        names.into_iter().partition(|name| name.starts_with("mscclppSim"));
    assert_eq!(others, of_nccl());
    assert_eq!(of_host.len(), 13, "{of_host:?}");
    // The symbols of NCCL's library have no versions either.
    let versions = sections.gnu_verdef(endian, data).expect("sections");
    assert!(versions.is_none(), "symbols have versions");
}

#[test]
fn it_is_called_libnccl_so_2() {
    let bytes = fs::read(path()).expect("the library");
    let data = bytes.as_slice();
    let header = FileHeader64::<Endianness>::parse(data).expect("an ELF file");
    let endian = header.endian().expect("an order of bytes");
    let strings = header.sections(endian, data).expect("sections");
    let strings = strings.symbols(endian, data, object::elf::SHT_DYNSYM).expect("dynamic symbols").strings();
    let segments = header.program_headers(endian, data).expect("segments");
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, data).expect("a segment"));
    let name = dynamic.expect("a dynamic segment").iter().find(|entry| entry.d_tag(endian) == DT_SONAME);
    let name = name.expect("a name").val32(endian).expect("an offset");
    assert_eq!(strings.get(name).expect("a text"), b"libnccl.so.2");
}
