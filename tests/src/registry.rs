//! Components in an OCI registry, pushed as `wkg` and `oras` push them (OCI distribution specification, "Pushing").

use crate::receiver::{Answer, Request};
use anyhow::{Context, Result};
use outhaul_services::Registry;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The type of a component's configuration.
pub const CONFIG: &str = "application/vnd.wasm.config.v0+json";

/// The type of a component.
pub const LAYER: &str = "application/wasm";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// `sha256:...` of what is given.
#[must_use]
pub fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Pushes a component under a repository and a tag. Returns the reference with its digest.
///
/// # Errors
/// If the registry refuses.
pub fn push(registry: &Registry, repository: &str, tag: &str, component: &[u8]) -> Result<String> {
    push_as(registry, repository, tag, component, CONFIG, LAYER)
}

/// The same with other media types.
///
/// # Errors
/// If the registry refuses.
pub fn push_as(registry: &Registry, repository: &str, tag: &str, component: &[u8], config: &str, layer: &str) -> Result<String> {
    let base = format!("http://{}/v2/{repository}", registry.name());
    let (configuration, manifest) = described(component, config, layer);
    for content in [configuration.as_bytes(), component] {
        let begun = ureq::post(format!("{base}/blobs/uploads/")).send_empty().context("cannot begin an upload")?;
        let location = begun.headers().get("location").context("an upload without a place")?.to_str()?;
        let separator = if location.contains('?') { '&' } else { '?' };
        let url = format!("{location}{separator}digest={}", digest(content).replace(':', "%3A"));
        ureq::put(url).header("content-type", "application/octet-stream").send(content).context("cannot upload")?;
    }
    ureq::put(format!("{base}/manifests/{tag}")).header("content-type", MANIFEST).send(&manifest).context("cannot put the manifest")?;
    Ok(format!("{}/{repository}@{}", registry.name(), digest(manifest.as_bytes())))
}

/// What a registry has of a component, as a script for a [`crate::receiver::Receiver`] that plays one: the test decides when it answers,
/// and whether it does. Returns the repository and the digest of a reference.
pub fn script(component: Vec<u8>) -> (String, impl Fn(&Request) -> Answer + Clone + Send + Sync + 'static) {
    let (configuration, manifest) = described(&component, CONFIG, LAYER);
    let reference = format!("acme/played@{}", digest(manifest.as_bytes()));
    let have = [configuration.into_bytes(), manifest.into_bytes(), component].map(|content| (digest(&content), content));
    let answer = move |request: &Request| match have.iter().find(|(digest, _)| request.path.ends_with(digest)) {
        Some((_, content)) if request.path.contains("/manifests/") => {
            Answer::status(200).header("content-type", MANIFEST).body(content.clone())
        }
        Some((_, content)) => Answer::status(200).body(content.clone()),
        None => Answer::status(404),
    };
    (reference, answer)
}

/// The configuration and the manifest of a component.
fn described(component: &[u8], config: &str, layer: &str) -> (String, String) {
    let described = |media_type: &str, content: &[u8]| -> Value {
        json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
    };
    let configuration = json!({ "architecture": "wasm", "os": "wasip2", "layerDigests": [digest(component)] }).to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described(config, configuration.as_bytes()),
        "layers": [described(layer, component)],
    });
    (configuration, manifest.to_string())
}
