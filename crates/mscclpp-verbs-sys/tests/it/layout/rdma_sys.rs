//! Compares our structures with those of the crate rdma-sys, whose structures with unions are written by hand.

use std::mem::{align_of, offset_of, size_of};

use mscclpp_verbs_sys as ours;
use rdma_sys as theirs;

use super::structures::structures;

macro_rules! compare {
    ($($kind:ident $name:ident { $($field:ident),* $(,)? } ($($anonymous:ident),*) [$($path:tt)*];)*) => {
        $(
            assert_eq!(size_of::<ours::$name>(), size_of::<theirs::$name>(), stringify!($name));
            assert_eq!(align_of::<ours::$name>(), align_of::<theirs::$name>(), stringify!($name));
            $(assert_eq!(
                offset_of!(ours::$name, $field),
                offset_of!(theirs::$name, $field),
                concat!(stringify!($name), ".", stringify!($field)),
            );)*
        )*
    };
}

pub(crate) fn compare() {
    structures!(compare);
    assert_eq!(
        offset_of!(ours::ibv_wc, __bindgen_anon_1),
        offset_of!(theirs::ibv_wc, imm_data_invalidated_rkey_union)
    );
    assert_eq!(
        offset_of!(ours::ibv_send_wr, __bindgen_anon_1),
        offset_of!(theirs::ibv_send_wr, imm_data_invalidated_rkey_union)
    );
    let before_context = |whole: usize, field: usize| whole - field;
    assert_eq!(
        before_context(offset_of!(ours::verbs_context, context), offset_of!(ours::verbs_context, query_port)),
        before_context(
            offset_of!(theirs::verbs_context, context),
            offset_of!(theirs::verbs_context, query_port)
        ),
    );
}
