//! What makes a component one of the world `storage-adapter-full`: the export macro, and the description of the world that it writes into
//! the component.
//!
//! The types here are nobody's: `outhaul_sdk::export_storage!` hands in those of the SDK, which are the same for all storages. It is a crate
//! of its own because the macros that export an interface have the same names in every world, and a crate has each name once.
#![allow(missing_docs, unsafe_code, unreachable_pub, clippy::all, reason = "generated")]

wit_bindgen::generate!({
    path: "../../../../wit",
    world: "storage-adapter-full",
    pub_export_macro: true,
    export_macro_name: "export_world",
    default_bindings_module: "outhaul_sdk_world_full",
    generate_all,
});
