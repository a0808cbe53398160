//! The world `storage-adapter`, for `outhaul_sdk::export_storage!(T: minimal)`. Only its macro is used, with the types of the SDK: a crate
//! can export an interface once, and the SDK does so for the world `storage-adapter-full`.

#[allow(missing_docs, unsafe_code, unreachable_pub, clippy::all, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({
        path: "../../../wit",
        world: "storage-adapter",
        pub_export_macro: true,
        export_macro_name: "export_minimal_storage_world",
        generate_all,
    });
}

pub use bindings::export_minimal_storage_world;
