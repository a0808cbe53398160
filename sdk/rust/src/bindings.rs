//! Bindings made from `wit/`, one module for publishers and one for storages; the vocabulary (`outbox`) is shared.
//!
//! The module for storages is of the world that has all interfaces of a storage. The export macros of smaller worlds take their types from
//! there: each of those macros is in a crate of its own in `worlds/`.

pub use outhaul_sdk_world_full as storage_full;
pub use outhaul_sdk_world_minimal as storage_minimal;

pub mod publisher {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "publisher-adapter",
        pub_export_macro: true,
        export_macro_name: "export_publisher_world",
        default_bindings_module: "outhaul_sdk::bindings::publisher",
        additional_derives: [PartialEq, Eq],
        generate_all,
    });
}

pub mod storage {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "storage-adapter-fan-out",
        pub_export_macro: true,
        export_macro_name: "export_fan_out_world",
        default_bindings_module: "outhaul_sdk::bindings::storage",
        additional_derives: [PartialEq],
        with: {
            "outhaul:adapter/outbox@0.1.1": crate::bindings::publisher::outhaul::adapter::outbox,
            "outhaul:adapter/log@0.1.1": crate::bindings::publisher::outhaul::adapter::log,
            "outhaul:adapter/secrets@0.1.1": crate::bindings::publisher::outhaul::adapter::secrets,
        },
        generate_all,
    });
}

pub mod router {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "router-adapter",
        pub_export_macro: true,
        export_macro_name: "export_router_world",
        default_bindings_module: "outhaul_sdk::bindings::router",
        additional_derives: [PartialEq, Eq],
        with: {
            "outhaul:adapter/outbox@0.1.1": crate::bindings::publisher::outhaul::adapter::outbox,
            "outhaul:adapter/log@0.1.1": crate::bindings::publisher::outhaul::adapter::log,
            "outhaul:adapter/secrets@0.1.1": crate::bindings::publisher::outhaul::adapter::secrets,
            "outhaul:adapter/sql@0.1.1": crate::bindings::storage::outhaul::adapter::sql,
        },
        generate_all,
    });
}
