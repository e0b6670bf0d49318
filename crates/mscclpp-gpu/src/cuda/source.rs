//! The way from a source to the code that the driver loads.

use std::{borrow::Cow, cell::Cell};

use crate::{Error, KernelSource, Result, cache, nvrtc, ptx_of};

/// Calls `load` with the PTX of `source` for a device of that compute capability: its own, else that in the cache of
/// compiled kernels, which needs no NVRTC, else that which NVRTC makes of it, which is then stored in the cache.
///
/// A kernel whose own shared memory leaves no room for that of port channels is compiled again without theirs. Drivers
/// find that out at different times: some refuse to load it, and others load it, and `load` returns that it does not fit.
pub(super) fn load<T>(
    source: &KernelSource<'_>,
    capability: (u32, u32),
    load: impl Fn(&str) -> Result<(T, bool)>,
) -> Result<T> {
    let has_stage = Cell::new(false);
    let load = |ptx: &str| {
        has_stage.set(ptx.contains(STAGE));
        load(ptx)
    };
    let is_text = !source.cuda().is_empty();
    let loaded = match compiled_beforehand(source, capability)? {
        // An older NVRTC may be here.
        Some(ptx) => load(&ptx).or_else(|error| match is_text && says(&error, TOO_NEW) {
            true => compile_and_load(source, capability, &[], load).map_err(|_| error),
            false => Err(error),
        }),
        None => compile_and_load(source, capability, &[], load),
    };
    let is_too_large = match &loaded {
        Ok((_, fits)) => !fits,
        Err(error) => says(error, TOO_LARGE),
    };
    if !is_too_large || !has_stage.get() || !is_text {
        return loaded.map(|(loaded, _)| loaded);
    }
    match compile_and_load(source, capability, &[WITHOUT_STAGE], load) {
        Ok((fitting, true)) => {
            tracing::warn!(
                target: "mscclpp::gpu", name = source.name(),
                "compiled with MSCCLPP_PORT_STAGE_BYTES=0: with the shared memory for bulk puts of port channels its kernels \
                 need more than the 48 KiB that there are, so puts copy words or go through the proxy"
            );
            Ok(fitting)
        }
        _ => loaded.map(|(loaded, _)| loaded),
    }
}

/// The variable in PTX that bulk puts of port channels go through.
const STAGE: &str = "portStage";
const WITHOUT_STAGE: &str = "-DMSCCLPP_PORT_STAGE_BYTES=0";

/// The driver's text for a kernel with too much shared memory, in the log of its compiler or as its result.
const TOO_LARGE: &str = "too much shared data";
const TOO_NEW: &str = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";

fn says(error: &Error, words: &str) -> bool {
    matches!(error, Error::Compile { log, .. } if log.contains(words))
}

/// Returns the source's own PTX, or PTX that was stored in the cache beforehand.
fn compiled_beforehand<'a>(
    source: &KernelSource<'a>,
    capability: (u32, u32),
) -> Result<Option<Cow<'a, str>>> {
    let number = capability.0 * 10 + capability.1;
    if let Some(ptx) = ptx_of(source, number)? {
        return Ok(Some(ptx));
    }
    for compiled_for in cache::CAPABILITIES_BEFOREHAND.into_iter().filter(|c| *c <= number) {
        if let Some(ptx) = cache::find(&cache::beforehand(source, compiled_for))? {
            return Ok(Some(Cow::Owned(String::from_utf8_lossy(&ptx).into_owned())));
        }
    }
    Ok(None)
}

fn compile_and_load<T>(
    source: &KernelSource<'_>,
    capability: (u32, u32),
    more: &[&str],
    load: impl Fn(&str) -> Result<T>,
) -> Result<T> {
    let (options, headers) = (options(capability, more), cache::headers(source));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let entry = entry(source, &options, &headers);
    let is_new = Cell::new(false);
    let make = || {
        is_new.set(true);
        let include = nvrtc::cuda_headers()
            .map_err(|error| Error::NoPtx { name: source.name().to_owned(), source: Box::new(error) })?
            .into_iter()
            .map(|folder| format!("--include-path={}", folder.display()))
            .collect::<Vec<_>>();
        let options: Vec<&str> = options.iter().copied().chain(include.iter().map(String::as_str)).collect();
        nvrtc::compile(source.name(), source.cuda(), &headers, &options).map(String::into_bytes)
    };
    let text = |ptx: Vec<u8>| String::from_utf8_lossy(&ptx).into_owned();
    match load(&text(cache::get_or_make(&entry, make)?)) {
        // The entry was made with a newer NVRTC and driver, or before NVRTC was replaced by an older one.
        Err(error) if !is_new.get() && says(&error, TOO_NEW) => match cache::remake(&entry, make) {
            Ok(ptx) => load(&text(ptx)),
            Err(_) => Err(error),
        },
        loaded => loaded,
    }
}

fn options(capability: (u32, u32), more: &[&str]) -> Vec<String> {
    let architecture = format!("--gpu-architecture=compute_{}{}", capability.0, capability.1);
    let all = [architecture.as_str(), "--std=c++17", "-default-device"];
    all.iter().chain(more).map(|&option| option.to_owned()).collect()
}

/// Returns the name of the entry. NVRTC's version is not part of it, because only a loaded NVRTC knows its version.
fn entry(source: &KernelSource<'_>, options: &[&str], headers: &[(&str, &str)]) -> cache::Entry {
    let mut parts = vec!["NVRTC", source.cuda()];
    parts.extend(options);
    parts.extend(headers.iter().copied().flat_map(<[&str; 2]>::from));
    cache::Entry::new(source.name(), "ptx", &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores `ptx` as the entry of `source`, as if NVRTC had made it.
    fn put(source: &KernelSource<'_>, more: &[&str], ptx: &str) {
        let (options, headers) = (options((9, 0), more), cache::headers(source));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        cache::remake(&entry(source, &options, &headers), || Ok(ptx.into())).unwrap();
    }

    fn refused(log: &str) -> Error {
        Error::Compile { name: "the PTX".to_owned(), log: log.to_owned() }
    }

    /// This test needs no NVRTC, which most machines that run it do not have.
    #[test]
    fn what_leaves_no_room_for_the_stage_is_loaded_without_it() {
        const PTXAS: &str = "cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed\n\
                             ptxas error   : Entry function 'f' uses too much shared data (0x10080 bytes, 0xc000 max)";
        let source = KernelSource::new("stage.cu", "// of the test of what leaves no room");
        // Returns the result, and the number of times that something was loaded.
        let attempt = |driver: &dyn Fn(&str) -> Result<bool>| {
            let times = Cell::new(0);
            let loaded = load(&source, (9, 0), |ptx| {
                times.set(times.get() + 1);
                Ok((ptx.to_owned(), driver(ptx)?))
            });
            (loaded.map_err(|error| error.to_string()), times.get())
        };
        let only_without =
            |log: &'static str| move |ptx: &str| if ptx == "without" { Ok(true) } else { Err(refused(log)) };
        let stage = "_ZZN7mscclpp6detail9portStageEvE5stage and more";
        put(&source, &[], stage);
        put(&source, &[WITHOUT_STAGE], "without");
        assert_eq!(attempt(&only_without(PTXAS)), (Ok("without".to_owned()), 2));
        assert_eq!(attempt(&|ptx| Ok(ptx == "without")), (Ok("without".to_owned()), 2));
        // A kernel that does not fit without the stage either keeps its first error.
        let (failed, times) = attempt(&|_| Err(refused(PTXAS)));
        assert!(failed.unwrap_err().contains("0x10080") && times == 2);
        assert_eq!(attempt(&|_| Ok(false)), (Ok(stage.to_owned()), 2));
        // No other error is tried twice.
        assert_eq!(attempt(&only_without("another error")).1, 1);
        assert_eq!(attempt(&|_| Ok(true)), (Ok(stage.to_owned()), 1));
        put(&source, &[], "its own memory alone");
        assert_eq!(attempt(&only_without(PTXAS)).1, 1);
        assert_eq!(attempt(&|_| Ok(false)).1, 1);
    }

    /// Returns the PTX that a device gets, or none where there is no NVRTC.
    fn compiled(source: &KernelSource<'_>, capability: (u32, u32)) -> Option<String> {
        match load(source, capability, |ptx| Ok((ptx.to_owned(), true))) {
            Ok(ptx) => Some(ptx),
            Err(Error::NoPtx { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Nothing is tested where there is no NVRTC.
    #[test]
    fn kernels_find_the_headers_of_the_c_library() {
        let text = include_str!("../../../../cuda/kernels/c_headers.cu");
        let ptx = compiled(&KernelSource::new("c_headers.cu", text), (8, 0));
        assert!(ptx.is_none_or(|ptx| ptx.contains(".entry uses_c_headers")));
        // A header of the kernel's own comes instead.
        let own = KernelSource::new("own.cu", "#include <stdint.h>\n#if OWN != 1\n#error\n#endif\n");
        compiled(&own.with_headers(&[("stdint.h", "#define OWN 1\n")]), (8, 0));
    }

    /// Nothing is tested where there is no NVRTC, or no headers of CUDA beside it.
    #[test]
    fn kernels_find_cudas_headers_where_there_are_some() {
        if nvrtc::cuda_headers().is_ok_and(|folders| !folders.is_empty()) {
            compiled(
                &KernelSource::new("types.cu", "#include <mscclpp/switch_channel_device.hpp>\n"),
                (9, 0),
            );
        }
    }

    #[test]
    fn ptx_that_is_too_new_for_the_driver_is_made_again() {
        let text = "extern \"C\" __global__ void made_again() {}";
        let source = KernelSource::new("again.cu", text);
        put(&source, &[], "newer");
        let loaded = load(&source, (9, 0), |ptx| match ptx {
            "newer" => Err(refused(TOO_NEW)),
            ptx => Ok((ptx.to_owned(), true)),
        });
        match nvrtc::cuda_headers() {
            Ok(_) => assert!(loaded.unwrap().contains("made_again")),
            Err(_) => assert!(says(&loaded.unwrap_err(), TOO_NEW)),
        }
    }
}
