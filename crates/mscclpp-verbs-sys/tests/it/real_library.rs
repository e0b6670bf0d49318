//! Tests the libibverbs of this machine, if there is one. No adapter is needed: the test checks that the functions found
//! are those of the table.

use std::ffi::CStr;

use libtest_mimic::{Failed, Trial};
use mscclpp_verbs_sys::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_PORT_ACTIVE, LoadError, Verbs, ibv_port_attr,
};

type Case = (&'static str, fn(&'static Verbs) -> Result<(), Failed>);

const CASES: [Case; 3] = [
    ("texts_come_from_the_library", texts_come_from_the_library),
    ("loading_again_gives_the_same_table", loading_again_gives_the_same_table),
    ("devices_are_listed_and_their_ports_queried", devices_are_listed_and_their_ports_queried),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trials = CASES.map(|(name, case)| match Verbs::load() {
        Ok(verbs) => Trial::test(name, move || case(verbs)),
        Err(LoadError::Library { path, .. }) => Trial::test(name, || Err("no libibverbs".into()))
            .with_kind(format!("no {path}"))
            .with_ignored_flag(true),
        Err(error) => Trial::test(name, move || Err(error.into())),
    });
    trials.into()
}

fn texts_come_from_the_library(verbs: &'static Verbs) -> Result<(), Failed> {
    // SAFETY: these functions take any number and return constant strings.
    let texts = unsafe {
        [
            (verbs.event_type_str)(IBV_EVENT_PORT_ERR),
            (verbs.event_type_str)(IBV_EVENT_DEVICE_FATAL),
            (verbs.port_state_str)(IBV_PORT_ACTIVE),
        ]
    };
    // SAFETY: the functions return constant strings.
    let texts = texts.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().to_lowercase());
    let expected = ["port error", "catastrophic", "active"];
    for (text, part) in texts.iter().zip(expected) {
        assert!(text.contains(part), "{part} in: {text}");
    }
    Ok(())
}

fn loading_again_gives_the_same_table(verbs: &'static Verbs) -> Result<(), Failed> {
    assert!(std::ptr::eq(verbs, Verbs::load()?));
    for missing in verbs.missing() {
        assert!(missing.to_string().contains("rdma-core"), "{missing}");
    }
    // The list of missing functions agrees with the fields that are `None`.
    let absent =
        [verbs.reg_mr_iova2.is_none(), verbs.query_gid_table.is_none(), verbs.reg_dmabuf_mr.is_none()];
    assert_eq!(verbs.missing().len(), absent.into_iter().filter(|absent| *absent).count());
    Ok(())
}

fn devices_are_listed_and_their_ports_queried(verbs: &'static Verbs) -> Result<(), Failed> {
    let mut count = -1;
    // SAFETY: `count` is valid for a write.
    let list = unsafe { (verbs.get_device_list)(&raw mut count) };
    if list.is_null() {
        // Without the kernel's RDMA modules there is no list. The library sets ENOSYS then.
        let error = std::io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOSYS) { Ok(()) } else { Err(error.into()) };
    }
    assert!(count >= 0);
    for index in 0..usize::try_from(count)? {
        // SAFETY: the list has `count` devices; each context is used while it is open.
        unsafe {
            let device = *list.add(index);
            let name = CStr::from_ptr((verbs.get_device_name)(device)).to_string_lossy();
            let context = (verbs.open_device)(device);
            assert!(!context.is_null(), "{name}: {}", std::io::Error::last_os_error());
            let mut port = ibv_port_attr::default();
            assert_eq!(verbs.query_port(context, 1, &raw mut port), 0, "{name}");
            assert!(port.gid_tbl_len > 0, "{name}: {port:?}");
            assert_eq!((verbs.close_device)(context), 0, "{name}");
        }
    }
    // SAFETY: the list came from this library and is freed once.
    unsafe { (verbs.free_device_list)(list) };
    Ok(())
}
