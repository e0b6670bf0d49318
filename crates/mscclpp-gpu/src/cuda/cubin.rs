//! Checks of compiled code before the driver gets it: that it is whole, and which kernels it has.

use object::{Endianness, Object, ObjectSection, read::elf::ElfFile64};

use crate::{Error, Result};

/// The first bytes of code for several devices in one.
const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// Returns the kernels of a cubin: each has a section `.text.NAME`. Those of a fatbin are not known.
///
/// # Errors
/// [`Error::InvalidArgument`] if it is neither, or ends too early.
pub(super) fn kernels(name: &str, binary: &[u8]) -> Result<Option<Vec<String>>> {
    let refused = |why: &str| Err(Error::invalid(format!("{name} cannot be loaded: {why}")));
    if binary.starts_with(&FATBIN) {
        // The head of a fatbin: the magic number, a version, the length of the head, that of the rest.
        let number = |at: usize, len: usize| {
            let bytes = binary.get(at..at + len)?;
            Some(bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte)))
        };
        let whole = number(6, 2).zip(number(8, 8)).and_then(|(head, rest)| head.checked_add(rest));
        return match whole {
            Some(whole) if whole <= binary.len() as u64 => Ok(None),
            _ => refused("the fatbin ends too early"),
        };
    }
    let Ok(elf) = ElfFile64::<Endianness>::parse(binary) else {
        return refused("it begins neither as a cubin nor as a fatbin");
    };
    let mut names = Vec::new();
    for section in elf.sections() {
        let (Ok(_), Ok(name)) = (section.data(), section.name()) else {
            return refused("the cubin ends too early");
        };
        names.extend(name.strip_prefix(".text.").map(str::to_owned));
    }
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_code_is_refused() {
        let said = |binary: &[u8]| kernels("mine.cubin", binary).unwrap_err().to_string();
        assert!(said(b"int main() {}").contains("mine.cubin cannot be loaded"));
        assert!(said(b"").contains("neither"));
        assert!(said(b"\x7fELF\x02\x01\x01").contains("neither"));
        let mut fatbin = [&FATBIN[..], &[1, 0, 16, 0, 8, 0, 0, 0, 0, 0, 0, 0], &[7; 8]].concat();
        assert_eq!(kernels("mine.fatbin", &fatbin).unwrap(), None);
        fatbin.pop();
        assert!(said(&fatbin).contains("ends too early"));
        fatbin[8..16].fill(0xff);
        assert!(said(&fatbin).contains("ends too early"));
    }

    #[test]
    fn kernels_are_named_by_their_sections_and_a_part_is_not_the_whole() {
        // This program is an ELF file as well; it has no `.text.NAME`.
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(kernels("own", &own).unwrap(), Some(Vec::new()));
        assert!(kernels("own", &own[..own.len() / 2]).is_err());
    }
}
