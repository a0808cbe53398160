//! What makes a component one of the world `storage-adapter`, for `outhaul_sdk::export_storage!(T: minimal)`. See `worlds/full` for why it
//! is a crate of its own.
#![allow(missing_docs, unsafe_code, unreachable_pub, clippy::all, reason = "generated")]

wit_bindgen::generate!({
    path: "../../../../wit",
    world: "storage-adapter",
    pub_export_macro: true,
    export_macro_name: "export_world",
    default_bindings_module: "outhaul_sdk_world_minimal",
    generate_all,
});
