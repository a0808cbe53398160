//! The examples, embedded.

use super::{Kind, Language};

/// An example to begin with.
pub(super) struct Template {
    pub(super) language: Language,
    pub(super) kind: Kind,
    /// Its folder in `examples/`.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests compare the two"))]
    pub(super) folder: &'static str,
    /// The name in its files, replaced by that of the new adapter.
    pub(super) name: &'static str,
    /// Paths and texts.
    pub(super) files: &'static [(&'static str, &'static str)],
    /// Those that it shares with another example; none: it has all of its own.
    pub(super) shared: Option<Shared>,
}

/// Files of another example.
pub(super) struct Shared {
    /// The name in them, replaced as well.
    pub(super) name: &'static str,
    /// Paths and texts.
    pub(super) files: &'static [(&'static str, &'static str)],
}

/// Paths and texts of files in a folder.
macro_rules! files {
    ($folder:literal, $($path:literal),+ $(,)?) => { [$(($path, include_str!(concat!($folder, $path)))),+] };
}
pub(super) use files;

pub(super) const ALL: &[Template] = &[
    Template {
        language: Language::Rust,
        kind: Kind::Publisher,
        folder: "publishers/rust",
        name: "http-rust",
        files: &files![
            "../../../examples/publishers/rust/",
            ".gitignore",
            "Cargo.toml",
            "README.md",
            "conformance.toml",
            "manifest.toml",
            "src/lib.rs",
            "src/publisher.rs",
            "src/wasi_http.rs",
        ],
        shared: None,
    },
    Template {
        language: Language::Rust,
        kind: Kind::Storage,
        folder: "storages/rust",
        name: "rows-rust",
        files: &files![
            "../../../examples/storages/rust/",
            ".gitignore",
            "Cargo.toml",
            "README.md",
            "manifest.toml",
            "src/admin.rs",
            "src/claim.rs",
            "src/lib.rs",
            "src/settle.rs",
            "src/statement.rs",
            "tests/contract.rs",
        ],
        shared: None,
    },
    Template {
        language: Language::Rust,
        kind: Kind::Router,
        folder: "routers/rust",
        name: "router-rust",
        files: &files![
            "../../../examples/routers/rust/",
            ".gitignore",
            "Cargo.toml",
            "README.md",
            "conformance.toml",
            "manifest.toml",
            "src/config.rs",
            "src/lib.rs",
        ],
        shared: None,
    },
    Template {
        language: Language::Js,
        kind: Kind::Publisher,
        folder: "publishers/js",
        name: "http-js",
        files: &files![
            "../../../examples/publishers/js/",
            ".gitignore",
            "README.md",
            "build.mjs",
            "conformance.toml",
            "key-order.js",
            "outhaul.js",
            "package-lock.json",
            "package.json",
            "publisher.js",
            "test/host.mjs",
            "test/publisher.test.mjs",
        ],
        shared: None,
    },
    Template {
        language: Language::Python,
        kind: Kind::Publisher,
        folder: "publishers/python",
        name: "http-python",
        files: &files![
            "../../../examples/publishers/python/",
            ".gitignore",
            "README.md",
            "build.sh",
            "conformance.toml",
            "http_post.py",
            "outhaul.py",
            "publisher.py",
            "requirements.txt",
            "test.sh",
            "test_publisher.py",
        ],
        shared: None,
    },
    Template {
        language: Language::C,
        kind: Kind::Publisher,
        folder: "publishers/c",
        name: "http-c",
        files: &files![
            "../../../examples/publishers/c/",
            ".gitignore",
            "README.md",
            "build.sh",
            "config.h",
            "conformance.toml",
            "http_post.h",
            "key_order.h",
            "outhaul.h",
            "publisher.c",
            "test.c",
            "test.sh",
        ],
        shared: None,
    },
    Template {
        language: Language::Go,
        kind: Kind::Publisher,
        folder: "publishers/go",
        name: "http-go",
        files: &files![
            "../../../examples/publishers/go/",
            ".gitignore",
            "README.md",
            "build.sh",
            "conformance.toml",
            "export_outhaul_adapter_publisher/publisher.go",
            "go.mod",
            "go.sum",
            "httppost/httppost.go",
            "outhaul/key_order.go",
            "outhaul/outhaul.go",
            "outhaul/outhaul_test.go",
        ],
        shared: None,
    },
    Template {
        language: Language::Python,
        kind: Kind::Storage,
        folder: "storages/python",
        name: "kv-python",
        files: &files![
            "../../../examples/storages/python/",
            ".gitignore",
            "README.md",
            "build.sh",
            "requirements.txt",
            "storage.py",
            "test.sh",
            "test_storage.py",
        ],
        shared: Some(Shared { name: "http-python", files: &files!["../../../examples/publishers/python/", "outhaul.py"] }),
    },
    Template {
        language: Language::Js,
        kind: Kind::Storage,
        folder: "storages/js",
        name: "kv-js",
        files: &files![
            "../../../examples/storages/js/",
            ".gitignore",
            "README.md",
            "build.mjs",
            "package.json",
            "storage.js",
            "table.js",
            "test/host.mjs",
            "test/storage.test.mjs",
        ],
        shared: Some(Shared { name: "http-js", files: &files!["../../../examples/publishers/js/", "outhaul.js", "package-lock.json"] }),
    },
    Template {
        language: Language::C,
        kind: Kind::Storage,
        folder: "storages/c",
        name: "rows-c",
        files: &files![
            "../../../examples/storages/c/",
            ".gitignore",
            "README.md",
            "admin.h",
            "build.sh",
            "claim.h",
            "database.h",
            "messages.h",
            "storage.c",
            "test.c",
            "test.sh",
        ],
        shared: Some(Shared { name: "http-c", files: &files!["../../../examples/publishers/c/", "config.h", "outhaul.h"] }),
    },
    Template {
        language: Language::Go,
        kind: Kind::Storage,
        folder: "storages/go",
        name: "kv-go",
        files: &files![
            "../../../examples/storages/go/",
            ".gitignore",
            "README.md",
            "build.sh",
            "database/database.go",
            "export_outhaul_adapter_storage/storage.go",
            "export_outhaul_adapter_storage_admin/admin.go",
            "export_outhaul_adapter_storage_fused/fused.go",
            "go.mod",
            "go.sum",
            "kv/call.go",
            "kv/clauses.go",
            "kv/kv_test.go",
            "kv/row.go",
        ],
        shared: Some(Shared { name: "http-go", files: &files!["../../../examples/publishers/go/", "outhaul/outhaul.go"] }),
    },
];

/// The template of a language and a kind.
pub(super) fn find(language: Language, kind: Kind) -> Option<&'static Template> {
    ALL.iter().find(|template| template.language == language && template.kind == kind)
}

/// The worlds, WASI, and the package itself: what all languages but Rust make their bindings from.
pub(super) fn wit() -> Vec<(String, Vec<u8>)> {
    const FILES: &[(&str, &str)] = &files![
        "../../../sdk/wit/",
        "world.wit",
        "deps/cli.wit",
        "deps/clocks.wit",
        "deps/filesystem.wit",
        "deps/http.wit",
        "deps/io.wit",
        "deps/random.wit",
        "deps/sockets.wit",
    ];
    let adapter = ("deps/outhaul-adapter.wit", include_str!("../../../wit/outbox.wit"));
    FILES.iter().chain([&adapter]).map(|(path, text)| (format!("wit/{path}"), text.as_bytes().to_vec())).collect()
}
