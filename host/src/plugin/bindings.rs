//! Bindings made from `wit/`, one module a world. The vocabulary and the imports that both worlds have are shared. The optional
//! exports of a storage are looked up one by one ([`super::storage`]), so one set of bindings serves every storage world.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::indexing_slicing, reason = "generated")]

pub(super) mod storage {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "storage-adapter-fan-out",
        imports: {
            "outhaul:adapter/sql": async | trappable,
            "outhaul:adapter/secrets": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        with: {
            "outhaul:adapter/sql.connection": crate::plugin::sql_host::HostConnection,
            "outhaul:adapter/sql.transaction": crate::plugin::sql_host::HostTransaction,
        },
    });
}

pub(super) mod publisher {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "publisher-adapter",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "outhaul:adapter/outbox": super::storage::outhaul::adapter::outbox,
            "outhaul:adapter/log": super::storage::outhaul::adapter::log,
            "outhaul:adapter/secrets": super::storage::outhaul::adapter::secrets,
        },
    });
}

pub(super) mod router {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "router-adapter",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "outhaul:adapter/outbox": super::storage::outhaul::adapter::outbox,
            "outhaul:adapter/log": super::storage::outhaul::adapter::log,
            "outhaul:adapter/secrets": super::storage::outhaul::adapter::secrets,
            "outhaul:adapter/sql": super::storage::outhaul::adapter::sql,
        },
    });
}

pub(super) use publisher::exports::outhaul::adapter::publisher as publisher_export;
pub(super) use publisher::outhaul::adapter::progress;
pub(super) use router::exports::outhaul::adapter::router as router_export;
pub(super) use storage::exports::outhaul::adapter::{storage as storage_export, storage_admin, storage_fan_out, storage_fused};
pub(super) use storage::outhaul::adapter::{log, outbox, secrets, sql};
