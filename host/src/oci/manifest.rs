//! Manifests of components, in the layout that the CNCF's Wasm working group has written down ("Wasm OCI artifact layout"): an image
//! manifest with one layer, which is the component.

use super::Digest;
use super::MAX_COMPONENT_BYTES;
use super::error::Fault;
use serde::Deserialize;

/// An image manifest.
const MEDIA_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// A list of manifests, for several platforms.
const INDEX_MEDIA_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// What is asked for. A component has no index; one is asked for to be told that it is there.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json";

/// The type of the configuration: what tells a component from other images.
const CONFIG_MEDIA_TYPE: &str = "application/vnd.wasm.config.v0+json";

/// The type of its layer.
const LAYER_MEDIA_TYPE: &str = "application/wasm";

/// Largest manifest that is read, in bytes: one of a component takes below 1 KiB, annotations included a few.
pub(super) const MAX_BYTES: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u32,
    media_type: Option<String>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
}

/// The component that a manifest stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) digest: Digest,
    /// Its size in bytes.
    pub(super) bytes: usize,
}

/// Reads a manifest.
pub(super) fn read(content: &[u8]) -> Result<Layer, Fault> {
    let wrong = |what: String| Fault::NotAComponent(what);
    let document: Document = serde_json::from_slice(content).map_err(|error| wrong(format!("its manifest is not understood: {error}")))?;
    match document.media_type.as_deref() {
        None | Some(MEDIA_TYPE) => {}
        Some(INDEX_MEDIA_TYPE) => {
            return Err(wrong("it is an index of several images: give the digest of the one that is the component".into()));
        }
        Some(other) => return Err(wrong(format!("its manifest is of the type {other:?}; {MEDIA_TYPE} is needed"))),
    }
    if document.schema_version != 2 {
        return Err(wrong(format!("its manifest has the schema version {}; 2 is needed", document.schema_version)));
    }
    match document.config.as_ref().map(|config| config.media_type.as_str()) {
        Some(CONFIG_MEDIA_TYPE) => {}
        Some(other) => {
            return Err(wrong(format!(
                "its configuration is of the type {other:?}; {CONFIG_MEDIA_TYPE} is needed (`wkg oci push` writes it)"
            )));
        }
        None => return Err(wrong(format!("its manifest has no configuration; one of the type {CONFIG_MEDIA_TYPE} is needed"))),
    }
    let [layer] = document.layers.as_slice() else {
        return Err(wrong(format!("it has {} layers; a component has one", document.layers.len())));
    };
    if layer.media_type != LAYER_MEDIA_TYPE {
        return Err(wrong(format!("its layer is of the type {:?}; {LAYER_MEDIA_TYPE} is needed", layer.media_type)));
    }
    let digest = Digest::parse(&layer.digest).map_err(|error| wrong(format!("its layer: {error}")))?;
    match usize::try_from(layer.size) {
        Ok(bytes) if layer.size <= MAX_COMPONENT_BYTES => Ok(Layer { digest, bytes }),
        _ => Err(Fault::TooLarge { what: "the component", limit: MAX_COMPONENT_BYTES }),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// The manifest of a component.
    pub(in crate::oci) fn of(component: &[u8]) -> Vec<u8> {
        let mut document = good();
        document["layers"][0]["digest"] = json!(Digest::of(component).to_string());
        document["layers"][0]["size"] = json!(component.len());
        serde_json::to_vec(&document).unwrap()
    }

    fn good() -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE,
            "config": { "mediaType": CONFIG_MEDIA_TYPE, "digest": Digest::of(b"{}").to_string(), "size": 2 },
            "layers": [{ "mediaType": LAYER_MEDIA_TYPE, "digest": Digest::of(b"x").to_string(), "size": 1 }],
        })
    }

    fn told(pointer: &str, value: Value) -> String {
        let mut document = good();
        *document.pointer_mut(pointer).unwrap() = value;
        read(&serde_json::to_vec(&document).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn a_component_is_known_by_its_types() {
        assert_eq!(read(&serde_json::to_vec(&good()).unwrap()).unwrap(), Layer { digest: Digest::of(b"x"), bytes: 1 });
        for (pointer, value, text) in [
            ("/schemaVersion", json!(1), "the schema version 1; 2 is needed"),
            ("/mediaType", json!(INDEX_MEDIA_TYPE), "it is an index of several images"),
            ("/mediaType", json!("a/b"), "of the type \"a/b\""),
            ("/config", Value::Null, "has no configuration"),
            ("/config/mediaType", json!("application/vnd.oci.image.config.v1+json"), "application/vnd.wasm.config.v0+json is needed"),
            ("/layers", json!([]), "it has 0 layers; a component has one"),
            ("/layers/0/mediaType", json!("application/gzip"), "its layer is of the type \"application/gzip\"; application/wasm is needed"),
            ("/layers/0/digest", json!("sha256:../../x"), "is not a digest"),
            ("/layers/0/size", json!(u64::MAX), "the component is larger than 268435456 bytes"),
            ("/layers/0/size", json!(-1), "its manifest is not understood"),
        ] {
            let told = told(pointer, value);
            assert!(told.contains(text), "{told}");
        }
        assert!(read(b"<html>").unwrap_err().to_string().contains("its manifest is not understood"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(content: Vec<u8>) {
            let _ = read(&content);
        }
    }
}
