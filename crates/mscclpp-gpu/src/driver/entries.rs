//! The entry points that all drivers have, each with its name in messages.

use std::ffi::{c_char, c_int, c_void};

use mscclpp_gpu_sys::IpcMemHandle;

use super::api::Api;

/// A function of the driver, and its name.
#[derive(Clone, Copy)]
pub(crate) struct Entry<F>(pub(crate) &'static str, pub(crate) F);

/// The function that is called when a graph does not need its user object any more.
type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;

macro_rules! table {
    (
        required { $($name:ident: fn($($arg:ty),* $(,)?);)* }
        optional { $($opt_name:ident: fn($($opt_arg:ty),* $(,)?);)* }
    ) => {
        pub(crate) struct Entries<D: Api> {
            $(pub(crate) $name: Entry<unsafe extern "C" fn($($arg),*) -> D::Code>,)*
            $(pub(crate) $opt_name: Option<Entry<unsafe extern "C" fn($($opt_arg),*) -> D::Code>>,)*
        }
    };
}

table! {
    required {
        init: fn(u32);
        get_error_name: fn(D::Code, *mut *const c_char);
        get_error_string: fn(D::Code, *mut *const c_char);

        get_device_count: fn(*mut c_int);
        device_get_name: fn(*mut c_char, c_int, c_int);
        device_get_uuid: fn(*mut [u8; 16], c_int);
        device_get_pci_bus_id: fn(*mut c_char, c_int, c_int);
        device_get_attribute: fn(*mut c_int, u32, c_int);
        device_can_access_peer: fn(*mut c_int, c_int, c_int);
        device_get_p2p_attribute: fn(*mut c_int, u32, c_int, c_int);
        get_current: fn(*mut D::Context);
        set_current: fn(D::Context);
        synchronize: fn();
        enable_peer_access: fn(D::Context, u32);

        mem_get_info: fn(*mut usize, *mut usize);
        host_alloc: fn(*mut *mut c_void, usize, u32);
        host_free: fn(*mut c_void);
        host_get_device_pointer: fn(*mut D::Address, *mut c_void, u32);
        memset_d8_async: fn(D::Address, u8, usize, *mut D::Stream);
        mem_get_address_range: fn(*mut D::Address, *mut usize, D::Address);
        pointer_get_attribute: fn(*mut c_void, u32, D::Address);
        ipc_get_mem_handle: fn(*mut IpcMemHandle, D::Address);
        ipc_open_mem_handle: fn(*mut D::Address, IpcMemHandle, u32);
        ipc_close_mem_handle: fn(D::Address);

        stream_create: fn(*mut *mut D::Stream, u32);
        stream_destroy: fn(*mut D::Stream);
        stream_synchronize: fn(*mut D::Stream);
        stream_query: fn(*mut D::Stream);
        stream_get_context: fn(*mut D::Stream, *mut D::Context);
        stream_wait_event: fn(*mut D::Stream, *mut D::Event, u32);
        stream_is_capturing: fn(*mut D::Stream, *mut u32);
        stream_get_capture_info: fn(
            *mut D::Stream, *mut u32, *mut u64, *mut *mut D::Graph, *mut *const *mut D::GraphNode, *mut usize,
        );
        stream_begin_capture: fn(*mut D::Stream, u32);
        stream_end_capture: fn(*mut D::Stream, *mut *mut D::Graph);
        thread_exchange_stream_capture_mode: fn(*mut u32);

        event_create: fn(*mut *mut D::Event, u32);
        event_destroy: fn(*mut D::Event);
        event_record: fn(*mut D::Event, *mut D::Stream);
        event_query: fn(*mut D::Event);
        event_elapsed_time: fn(*mut f32, *mut D::Event, *mut D::Event);

        graph_instantiate: fn(*mut *mut D::GraphExec, *mut D::Graph, u64);
        graph_launch: fn(*mut D::GraphExec, *mut D::Stream);
        graph_destroy: fn(*mut D::Graph);
        graph_exec_destroy: fn(*mut D::GraphExec);
        user_object_create: fn(*mut *mut D::UserObject, *mut c_void, HostFn, u32, u32);
        user_object_release: fn(*mut D::UserObject, u32);
        graph_retain_user_object: fn(*mut D::Graph, *mut D::UserObject, u32, u32);

        module_unload: fn(*mut D::Module);
        module_get_function: fn(*mut *mut D::Function, *mut D::Module, *const c_char);
        module_get_global: fn(*mut D::Address, *mut usize, *mut D::Module, *const c_char);
        launch_kernel: fn(
            *mut D::Function, u32, u32, u32, u32, u32, u32, u32, *mut D::Stream, *mut *mut c_void,
            *mut *mut c_void,
        );
        launch_cooperative_kernel: fn(
            *mut D::Function, u32, u32, u32, u32, u32, u32, u32, *mut D::Stream, *mut *mut c_void,
        );
        occupancy_max_active_blocks_per_multiprocessor: fn(*mut c_int, *mut D::Function, c_int, usize);
    }
    optional {
        mem_get_handle_for_address_range: fn(*mut c_void, D::Address, usize, u32, u64);
        stream_get_id: fn(*mut D::Stream, *mut u64);
    }
}

/// Implements the part of [`Api`] that finds the driver, for a table of functions whose names begin with `$prefix`: those
/// that are named alike everywhere, and the given ones.
macro_rules! entries {
    ($driver:ty, $prefix:literal, $($own:ident: $name:literal = $field:ident,)*) => {
        $crate::driver::entries::entries! { @ $driver, $prefix, {
            $($own: $name = $field,)*
        }
            init: "Init", device_get_name: "DeviceGetName", device_get_uuid: "DeviceGetUuid",
            device_get_pci_bus_id: "DeviceGetPCIBusId", device_get_attribute: "DeviceGetAttribute",
            device_can_access_peer: "DeviceCanAccessPeer", device_get_p2p_attribute: "DeviceGetP2PAttribute",
            mem_get_info: "MemGetInfo", memset_d8_async: "MemsetD8Async",
            mem_get_address_range: "MemGetAddressRange",
            pointer_get_attribute: "PointerGetAttribute", ipc_get_mem_handle: "IpcGetMemHandle",
            ipc_open_mem_handle: "IpcOpenMemHandle", ipc_close_mem_handle: "IpcCloseMemHandle",
            stream_destroy: "StreamDestroy", stream_synchronize: "StreamSynchronize",
            stream_query: "StreamQuery", stream_wait_event: "StreamWaitEvent",
            stream_is_capturing: "StreamIsCapturing", stream_get_capture_info: "StreamGetCaptureInfo",
            stream_begin_capture: "StreamBeginCapture", stream_end_capture: "StreamEndCapture",
            thread_exchange_stream_capture_mode: "ThreadExchangeStreamCaptureMode",
            event_destroy: "EventDestroy", event_record: "EventRecord", event_query: "EventQuery",
            event_elapsed_time: "EventElapsedTime", graph_launch: "GraphLaunch",
            graph_destroy: "GraphDestroy", graph_exec_destroy: "GraphExecDestroy",
            user_object_create: "UserObjectCreate", user_object_release: "UserObjectRelease",
            graph_retain_user_object: "GraphRetainUserObject", module_unload: "ModuleUnload",
            module_get_function: "ModuleGetFunction", module_get_global: "ModuleGetGlobal",
        }
    };
    (@ $driver:ty, $prefix:literal, { $($own:ident: $own_name:literal = $field:ident,)* }
        $($name:ident: $rest:literal,)*
    ) => {
        fn load() -> Result<&'static Self, mscclpp_gpu_sys::LoadError> {
            Self::load()
        }

        fn path(&self) -> &str {
            self.path()
        }

        fn entries(&self) -> &'static $crate::driver::entries::Entries<Self> {
            use $crate::driver::entries::{Entries, Entry};

            static ENTRIES: std::sync::OnceLock<Entries<$driver>> = std::sync::OnceLock::new();
            ENTRIES.get_or_init(|| Entries {
                $($own: Entry($own_name, self.$field),)*
                $($name: Entry(concat!($prefix, $rest), self.$name),)*
                mem_get_handle_for_address_range: self
                    .mem_get_handle_for_address_range
                    .map(|export| Entry(concat!($prefix, "MemGetHandleForAddressRange"), export)),
                stream_get_id: self.stream_get_id.map(|get| Entry(concat!($prefix, "StreamGetId"), get)),
            })
        }

        fn process() -> &'static $crate::driver::api::Process<Self> {
            static PROCESS: $crate::driver::api::Process<$driver> = $crate::driver::api::Process::new();
            &PROCESS
        }
    };
}
pub(crate) use entries;
