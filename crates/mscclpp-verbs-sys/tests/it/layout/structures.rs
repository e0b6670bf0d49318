//! The values that make up the layouts of libibverbs' structures.

/// Calls a macro with each structure: its C name, its named fields, those without a name in C, and paths into fields.
/// All fields must be listed; `every_field` checks that.
macro_rules! structures {
    ($then:ident) => {
        $then! {
            union ibv_gid {
                raw, global,
            } () [global.subnet_prefix, global.interface_id];
            struct ibv_gid_entry {
                gid, gid_index, port_num, gid_type, ndev_ifindex,
            } () [];
            struct ibv_device_attr {
                fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
                vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
                max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
                max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
                max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
                max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
                max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
            } () [];
            struct ibv_port_attr {
                state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
                qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
                init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
                port_cap_flags2,
            } () [];
            struct ibv_async_event {
                element, event_type,
            } () [element.cq, element.qp, element.port_num];
            struct ibv_wc {
                wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index,
                slid, sl, dlid_path_bits,
            } (__bindgen_anon_1) [__bindgen_anon_1.imm_data];
            struct ibv_pd {
                context, handle,
            } () [];
            struct ibv_mr {
                context, pd, addr, length, handle, lkey, rkey,
            } () [];
            struct ibv_global_route {
                dgid, flow_label, sgid_index, hop_limit, traffic_class,
            } () [];
            struct ibv_ah_attr {
                grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
            } () [];
            struct ibv_qp_cap {
                max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
            } () [];
            struct ibv_qp_init_attr {
                qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
            } () [];
            struct ibv_qp_attr {
                qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
                qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
                en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
                port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
            } () [];
            struct ibv_sge {
                addr, length, lkey,
            } () [];
            struct ibv_send_wr {
                wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type,
            } (__bindgen_anon_1, __bindgen_anon_2) [__bindgen_anon_1.imm_data, wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey];
            struct ibv_recv_wr {
                wr_id, next, sg_list, num_sge,
            } () [];
            struct ibv_qp {
                context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
                mutex, cond, events_completed,
            } () [];
            struct ibv_comp_channel {
                context, fd, refcnt,
            } () [];
            struct ibv_cq {
                context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
                async_events_completed,
            } () [];
            struct ibv_device {
                _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path,
            } () [];
            struct ibv_context_ops {
                _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
                _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
                _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
                _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
                _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp,
                _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
                _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event,
            } () [];
            struct ibv_context {
                device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat,
            } () [];
        }
    };
}

/// Compiles only if each structure has the listed fields and no others.
macro_rules! every_field {
    ($($kind:ident $name:ident { $($field:ident),* $(,)? } ($($anonymous:ident),*) [$($path:tt)*];)*) => {
        $(every_field!(@one $kind $name { $($field,)* $($anonymous),* });)*
    };
    (@one struct $name:ident { $($field:ident),* $(,)? }) => {
        const _: fn(&mscclpp_verbs_sys::$name) = |structure| {
            let mscclpp_verbs_sys::$name { $($field: _),* } = structure;
        };
    };
    // A union cannot be taken apart; the paths name its members.
    (@one union $($rest:tt)*) => {};
}

structures!(every_field);

pub(crate) use structures;
