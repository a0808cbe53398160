//! Components that come from an OCI registry: the distribution project's own, started for each test.

use anyhow::{Context, Result};
use outhaul_services::registry::{PASSWORD, USER};
use outhaul_services::{Access, Registry};
use outhaul_tests::components::{self, agent};
use outhaul_tests::process::poll;
use outhaul_tests::receiver::Receiver;
use outhaul_tests::registry::{self, push};
use outhaul_tests::rig::{Config, Rig};
use serde_json::Value;
use std::fs;

/// What the tests' publisher is called in the registry.
const REPOSITORY: &str = "acme/http-publisher";

/// A rig with a plugin folder of its own, and a registry that is reached without TLS.
fn rig(receiver: &Receiver, registry: &Registry, change: impl FnOnce(Config) -> Config) -> Result<(Rig, Config)> {
    let config = change(Config::to(receiver.address())?.set("plugins.dir", "plugins"));
    let config = config.set_all(&section(registry), "plain_http = true");
    Ok((Rig::with_fixtures(&config)?, config))
}

fn section(registry: &Registry) -> String {
    format!("registries.{}", registry.name())
}

/// With the publisher by reference.
fn named(config: Config, reference: &str) -> Config {
    config.set("publishers.webhooks.plugin", format!("oci://{reference}"))
}

/// Commits a message, and waits for the request with it: which version of the publisher has sent it.
fn sent_by(rig: &Rig, receiver: &Receiver) -> Result<String> {
    let id = rig.outbox()?.add("orders", None, b"x")?;
    let requests = receiver.wait_for("the message", |requests| requests.iter().any(|request| request.id == id && request.accepted()))?;
    let request = requests.iter().find(|request| request.id == id).context("it was there a moment ago")?;
    Ok(request.header("user-agent").unwrap_or_default().to_owned())
}

#[test]
fn what_is_pulled_into_the_directory_is_taken_over_by_a_running_host() -> Result<()> {
    let Some(registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, _) = rig(&receiver, &registry, |config| config)?;
    let new = components::publisher("0.1.7")?;
    let reference = push(&registry, REPOSITORY, "0.1.7", &new)?;
    let tagged = format!("{}/{REPOSITORY}:0.1.7", registry.name());
    let host = rig.host()?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.0"));

    let refused = rig.run(&["plugin", "pull", &tagged])?.failure(2)?;
    assert!(refused.contains("has no digest") && refused.contains("--resolve"), "{refused}");
    // Under another name nobody uses it; the digest is told, to be written down.
    let resolved = rig.run(&["plugin", "pull", &tagged, "--resolve", "--name", "tried"])?;
    assert!(resolved.errors.contains(&format!("write {reference} down")), "{}", resolved.errors);
    assert!(resolved.success()?.contains(&reference));
    assert_eq!(fs::read(rig.path().join("plugins/tried.wasm"))?, new);

    let pulled = rig.run(&["plugin", "pull", &reference, "--json"])?.json()?;
    assert_eq!((&pulled["reference"], &pulled["plugin"]), (&reference.clone().into(), &"http-publisher".into()));
    assert_eq!((&pulled["changed"], &pulled["version"]), (&true.into(), &"0.1.7".into()));
    assert_eq!(format!("sha256:{}", pulled["sha256"].as_str().unwrap_or_default()), registry::digest(&new));
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.7"));
    assert_eq!(rig.run(&["plugin", "pull", &reference, "--json"])?.json()?["changed"], false);
    host.shut_down()
}

#[test]
fn a_pinned_component_is_replaced_only_if_asked() -> Result<()> {
    let Some(registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, _) = rig(&receiver, &registry, |config| config)?;
    let file = rig.path().join("plugins/http-publisher.wasm");
    let before = fs::read(&file)?;
    rig.run(&["plugin", "pin"])?.success()?;
    let new = components::publisher("0.1.7")?;
    let reference = push(&registry, REPOSITORY, "0.1.7", &new)?;
    let refused = rig.run(&["plugin", "pull", &reference])?.failure(2)?;
    assert!(refused.contains("pins another component as http-publisher") && refused.contains("--replace-pinned"), "{refused}");
    assert_eq!(fs::read(&file)?, before);
    rig.run(&["plugin", "pull", &reference, "--replace-pinned"])?.success()?;
    assert_eq!(fs::read(&file)?, new);
    // It is there, and not loaded before it is pinned.
    assert!(rig.run(&["check"])?.failure(2)?.contains("is not the component that"));
    rig.run(&["plugin", "pin"])?.success()?;
    rig.run(&["check"])?.success()?;
    Ok(())
}

#[test]
fn what_must_not_be_run_is_not_put_in_place() -> Result<()> {
    let Some(mut registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, config) = rig(&receiver, &registry, |config| config)?;
    let before = fs::read(rig.path().join("plugins/http-publisher.wasm"))?;
    let good = components::built("http-publisher")?;
    let told = |reference: &str, code: i32| -> Result<String> {
        let told = rig.run(&["plugin", "pull", reference])?.failure(code)?;
        assert!(told.contains(reference), "{told}");
        assert_eq!(fs::read(rig.path().join("plugins/http-publisher.wasm"))?, before);
        Ok(told)
    };
    for bad in components::bad()?.iter().filter(|bad| ["a truncated component", "a core module"].contains(&bad.what)) {
        let refused = told(&push(&registry, REPOSITORY, "bad", &bad.bytes)?, 2)?;
        assert!(refused.contains("is not put in place") && refused.contains(bad.told), "{}: {refused}", bad.what);
    }
    let storage = push(&registry, REPOSITORY, "bad", &components::built("sqlite-storage")?)?;
    assert!(told(&storage, 2)?.contains("it is a storage, and publishers.webhooks uses the name http-publisher"));
    let gzip = registry::push_as(&registry, REPOSITORY, "bad", &good, registry::CONFIG, "application/gzip")?;
    assert!(told(&gzip, 2)?.contains("application/wasm is needed"));
    let image = registry::push_as(&registry, REPOSITORY, "bad", &good, "application/vnd.oci.image.config.v1+json", registry::LAYER)?;
    assert!(told(&image, 2)?.contains("application/vnd.wasm.config.v0+json is needed"));
    let absent = format!("{}/{REPOSITORY}@{}", registry.name(), registry::digest(b"nothing"));
    assert!(told(&absent, 2)?.contains("has no such manifest"));
    // A disk of the registry that has flipped a bit; and one whose owner has put something else there.
    let reference = push(&registry, REPOSITORY, "good", &good)?;
    let kept = registry.blob(registry::digest(&good).trim_start_matches("sha256:"));
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    fs::write(&kept, flipped)?;
    assert!(told(&reference, 2)?.contains("sends as the component has the digest sha256:"));
    let manifest = registry.blob(reference.rsplit_once("sha256:").context("a digest")?.1);
    fs::write(&manifest, fs::read_to_string(&manifest)?.replace("0.1", "0.2").replace('}', "} "))?;
    assert!(told(&reference, 2)?.contains("sends as the manifest has the digest sha256:"));
    registry.stop()?;
    assert!(told(&reference, 1)?.contains("cannot be reached"));
    // By reference it is no other: nothing of it comes into the store, and the command line says the line.
    rig.configure(&named(config, &gzip))?;
    registry.serve(Access::Open)?;
    let check = rig.run(&["check"])?.failure(2)?;
    assert!(check.contains("publishers.webhooks.plugin: ") && check.contains("application/wasm is needed"), "{check}");
    assert!(!rig.path().join("plugins/.oci").exists());
    Ok(())
}

#[test]
fn an_adapter_named_by_reference_starts_without_its_registry_once_it_was_pulled() -> Result<()> {
    let Some(mut registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, config) = rig(&receiver, &registry, |config| config)?;
    let first = push(&registry, REPOSITORY, "latest", &components::publisher("0.1.6")?)?;
    // The tag moves on; the digest stays.
    let second = push(&registry, REPOSITORY, "latest", &components::publisher("0.1.7")?)?;
    rig.configure(&named(config.clone(), &first))?;
    registry.stop()?;
    let check = rig.run(&["check"])?.failure(1)?;
    assert!(check.contains(&format!("{first} cannot be pulled: the registry")) && check.contains("cannot be reached"), "{check}");
    assert!(check.contains("publishers.webhooks.plugin: "), "{check}");
    let listed = rig.run(&["plugin", "list"])?.success()?;
    assert!(listed.contains("is not pulled yet"), "{listed}");

    // A host waits for it, as for a database.
    let mut host = rig.host()?;
    let waits = host.process().errors().wait_for_line("not started yet")?;
    assert!(waits.contains(&first) && waits.contains("cannot be reached"), "{waits}");
    registry.serve(Access::Open)?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    let listed = rig.run(&["plugin", "list", "--json"])?.json()?;
    let of = |plugin: &Value| plugin["plugin"].as_str().unwrap_or_default().starts_with("oci://");
    let entry = listed["plugins"].as_array().and_then(|list| list.iter().find(|plugin| of(plugin))).context("an entry")?;
    assert_eq!((&entry["plugin"], &entry["version"]), (&format!("oci://{first}").into(), &"0.1.6".into()));
    host.shut_down()?;

    registry.stop()?;
    let mut host = rig.host()?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    // Another one is not to be had: the configuration stays as a whole.
    rig.configure(&named(config.clone(), &second))?;
    host.reload("refused")?;
    let refused = host.process().errors().wait_for_line("the configuration stays as it was")?;
    assert!(refused.contains(&second) && refused.contains("cannot be reached"), "{refused}");
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    registry.serve(Access::Open)?;
    host.reload("applied")?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.7"));
    // Back, from the store.
    registry.stop()?;
    rig.configure(&named(config, &first))?;
    host.reload("applied")?;
    host.wait_for_generation("webhooks", 3)?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    host.shut_down()
}

#[test]
fn what_is_kept_is_not_trusted() -> Result<()> {
    let Some(mut registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, config) = rig(&receiver, &registry, |config| config.set("plugins.store", "pulled"))?;
    let reference = push(&registry, REPOSITORY, "1", &components::publisher("0.1.6")?)?;
    rig.configure(&named(config, &reference))?;
    rig.run(&["check"])?.success()?;
    let hex = registry::digest(&components::publisher("0.1.6")?).replace("sha256:", "sha256-");
    let kept = rig.path().join(format!("pulled/{hex}.wasm"));
    // Another good component, put there by whoever may.
    fs::write(&kept, components::publisher("0.1.7")?)?;
    let mut host = rig.host()?;
    let warned = host.process().errors().wait_for_line("is not what was pulled, and is pulled again")?;
    assert!(warned.contains("\"level\":\"WARN\""), "{warned}");
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    // What runs does not care for the file.
    fs::remove_file(&kept)?;
    registry.stop()?;
    host.reload("unchanged")?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    host.shut_down()
}

#[test]
fn pins_name_the_reference_and_what_it_stands_for() -> Result<()> {
    let Some(registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, config) = rig(&receiver, &registry, |config| config)?;
    let first = push(&registry, REPOSITORY, "1", &components::publisher("0.1.6")?)?;
    let second = push(&registry, REPOSITORY, "2", &components::publisher("0.1.7")?)?;
    rig.configure(&named(config.clone(), &first))?;
    rig.run(&["plugin", "pin"])?.success()?;
    let lock = fs::read_to_string(rig.path().join("outhaul.lock"))?;
    let sha256 = registry::digest(&components::publisher("0.1.6")?).replace("sha256:", "");
    assert!(lock.contains(&format!("[plugins.\"oci://{first}\"]\nsha256 = \"{sha256}\"")), "{lock}");
    rig.run(&["plugin", "pin", "--check"])?.success()?;
    let mut host = rig.host()?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.6"));
    rig.configure(&named(config, &second))?;
    host.reload("refused")?;
    host.process().errors().wait_for_line("is not pinned in")?;
    rig.run(&["plugin", "pin"])?.success()?;
    host.reload("applied")?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.7"));
    host.shut_down()
}

#[test]
fn a_guarded_registry_is_known_by_its_authority_and_wants_a_password() -> Result<()> {
    let Some(mut registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, _) = rig(&receiver, &registry, |config| config)?;
    let reference = push(&registry, REPOSITORY, "1", &components::publisher("0.1.7")?)?;
    registry.serve(Access::Guarded)?;
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins");
    let config = named(config, &reference).set("secrets.registry.file", "password");
    let told = |settings: &str, code: i32| -> Result<String> {
        rig.configure(&config.clone().set_all(&section(&registry), settings))?;
        rig.run(&["check"])?.failure(code)
    };
    let section = format!("[registries.\"{}\"]", registry.name());
    let (ca, other) = (registry.certificates().ca().display().to_string(), registry.certificates().other_ca().display().to_string());
    let user = format!("username = \"{USER}\"\npassword = {{ secret = \"registry\" }}\n");
    fs::write(rig.path().join("password"), "wrong\n")?;
    for (settings, text) in [
        ("plain_http = false".to_owned(), format!("issued by an unknown authority: add tls_ca_file = \"FILE.pem\" under {section}")),
        (format!("tls_ca_file = \"{other}\""), format!("neither one of the system's nor in tls_ca_file ({other})")),
        (format!("tls_ca_file = \"{ca}\""), format!("refuses access (401 Unauthorized): add username and password under {section}")),
        (format!("{user}tls_ca_file = \"{ca}\""), format!("are username and password under {section} right")),
        ("tls_ca_file = \"none.pem\"".to_owned(), "tls_ca_file = ".to_owned()),
    ] {
        let told = told(&settings, 2)?;
        assert!(told.contains(&text) && told.contains(&reference), "{settings}: {told}");
    }
    fs::write(rig.path().join("password"), format!("{PASSWORD}\n"))?;
    rig.configure(&config.clone().set_all(&self::section(&registry), &format!("{user}tls_ca_file = \"{ca}\"")))?;
    // A registry's password is not taken for a secret without a use.
    let check = rig.run(&["check"])?.success()?;
    assert!(!check.contains("secrets.registry"), "{check}");
    let host = rig.host()?;
    assert_eq!(sent_by(&rig, &receiver)?, agent("0.1.7"));
    assert!(!host.log().contains(PASSWORD));
    host.shut_down()
}

#[test]
fn one_that_speaks_no_tls_is_told_and_so_is_how_to_mean_it() -> Result<()> {
    let Some(registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let reference = push(&registry, REPOSITORY, "1", &components::publisher("0.1.7")?)?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let told = rig.run(&["plugin", "pull", &reference, "--name", "tried"])?.failure(2)?;
    let advice = format!("plain_http = true under [registries.\"{}\"]", registry.name());
    assert!(told.contains("what the other side sent is not TLS") && told.contains(&advice), "{told}");
    Ok(())
}

#[test]
fn a_host_that_waits_for_a_registry_can_be_shut_down() -> Result<()> {
    let Some(mut registry) = outhaul_services::registry() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let (rig, config) = rig(&receiver, &registry, |config| config)?;
    let reference = push(&registry, REPOSITORY, "1", &components::publisher("0.1.7")?)?;
    rig.configure(&named(config, &reference))?;
    registry.stop()?;
    let mut host = rig.host()?;
    host.process().errors().wait_for_line("not started yet")?;
    poll("it not to be ready", || Ok(host.get("/readyz")?.0 == 503))?;
    host.shut_down()
}
