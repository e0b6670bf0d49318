//! How single calls are to be done: `ncclCollConfig_t`, and the fewest blocks of a communicator.

use std::{
    ffi::{c_int, c_void},
    ptr::NonNull,
};

use mscclpp_collectives::{Collectives, Protocol, Query, Request, Selection, Selector, Tuned};

use crate::{
    abi::{CollConfig, ConfigExt},
    config::{CLUSTERS, CTA_POLICIES, Settings, blocks, checked},
    failure::Failure,
    pointers::{text, versioned},
};

/// The configuration of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Given {
    pub(crate) choice: Choice,
    /// The event that is recorded when the call is launched. Each rank has its own.
    pub(crate) launch_event: Option<NonNull<c_void>>,
}

/// The part of a call's configuration about how it is done. All ranks give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Choice {
    /// The fewest and the most blocks.
    pub(crate) least: Option<u32>,
    pub(crate) most: Option<u32>,
    pub(crate) protocol: Option<Protocol>,
    /// Whether the call is refused if it cannot be done by that protocol.
    pub(crate) forced: bool,
    /// The options of `ext`.
    pub(crate) options: Options,
}

/// This library's options in the list `ext`. They have an effect where they are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// Option 1: the threads of a block.
    threads: Option<u32>,
    /// Option 2: whether an all-reduce has two steps.
    two_steps: Option<bool>,
}

/// The `vendorId` of this library's options.
pub(crate) const VENDOR: c_int = 0x6d_7363;
/// The most options that a configuration may have, those of other vendors included: a longer list has no end.
const MOST_OPTIONS: usize = 1000;

/// Reads the configuration of a call for a communicator with these settings.
///
/// # Safety
/// `config` is null, or points to as many bytes as its first field says; the elements of its list `ext` are valid.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if the struct was not initialised, or a field has a value that
/// is not allowed.
pub(crate) unsafe fn read(config: *const CollConfig, settings: &Settings) -> Result<Given, Failure> {
    if config.is_null() {
        return Ok(Given::default());
    }
    // SAFETY: the caller's promise; the fields are numbers and pointers.
    let given = unsafe { versioned(config)? };
    let checked = checked::<CollConfig>;
    checked("nvlsCTAs", given.nvls_ctas, 1..=i32::MAX)?;
    checked("cgaClusterSize", given.cga_cluster_size, CLUSTERS)?;
    checked("CTAPolicy", given.cta_policy, CTA_POLICIES)?;
    let forced = checked("forceAlgSelection", given.force_alg_selection, 0..=1)? != Some(0);
    let (least, most) = blocks::<CollConfig>(given.min_ctas, given.max_ctas)?;
    if let (Some(most), Some(of_comm)) = (most, settings.max_blocks)
        && most > of_comm
    {
        return Err(Failure::argument(format!(
            "maxCTAs is {most} in ncclCollConfig_t; the communicator has {of_comm} at most"
        )));
    }
    // SAFETY: the caller's promise.
    let options = unsafe { options(given.ext)? };
    // SAFETY: in an initialised configuration the selection is NULL or a C string.
    let name = unsafe { text(given.alg_selection) }.filter(|name| !name.is_empty());
    let protocol =
        name.as_deref().and_then(|name| Protocol::ALL.into_iter().find(|known| known.to_string() == name));
    match name {
        Some(name) if protocol.is_none() && forced => Err(Failure::argument(format!(
            "algSelection is {name:?} in ncclCollConfig_t; the names are {}",
            Protocol::ALL.map(|known| known.to_string()).join(", ")
        ))),
        _ => Ok(Given {
            choice: Choice { least, most, protocol, forced: forced && protocol.is_some(), options },
            launch_event: NonNull::new(given.launch_completion_event),
        }),
    }
}

/// Reads the list `ext`. Options of other vendors are theirs.
///
/// # Safety
/// Each pointer of the list is null or points to an element.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) for an option that is not known, is there twice, or has a value
/// that is not allowed; and for a list without an end.
unsafe fn options(mut next: *const ConfigExt) -> Result<Options, Failure> {
    let refused = |what: String| Err(Failure::argument(format!("ext in ncclCollConfig_t: {what}")));
    let mut options = Options::default();
    for _ in 0..MOST_OPTIONS {
        // SAFETY: the caller's promise.
        let Some(ConfigExt { next: behind, vendor_id, option_id, value }) = (unsafe { next.as_ref() }) else {
            return Ok(options);
        };
        next = *behind;
        if *vendor_id != VENDOR {
            continue;
        }
        let twice = match (*option_id, *value) {
            (1, 32..=1024) if value % 32 == 0 => options.threads.replace(value.unsigned_abs()).is_some(),
            (1, _) => {
                return refused(format!("option 1 (threads) is {value}; it is a multiple of 32, up to 1024"));
            }
            (2, 0 | 1) => options.two_steps.replace(*value == 1).is_some(),
            (2, _) => return refused(format!("option 2 (two steps) is {value}; 0 and 1 are allowed")),
            _ => {
                return refused(format!(
                    "option {option_id} of vendor {VENDOR:#x} is unknown; there are 1 and 2"
                ));
            }
        };
        if twice {
            return refused(format!("option {option_id} is there twice"));
        }
    }
    refused(format!("more than {MOST_OPTIONS} options: the list has no end"))
}

impl Choice {
    /// Checks that a call can be done as it must be.
    ///
    /// # Errors
    /// [`Code::INVALID_USAGE`](crate::abi::Code::INVALID_USAGE) if the configuration forces a protocol that is not possible.
    pub(crate) fn check(&self, collectives: &Collectives, request: &Request<'_>) -> Result<(), Failure> {
        let Some(protocol) = self.protocol.filter(|_| self.forced) else { return Ok(()) };
        if collectives.n_nodes() > 1 {
            return Err(Failure::usage(format!(
                "algSelection is {protocol} in ncclCollConfig_t, and the communicator has several nodes, or devices that do not \
                 reach each other's memory: there no protocol can be chosen; leave algSelection out, or set forceAlgSelection \
                 to 0"
            )));
        }
        match collectives.selection_with(request, self)? {
            Some(selection) if selection.protocol != protocol => Err(Failure::usage(format!(
                "algSelection is {protocol} in ncclCollConfig_t, which cannot do this call; without algSelection, it goes by {}",
                selection.protocol
            ))),
            _ => Ok(()),
        }
    }
}

/// Chooses as [`Tuned`] does, within what the configuration says.
impl Selector for Choice {
    fn choose(&self, query: &Query) -> Selection {
        // Another protocol needs more blocks than this one.
        let mut asked = *query;
        asked.overlap &= self.protocol.is_none_or(|protocol| protocol == Protocol::SimpleByBulk);
        let tuned = Tuned.choose(&asked);
        let protocol = self.protocol.unwrap_or(tuned.protocol);
        let possible = match protocol {
            Protocol::Ll16 => query.possible.ll16_in_two_steps,
            Protocol::Ll128 => query.possible.ll128_in_two_steps,
            Protocol::Simple => query.possible.simple_in_two_steps,
            _ => false,
        };
        let blocks = tuned.blocks.max(self.least.unwrap_or(0)).min(self.most.unwrap_or(u32::MAX));
        Selection {
            protocol,
            two_steps: self.options.two_steps.unwrap_or(tuned.two_steps) && possible,
            blocks,
            threads: self.options.threads.unwrap_or(tuned.threads_in(blocks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, sync::Arc};

    use mscclpp::{Communicator, Context, ContextExt, DevicePtr, LocalBootstrap, Platform};
    use mscclpp_collectives::{DataType, Kind};

    use crate::abi::Versioned as _;

    use super::*;

    /// Runs `check` with the collectives of one of two ranks.
    fn with_collectives(check: impl Fn(&Collectives)) {
        let connect = |bootstrap| {
            let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
            let gpu = comm.context().gpu(comm.bootstrap().rank()).unwrap();
            Collectives::builder(&comm, &gpu).scratch(1 << 20).connect().unwrap()
        };
        let ranks = std::thread::scope(|scope| {
            let threads: Vec<_> = LocalBootstrap::group(2)
                .into_iter()
                .map(|bootstrap| scope.spawn(move || connect(bootstrap)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        check(&ranks[0]);
    }

    fn all_gather(count: u64) -> Request<'static> {
        let memory = DevicePtr(1 << 32);
        Request { kind: Kind::AllGather, send: memory, recv: memory, count, data_type: DataType::F32 }
    }

    #[test]
    fn a_choice_bounds_the_blocks_and_names_the_protocol() {
        with_collectives(|collectives| {
            let of =
                |choice, count| collectives.selection_with(&all_gather(count), &choice).unwrap().unwrap();
            let (small, large) = (16, 1 << 18);
            let usual = Choice::default();
            assert_eq!(of(usual, small), collectives.selection(&all_gather(small)).unwrap().unwrap());
            assert_eq!((of(usual, small).blocks, of(usual, large).blocks), (1, 2));
            assert_eq!(of(Choice { least: Some(3), ..usual }, small).blocks, 3);
            let few = of(Choice { most: Some(1), ..usual }, large);
            assert_eq!((few.blocks, few.threads), (1, of(usual, large).threads_in(1)));
            let options = Options { threads: Some(96), two_steps: Some(true) };
            let with_options = of(Choice { options, ..usual }, large);
            assert_eq!((with_options.threads, with_options.two_steps), (96, false), "no all_reduce");
            for protocol in [Protocol::Ll16, Protocol::Simple] {
                let choice = Choice { protocol: Some(protocol), forced: true, ..usual };
                assert_eq!(of(choice, small).protocol, protocol);
                choice.check(collectives, &all_gather(small)).unwrap();
            }
        });
    }

    #[test]
    fn a_protocol_that_is_not_possible_is_refused_if_it_is_forced() {
        with_collectives(|collectives| {
            let forced = Choice { protocol: Some(Protocol::CopyEngine), forced: true, ..Choice::default() };
            let text = forced.check(collectives, &all_gather(64)).unwrap_err().text;
            assert!(
                text.contains("algSelection is copy-engine") && text.contains("goes by simple"),
                "{text}"
            );
            Choice { forced: false, ..forced }.check(collectives, &all_gather(64)).unwrap();
        });
    }

    fn given(config: &CollConfig) -> Result<Choice, Failure> {
        let settings = Settings { blocking: true, min_blocks: None, max_blocks: Some(16), name: None };
        // SAFETY: the pointer is to a configuration of at least the size that it states.
        unsafe { read(config, &settings) }.map(|given| given.choice)
    }

    const INITIAL: CollConfig =
        CollConfig { size: size_of::<CollConfig>(), magic: 0xcafe_beef, ..CollConfig::INITIAL };

    #[test]
    fn what_is_not_given_is_as_usual() {
        assert_eq!(given(&INITIAL).unwrap(), Choice::default());
        let unknown = CollConfig { alg_selection: c"ring".as_ptr(), force_alg_selection: 0, ..INITIAL };
        assert_eq!(given(&unknown).unwrap(), Choice::default());
        let automatic = CollConfig { alg_selection: c"".as_ptr(), ..INITIAL };
        assert_eq!(given(&automatic).unwrap(), Choice::default());
        let named = CollConfig { min_ctas: 2, max_ctas: 16, alg_selection: c"ll128".as_ptr(), ..INITIAL };
        let protocol = Some(Protocol::Ll128);
        let options = Options::default();
        let expected = Choice { least: Some(2), most: Some(16), protocol, forced: true, options };
        assert_eq!(given(&named).unwrap(), expected);
    }

    #[test]
    fn options_of_this_vendor_are_read_and_those_of_others_are_not() {
        let option = |next, vendor_id, option_id, value| ConfigExt { next, vendor_id, option_id, value };
        let of = |ext: &ConfigExt| given(&CollConfig { ext, ..INITIAL }).map(|choice| choice.options);
        let threads = option(ptr::null(), VENDOR, 1, 256);
        let other = option(&raw const threads, VENDOR - 1, 1, -9);
        let both = option(&raw const other, VENDOR, 2, 0);
        assert_eq!(of(&both).unwrap(), Options { threads: Some(256), two_steps: Some(false) });
        let mut circle = Box::new(other);
        circle.next = &raw const *circle;
        for (ext, said) in [
            (option(&raw const threads, VENDOR, 1, 64), "option 1 is there twice"),
            (option(ptr::null(), VENDOR, 1, 33), "option 1 (threads) is 33"),
            (option(ptr::null(), VENDOR, 2, 2), "option 2 (two steps) is 2"),
            (option(ptr::null(), VENDOR, 3, 0), "option 3 of vendor 0x6d7363"),
            (*circle, "the list has no end"),
        ] {
            let text = of(&ext).unwrap_err().text;
            assert!(text.contains("ext in ncclCollConfig_t") && text.contains(said), "{text}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        for (config, said) in [
            (CollConfig { size: 8, ..INITIAL }, "the size in ncclCollConfig_t is 8"),
            (CollConfig { magic: 1, ..INITIAL }, "initialise it with NCCL_COLLCONFIG_INITIALIZER"),
            (CollConfig { alg_selection: c"ring".as_ptr(), ..INITIAL }, "algSelection is \"ring\""),
            (CollConfig { force_alg_selection: 2, ..INITIAL }, "forceAlgSelection is 2"),
            (
                CollConfig { min_ctas: 3, max_ctas: 2, ..INITIAL },
                "minCTAs is 3 and maxCTAs 2 in ncclCollConfig_t",
            ),
            (
                CollConfig { max_ctas: 17, ..INITIAL },
                "maxCTAs is 17 in ncclCollConfig_t; the communicator has 16",
            ),
            (CollConfig { nvls_ctas: 0, ..INITIAL }, "nvlsCTAs is 0"),
            (CollConfig { cga_cluster_size: 9, ..INITIAL }, "cgaClusterSize is 9"),
            (CollConfig { cta_policy: 4, ..INITIAL }, "CTAPolicy is 4"),
        ] {
            let text = given(&config).unwrap_err().text;
            assert!(text.contains(said), "{text}");
        }
    }
}
