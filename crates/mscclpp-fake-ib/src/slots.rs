//! Entry points for `ibv_get_device_list`, which gets no argument that says which world is meant, so each world has
//! its own.

use std::{ffi::c_int, sync::Mutex};

use mscclpp_verbs_sys::ibv_device;

use crate::{
    device::{list, null},
    state::World,
};

/// The most worlds at one time.
const SLOTS: usize = 32;

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;

static WORLDS: Mutex<[Option<&'static World>; SLOTS]> = Mutex::new([None; SLOTS]);

/// A world's entry point, which is free again when this is dropped.
pub(crate) struct Slot(usize);

impl Slot {
    pub(crate) fn take(world: &'static World) -> Self {
        let mut worlds = WORLDS.lock().expect("nothing panics with this lock");
        let place = worlds.iter().position(Option::is_none);
        if let Some(place) = place {
            worlds[place] = Some(world);
        }
        drop(worlds);
        Self(place.unwrap_or_else(|| panic!("more than {SLOTS} simulated worlds at once")))
    }

    pub(crate) fn get_device_list(&self) -> GetDeviceList {
        LISTS[self.0]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        WORLDS.lock().expect("nothing panics with this lock")[self.0] = None;
    }
}

unsafe extern "C" fn get_device_list<const SLOT: usize>(count: *mut c_int) -> *mut *mut ibv_device {
    let world = WORLDS.lock().expect("nothing panics with this lock")[SLOT];
    match world {
        Some(world) => list(&mut world.lock(), count),
        None => null(libc::ENOSYS),
    }
}

macro_rules! lists {
    ($($slot:literal)*) => { [$(get_device_list::<$slot>),*] };
}

const LISTS: [GetDeviceList; SLOTS] =
    lists!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
