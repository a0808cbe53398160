//! Adapters and configuration that change under a running host.

use anyhow::{Context, Result};
use outhaul_tests::components::{self, agent};
use outhaul_tests::host::Host;
use outhaul_tests::ledger::{Event, Report};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::process::poll;
use outhaul_tests::receiver::{Answer, Gate, Receiver, Request};
use outhaul_tests::rig::{Config, Rig};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;

/// A port that is free now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A rig with a plugin folder of its own, and an admin address that the command line can ask.
fn rig(receiver: &Receiver, change: impl FnOnce(Config) -> Config) -> Result<(Rig, PathBuf, Config)> {
    let config = Config::to(receiver.address())?.set("admin.listen", format!("127.0.0.1:{}", free_port()?));
    // An answer that is held back is waited for, however long the machine takes to compile meanwhile.
    let config = config.set("relays.0.publish_timeout", "50s").set("publishers.webhooks.config.timeout", "45s");
    let config = change(config).set("plugins.dir", "plugins");
    let rig = Rig::with_fixtures(&config)?;
    let folder = rig.path().join("plugins");
    Ok((rig, folder, config))
}

/// What the host says of an adapter.
fn running(host: &Host, adapter: &str) -> Result<Value> {
    let document: Value = serde_json::from_str(&host.get("/plugins")?.1)?;
    let list = document["plugins"].as_array().context("a list of plugins")?;
    list.iter().find(|entry| entry["adapter"] == adapter).cloned().with_context(|| format!("no {adapter} in {document}"))
}

/// Commits a message and waits until it is accepted: the request.
fn sent(rig: &Rig, receiver: &Receiver, topic: &str) -> Result<Request> {
    let id = rig.outbox()?.add(topic, None, b"x")?;
    let accepted = |request: &Request| request.id == id && request.accepted();
    let requests = receiver.wait_for(&format!("message {id}"), |requests| requests.iter().any(accepted))?;
    requests.into_iter().find(accepted).context("it was there a moment ago")
}

#[test]
fn a_new_file_takes_over_and_calls_in_flight_end_on_the_old_one() -> Result<()> {
    let gate = Gate::closed();
    let receiver = Receiver::start({
        let gate = gate.clone();
        move |request| if request.path == "/slow" { Answer::status(204).behind(&gate) } else { Answer::status(204) }
    })?;
    let (rig, folder, _) = rig(&receiver, |config| config)?;
    let host = rig.host()?;
    let outbox = rig.outbox()?;
    let slow = outbox.add("slow", None, b"x")?;
    receiver.wait_for_requests(1)?;
    let before = running(&host, "publishers.webhooks")?;

    components::put(&folder, "http-publisher", &components::publisher("0.1.7")?)?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent(&rig, &receiver, "next")?.header("user-agent"), Some(agent("0.1.7").as_str()));
    assert_eq!(receiver.requests()[0].answered, None, "the old generation still waits for its answer");
    gate.open();
    outbox.wait_for_rows("the slow one to be settled", |rows| rows.iter().all(|row| row.status == DELIVERED))?;
    assert_eq!(outbox.row(&slow)?.attempts, 1);
    assert_eq!(receiver.requests().len(), 2, "nothing was sent twice");

    // Rolled back.
    components::put(&folder, "http-publisher", &components::built("http-publisher")?)?;
    host.wait_for_generation("webhooks", 3)?;
    assert_eq!(sent(&rig, &receiver, "last")?.header("user-agent"), Some(agent("0.1.0").as_str()));
    let after = running(&host, "publishers.webhooks")?;
    assert_eq!((&after["sha256"], &after["generation"], &after["version"]), (&before["sha256"], &3.into(), &"0.1.0".into()));
    assert!((host.metric("outhaul_adapter_swaps_total{adapter=\"webhooks\"}")? - 2.0).abs() < 0.5);
    let listed = rig.run(&["plugin", "list"])?.success()?;
    assert!(listed.contains("running:") && listed.contains("publishers.webhooks"), "{listed}");
    host.shut_down()
}

#[test]
fn a_bad_candidate_leaves_the_old_one_running_and_says_why() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, folder, _) = rig(&receiver, |config| config)?;
    let mut host = rig.host()?;
    sent(&rig, &receiver, "first")?;
    for (index, bad) in components::bad()?.into_iter().enumerate() {
        components::put(&folder, "http-publisher", &bad.bytes)?;
        let line = host.process().errors().wait_for(bad.what, |captured| {
            captured.lines.iter().filter(|line| line.contains("a candidate is refused")).nth(index).cloned()
        })?;
        assert!(line.contains(bad.told), "{}: {line}", bad.what);
        assert!(line.contains("generation 1 goes on") && line.contains("\"level\":\"ERROR\""), "{}: {line}", bad.what);
        assert_eq!(sent(&rig, &receiver, "other")?.header("user-agent"), Some(agent("0.1.0").as_str()), "beside {}", bad.what);
        let told = running(&host, "publishers.webhooks")?;
        let reason = told["refused"]["reason"].as_str().unwrap_or_default();
        assert!(told["generation"] == 1 && reason.contains(bad.told) && reason.contains("publishers.webhooks"), "{told}");
        #[allow(clippy::cast_precision_loss)]
        let count = (index + 1) as f64;
        assert!((host.metric("outhaul_adapter_candidates_refused_total{adapter=\"webhooks\"}")? - count).abs() < 0.5);
        let listed = rig.run(&["plugin", "list"])?.success()?;
        assert!(listed.contains("stays with generation 1") && listed.contains(bad.told), "{listed}");
    }
    // The running one is put back: there is nothing to complain of, and nothing to swap.
    components::put(&folder, "http-publisher", &components::built("http-publisher")?)?;
    poll("the complaint to be gone", || Ok(running(&host, "publishers.webhooks")?["refused"].is_null()))?;
    assert_eq!(running(&host, "publishers.webhooks")?["generation"], 1);
    host.shut_down()
}

#[test]
fn what_does_not_open_with_its_configuration_is_refused_with_the_line() -> Result<()> {
    // The fixture refuses, or never returns, where its configuration says so.
    for (word, told) in [("refuse", "publishers.webhooks.config.url: is missing"), ("spin", "open was ended: its time was over")] {
        let receiver = Receiver::accepting()?;
        let url = format!("http://{}/{word}/{{topic}}", receiver.address());
        let (rig, folder, _) = rig(&receiver, |config| {
            config.set("publishers.webhooks.config.url", url).set("publishers.webhooks.limits.call_timeout", "500ms")
        })?;
        let mut host = rig.host()?;
        sent(&rig, &receiver, "first")?;
        components::put(&folder, "http-publisher", &fs::read(folder.join("evil-publisher.wasm"))?)?;
        let line = host.process().errors().wait_for_line("a candidate is refused")?;
        assert!(line.contains(told), "{line}");
        assert_eq!(sent(&rig, &receiver, "second")?.header("user-agent"), Some(agent("0.1.0").as_str()));
        host.shut_down()?;
    }
    Ok(())
}

#[test]
fn a_copy_that_stalls_is_taken_when_it_is_whole() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, folder, _) = rig(&receiver, |config| config)?;
    let mut host = rig.host()?;
    sent(&rig, &receiver, "first")?;
    let new = components::publisher("0.1.7")?;
    let (half, rest) = new.split_at(new.len() / 2);
    components::write_over(&folder, "http-publisher", half)?;
    host.process().errors().wait_for_line("is truncated or damaged")?;
    assert_eq!(sent(&rig, &receiver, "second")?.header("user-agent"), Some(agent("0.1.0").as_str()));
    fs::File::options().append(true).open(folder.join("http-publisher.wasm"))?.write_all(rest)?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent(&rig, &receiver, "third")?.header("user-agent"), Some(agent("0.1.7").as_str()));
    host.shut_down()
}

#[test]
fn a_deleted_file_changes_nothing_but_a_warning() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, folder, _) = rig(&receiver, |config| config)?;
    let mut host = rig.host()?;
    sent(&rig, &receiver, "first")?;
    fs::remove_file(folder.join("http-publisher.wasm"))?;
    fs::remove_file(folder.join("sqlite-storage.wasm"))?;
    for name in ["http-publisher", "sqlite-storage"] {
        let line = host.process().errors().wait_for_line(&format!("{name}.wasm is gone"))?;
        assert!(line.contains("\"level\":\"WARN\"") && line.contains("put it back before the next start"), "{line}");
    }
    poll("that to be told", || Ok(running(&host, "publishers.webhooks")?["file_is_gone"] == true))?;
    assert_eq!(sent(&rig, &receiver, "second")?.header("user-agent"), Some(agent("0.1.0").as_str()));
    components::put(&folder, "http-publisher", &components::built("http-publisher")?)?;
    poll("the file to be seen again", || Ok(running(&host, "publishers.webhooks")?["file_is_gone"] == false))?;
    assert_eq!(running(&host, "publishers.webhooks")?["generation"], 1);
    host.shut_down()
}

#[test]
fn what_is_told_of_a_file_that_cannot_be_read_is_told_until_it_can_be() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, folder, _) = rig(&receiver, |config| config)?;
    let host = rig.host()?;
    sent(&rig, &receiver, "first")?;
    let file = folder.join("http-publisher.wasm");
    let built = components::built("http-publisher")?;
    let reason = |what: &str, wanted: Option<&str>| {
        poll(what, || {
            let refused = &running(&host, "publishers.webhooks")?["refused"];
            Ok(wanted.map_or(refused.is_null(), |told| refused["reason"].as_str().is_some_and(|reason| reason.contains(told))))
        })
    };
    // A folder of that name can be read as little as a file of somebody else's.
    let unreadable = || -> Result<()> {
        fs::remove_file(&file)?;
        Ok(fs::create_dir(&file)?)
    };
    unreadable()?;
    reason("a folder to be refused", Some("it is not a regular file"))?;
    fs::remove_dir(&file)?;
    components::put(&folder, "http-publisher", &built)?;
    reason("the complaint to be gone", None)?;
    // The same around a file that is refused for what is in it.
    components::put(&folder, "http-publisher", &built[..1000])?;
    reason("a bad file to be refused", Some("truncated or damaged"))?;
    unreadable()?;
    reason("a folder to be refused again", Some("it is not a regular file"))?;
    fs::remove_dir(&file)?;
    components::put(&folder, "http-publisher", &built[..1000])?;
    reason("what is wrong with the file to be told again", Some("truncated or damaged"))?;
    assert_eq!(running(&host, "publishers.webhooks")?["generation"], 1);
    host.shut_down()
}

#[test]
fn a_storage_is_swapped_under_load_and_settles_what_the_old_one_claimed() -> Result<()> {
    let gate = Gate::closed();
    let receiver = Receiver::start({
        let gate = gate.clone();
        move |_| Answer::status(204).behind(&gate)
    })?;
    let (rig, folder, _) = rig(&receiver, |config| config)?;
    let host = rig.host()?;
    let committed = rig.outbox()?.fill("orders", 20, 30)?;
    receiver.wait_for_requests(1)?;
    components::put(&folder, "sqlite-storage", &components::storage("0.1.7")?)?;
    host.wait_for_generation("outbox", 2)?;
    gate.open();
    let rows = rig.outbox()?.wait_for_rows("all to be settled", |rows| rows.iter().all(|row| row.status == DELIVERED))?;
    assert!(rows.iter().all(|row| row.attempts == 1), "a lease was lost: {:?}", rows.iter().find(|row| row.attempts != 1));
    let accepted = receiver.requests().iter().map(|request| Event::from_payload(&request.body)).collect::<Result<Vec<_>>>()?;
    Report::new(&committed, &accepted).check(&BTreeMap::new())?;
    for metric in ["outhaul_late_settles_total", "outhaul_leases_lost_total", "outhaul_storage_failures_total"] {
        assert!(host.metric(metric)?.abs() < 0.5, "{metric}: {}", host.log());
    }
    host.shut_down()
}

#[test]
fn relays_that_share_a_publisher_swap_at_once() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?.set("plugins.dir", "plugins");
    let two = format!(
        "{}\n[storages.second]\nplugin = \"sqlite-storage\"\ndatabase = \"main\"\nconfig = {{ table = \"second\" }}\n\
         [[relays]]\nname = \"second\"\nstorage = \"second\"\nroutes = [ {{ topic = \"*\", publisher = \"webhooks\" }} ]\n",
        config.text()
    );
    let rig = Rig::with_fixtures(&config)?;
    fs::write(rig.config(), two)?;
    rig.run(&["schema", "--storage", "second", "--apply"])?.success()?;
    let host = rig.host()?;
    let both = |agent: &str| -> Result<()> {
        let before = receiver.requests().len();
        for storage in ["outbox", "second"] {
            rig.run(&["enqueue", "--storage", storage, "--topic", storage, "--payload", "x"])?.success()?;
        }
        let requests = receiver.wait_for_accepted(before + 2)?;
        assert!(requests[before..].iter().all(|request| request.header("user-agent") == Some(agent)), "{requests:?}");
        Ok(())
    };
    both(&agent("0.1.0"))?;
    components::put(&rig.path().join("plugins"), "http-publisher", &components::publisher("0.1.7")?)?;
    host.wait_for_generation("webhooks", 2)?;
    both(&agent("0.1.7"))?;
    assert!((host.metric("outhaul_adapter_swaps_total")? - 1.0).abs() < 0.5, "one publisher, one swap");
    host.shut_down()
}

#[test]
fn without_watching_a_signal_is_needed() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, folder, _) = rig(&receiver, |config| config.set("plugins.watch", false))?;
    let mut host = rig.host()?;
    sent(&rig, &receiver, "first")?;
    components::put(&folder, "http-publisher", &components::publisher("0.1.7")?)?;
    assert_eq!(sent(&rig, &receiver, "second")?.header("user-agent"), Some(agent("0.1.0").as_str()));
    host.process().signal(Signal::HUP)?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent(&rig, &receiver, "third")?.header("user-agent"), Some(agent("0.1.7").as_str()));
    host.shut_down()
}

#[test]
fn a_new_configuration_is_taken_over_as_a_whole_or_not_at_all() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, _, config) = rig(&receiver, |config| config)?;
    let mut host = rig.host()?;
    assert_eq!(sent(&rig, &receiver, "a")?.path, "/a");
    host.reload("unchanged")?;

    // The publisher's own settings.
    let url = format!("http://{}/v2/{{topic}}", receiver.address());
    let config = config.set("publishers.webhooks.config.url", url);
    rig.configure(&config)?;
    host.reload("applied")?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent(&rig, &receiver, "a")?.path, "/v2/a");

    // Not TOML; a key that is wrong for the adapter; a key that is read at the start only.
    for (text, told) in [
        ("[log".to_owned(), "not TOML"),
        (config.clone().set("publishers.webhooks.config.ulr", "x").text(), "publishers.webhooks.config.ulr: unknown field"),
        (
            config.clone().set("databases.main.url", "sqlite:other.db").set("relays.0.batch", 7).text(),
            "databases.main: cannot change while",
        ),
    ] {
        fs::write(rig.config(), text)?;
        host.reload("refused")?;
        let line = host.process().errors().wait_for_line(told)?;
        assert!(line.contains("the configuration stays as it was"), "{line}");
        poll("that to be told", || {
            let document: Value = serde_json::from_str(&host.get("/plugins")?.1)?;
            Ok(document["config_refused"]["reason"].as_str().unwrap_or_default().contains(told))
        })?;
        assert_eq!(sent(&rig, &receiver, "a")?.path, "/v2/a");
        host.wait_for_generation("webhooks", 2)?;
    }

    // Another route, to a publisher that was not open: the relay begins anew.
    let second = format!(
        "plugin = \"http-publisher\"\nallow_hosts = [\"{0}\"]\nconfig = {{ url = \"http://{0}/second/{{topic}}\" }}",
        receiver.address()
    );
    let config = config
        .set_all("publishers.second", &second)
        .set_all("relays.0", r#"routes = [ { topic = "b", publisher = "second" }, { topic = "*", publisher = "webhooks" } ]"#);
    rig.configure(&config)?;
    host.reload("applied")?;
    // The first rows may still go the old way; `begins anew` is followed by a second start.
    let started = |lines: &[String]| lines.iter().filter(|line| line.contains("relay started")).count() == 2;
    host.process().errors().wait_for("the second start", |captured| started(&captured.lines).then_some(()))?;
    assert_eq!(sent(&rig, &receiver, "b")?.path, "/second/b");
    assert_eq!(sent(&rig, &receiver, "a")?.path, "/v2/a");
    assert!(running(&host, "publishers.second")?["generation"] == 1);
    host.shut_down()
}

#[test]
fn another_table_is_begun_when_what_is_in_flight_is_settled() -> Result<()> {
    let gate = Gate::closed();
    let receiver = Receiver::start({
        let gate = gate.clone();
        move |request| if request.path == "/held" { Answer::status(204).behind(&gate) } else { Answer::status(204) }
    })?;
    let (rig, _, config) = rig(&receiver, |config| config)?;
    let config = config.set("storages.outbox.config.table", "second");
    let old = fs::read_to_string(rig.config())?;
    rig.configure(&config)?;
    rig.run(&["schema", "--apply"])?.success()?;
    rig.run(&["enqueue", "--topic", "second", "--payload", "x"])?.success()?;
    fs::write(rig.config(), old)?;
    let mut host = rig.host()?;
    let held = rig.outbox()?.add("held", None, b"x")?;
    receiver.wait_for_requests(1)?;
    rig.configure(&config)?;
    host.reload("applied")?;
    host.process().errors().wait_for_line("begins anew")?;
    assert_eq!(running(&host, "storages.outbox")?["generation"], 1, "not before what is in flight is settled");
    assert_eq!(receiver.requests().len(), 1);
    gate.open();
    receiver.wait_for_accepted(2)?;
    host.wait_for_generation("outbox", 2)?;
    let row = rig.outbox()?.row(&held)?;
    assert_eq!((row.status.as_str(), row.attempts), (DELIVERED, 1), "settled by the generation that had claimed it");
    host.shut_down()
}

#[test]
fn a_changed_file_is_taken_over_by_itself_where_that_is_asked_for() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, _, config) = rig(&receiver, |config| config.set("watch_config", true))?;
    let host = rig.host()?;
    assert_eq!(sent(&rig, &receiver, "a")?.path, "/a");
    rig.configure(&config.set("publishers.webhooks.config.url", format!("http://{}/v2/{{topic}}", receiver.address())))?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent(&rig, &receiver, "a")?.path, "/v2/a");
    host.shut_down()
}

#[test]
fn with_pins_another_file_is_refused() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let (rig, folder, config) = rig(&receiver, |config| config)?;
    // Without pins where the configuration wants them, nothing starts.
    rig.configure(&config.clone().set("plugins.pinned", true))?;
    let refused = rig.run(&["check"])?.failure(2)?;
    assert!(refused.contains("outhaul.lock are not there") && refused.contains("outhaul plugin pin"), "{refused}");
    rig.configure(&config)?;
    assert!(rig.run(&["plugin", "pin", "--check"])?.failure(2)?.contains("new"));
    let pinned = rig.run(&["plugin", "pin", "--json"])?.json()?;
    assert_eq!((&pinned["written"], &pinned["plugins"][0]["change"]), (&true.into(), &"new".into()));
    rig.run(&["plugin", "pin", "--check"])?.success()?;
    // Damaged pins are mended by people, not written over.
    let lock = rig.path().join("outhaul.lock");
    let pins = std::fs::read_to_string(&lock)?;
    let damaged = pins.replace("sha256 = \"", "sha256 = \"?");
    std::fs::write(&lock, &damaged)?;
    for arguments in [&["plugin", "pin"][..], &["plugin", "pin", "--check"], &["check"]] {
        let told = rig.run(arguments)?.failure(2)?;
        assert!(told.contains("outhaul.lock are damaged in line 5: ") && told.contains("restore the file"), "{told}");
        assert_eq!(std::fs::read_to_string(&lock)?, damaged);
    }
    std::fs::write(&lock, &pins)?;

    let mut host = rig.host()?;
    sent(&rig, &receiver, "first")?;
    components::put(&folder, "http-publisher", &components::publisher("0.1.7")?)?;
    let line = host.process().errors().wait_for_line("is not the component that")?;
    assert!(line.contains("outhaul.lock pins") && line.contains("a candidate is refused"), "{line}");
    assert_eq!(sent(&rig, &receiver, "second")?.header("user-agent"), Some(agent("0.1.0").as_str()));
    let differs = rig.run(&["plugin", "pin", "--check"])?.failure(2)?;
    assert!(differs.contains("changed") && differs.contains("review it"), "{differs}");
    let check = rig.run(&["check"])?.failure(2)?;
    assert!(check.contains("is not the component that"), "{check}");

    // Reviewed.
    rig.run(&["plugin", "pin"])?.success()?;
    host.wait_for_generation("webhooks", 2)?;
    assert_eq!(sent(&rig, &receiver, "third")?.header("user-agent"), Some(agent("0.1.7").as_str()));
    host.shut_down()
}
