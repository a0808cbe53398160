//! The manifest inside a component: what it is called, and what it will ask the operator for.

/// Puts a TOML file into the component as the custom section `outhaul-manifest`. The path is relative to the calling file.
///
/// Keys: `name`, `version`, `description`, and `requests`, a list of what the adapter needs to be granted (`http`, `tcp`,
/// `databases`, `secrets`). `outhaul plugin inspect` shows it without running anything.
#[macro_export]
macro_rules! manifest {
    ($path:literal) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            // Unsafe as an attribute only: a section of this name is nobody else's, and nothing reads it at run time.
            #[used]
            #[unsafe(link_section = "outhaul-manifest")]
            static MANIFEST: [u8; include_bytes!($path).len()] = *include_bytes!($path);
        };
    };
}
