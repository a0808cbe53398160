//! The table router against a real file, and against real servers.

use super::TableRouter;
use crate::config;
use crate::config::Config;
use crate::config::model::RouterKind;
use crate::domain::{Batch, Failure, FailureCode, NewMessage};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use crate::secrets::Secrets;
use crate::sql::{Databases, Dialect};
use outhaul_services::Major;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);

/// A router, and how its database is reached by others.
struct Fixture {
    router: TableRouter,
    run: Box<dyn Fn(&str)>,
    postgres: bool,
    folder: TempDir,
}

fn router(config: &Config) -> TableRouter {
    let RouterKind::Table(table) = config.routers[0].kind.clone() else { panic!("{:?}", config.routers) };
    let databases = Databases::new(&config.databases, &config.secrets);
    TableRouter::new("r", *table, databases, Secrets::new(config.secrets.clone()))
}

fn parsed(folder: &Path, url: &str, section: &str) -> Config {
    let text = format!(
        "[databases.main]\nurl = {url:?}\n[secrets]\nauth.file = \"auth\"\nother.file = \"other\"\n[routers.r]\ndatabase = \"main\"\n{section}"
    );
    config::parse(&text, &folder.join("o.toml")).unwrap()
}

/// On SQLite, and on each version of the server that there is.
fn on_each(section: &str, test: impl AsyncFn(&Fixture)) {
    let wait_for = |fixture: Fixture| {
        // Dropped behind it: a database is dropped over a connection of its own.
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test(&fixture));
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("main.db");
    let config = parsed(folder.path(), &format!("sqlite:{}", file.display()), section);
    rusqlite::Connection::open(&file).unwrap().execute_batch("PRAGMA journal_mode = wal").unwrap();
    let run = Box::new(move |sql: &str| rusqlite::Connection::open(&file).unwrap().execute_batch(sql).unwrap());
    wait_for(Fixture { router: router(&config), run, postgres: false, folder });
    for major in Major::ALL {
        let Some(server) = outhaul_services::postgres(major) else { continue };
        let database = server.create_database().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = parsed(folder.path(), &database.url(), section);
        // On a thread of its own: the client has a runtime of its own, which may not wait within another one.
        let run = Box::new(move |sql: &str| {
            let (url, sql) = (database.url(), sql.to_owned());
            let run = move || outhaul_services::postgres::connect(&url).unwrap().batch_execute(&sql).unwrap();
            std::thread::spawn(run).join().unwrap();
        });
        wait_for(Fixture { router: router(&config), run, postgres: true, folder });
    }
}

impl Fixture {
    async fn expand(&self, events: &[(&str, &str)]) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure> {
        let mut batch = Batch::default();
        for (index, (_, topic)) in events.iter().enumerate() {
            batch.push(&NewMessage { id: Some(&index.to_string()), topic, ..NewMessage::default() });
        }
        let tenants: Vec<String> = events.iter().map(|(tenant, _)| (*tenant).to_owned()).collect();
        self.router.expand(&batch, &tenants, DEADLINE).await
    }

    /// The names of the subscribers of each event.
    async fn names(&self, events: &[(&str, &str)]) -> Vec<Vec<String>> {
        let answers = self.expand(events).await.unwrap();
        answers.into_iter().map(|answer| answer.unwrap().into_iter().map(|one| one.subscriber).collect()).collect()
    }

    async fn current(&self, inquiries: &[(&str, &str, &str)]) -> Vec<Result<Option<Subscription>, Failure>> {
        let inquiry = |(tenant, subscriber, topic): &(&str, &str, &str)| Inquiry {
            tenant: (*tenant).into(),
            subscriber: (*subscriber).into(),
            topic: (*topic).into(),
        };
        self.router.current(&inquiries.iter().map(inquiry).collect::<Vec<_>>(), DEADLINE).await.unwrap()
    }
}

#[test]
fn the_table_of_the_ddl_says_who_wants_what() {
    on_each("table = \"subscriptions\"\nallow_secrets = [\"auth\"]", async |at| {
        assert_eq!(at.router.probe().await.unwrap_err().code, FailureCode::InvalidConfiguration);
        at.router.create().await.unwrap();
        at.router.create().await.unwrap();
        at.router.probe().await.unwrap();
        let list = if at.postgres { "ARRAY['orders.*', 'users.new']" } else { "'[\"orders.*\",\"users.new\"]'" };
        let one = if at.postgres { "ARRAY['orders.paid']" } else { "'orders.paid'" };
        (at.run)(&format!(
            "INSERT INTO subscriptions (tenant, subscriber, url, event_types, signing_scope, authentication, principal, active) VALUES
             ('acme', 'all', 'https://all.example/', NULL, NULL, NULL, '', true),
             ('acme', 'list', 'https://list.example/', {list}, 'acme', '{{\"type\": \"bearer\", \"token\": \"t\"}}', 'p', true),
             ('acme', 'one', 'https://one.example/', {one}, '', NULL, '', true),
             ('acme', 'off', 'https://off.example/', NULL, NULL, NULL, '', false),
             ('Initech', 'all', 'https://initech.example/', NULL, NULL, NULL, '', true)"
        ));
        let events = [("acme", "orders.paid"), ("acme", "users.new"), ("Initech", "x"), ("initech", "x"), ("", "x"), ("acme", "x")];
        assert_eq!(at.names(&events).await, [vec!["all", "list", "one"], vec!["all", "list"], vec!["all"], vec![], vec![], vec!["all"]]);
        let answers = at.current(&[
            ("acme", "list", "orders.paid"),
            ("acme", "list", "x"),
            ("acme", "off", "x"),
            ("Initech", "list", "orders.paid"),
            ("acme", "one", "orders.paid"),
        ]);
        let answers = answers.await;
        let list = answers[0].as_ref().ok().unwrap().as_ref().unwrap();
        assert_eq!((list.tenant.as_str(), list.principal.as_str(), list.signing_scope.as_deref()), ("acme", "p", Some("acme")));
        assert_eq!(list.authentication.as_deref(), Some("{\"type\": \"bearer\", \"token\": \"t\"}"));
        assert_eq!((list.url.as_str(), list.revision.as_str()), ("https://list.example/", "1"));
        assert!(answers[1..4].iter().all(|answer| matches!(answer, Ok(None))));
        let one = answers[4].as_ref().ok().unwrap().as_ref().unwrap();
        assert_eq!((one.signing_scope.as_deref(), one.authentication.as_deref()), (None, None), "empty is none");

        // What expand has answered is what is current, up to the change of any column.
        let expanded = at.expand(&[("acme", "orders.paid")]).await.unwrap().remove(0).ok().unwrap();
        assert!(expanded.iter().any(|one| one == list));
        for change in ["revision = 2", "url = 'https://new.example/'", "signing_scope = 'b'", "principal = 'q'", "active = false"] {
            (at.run)(&format!("UPDATE subscriptions SET {change} WHERE subscriber = 'list'"));
            let now = at.current(&[("acme", "list", "orders.paid")]).await.remove(0).ok().unwrap();
            assert!(now.as_ref() != Some(list), "{change}");
            assert_eq!(now.is_none(), change.starts_with("active"));
        }
    });
}

#[test]
fn another_table_has_the_names_of_its_columns_and_false_for_those_that_it_has_not() {
    let section = "table = \"hooks\"\n[routers.r.columns]\ntenant = false\nsubscriber = \"na\\\"me\"\nurl = \"target\"\nevent_types = \"topic\"\n\
                   signing_scope = false\nauthentication = false\nprincipal = false\nrevision = \"changed\"\nactive = \"state\"";
    on_each(section, async |at| {
        (at.run)("CREATE TABLE hooks (\"na\"\"me\" text, target text, topic text, changed timestamp, state text)");
        (at.run)(
            "INSERT INTO hooks VALUES ('a', 'https://a/', 'orders.*', '2026-01-02 03:04:05', 'ACTIVE'), ('b', 'https://b/', NULL, NULL, 'paused'),
             ('c', 'https://c/', '[\"x\"]', NULL, 'enabled'), ('d', NULL, '*', NULL, '1'), ('e', 'https://e/', NULL, NULL, NULL)",
        );
        at.router.probe().await.unwrap();
        assert_eq!(at.names(&[("", "orders.paid"), ("", "x"), ("acme", "x")]).await, [vec!["a", "d"], vec!["c", "d"], vec![]]);
        let answers = at.current(&[("", "a", "orders.paid"), ("", "d", "x")]).await;
        let [Ok(Some(a)), Ok(Some(d))] = answers.as_slice() else { panic!("two subscriptions") };
        assert_eq!((a.revision.as_str(), d.url.as_str(), d.revision.as_str()), ("2026-01-02 03:04:05", "", ""));

        (at.run)("INSERT INTO hooks VALUES ('a', 'https://other/', 'orders.*', NULL, 'active')");
        let twice = at.current(&[("", "a", "orders.paid"), ("", "c", "x")]).await;
        assert!(matches!(&twice[0], Err(failure) if failure.detail.contains("more than once") && !failure.detail.contains("https")));
        assert!(matches!(&twice[1], Ok(Some(_))));
        // Whoever asked ends such an event.
        assert_eq!(at.names(&[("", "orders.paid")]).await, [vec!["a", "a", "d"]]);
    });
}

#[test]
fn a_secret_stands_in_for_an_authentication_if_it_is_granted() {
    on_each("table = \"subscriptions\"\nallow_secrets = [\"auth\"]", async |at| {
        at.router.create().await.unwrap();
        (at.run)(
            "INSERT INTO subscriptions (tenant, subscriber, url, authentication) VALUES
             ('a', 'granted', 'https://a/', '{\"secret\": \"auth\"}'), ('b', 'other', 'https://b/', '{\"secret\": \"other\"}'),
             ('c', 'more', 'https://c/', '{\"secret\": \"auth\", \"type\": \"x\"}')",
        );
        std::fs::write(at.folder.path().join("auth"), "{\"type\":\"bearer\",\"token\":\"hunter2\"}\n").unwrap();
        let events = [("a", "t"), ("b", "t"), ("c", "t")];
        let answers = at.expand(&events).await.unwrap();
        let authentication =
            |answer: &Result<Vec<Subscription>, Failure>| answer.as_ref().ok().and_then(|found| found[0].authentication.clone());
        assert_eq!(authentication(&answers[0]).as_deref(), Some("{\"type\":\"bearer\",\"token\":\"hunter2\"}"));
        let failure = answers[1].as_ref().err().unwrap();
        assert_eq!(failure.code, FailureCode::InvalidConfiguration);
        assert!(failure.detail.contains("\"other\" of tenant \"b\"") && failure.detail.contains("allow_secrets of routers.r"), "{failure}");
        assert!(authentication(&answers[2]).is_some_and(|text| text.contains("\"secret\"")), "it is another authentication");

        std::fs::write(at.folder.path().join("auth"), "hunter2").unwrap();
        let failure = at.current(&[("a", "granted", "t")]).await.remove(0).err().unwrap();
        assert!(failure.detail.contains("JSON object") && !failure.detail.contains("hunter2"), "{failure}");
        std::fs::remove_file(at.folder.path().join("auth")).unwrap();
        assert_eq!(at.current(&[("a", "granted", "t")]).await.remove(0).err().unwrap().code, FailureCode::SigningUnavailable);
    });
}

#[test]
fn a_row_that_makes_no_sense_stands_in_the_way_of_its_tenant_only() {
    on_each("table = \"subscriptions\"\ncolumns.event_types = \"types\"", async |at| {
        (at.run)(
            "CREATE TABLE subscriptions (tenant text, subscriber text, url text, types text, signing_scope text, authentication text,
             principal text, revision text, active boolean);
             INSERT INTO subscriptions VALUES ('a', 'bad', 'https://hunter2/', '[1', NULL, NULL, NULL, NULL, true);
             INSERT INTO subscriptions VALUES ('a', 'good', 'https://a/', NULL, NULL, NULL, NULL, NULL, true);
             INSERT INTO subscriptions VALUES ('b', 'good', 'https://b/', NULL, NULL, NULL, NULL, NULL, true);",
        );
        let answers = at.expand(&[("a", "t"), ("b", "t")]).await.unwrap();
        let failure = answers[0].as_ref().err().unwrap();
        assert_eq!(failure.code, FailureCode::InvalidConfiguration);
        let told = "router \"r\", subscriber \"bad\" of tenant \"a\": event_types is neither a pattern nor a JSON array of patterns";
        assert!(failure.detail.starts_with(told) && !failure.detail.contains("hunter2"), "{failure}");
        assert!(answers[1].is_ok());
        let current = at.current(&[("a", "bad", "t"), ("a", "good", "t")]).await;
        assert!(current[0].is_err() && matches!(&current[1], Ok(Some(_))));
    });
}

#[test]
fn what_is_missing_says_what_to_do() {
    on_each("table = \"subscriptions\"", async |at| {
        let failure = at.expand(&[("a", "t")]).await.err().unwrap();
        assert_eq!(failure.code, FailureCode::InvalidConfiguration);
        assert!(failure.detail.contains("outhaul fanout schema r --apply"), "{failure}");
        (at.run)("CREATE TABLE subscriptions (tenant text, subscriber text, url text)");
        let failure = at.router.probe().await.unwrap_err();
        assert!(failure.detail.contains("routers.r.columns"), "{failure}");
        assert!(at.expand(&[]).await.unwrap().is_empty());
    });
    let folder = tempfile::tempdir().unwrap();
    let config = parsed(folder.path(), &format!("sqlite:{}", folder.path().join("absent.db").display()), "table = \"t\"");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(router(&config).probe()).unwrap_err().code, FailureCode::Unavailable);
}

#[test]
fn a_thousand_events_of_many_tenants_are_one_look() {
    on_each("table = \"subscriptions\"", async |at| {
        at.router.create().await.unwrap();
        let rows: Vec<String> = (0..3000).map(|row| format!("('t{}', 's{row:04}', 'https://h/{row}')", row % 300)).collect();
        (at.run)(&format!("INSERT INTO subscriptions (tenant, subscriber, url) VALUES {}", rows.join(", ")));
        let tenants: Vec<String> = (0..1000).map(|event| format!("t{}", event % 310)).collect();
        let events: Vec<(&str, &str)> = tenants.iter().map(|tenant| (tenant.as_str(), "x")).collect();
        let names = at.names(&events).await;
        assert_eq!((names.len(), names[0].len(), names[305].len(), names[310].len()), (1000, 10, 0, 10));
        assert_eq!(names[1][..2], ["s0001", "s0301"]);
        // What no table can hold stands in nobody's way.
        assert_eq!(at.names(&[("t\0", "x"), ("t1", "x")]).await.iter().map(Vec::len).collect::<Vec<_>>(), [0, 10]);
        assert!(matches!(at.current(&[("t1", "s\0", "x"), ("t1", "s0001", "x")]).await.as_slice(), [Ok(None), Ok(Some(_))]));
    });
}

#[test]
fn the_ddl_has_the_types_of_its_database() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(&parsed(folder.path(), "sqlite:a.db", "table = \"app.subs\"\ncolumns = { tenant = false, revision = false }"));
    assert_eq!(
        router.schema(Dialect::Sqlite),
        "CREATE TABLE IF NOT EXISTS \"app\".\"subs\" (\n    \"subscriber\" text NOT NULL,\n    \"url\" text NOT NULL,\n    \"event_types\" text,\n    \
         \"signing_scope\" text,\n    \"authentication\" text,\n    \"principal\" text NOT NULL DEFAULT '',\n    \"active\" boolean NOT NULL \
         DEFAULT true,\n    PRIMARY KEY (\"subscriber\")\n)"
    );
    let postgres = router.schema(Dialect::Postgres);
    assert!(postgres.contains("\"event_types\" text[]") && postgres.contains("\"authentication\" jsonb"), "{postgres}");
}
