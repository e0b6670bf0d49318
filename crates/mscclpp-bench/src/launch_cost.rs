//! `launches`: the time that a launch takes on the thread that makes it, compared with the driver's own call.

use std::{ffi::c_void, ptr, time::Instant};

use mscclpp_gpu_sys::cuda::{CUfunction, CUstreamCaptureMode, CuResult, Driver};

use crate::{
    machine::{Machine, OneDevice},
    prelude::*,
    stopwatch::LIMIT,
};

#[derive(Args)]
pub(crate) struct Options {
    /// The number of launches that are timed together: fewer than a GPU's queue holds.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
    iters: u32,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    on: OneDevice,
}

/// A kernel that adds `by` to the word. Its PTX is loaded twice: by the library, and with the driver's own calls.
const COUNT: KernelSource<'static> = KernelSource::new("count.cu", SOURCE).with_ptx(&[(80, PTX)]);
const SOURCE: &str = "extern \"C\" __global__ void count(unsigned long long* word, void* unused, unsigned int by) \
                      { *word += by; }";
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry count(.param .u64 word, .param .u64 unused, .param .u32 by)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [word];
  ld.param.u32 %r1, [by];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.u64 %rd3, [%rd2];
  cvt.u64.u32 %rd4, %r1;
  add.s64 %rd5, %rd3, %rd4;
  st.global.u64 [%rd2], %rd5;
  ret;
}
";

const ONE: LaunchConfig = LaunchConfig::linear(1, 1);

/// The way in which a launch is made.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// The driver's call `cuLaunchKernel` alone.
    Bare,
    /// The library's launch with two addresses and a number as arguments.
    Values,
    /// The library's launch with the same arguments, as buffers that the launch keeps.
    Objects,
}

/// The owner of the stream. The driver makes other code's stream, whose handle is given to the library at each launch.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Ours,
    Others,
}

/// The variants: name, way, owner of the stream, and whether the stream's owner captures the launches. A bare one is the baseline
/// of those behind it.
const ROWS: [(&str, How, Whose, bool); 9] = [
    ("bare cuLaunchKernel", How::Bare, Whose::Others, false),
    ("values, own stream", How::Values, Whose::Ours, false),
    ("objects, own stream", How::Objects, Whose::Ours, false),
    ("values, stream of others", How::Values, Whose::Others, false),
    ("objects, stream of others", How::Objects, Whose::Others, false),
    ("bare, capture of others", How::Bare, Whose::Others, true),
    ("objects, own capture", How::Objects, Whose::Ours, true),
    ("values, capture of others", How::Values, Whose::Others, true),
    ("objects, capture of others", How::Objects, Whose::Others, true),
];

/// The most microseconds that a launch may take beyond the driver's own call.
const ABOVE: f64 = 0.5;

pub(crate) fn run(options: &Options, table: &mut Table) -> Result<()> {
    let gpu = options.on.open()?;
    let mut launcher = Launcher::new(&gpu)?;
    table.begin(Machine::of_one(&gpu)?, ROWS.len())?;
    let mut bare: [Option<f64>; 2] = [None; 2];
    for (variant, how, whose, is_captured) in ROWS {
        if whose == Whose::Others && launcher.theirs.is_none() {
            continue;
        }
        let once = |time: Time| {
            let us = launcher.time(how, whose, is_captured, options.iters)?;
            let due = launcher.launches + u64::from(time.spoils);
            Ok((launcher.count()? == due).then_some(us))
        };
        let row = Row::new("launches", variant, (options.iters.into(), SizeOf::Rounds), options.iters);
        let contender = Contender { bus: None, ..Contender::new(row, Box::new(once)) };
        let (row, _) = table.measure_in_turns(options.repeats, None, vec![contender])?.swap_remove(0);
        let bare = &mut bare[usize::from(is_captured)];
        if how == How::Bare {
            *bare = row.times.map(|times| times.median);
        }
        let baseline = bare.filter(|_| how != How::Bare);
        table.push(Row { baseline, goal: baseline.map(|bare| bare + ABOVE), ..row })?;
    }
    table.note(
        "the time of the thread that launches, for each launch of a kernel of one thread; the stream is waited for after \
         each measurement, so its queue is never full",
    );
    table.note("the kernel counts its launches, which is checked");
    Ok(())
}

struct Launcher {
    gpu: Gpu,
    kernel: Kernel,
    word: DeviceBuffer,
    /// The buffer that `values` names but does not keep.
    _unused: DeviceBuffer,
    stream: Stream,
    values: KernelArgs,
    objects: KernelArgs,
    theirs: Option<Theirs>,
    launches: u64,
}

impl Launcher {
    fn new(gpu: &Gpu) -> Result<Self> {
        let kernel = Module::load(gpu, &COUNT)?.kernel("count")?;
        let (word, unused) = (gpu.allocate(8)?, gpu.allocate(8)?);
        let values = KernelArgs::new().with(word.ptr()).with(unused.ptr()).with(1u32);
        let objects = KernelArgs::new().with(&word).with(&unused).with(1u32);
        let theirs = match gpu.platform() {
            Platform::Cuda => Some(Theirs::new(gpu)?),
            _ => None,
        };
        let stream = gpu.stream()?;
        Ok(Self {
            gpu: gpu.clone(),
            kernel,
            word,
            _unused: unused,
            stream,
            values,
            objects,
            theirs,
            launches: 0,
        })
    }

    /// The microseconds that `launches` launches take. They are complete when this returns.
    fn time(&mut self, how: How, whose: Whose, is_captured: bool, launches: u32) -> Result<f64> {
        self.launches += u64::from(launches);
        let theirs = self.theirs.as_ref().filter(|_| whose == Whose::Others);
        match theirs {
            _ if !is_captured => {
                let us = self.submit(how, theirs, launches)?;
                self.gpu.synchronize()?;
                Ok(us)
            }
            None => {
                self.stream.begin_capture()?;
                let us = self.submit(how, None, launches);
                // The capture ends even after an error, so that the stream can be used again.
                let graph = self.stream.end_capture();
                let (us, graph) = (us?, graph?);
                // SAFETY: the arguments are objects, which the graph keeps.
                unsafe { graph.launch(&self.stream)? };
                self.stream.synchronize_timeout(LIMIT)?;
                Ok(us)
            }
            Some(theirs) => {
                theirs.begin_capture()?;
                let us = self.submit(how, Some(theirs), launches);
                theirs.run_captured()?;
                us
            }
        }
    }

    fn submit(&self, how: How, theirs: Option<&Theirs>, launches: u32) -> Result<f64> {
        let args = if how == How::Objects { &self.objects } else { &self.values };
        let start = Instant::now();
        match theirs {
            Some(theirs) if how == How::Bare => theirs.launch(self.word.ptr(), launches)?,
            Some(theirs) => {
                for _ in 0..launches {
                    // SAFETY: the stream and the buffers live until the work is complete; these are the kernel's arguments.
                    unsafe {
                        let stream = Stream::from_raw(&self.gpu, theirs.stream)?;
                        self.kernel.launch(&stream, ONE, args)?;
                    }
                }
            }
            None => {
                for _ in 0..launches {
                    // SAFETY: the buffers live until the work is complete; these are the kernel's arguments.
                    unsafe { self.kernel.launch(&self.stream, ONE, args)? };
                }
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    fn count(&self) -> Result<u64> {
        let mut count = [0; 8];
        self.word.read(0, &mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

/// The objects of a program that uses the driver alone. They live as long as the process.
struct Theirs {
    driver: &'static Driver,
    function: CUfunction,
    stream: *mut c_void,
}

fn ok(result: CuResult, call: &str) -> Result<()> {
    match result {
        CuResult::SUCCESS => Ok(()),
        CuResult(code) => Err(format!("{call} failed with {code}").into()),
    }
}

impl Theirs {
    fn new(gpu: &Gpu) -> Result<Self> {
        gpu.make_current()?;
        let driver = Driver::load()?;
        let text = format!("{PTX}\0");
        let (mut module, mut function, mut stream) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let none = ptr::null_mut();
        // SAFETY: the handles are valid for the writes; texts end with NUL; the device's context is current.
        unsafe {
            let loaded =
                (driver.module_load_data_ex)(&raw mut module, text.as_ptr().cast(), 0, none, ptr::null_mut());
            ok(loaded, "cuModuleLoadDataEx")?;
            let found = (driver.common.module_get_function.1)(&raw mut function, module, c"count".as_ptr());
            ok(found, "cuModuleGetFunction")?;
            // The stream is non-blocking, like those of PyTorch.
            ok((driver.common.stream_create.1)(&raw mut stream, 1), "cuStreamCreate")?;
        }
        Ok(Self { driver, function, stream: stream.cast() })
    }

    fn launch(&self, word: DevicePtr, launches: u32) -> Result<()> {
        let (mut word, mut unused, mut by) = (word.0, 0u64, 1u32);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut word).cast(), (&raw mut unused).cast(), (&raw mut by).cast()];
        for _ in 0..launches {
            // SAFETY: the function and the stream live, and these are its arguments.
            let result = unsafe {
                let (stream, none) = (self.stream.cast(), ptr::null_mut());
                let launch = self.driver.common.launch_kernel.1;
                launch(self.function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), none)
            };
            ok(result, "cuLaunchKernel")?;
        }
        Ok(())
    }

    fn begin_capture(&self) -> Result<()> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        // SAFETY: the stream lives.
        ok(
            unsafe { (self.driver.common.stream_begin_capture.1)(self.stream.cast(), mode) },
            "cuStreamBeginCapture",
        )
    }

    /// Ends the capture, launches the graph and waits for it.
    fn run_captured(&self) -> Result<()> {
        let (driver, stream) = (self.driver, self.stream.cast());
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the handles are valid for the writes; each new object is destroyed once.
        unsafe {
            ok((driver.common.stream_end_capture.1)(stream, &raw mut graph), "cuStreamEndCapture")?;
            let made = (driver.common.graph_instantiate.1)(&raw mut executable, graph, 0);
            ok(made, "cuGraphInstantiateWithFlags")?;
            ok((driver.common.graph_launch.1)(executable, stream), "cuGraphLaunch")?;
            ok((driver.common.stream_synchronize.1)(stream), "cuStreamSynchronize")?;
            ok((driver.common.graph_exec_destroy.1)(executable), "cuGraphExecDestroy")?;
            ok((driver.common.graph_destroy.1)(graph), "cuGraphDestroy")
        }
    }
}
