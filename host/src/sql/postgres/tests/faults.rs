//! Servers that end, hang, refuse or take no writes.

use super::{Fixture, aside, bounds, databases, found, insert, on_each, other, run, select, wait_for};
use crate::config;
use crate::sql::{Access, Bounds, ColumnType, Databases, SqlErrorCode, Statement};
use outhaul_services::{Major, Postgres, ServerOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

fn sleep(seconds: f64) -> Statement {
    Statement::new(format!("SELECT pg_sleep({seconds})")).returning([ColumnType::Text])
}

/// A server of the test's own, with the table `t`; none where it cannot be had.
fn own(options: ServerOptions) -> Option<outhaul_services::Server> {
    outhaul_services::postgres(Major::V17)?;
    let server = Postgres::start_with(Major::V17, &ServerOptions { fsync: false, ..options }).unwrap();
    other(&server.url("postgres"), "CREATE TABLE t (id bigserial PRIMARY KEY, v text)");
    Some(server)
}

#[test]
fn a_session_that_was_ended_is_replaced_without_an_error() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        run(&connection, insert("a")).await.unwrap();
        let (mut transaction, _) = connection.begin(vec![insert("b")], bounds()).await.unwrap();
        fixture
            .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()");
        let error = transaction.execute(vec![insert("c")], bounds()).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
        assert!(error.detail.contains("administrator command"), "{error}");
        drop(transaction);
        run(&connection, insert("d")).await.unwrap();
        assert_eq!(fixture.count(), 2);
    });
}

#[test]
fn a_restart_costs_the_calls_that_run_and_no_later_one() {
    let Some(mut server) = own(ServerOptions::default()) else { return };
    let databases = databases(&server.url("postgres"), "");
    let connection = wait_for(async {
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        run(&connection, insert("a")).await.unwrap();
        connection
    });
    let pending = databases.open_blocking("main", Access::ReadWrite).unwrap();
    let waiter = std::thread::spawn(move || pending.execute_blocking(vec![insert("b"), sleep(60.0)], bounds()));
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid()";
    let url = server.url("postgres");
    while aside({
        let url = url.clone();
        move || outhaul_services::postgres::connect(&url).unwrap().query_one(asleep, &[]).unwrap().get::<_, i64>(0)
    }) == 0
    {}
    server.stop().unwrap();
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
    wait_for(async {
        let error = run(&connection, insert("c")).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
        assert!(error.detail.contains("cannot connect") && error.detail.contains("127.0.0.1:"), "{error}");
    });
    server.start_again().unwrap();
    wait_for(async {
        run(&connection, insert("d")).await.unwrap();
        assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 2);
    });
}

/// Stops the server process of a session, as a machine that hangs does; goes on when dropped.
struct Frozen(rustix::process::Pid);

impl Frozen {
    fn new(process: i64) -> Self {
        let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        Self(process)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

#[test]
fn a_server_that_hangs_ends_the_call_at_its_deadline_and_the_next_one_works() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let process = Statement::new("SELECT pg_backend_pid()").returning([ColumnType::Integer]);
        let process = found(&[run(&connection, process).await.unwrap()]);
        let frozen = Frozen::new(process);
        let start = Instant::now();
        let error = connection.execute(vec![insert("a")], Bounds::within(Duration::from_millis(400), 1000)).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Timeout, "{error}");
        assert!(error.detail.contains("no answer within") && start.elapsed() < Duration::from_secs(20), "{error}");
        run(&connection, insert("b")).await.unwrap();
        drop(frozen);
    });
}

#[test]
fn a_host_that_stands_still_in_a_transaction_keeps_its_locks_for_a_few_seconds_only() {
    let Some(fixture) = Fixture::new(Major::V17) else { return };
    wait_for(async {
        let connection = fixture.open().await;
        run(&connection, insert("a")).await.unwrap();
        let short = Bounds::within(Duration::from_millis(300), 1000);
        let (mut transaction, _) = connection.begin(vec![Statement::new("UPDATE t SET v = 'b'")], short).await.unwrap();
        // Waits on the lock, and holds up this thread: nothing of the host runs.
        fixture.sql("SET lock_timeout = '30s'; UPDATE t SET v = 'c'");
        let error = transaction.execute(vec![select()], bounds()).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Timeout && error.detail.contains("[25P03]"), "{error}");
        assert_eq!(fixture.number("SELECT count(*) FROM t WHERE v = 'c'"), 1);
        run(&connection, insert("d")).await.unwrap();
    });
}

#[test]
fn a_call_that_nobody_waits_for_leaves_a_clean_database() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        run(&connection, insert("a")).await.unwrap();
        {
            let mut call = pin!(connection.execute(vec![insert("b"), sleep(0.2), insert("c")], bounds()));
            assert!(tokio::time::timeout(Duration::from_millis(50), &mut call).await.is_err());
        }
        // The server notices, or it commits: never half of it.
        run(&connection, Statement::new("LOCK TABLE t")).await.unwrap_err();
        let count = found(&[run(&connection, select()).await.unwrap()]);
        assert!(matches!(count, 1 | 3), "{count}");
    });
}

#[test]
fn no_more_sessions_are_opened_than_allowed() {
    let Some(fixture) = Fixture::new(Major::V15) else { return };
    wait_for(async {
        let few = databases(&fixture.database.url(), "max_connections = 2");
        let connection = few.open("main", Access::ReadWrite).await.unwrap();
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let connection = connection.clone();
                tokio::spawn(async move { connection.execute(vec![insert("a"), sleep(0.05)], bounds()).await.unwrap() })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(
            fixture.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outhaul'"),
            2
        );
        let (first, _) = connection.begin(Vec::new(), bounds()).await.unwrap();
        let (_second, _) = connection.begin(Vec::new(), bounds()).await.unwrap();
        let error = connection.execute(vec![select()], Bounds::within(Duration::from_millis(100), 1000)).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Busy && error.detail.contains("all 2 connections"), "{error}");
        drop(first);
        run(&connection, select()).await.unwrap();
    });
}

#[test]
fn a_server_without_connections_left_is_unavailable_until_there_is_one() {
    let settings =
        [("max_connections", "5"), ("superuser_reserved_connections", "0"), ("max_wal_senders", "0"), ("reserved_connections", "0")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let Some(server) = own(ServerOptions { settings, ..ServerOptions::default() }) else { return };
    let databases = databases(&server.url("postgres"), "");
    let mut others: Vec<_> = (0..5).map(|_| server.connect("postgres").unwrap()).collect();
    wait_for(async {
        let error = databases.open("main", Access::ReadWrite).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Unavailable && error.detail.contains("[53300]"), "{error}");
    });
    others.pop();
    // The server needs a moment to notice that a client is gone.
    wait_for(async { while databases.open("main", Access::ReadWrite).await.is_err() {} });
}

/// A session that may write to a server that takes no writes by default.
fn let_it_write(url: &str) {
    let url = url.to_owned();
    aside(move || {
        let mut client = outhaul_services::postgres::connect(&url).unwrap();
        client.batch_execute("SET default_transaction_read_only = off").unwrap();
        client.batch_execute("ALTER SYSTEM RESET default_transaction_read_only").unwrap();
    });
}

#[test]
fn a_server_that_takes_no_writes_is_read_only_until_it_does() {
    let Some(server) = own(ServerOptions::default()) else { return };
    let databases = databases(&server.url("postgres"), "");
    wait_for(async {
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        run(&connection, insert("a")).await.unwrap();
        other(&server.url("postgres"), "ALTER SYSTEM SET default_transaction_read_only = on");
        other(&server.url("postgres"), "SELECT pg_reload_conf()");
        let error = loop {
            // Until the reload has reached the session.
            if let Err(error) = run(&connection, insert("b")).await {
                break error;
            }
        };
        assert_eq!(error.code, SqlErrorCode::ReadOnly, "{error}");
        let error = run(&connection, insert("c")).await.unwrap_err();
        assert!(error.code == SqlErrorCode::ReadOnly && error.detail.contains("takes no writes"), "{error}");
        let reader = databases.open("main", Access::ReadOnly).await.unwrap();
        run(&reader, select()).await.unwrap();
        let_it_write(&server.url("postgres"));
        other(&server.url("postgres"), "SELECT pg_reload_conf()");
        while run(&connection, insert("d")).await.is_err() {}
    });
}

#[test]
fn what_keeps_a_session_from_being_opened_is_told_without_the_password() {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return };
    let address = format!("127.0.0.1:{}", server.port);
    let good = server.url("postgres");
    let user = outhaul_services::postgres::USER;
    for (url, more, part) in [
        (good.replace("-secret", "-hush"), "", "password authentication failed"),
        (good.replace("/postgres", "/nowhere-hush"), "", "let its owner create it"),
        (format!("postgres://{user}@{address}/postgres"), "", "password = { secret = \"NAME\" }"),
        ("postgres://u:hush@127.0.0.1:1/d".to_owned(), "", "cannot connect"),
        ("postgres://u:hush@host.invalid/d".to_owned(), "", "host.invalid:5432"),
        ("postgres://u:hush@/d?host=/nowhere".to_owned(), "", "/nowhere/.s.PGSQL.5432"),
        (good.clone(), "tls_cert_file = \"no.pem\"\ntls_key_file = \"no.pem\"\ntls = \"require\"", "tls_cert_file = \"no.pem\""),
    ] {
        wait_for(async {
            let error = databases(&url, more).open("main", Access::ReadWrite).await.expect_err(&url);
            assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
            assert!(error.detail.contains(part) && error.detail.starts_with("database \"main\": "), "{url}: {error}");
            assert!(!error.detail.replace("nowhere-hush", "").contains("hush"), "{error}");
        });
    }
}

#[test]
fn secrets_are_read_for_each_session() {
    let Some(fixture) = Fixture::new(Major::V15) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let url = fixture.database.url().replace(&format!(":{}@", outhaul_services::postgres::PASSWORD), "@");
    let text = "secrets.p.file = \"password\"\nsecrets.u.file = \"url\"\n\
                databases.main = { url = { secret = \"u\" }, password = { secret = \"p\" } }";
    let config = config::parse(text, &folder.path().join("x.toml")).unwrap();
    let databases = Databases::new(&config.databases, &config.secrets);
    wait_for(async {
        let error = databases.open("main", Access::ReadWrite).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Unavailable && error.detail.contains("url: secret \"u\""), "{error}");
        std::fs::write(folder.path().join("url"), "postgres://u:hush@h").unwrap();
        let error = databases.open("main", Access::ReadWrite).await.unwrap_err();
        assert!(error.detail.contains("the value of the secret \"u\" names no database") && !error.detail.contains("hush"), "{error}");
        std::fs::write(folder.path().join("url"), &url).unwrap();
        let error = databases.open("main", Access::ReadWrite).await.unwrap_err();
        assert!(error.detail.contains("password: secret \"p\""), "{error}");
        std::fs::write(&file, "wrong").unwrap();
        let error = databases.open("main", Access::ReadWrite).await.unwrap_err();
        assert!(error.detail.contains("[28P01]"), "{error}");
        std::fs::write(&file, outhaul_services::postgres::PASSWORD).unwrap();
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        run(&connection, insert("a")).await.unwrap();
    });
}

/// Answers whatever it is asked with these bytes, and then with silence.
fn impostor(answer: &'static [u8]) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = [0; 1024];
        if stream.read(&mut heard).is_ok() {
            let _ = stream.write_all(answer);
        }
        // Until the other side has had enough.
        while stream.read(&mut heard).is_ok_and(|read| read > 0) {}
    });
    port
}

#[test]
fn what_is_no_server_is_told_to_be_none() {
    for (answer, part) in [
        // Read as the beginning of a long message, of which the rest is waited for.
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "no connection within 1s"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no connection within 1s"),
        (b"R\x7f\xff\xff\xff", "no connection within 1s"),
        (b"R\0\0\0\x03", "does not keep to the protocol"),
        (b"R\0\0\0\x08\0\0\0\x07", "a kind of authentication that the host does not have"),
        // An end to SCRAM that was never begun, and one that comes too soon.
        (b"R\0\0\0\x0c\0\0\0\x0cv=ab", "does not keep to the protocol"),
        (b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0R\0\0\0\x08\0\0\0\0", "expected SASLContinue"),
        (b"R\0\0\0\x08\0\0\0\0D\0\0\0\x06\0\0", "does not keep to the protocol"),
        (b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", "no connection within 1s"),
        (b"", "no connection within 1s"),
    ] {
        let url = format!("postgres://u:hush@127.0.0.1:{}/d?sslmode=disable", impostor(answer));
        wait_for(async {
            let error = databases(&url, "connect_timeout = \"1s\"").open("main", Access::ReadWrite).await.unwrap_err();
            assert!(error.detail.contains(part) && !error.detail.contains("hush"), "{answer:?}: {error}");
        });
    }
}

#[test]
fn databases_are_not_created() {
    let config = config::parse("databases.main.url = 'postgres://u@localhost/d'", Path::new("x.toml")).unwrap();
    let databases = Databases::new(&config.databases, &config.secrets);
    wait_for(async {
        let error = databases.create("main").await.unwrap_err();
        assert!(error.detail.contains("CREATE DATABASE"), "{error}");
    });
}
