#!/bin/sh
# Writes fabric/src/verbs/handles/ffi.rs from the machine's infiniband/verbs.h. Needs libibverbs-dev, libclang and `cargo
# install bindgen-cli`. Run it only to add something of libibverbs: the file is checked in, so no build needs these.
set -eu
cd "$(dirname "$0")/.."
file=fabric/src/verbs/handles/ffi.rs
header=$(grep '^//!' "$file")
functions='ibv_(get_device_list|free_device_list|get_device_name|open_device|close_device|query_device|query_port'
functions="$functions|alloc_pd|dealloc_pd|reg_mr|dereg_mr|create_comp_channel|destroy_comp_channel|create_cq"
functions="$functions|resize_cq|destroy_cq|get_cq_event|ack_cq_events|create_qp|modify_qp|destroy_qp"
functions="$functions|get_async_event|ack_async_event|fork_init)"
types='ibv_(port_attr|wc|send_wr|recv_wr|sge|qp_attr|qp_init_attr|async_event|wc_status|wc_opcode|access_flags'
types="$types|send_flags|wr_opcode|qp_state|qp_attr_mask|qp_type|event_type|port_state|mtu)"
# Used only behind pointers: no layout needed.
opaque='ibv_ah ibv_mw ibv_mw_bind ibv_srq ibv_wq ibv_device _compat_ibv_port_attr'
set -- --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t};'
for type in $opaque; do
    set -- "$@" --raw-line "#[repr(C)] pub struct $type { _opaque: [u8; 0] }"
done
bindings=$(bindgen "$@" \
    --allowlist-function "$functions" --allowlist-type "$types" --opaque-type ibv_mw_bind_info \
    --blocklist-type "pthread_.*|__pthread.*|__atomic_wide_counter.*|_ibv_device_ops|$(echo "$opaque" | tr ' ' '|')" \
    --no-layout-tests --no-doc-comments --no-prepend-enum-name --default-enum-style consts --no-derive-debug \
    --with-derive-default --dynamic-loading Ibverbs --dynamic-link-require-all --use-core --wrap-unsafe-ops \
    --rust-target 1.85 --rust-edition 2024 /usr/include/infiniband/verbs.h)
printf '%s\n\n%s\n' "$header" "$(printf '%s\n' "$bindings" | sed '/automatically generated/,+1d')" >"$file"
rustfmt --edition 2024 "$file"
