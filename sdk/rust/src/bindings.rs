//! Bindings made from `wit/`, one module a world; the vocabulary (`outbox`) is shared.

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
        world: "storage-adapter-full",
        pub_export_macro: true,
        export_macro_name: "export_storage_world",
        default_bindings_module: "outhaul_sdk::bindings::storage",
        with: {
            "outhaul:adapter/outbox@0.1.0": crate::bindings::publisher::outhaul::adapter::outbox,
            "outhaul:adapter/log@0.1.0": crate::bindings::publisher::outhaul::adapter::log,
            "outhaul:adapter/secrets@0.1.0": crate::bindings::publisher::outhaul::adapter::secrets,
        },
        generate_all,
    });
}
