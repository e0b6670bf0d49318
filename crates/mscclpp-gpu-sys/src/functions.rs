//! Functions and constants that the drivers of all platforms share: HIP took over CUDA's functions and most of its numbers.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::{IpcMemHandle, LoadError, table::shared_entry_points};

/// A driver: the types of its functions, and the table with their addresses. Device addresses are `u64` in all drivers.
#[allow(missing_docs, reason = "the names are the drivers' own")]
pub trait Api: Sized + 'static {
    /// The result of the driver's functions.
    type Code: Code;
    /// The thing that a thread has current: a context (CUDA), or the number of a device (HIP).
    type Context;
    // The types that the driver's handles point to.
    type Stream;
    type Event;
    type Graph;
    type GraphNode;
    type GraphExec;
    type UserObject;
    type Module;
    type Function;

    /// The driver's library, loaded once for the process but not initialised.
    ///
    /// # Errors
    /// [`LoadError`], the same at every call.
    fn load() -> Result<&'static Self, LoadError>;
    /// The name or path from which the library was loaded.
    fn path(&self) -> &str;
    /// The functions that all drivers have.
    fn functions(&self) -> &Functions<Self>;
}

/// The result of a driver's functions. Any value may come: newer drivers have codes that this crate does not know.
#[allow(missing_docs, reason = "the names are the drivers' own")]
pub trait Code: Copy + Eq + 'static {
    const SUCCESS: Self;
    const NOT_READY: Self;
    /// The driver has shut down, as it may have at the end of the process.
    const DEINITIALIZED: Self;
    const NOT_FOUND: Self;

    fn number(self) -> u32;
    /// The code's name, if this crate knows it. The driver is not asked, because it may be missing.
    fn name(self) -> Option<&'static str>;
}

/// A function that the driver calls when a graph no longer needs its user object.
pub type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;

shared_entry_points! {
    /// The functions that all drivers have. Each is documented by the driver, under the name in its entry.
    ///
    /// Optional functions are `None` if the driver is too old to have them.
    table Functions<D: Api> -> D::Code, named by FunctionNames;
    required {
        init: fn(c_uint);
        get_error_name: fn(D::Code, *mut *const c_char);
        get_error_string: fn(D::Code, *mut *const c_char);

        get_device_count: fn(*mut c_int);
        device_get_name: fn(*mut c_char, c_int, c_int);
        device_get_uuid: fn(*mut [u8; 16], c_int);
        device_get_pci_bus_id: fn(*mut c_char, c_int, c_int);
        device_get_attribute: fn(*mut c_int, c_uint, c_int);
        device_can_access_peer: fn(*mut c_int, c_int, c_int);
        device_get_p2p_attribute: fn(*mut c_int, c_uint, c_int, c_int);
        get_current: fn(*mut D::Context);
        set_current: fn(D::Context);
        synchronize: fn();
        enable_peer_access: fn(D::Context, c_uint);

        mem_get_info: fn(*mut usize, *mut usize);
        host_alloc: fn(*mut *mut c_void, usize, c_uint);
        host_free: fn(*mut c_void);
        host_get_device_pointer: fn(*mut u64, *mut c_void, c_uint);
        memset_d8_async: fn(u64, u8, usize, *mut D::Stream);
        mem_get_address_range: fn(*mut u64, *mut usize, u64);
        pointer_get_attribute: fn(*mut c_void, c_uint, u64);
        ipc_get_mem_handle: fn(*mut IpcMemHandle, u64);
        ipc_open_mem_handle: fn(*mut u64, IpcMemHandle, c_uint);
        ipc_close_mem_handle: fn(u64);

        stream_create: fn(*mut *mut D::Stream, c_uint);
        stream_destroy: fn(*mut D::Stream);
        stream_synchronize: fn(*mut D::Stream);
        stream_query: fn(*mut D::Stream);
        stream_get_context: fn(*mut D::Stream, *mut D::Context);
        stream_wait_event: fn(*mut D::Stream, *mut D::Event, c_uint);
        stream_is_capturing: fn(*mut D::Stream, *mut c_uint);
        stream_get_capture_info: fn(
            *mut D::Stream, *mut c_uint, *mut u64, *mut *mut D::Graph, *mut *const *mut D::GraphNode, *mut usize,
        );
        stream_begin_capture: fn(*mut D::Stream, c_uint);
        stream_end_capture: fn(*mut D::Stream, *mut *mut D::Graph);
        thread_exchange_stream_capture_mode: fn(*mut c_uint);

        event_create: fn(*mut *mut D::Event, c_uint);
        event_destroy: fn(*mut D::Event);
        event_record: fn(*mut D::Event, *mut D::Stream);
        event_query: fn(*mut D::Event);
        event_elapsed_time: fn(*mut f32, *mut D::Event, *mut D::Event);

        graph_instantiate: fn(*mut *mut D::GraphExec, *mut D::Graph, u64);
        graph_launch: fn(*mut D::GraphExec, *mut D::Stream);
        graph_destroy: fn(*mut D::Graph);
        graph_exec_destroy: fn(*mut D::GraphExec);
        user_object_create: fn(*mut *mut D::UserObject, *mut c_void, HostFn, c_uint, c_uint);
        user_object_release: fn(*mut D::UserObject, c_uint);
        graph_retain_user_object: fn(*mut D::Graph, *mut D::UserObject, c_uint, c_uint);

        module_unload: fn(*mut D::Module);
        module_get_function: fn(*mut *mut D::Function, *mut D::Module, *const c_char);
        module_get_global: fn(*mut u64, *mut usize, *mut D::Module, *const c_char);
        launch_kernel: fn(
            *mut D::Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut D::Stream,
            *mut *mut c_void, *mut *mut c_void,
        );
        launch_cooperative_kernel: fn(
            *mut D::Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut D::Stream,
            *mut *mut c_void,
        );
        occupancy_max_active_blocks_per_multiprocessor: fn(*mut c_int, *mut D::Function, c_int, usize);
    }
    optional {
        mem_get_handle_for_address_range: fn(*mut c_void, u64, usize, c_uint, u64);
        stream_get_id: fn(*mut D::Stream, *mut u64);
    }
}

/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DEFAULT`, `hipEventDefault`: the event records its time.
pub const EVENT_DEFAULT: u32 = 0;
/// `CU_EVENT_DISABLE_TIMING`, `hipEventDisableTiming`
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`, `hipStreamCaptureModeThreadLocal`
pub const CAPTURE_MODE_THREAD_LOCAL: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`, `hipStreamCaptureModeRelaxed`
pub const CAPTURE_MODE_RELAXED: u32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`, `hipStreamCaptureStatusNone`
pub const CAPTURE_STATUS_NONE: u32 = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`, `hipStreamCaptureStatusActive`
pub const CAPTURE_STATUS_ACTIVE: u32 = 1;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, `hipUserObjectNoDestructorSync`
pub const USER_OBJECT_NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`, `hipGraphUserObjectMove`
pub const GRAPH_USER_OBJECT_MOVE: u32 = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, `hipIpcMemLazyEnablePeerAccess`
pub const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `HIP_POINTER_ATTRIBUTE_MEMORY_TYPE`
pub const POINTER_MEMORY_TYPE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, `HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL`: an `int`.
pub const POINTER_DEVICE_ORDINAL: u32 = 9;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`, `HIP_POINTER_ATTRIBUTE_BUFFER_ID`: an `unsigned long long`.
pub const POINTER_BUFFER_ID: u32 = 7;
/// `CU_MEMORYTYPE_DEVICE`, `hipMemoryTypeDevice`
pub const MEMORY_TYPE_DEVICE: u32 = 2;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`, `hipMemRangeHandleTypeDmaBufFd`
pub const RANGE_HANDLE_DMA_BUF: u32 = 1;
