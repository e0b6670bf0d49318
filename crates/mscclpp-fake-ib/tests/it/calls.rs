//! Tests of the entry points: what they report, what they refuse, and how they fail on purpose.

use std::{ffi::CStr, ptr};

use mscclpp_verbs_sys as sys;

use crate::rig::{End, Shape, open, pair};
use mscclpp_fake_ib::{Call, Config, Fake, GidConfig, PortConfig};

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn worlds_have_devices_of_their_own() {
    let (one, two) = (Fake::new(Config::new(1)), Fake::new(Config::new(3)));
    for (fake, expected) in [(&one, 1), (&two, 3)] {
        let verbs = fake.table();
        let mut count = 0;
        // SAFETY: the list is used within its length and freed once.
        unsafe {
            let list = (verbs.get_device_list)(&raw mut count);
            assert_eq!(count, expected);
            for index in 0..count as usize {
                let name = CStr::from_ptr((verbs.get_device_name)(*list.add(index)));
                assert_eq!(name.to_str(), Ok(format!("fake{index}").as_str()));
            }
            assert!((*list.add(count as usize)).is_null());
            (verbs.free_device_list)(list);
        }
    }
}

#[test]
fn ports_are_described_by_new_and_old_providers() {
    for old_provider in [false, true] {
        let fake = Fake::new(Config::new(1).with(|device| device.old_provider = old_provider));
        let verbs = fake.table();
        let context = open(&verbs, 0);
        let mut attr = sys::ibv_port_attr { port_cap_flags2: 7, ..Default::default() };
        // SAFETY: the context is open until its close.
        unsafe {
            assert_eq!(verbs.query_port(context, 1, &raw mut attr), 0);
            assert_eq!(attr.link_layer, sys::IBV_LINK_LAYER_ETHERNET as u8);
            assert_eq!((attr.state, attr.gid_tbl_len), (sys::IBV_PORT_ACTIVE, 4));
            let newer = if old_provider { 0 } else { 0x5a5a };
            assert_eq!(attr.port_cap_flags2, newer, "what an old provider does not know is 0");
            assert_eq!(verbs.query_port(context, 2, &raw mut attr), libc::EINVAL);
            assert_eq!((verbs.close_device)(context), 0);
        }
    }
}

/// A newer library may keep more before the context than this crate knows, an older one less; `sz` says how much.
#[test]
fn a_provider_whose_structure_is_too_short_is_asked_the_old_way() {
    let fake = Fake::new(Config::new(1));
    let verbs = fake.table();
    let context = open(&verbs, 0);
    let extended = context
        .wrapping_byte_sub(std::mem::offset_of!(sys::verbs_context, context))
        .cast::<sys::verbs_context>();
    let mut attr = sys::ibv_port_attr::default();
    // SAFETY: the context is open until its close, and part of such a structure.
    unsafe {
        (*extended).sz -= 1;
        assert_eq!(verbs.query_port(context, 1, &raw mut attr), 0);
        assert_eq!((attr.port_cap_flags2, attr.state), (0, sys::IBV_PORT_ACTIVE));
        (*extended).sz += 1;
        (*extended).query_port = None;
        assert_eq!(verbs.query_port(context, 1, &raw mut attr), 0);
        assert_eq!(attr.port_cap_flags2, 0);
        assert_eq!((verbs.close_device)(context), 0);
    }
}

#[test]
fn gid_tables_are_those_of_the_configuration() {
    let mut config = Config::new(1);
    let empty = GidConfig { raw: [0; 16], kind: sys::IBV_GID_TYPE_ROCE_V2, interface: 0 };
    config.devices[0].ports[0].gids.insert(1, empty);
    config.devices[0].ports.push(PortConfig::infiniband(4));
    let fake = Fake::new(config);
    let verbs = fake.table();
    let context = open(&verbs, 0);
    let mut entries = [sys::ibv_gid_entry::default(); 16];
    let query = verbs.query_gid_table.expect("the fake has it");
    // SAFETY: the context is open until its close, and the table is as long as the call is given.
    unsafe {
        let count = query(context, entries.as_mut_ptr(), 16, 0, size_of::<sys::ibv_gid_entry>());
        let found: Vec<_> =
            entries[..count as usize].iter().map(|e| (e.port_num, e.gid_index, e.gid_type)).collect();
        let (v1, v2) = (sys::IBV_GID_TYPE_ROCE_V1, sys::IBV_GID_TYPE_ROCE_V2);
        let infiniband = (2, 0, sys::IBV_GID_TYPE_IB);
        assert_eq!(
            found,
            [(1, 0, v1), (1, 2, v2), (1, 3, v1), (1, 4, v2), infiniband],
            "without the empty one"
        );
        let mut gid = sys::ibv_gid::default();
        assert_eq!((verbs.query_gid)(context, 1, 4, &raw mut gid), 0);
        assert_eq!(gid.raw[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!((verbs.query_gid)(context, 1, 5, &raw mut gid), -1);
        assert_eq!((verbs.close_device)(context), 0);
    }
}

#[test]
fn changes_of_state_need_their_attributes() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = (End::new(&fake, Shape::on(0)), End::new(&fake, Shape::on(1)));
    let [init, rtr, rts] = a.changes(&b);
    assert_eq!(a.modify(rtr.0, rtr.1), libc::EINVAL, "not from RESET");
    assert_eq!(a.modify(init.0, init.1 & !sys::IBV_QP_PORT), libc::EINVAL);
    assert_eq!(a.modify(sys::ibv_qp_attr { port_num: 2, ..init.0 }, init.1), libc::EINVAL);
    assert_eq!(a.modify(init.0, init.1), 0);
    let wrong = [
        sys::ibv_qp_attr { path_mtu: sys::IBV_MTU_4096, ..rtr.0 },
        sys::ibv_qp_attr { max_dest_rd_atomic: 17, ..rtr.0 },
        sys::ibv_qp_attr { rq_psn: 1 << 24, ..rtr.0 },
        sys::ibv_qp_attr { ah_attr: sys::ibv_ah_attr { is_global: 0, ..rtr.0.ah_attr }, ..rtr.0 },
    ];
    for attr in wrong {
        assert_eq!(a.modify(attr, rtr.1), libc::EINVAL);
    }
    for bit in (0..31).map(|bit| 1 << bit).filter(|bit| rtr.1 & bit != 0 && *bit != sys::IBV_QP_STATE) {
        assert_eq!(a.modify(rtr.0, rtr.1 & !bit), libc::EINVAL, "without {bit:#x}");
    }
    assert_eq!(a.modify(rtr.0, rtr.1), 0);
    assert_eq!(a.modify(sys::ibv_qp_attr { rnr_retry: 8, ..rts.0 }, rts.1), libc::EINVAL);
    assert_eq!(a.modify(rts.0, rts.1), 0);
    assert!(
        fake.refusals().iter().all(|why| why.starts_with("modify_qp from state")),
        "{:?}",
        fake.refusals()
    );
}

#[test]
fn calls_fail_when_they_are_told_to() {
    let fake = Fake::new(Config::new(1));
    let verbs = fake.table();
    fake.fail_call(0, Call::GetDeviceList, 1, libc::ENOSYS);
    // SAFETY: the count may be null.
    assert!(unsafe { (verbs.get_device_list)(ptr::null_mut()) }.is_null());
    assert_eq!(errno(), libc::ENOSYS);
    let context = open(&verbs, 0);
    fake.fail_call(0, Call::AllocPd, 2, libc::ENOMEM);
    fake.fail_call(0, Call::RegMr, 1, libc::ENOMEM);
    fake.fail_call(0, Call::CreateCq, 1, libc::EMFILE);
    fake.fail_call(0, Call::QueryDevice, 1, libc::EIO);
    let mut memory = [0_u64; 8];
    // SAFETY: the context is open until its close; the memory outlives its region.
    unsafe {
        let pd = (verbs.alloc_pd)(context);
        assert!(!pd.is_null());
        assert!((verbs.alloc_pd)(context).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        let mut register = |access| (verbs.reg_mr)(pd, (&raw mut memory).cast(), 64, access);
        assert!(register(0).is_null());
        let mr = register(0);
        assert!(!mr.is_null());
        assert!(register(sys::IBV_ACCESS_REMOTE_WRITE as i32).is_null(), "remote without local writes");
        assert!((verbs.create_cq)(context, 8, ptr::null_mut(), ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), libc::EMFILE);
        let mut attr = sys::ibv_device_attr::default();
        assert_eq!((verbs.query_device)(context, &raw mut attr), libc::EIO);
        assert_eq!((verbs.query_device)(context, &raw mut attr), 0);
        assert_eq!((verbs.dealloc_pd)(pd), libc::EBUSY);
        assert_eq!((verbs.dereg_mr)(mr), 0);
        assert_eq!((verbs.dealloc_pd)(pd), 0);
        assert_eq!((verbs.close_device)(context), 0);
    }
}

#[test]
fn memory_behind_a_descriptor_is_written_too() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    let file = tempfile::tempfile().expect("a file");
    file.set_len(8192).expect("its length");
    let register = b.verbs.reg_dmabuf_mr.expect("the fake has it");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: the descriptor is open; the region is deregistered before the end.
    let mr = unsafe { register(b.pd, 4096, 64, 0x1000, fd, crate::rig::RELAXED as i32) };
    assert!(!mr.is_null());
    a.fill(0..1, u64::MAX);
    let mut request = crate::rig::Request::write(&a, &b, 0..1).signalled();
    request.wr.wr.rdma.remote_addr = 0x1008;
    // SAFETY: the region lives.
    request.wr.wr.rdma.rkey = unsafe { (*mr).rkey };
    assert_eq!(a.post(&[request]).0, 0);
    assert_eq!(a.completions(1)[0].status, sys::IBV_WC_SUCCESS);
    // SAFETY: the region is deregistered once.
    assert_eq!(unsafe { (b.verbs.dereg_mr)(mr) }, 0);
    let mut bytes = [0; 16];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4096).expect("its bytes");
    assert_eq!(bytes[..8], [0; 8]);
    assert_eq!(bytes[8..], [0xff; 8]);
}

#[test]
fn what_no_program_may_do_is_noted() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let verbs = fake.table();
    let context = open(&verbs, 0);
    // SAFETY: objects of the fake are never freed.
    unsafe {
        let pd = (verbs.alloc_pd)(context);
        assert_eq!((verbs.dealloc_pd)(pd), 0);
        assert_eq!((verbs.dealloc_pd)(pd), libc::EINVAL);
        let _left = (verbs.alloc_pd)(context);
        assert_eq!((verbs.close_device)(context), libc::EINVAL);
    }
    let misuse = fake.take_misuse();
    assert_eq!(misuse.len(), 2, "{misuse:?}");
}

#[test]
#[should_panic(expected = "given back twice")]
fn misuse_that_nobody_looks_at_panics_at_the_end() {
    let fake = Fake::new(Config::new(1));
    let verbs = fake.table();
    let context = open(&verbs, 0);
    // SAFETY: objects of the fake are never freed.
    unsafe {
        let pd = (verbs.alloc_pd)(context);
        (verbs.dealloc_pd)(pd);
        (verbs.dealloc_pd)(pd);
        (verbs.close_device)(context);
    }
}
