//! Configurations and files that change while relays wait for what they need, or are about to begin.

use anyhow::Result;
use outhaul_tests::components::{self, agent};
use outhaul_tests::receiver::{Answer, Gate, Receiver};
use outhaul_tests::registry;
use outhaul_tests::rig::{Config, Rig};
use rustix::process::Signal;
use std::fs;

/// A rig with a plugin folder of its own, an empty table `second`, and plain HTTP to what plays a registry.
fn rig(receiver: &Receiver, registry: &Receiver) -> Result<(Rig, Config)> {
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins");
    let rig = Rig::with_fixtures(&config)?;
    rig.configure(&second(config.clone()))?;
    rig.run(&["schema", "--apply"])?.success()?;
    Ok((rig, config.set_all(&format!("registries.localhost:{}", registry.address().port()), "plain_http = true")))
}

/// With the table `second` for the storage.
fn second(config: Config) -> Config {
    config.set("storages.outbox.config.table", "second")
}

/// `plugin` for what is in that registry.
fn reference(registry: &Receiver, name: &str) -> String {
    format!("oci://localhost:{}/{name}", registry.address().port())
}

#[test]
fn settings_that_come_while_a_storage_is_opened_are_the_ones_that_it_begins_with() -> Result<()> {
    let (gate, receiver) = (Gate::closed(), Receiver::accepting()?);
    let (name, script) = registry::script(components::built("sqlite-storage")?);
    let registry = Receiver::start({
        let gate = gate.clone();
        move |request| script(request).behind(&gate)
    })?;
    let (rig, config) = rig(&receiver, &registry)?;
    rig.run(&["enqueue", "--topic", "second", "--payload", "x"])?.success()?;
    let left = rig.outbox()?.add("first", None, b"x")?;
    // Nothing would look at the storage again.
    let config = config.set("plugins.watch", false).set("storages.outbox.plugin", reference(&registry, &name));
    rig.configure(&config)?;
    let mut host = rig.host()?;
    registry.wait_for_requests(1)?;
    rig.configure(&second(config))?;
    // The registry does not say in time whether they are right.
    host.reload("applied")?;
    gate.open();
    assert_eq!(receiver.wait_for_accepted(1)?[0].path, "/second");
    host.shut_down()?;
    let row = rig.outbox()?.row(&left)?;
    assert_eq!((row.status.as_str(), row.attempts, receiver.requests().len()), ("pending", 0, 1));
    Ok(())
}

#[test]
fn a_storage_that_waits_for_its_relay_is_not_forgotten_while_that_is_opened() -> Result<()> {
    let (gate, receiver) = (Gate::closed(), Receiver::accepting()?);
    let (name, script) = registry::script(components::built("http-publisher")?);
    // Away, and slow to say so: the storage is open by then.
    let registry = Receiver::start({
        let gate = gate.clone();
        move |_| Answer::status(503).behind(&gate)
    })?;
    let (rig, config) = rig(&receiver, &registry)?;
    rig.run(&["enqueue", "--topic", "second", "--payload", "x"])?.success()?;
    let config = config.set("publishers.webhooks.plugin", reference(&registry, &name));
    rig.configure(&config)?;
    let mut host = rig.host()?;
    host.wait_for_generation("outbox", 1)?;
    gate.open();
    host.process().errors().wait_for_line("not started yet")?;
    rig.configure(&second(config))?;
    host.reload("applied")?;
    host.wait_for_generation("outbox", 2)?;
    registry.set_script(script);
    assert_eq!(receiver.wait_for_accepted(1)?[0].path, "/second");
    host.shut_down()
}

/// The configuration with a second relay, from the storage `other` to the publisher `far` for the topic `far`, and else to `near`.
fn with_second_relay(config: &Config, far: &str, other: &str, near: &str) -> String {
    format!(
        "{}\n\
         [databases.other]\nurl = \"sqlite:other.db\"\n\
         [storages.other]\nplugin = \"{other}\"\ndatabase = \"other\"\n\
         [publishers.far]\nplugin = \"{far}\"\nconfig = {{ url = \"http://localhost/\" }}\n\
         [publishers.near]\nplugin = \"near\"\n{near}\n\
         [[relays]]\nname = \"second\"\nstorage = \"other\"\n\
         routes = [ {{ topic = \"far\", publisher = \"far\" }}, {{ topic = \"*\", publisher = \"near\" }} ]\n",
        config.text()
    )
}

/// What `near` sends to.
fn near(receiver: &Receiver, path: &str) -> String {
    let to = receiver.address();
    format!("allow_hosts = [\"{to}\"]\nconfig = {{ url = \"http://{to}/{path}\" }}")
}

/// A rig for two relays: the databases of both, and a component of its own for `near`.
fn rig_of_two(config: &Config, text: &str) -> Result<Rig> {
    let rig = Rig::with_fixtures(config)?;
    fs::copy(rig.path().join("plugins/http-publisher.wasm"), rig.path().join("plugins/near.wasm"))?;
    fs::copy(rig.path().join("plugins/sqlite-storage.wasm"), rig.path().join("plugins/other.wasm"))?;
    fs::write(rig.config(), text)?;
    rig.run(&["schema", "--storage", "other", "--apply"])?.success()?;
    rig.run(&["enqueue", "--storage", "other", "--topic", "x", "--payload", "x"])?.success()?;
    Ok(rig)
}

#[test]
fn bad_settings_for_a_relay_that_waits_are_refused_and_both_relays_go_on() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (name, script) = registry::script(components::built("http-publisher")?);
    let registry = Receiver::start(|_| Answer::status(503))?;
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins");
    let config = config.set_all(&format!("registries.localhost:{}", registry.address().port()), "plain_http = true");
    let far = reference(&registry, &name);
    let text = |settings: &str| with_second_relay(&config, &far, "other", settings);
    let good = text(&near(&receiver, "good"));
    let rig = rig_of_two(&config, &good)?;
    let mut host = rig.host()?;
    host.process().errors().wait_for_line("not started yet")?;
    // Nobody has tried this publisher: the one before it is away.
    fs::write(rig.config(), text("config = { ulr = \"x\" }"))?;
    host.reload("refused")?;
    host.process().errors().wait_for_line("publishers.near.config.ulr: unknown field")?;
    rig.outbox()?.add("healthy", None, b"x")?;
    assert_eq!(receiver.wait_for_accepted(1)?[0].path, "/healthy");
    // What is away itself is taken on trust.
    fs::write(rig.config(), text(&near(&receiver, "better")))?;
    host.reload("applied")?;
    registry.set_script(script);
    assert_eq!(receiver.wait_for_accepted(2)?[1].path, "/better");
    host.shut_down()
}

#[test]
fn a_bad_file_for_a_storage_that_waits_is_refused_and_both_relays_go_on() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins");
    let rig = rig_of_two(&config, &with_second_relay(&config, "http-publisher", "other", &near(&receiver, "second")))?;
    let (database, aside) = (rig.path().join("other.db"), rig.path().join("aside.db"));
    fs::rename(&database, &aside)?;
    // Cannot be opened, and is there.
    fs::create_dir(&database)?;
    let mut host = rig.host()?;
    host.process().errors().wait_for_line("not started yet")?;
    let bad = &components::bad()?[0];
    components::put(&rig.path().join("plugins"), "other", &bad.bytes)?;
    let line = host.process().errors().wait_for_line("a candidate is refused, the component before it waits")?;
    assert!(line.contains(bad.told) && line.contains("\"level\":\"ERROR\""), "{line}");
    rig.outbox()?.add("healthy", None, b"x")?;
    assert_eq!(receiver.wait_for_accepted(1)?[0].path, "/healthy");
    // On the component that it has waited with.
    fs::remove_dir(&database)?;
    fs::rename(&aside, &database)?;
    assert_eq!(receiver.wait_for_accepted(2)?[1].path, "/second");
    host.process().errors().wait_for_line("generation 1 goes on")?;
    host.shut_down()
}

#[test]
fn what_turns_out_to_be_wrong_with_a_relay_that_waits_is_mended_in_place() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (name, script) = registry::script(components::built("http-publisher")?);
    let registry = Receiver::start(|_| Answer::status(503))?;
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins");
    let config = config.set_all(&format!("registries.localhost:{}", registry.address().port()), "plain_http = true");
    let rig = rig_of_two(&config, &with_second_relay(&config, &reference(&registry, &name), "other", &near(&receiver, "second")))?;
    let plugins = rig.path().join("plugins");
    let mut host = rig.host()?;
    host.process().errors().wait_for_line("not started yet")?;
    let bad = &components::bad()?[0];
    components::put(&plugins, "near", &bad.bytes)?;
    registry.set_script(script);
    host.process().signal(Signal::HUP)?;
    let line = host.process().errors().wait_for_line(bad.told)?;
    assert!(line.contains("not started yet") && line.contains("\"level\":\"ERROR\""), "{line}");
    rig.outbox()?.add("healthy", None, b"x")?;
    assert_eq!(receiver.wait_for_accepted(1)?[0].path, "/healthy");
    components::put(&plugins, "near", &components::built("http-publisher")?)?;
    host.process().signal(Signal::HUP)?;
    assert_eq!(receiver.wait_for_accepted(2)?[1].path, "/second");
    host.shut_down()
}

/// With a header whose value is a secret in a file, which a new version of the publisher reads when it is opened.
fn with_secret(config: Config) -> Config {
    config
        .set("secrets.token.file", "token")
        .set("publishers.webhooks.allow_secrets", vec!["token".to_owned()])
        .set_all("publishers.webhooks.config.headers", "x-token = { secret = \"token\" }")
}

#[test]
fn a_refused_file_is_tried_again_when_what_was_missing_is_there() -> Result<()> {
    // By itself, or, where nothing is watched, at a signal.
    for watch in [true, false] {
        let receiver = Receiver::accepting()?;
        let config = Config::to(receiver.address())?.set("plugins.dir", "plugins").set("plugins.watch", watch);
        let rig = Rig::with_fixtures(&config)?;
        fs::write(rig.path().join("token"), "first")?;
        rig.configure(&with_secret(config))?;
        let mut host = rig.host()?;
        host.wait_for_generation("webhooks", 1)?;
        fs::remove_file(rig.path().join("token"))?;
        components::put(&rig.path().join("plugins"), "http-publisher", &components::publisher("0.1.7")?)?;
        host.process().signal(Signal::HUP)?;
        let line = host.process().errors().wait_for_line("a candidate is refused")?;
        assert!(line.contains("there is no secret `token`"), "{line}");
        fs::write(rig.path().join("token"), "second")?;
        if !watch {
            host.process().signal(Signal::HUP)?;
        }
        host.wait_for_generation("webhooks", 2)?;
        rig.outbox()?.add("orders", None, b"x")?;
        let request = &receiver.wait_for_accepted(1)?[0];
        assert_eq!((request.header("user-agent"), request.header("x-token")), (Some(agent("0.1.7").as_str()), Some("second")));
        host.shut_down()?;
    }
    Ok(())
}

#[test]
fn a_refused_configuration_is_tried_again_when_what_was_missing_is_there() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins").set("watch_config", true);
    let rig = Rig::with_fixtures(&config)?;
    let mut host = rig.host()?;
    host.wait_for_generation("webhooks", 1)?;
    rig.configure(&with_secret(config.set("publishers.webhooks.plugin", "next")))?;
    host.process().errors().wait_for_line("plugins/next.wasm; it has: ")?;
    components::put(&rig.path().join("plugins"), "next", &components::publisher("0.1.7")?)?;
    host.process().errors().wait_for_line("there is no secret `token`")?;
    fs::write(rig.path().join("token"), "second")?;
    host.wait_for_generation("webhooks", 2)?;
    rig.outbox()?.add("orders", None, b"x")?;
    let request = &receiver.wait_for_accepted(1)?[0];
    assert_eq!((request.header("user-agent"), request.header("x-token")), (Some(agent("0.1.7").as_str()), Some("second")));
    host.shut_down()
}

#[test]
fn a_configuration_that_is_refused_for_what_passes_is_tried_again() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (name, script) = registry::script(components::publisher("0.1.7")?);
    let registry = Receiver::start(|_| Answer::status(503))?;
    let (rig, config) = rig(&receiver, &registry)?;
    let config = config.set("watch_config", true);
    rig.configure(&config)?;
    let mut host = rig.host()?;
    host.wait_for_generation("webhooks", 1)?;
    rig.configure(&config.set("publishers.webhooks.plugin", reference(&registry, &name)))?;
    host.process().errors().wait_for_line("is refused, and the configuration stays as it was")?;
    // The second time is as the first, and nothing to complain of again.
    registry.wait_for_requests(2)?;
    registry.set_script(script);
    host.wait_for_generation("webhooks", 2)?;
    assert!((host.metric("outhaul_config_reloads_total{result=\"refused\"}")? - 1.0).abs() < 0.5, "{}", host.log());
    host.shut_down()
}

#[test]
fn a_registry_that_does_not_answer_holds_up_nobody_else() -> Result<()> {
    let (gate, receiver) = (Gate::closed(), Receiver::accepting()?);
    let registry = Receiver::start({
        let gate = gate.clone();
        move |_| Answer::status(503).behind(&gate)
    })?;
    let (rig, config) = rig(&receiver, &registry)?;
    rig.configure(&config)?;
    let mut host = rig.host()?;
    host.wait_for_generation("outbox", 1)?;
    let (name, _) = registry::script(Vec::new());
    rig.configure(&config.set("publishers.webhooks.plugin", reference(&registry, &name)))?;
    host.process().signal(Signal::HUP)?;
    registry.wait_for_requests(1)?;
    components::put(&rig.path().join("plugins"), "sqlite-storage", &components::storage("0.1.7")?)?;
    host.wait_for_generation("outbox", 2)?;
    assert!(host.metric("outhaul_config_reloads_total")?.abs() < 0.5, "the registry still owes its answer");
    host.shut_down()
}
