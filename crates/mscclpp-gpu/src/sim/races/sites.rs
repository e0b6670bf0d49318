//! Places in the code: where an access is, and through which calls the thread came there.

use std::{collections::HashMap, fmt, hash::BuildHasherDefault, sync::Arc};

use addr2line::{Context, gimli};
use object::{Object, ObjectSection, read::elf::ElfFile64};
use parking_lot::Mutex;

use super::shadow::Mix;

/// A place with the calls that lead there.
type Place = (u32, usize);

/// Numbers for places, from `first` on, in the order in which they were first met.
struct Numbers {
    first: u32,
    places: Vec<Place>,
    numbers: Option<HashMap<Place, u32, BuildHasherDefault<Mix>>>,
}

impl Numbers {
    fn of(&mut self, place: Place) -> u32 {
        let (first, places) = (self.first, &mut self.places);
        *self.numbers.get_or_insert_default().entry(place).or_insert_with(|| {
            places.push(place);
            first + places.len() as u32 - 1
        })
    }

    fn place(&self, number: u32) -> Option<Place> {
        self.places.get(number.checked_sub(self.first)? as usize).copied()
    }
}

/// Calls: from which calls, and from where. 0 is the beginning of a thread.
static NODES: Mutex<Numbers> = Mutex::new(Numbers { first: 1, places: Vec::new(), numbers: None });
/// Places of accesses. Lower numbers are those of [`HostSite`].
static SITES: Mutex<Numbers> = Mutex::new(Numbers { first: 32, places: Vec::new(), numbers: None });

/// An access of the host itself, in place of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HostSite {
    Write = 1,
    Fill,
    Copy,
    StreamFill,
    WriteU64,
    Transport,
}

impl HostSite {
    pub(super) fn text(self) -> &'static str {
        Self::name(self as u32)
    }

    fn name(site: u32) -> &'static str {
        const NAMES: [&str; 7] = [
            "the host",
            "DeviceBuffer::write",
            "DeviceBuffer::fill",
            "Stream::copy",
            "Stream::fill",
            "Stream::write_u64",
            "a transport's write",
        ];
        NAMES.get(site as usize).copied().unwrap_or("the host")
    }
}

/// The places that a block's threads have met, so that each is looked up once.
#[derive(Default)]
pub(super) struct Met {
    nodes: HashMap<Place, u32, BuildHasherDefault<Mix>>,
    callers: HashMap<u32, u32, BuildHasherDefault<Mix>>,
    sites: HashMap<Place, u32, BuildHasherDefault<Mix>>,
}

impl Met {
    /// A call from `place`, made within `node`.
    pub(super) fn node(&mut self, node: u32, place: usize) -> u32 {
        *self.nodes.entry((node, place)).or_insert_with(|| NODES.lock().of((node, place)))
    }

    /// Where the call was made that leads to `node`.
    pub(super) fn caller(&mut self, node: u32) -> u32 {
        *self.callers.entry(node).or_insert_with(|| NODES.lock().place(node).map_or(0, |(from, _)| from))
    }

    pub(super) fn site(&mut self, node: u32, place: usize) -> u32 {
        *self.sites.entry((node, place)).or_insert_with(|| SITES.lock().of((node, place)))
    }
}

/// A loaded library: where it lies, and its content, with the lines. It stays loaded, so that its addresses keep their
/// meaning.
struct Code {
    base: usize,
    end: usize,
    bytes: Vec<u8>,
}

static CODE: Mutex<Vec<Arc<Code>>> = Mutex::new(Vec::new());

/// A library has been loaded, for good.
pub(in super::super) fn add_library(base: usize, bytes: &[u8]) {
    let Ok(elf) = ElfFile64::<object::Endianness>::parse(bytes) else { return };
    let end = elf.sections().map(|section| section.address() + section.size()).max().unwrap_or(0);
    CODE.lock().push(Arc::new(Code { base, end: base + end as usize, bytes: bytes.to_vec() }));
}

/// A line of a source, as reports show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Line {
    file: String,
    line: u32,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The lines of a site: the access itself and the calls that led there, from inside to outside.
pub(super) struct Lines(Vec<Line>);

impl Lines {
    pub(super) fn of(site: u32) -> Self {
        let Some((mut node, mut place)) = SITES.lock().place(site) else {
            return Self(Vec::new());
        };
        let mut lines = Vec::new();
        loop {
            lines.extend(code_lines(place));
            match NODES.lock().place(node) {
                Some(next) => (node, place) = next,
                None => return Self(lines),
            }
        }
    }

    /// The line of the kernel, rather than of a header of the library; what the host did has none.
    pub(super) fn of_kernel(&self) -> Option<&Line> {
        self.0.iter().find(|line| !line.file.starts_with("include/")).or(self.0.first())
    }

    /// The place in one line of text.
    pub(super) fn text(&self, site: u32) -> String {
        match (self.of_kernel(), self.0.first()) {
            (Some(own), Some(inner)) if own != inner => {
                format!("{own} (in {}:{})", inner.file.trim_start_matches("include/"), inner.line)
            }
            (Some(own), _) => own.to_string(),
            (None, _) => HostSite::name(site).to_owned(),
        }
    }
}

/// The lines of one address: the innermost function that was inlined there first.
fn code_lines(place: usize) -> Vec<Line> {
    let code = CODE.lock().iter().find(|code| (code.base..code.end).contains(&place)).cloned();
    let Some(code) = code else { return Vec::new() };
    // The address is where the call returns to: the call lies in front of it.
    lines_in(&code.bytes, (place - code.base - 1) as u64).unwrap_or_default()
}

fn lines_in(bytes: &[u8], address: u64) -> Option<Vec<Line>> {
    let elf = ElfFile64::<object::Endianness>::parse(bytes).ok()?;
    let section = |id: gimli::SectionId| {
        let data = elf.section_by_name(id.name()).and_then(|section| section.data().ok()).unwrap_or_default();
        Ok::<_, gimli::Error>(gimli::EndianSlice::new(data, gimli::NativeEndian))
    };
    let context = Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()?;
    let mut frames = context.find_frames(address).skip_all_loads().ok()?;
    let mut lines = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        if let Some((file, line)) = frame.location.and_then(|location| location.file.zip(location.line)) {
            lines.push(Line { file: file.trim_start_matches("./").to_owned(), line });
        }
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_one_number_and_gives_itself_back() {
        let (mut first, mut second) = (Met::default(), Met::default());
        let node = first.node(0, 0x10_0000);
        assert_eq!(second.node(0, 0x10_0000), node);
        assert_ne!(first.node(node, 0x10_0000), node);
        let inner = first.node(node, 0x20_0000);
        assert_eq!(first.caller(inner), node);
        assert_eq!(first.site(node, 0x30), second.site(node, 0x30));
        assert_ne!(first.site(node, 0x30), first.site(0, 0x30));
    }

    #[test]
    fn lines_of_the_kernel_come_before_those_of_headers() {
        let line = |file: &str, line| Line { file: file.to_owned(), line };
        let lines = Lines(vec![line("include/mscclpp/a.hpp", 3), line("ring.cu", 17), line("ring.cu", 40)]);
        assert_eq!(lines.text(99), "ring.cu:17 (in mscclpp/a.hpp:3)");
        assert_eq!(Lines(Vec::new()).text(HostSite::Copy as u32), "Stream::copy");
    }
}
