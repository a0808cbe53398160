//! Configurations and files that change while relays wait for what they need, or are about to begin.

use anyhow::Result;
use outhaul_tests::components;
use outhaul_tests::receiver::{Answer, Gate, Receiver};
use outhaul_tests::registry;
use outhaul_tests::rig::{Config, Rig};
use rustix::process::Signal;

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
    host.process().signal(Signal::HUP)?;
    // Nothing that is open uses what has changed.
    host.process().errors().wait_for_line("nothing has changed")?;
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
