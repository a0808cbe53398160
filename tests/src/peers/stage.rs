//! What the contenders share: servers, a broker, their built programs. Each is made when it is first needed, and a thing that cannot be
//! had fails those who need it, not the others.

use super::plan::{Contender, Setting, Way};
use super::program::Measured;
use super::{Load, debezium, limit, ours, txoutbox, watermill};
use crate::places;
use crate::rig::Rig;
use anyhow::{Context, Result, anyhow};
use outhaul_services::{Cluster, ClusterOptions, Database, Major, Postgres, Server, ServerOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Partitions of a topic.
const PARTITIONS: i32 = 6;

/// How often the server looks which tables want an ANALYZE or a VACUUM. Nobody does that by hand here, and with its default of a minute
/// short runs would have none while long ones do.
const AUTOVACUUM: (&str, &str) = ("autovacuum_naptime", "1s");

/// Something that is made once, or failed once.
type Once<T> = Option<Result<T, String>>;

fn once<T>(place: &mut Once<T>, make: impl FnOnce() -> Result<T>) -> Result<&mut T> {
    place.get_or_insert_with(|| make().map_err(|error| format!("{error:#}"))).as_mut().map_err(|error| anyhow!("{error}"))
}

/// Everything around the runs.
pub(super) struct Stage {
    pub(super) load: Load,
    /// For one run.
    pub(super) limit: Duration,
    components: Rig,
    plain: Once<Server>,
    logical: Once<Server>,
    kafka: Once<Cluster>,
    txoutbox: Once<PathBuf>,
    watermill: Once<PathBuf>,
    debezium: Once<PathBuf>,
    topics: u32,
}

impl Stage {
    pub(super) fn new(load: Load, limit: Duration) -> Result<Self> {
        let components = Rig::empty()?;
        components.copy_components()?;
        let (plain, logical, kafka, txoutbox, watermill, debezium) = (None, None, None, None, None, None);
        Ok(Self { load, limit, components, plain, logical, kafka, txoutbox, watermill, debezium, topics: 0 })
    }

    /// Gets and builds what a contender needs, so that no run waits for it.
    pub(super) fn prepare(&mut self, contender: Contender, way: Way) -> Result<()> {
        match contender {
            Contender::Txoutbox => self.txoutbox().map(drop)?,
            Contender::Watermill => self.watermill().map(drop)?,
            Contender::Debezium => self.debezium().map(drop)?,
            _ => {}
        }
        match (way, contender) {
            (Way::Sqlite, _) => Ok(()),
            (_, Contender::Debezium) => self.logical().map(drop),
            _ => self.plain().map(drop),
        }?;
        if way == Way::PostgresToKafka { self.kafka().map(drop) } else { Ok(()) }
    }

    /// One run on a table of its own.
    pub(super) fn measure(&mut self, contender: Contender, setting: Setting) -> Result<Measured> {
        let measured = match contender {
            Contender::Outhaul => ours::measure(self, setting),
            Contender::Txoutbox => txoutbox::measure(self, setting),
            Contender::Watermill => watermill::measure(self, setting),
            Contender::Debezium => debezium::measure(self, setting),
            Contender::LimitStrict => limit::measure(self, |batch| format!("limit_apart({batch}, true)"), setting),
            Contender::LimitFused => limit::measure(self, |batch| format!("limit_fused({batch})"), setting),
            Contender::LimitUnordered => limit::measure(self, |batch| format!("limit_apart({batch}, false)"), setting),
        };
        measured?.complete(self.load.rows)
    }

    /// Folder of all components.
    pub(super) fn plugins(&self) -> PathBuf {
        self.components.path().join("plugins")
    }

    /// An empty database.
    pub(super) fn database(&mut self) -> Result<Database> {
        fresh(self.plain()?)
    }

    /// An empty database on a server that lets its log be read.
    pub(super) fn logical_database(&mut self) -> Result<Database> {
        fresh(self.logical()?)
    }

    /// A new topic, and the broker that has it.
    pub(super) fn topic(&mut self) -> Result<(&Cluster, String)> {
        self.topics += 1;
        let name = format!("peers-{}", self.topics);
        let kafka = self.kafka()?;
        kafka.create_topic(&name, PARTITIONS)?;
        Ok((kafka, name))
    }

    fn plain(&mut self) -> Result<&mut Server> {
        once(&mut self.plain, || server(&[AUTOVACUUM]))
    }

    fn logical(&mut self) -> Result<&mut Server> {
        once(&mut self.logical, || server(&[AUTOVACUUM, ("wal_level", "logical")]))
    }

    fn kafka(&mut self) -> Result<&Cluster> {
        once(&mut self.kafka, || Cluster::start(ClusterOptions::default())).map(|kafka| &*kafka)
    }

    /// The Python with txoutbox.
    pub(super) fn txoutbox(&mut self) -> Result<PathBuf> {
        once(&mut self.txoutbox, txoutbox::build).cloned()
    }

    /// The program with Watermill.
    pub(super) fn watermill(&mut self) -> Result<PathBuf> {
        once(&mut self.watermill, watermill::build).cloned()
    }

    /// The folder with Debezium's classes.
    pub(super) fn debezium(&mut self) -> Result<PathBuf> {
        once(&mut self.debezium, debezium::build).cloned()
    }
}

fn server(settings: &[(&str, &str)]) -> Result<Server> {
    let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Postgres::start_with(Major::V15, &ServerOptions { settings, ..ServerOptions::default() })
}

/// A new database on a server that has nothing of earlier runs left to write.
fn fresh(server: &Server) -> Result<Database> {
    server.connect("postgres")?.batch_execute("CHECKPOINT").context("cannot have a checkpoint")?;
    server.create_database()
}

/// Where a peer's sources are.
pub(super) fn sources(peer: &str) -> PathBuf {
    places::checkout().join("bench/peers").join(peer)
}

/// Where what is made of them goes.
pub(super) fn built(peer: &str) -> Result<PathBuf> {
    let folder = places::target()?.join("peers").join(peer);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create a folder for {peer}"))?;
    Ok(folder)
}

/// A path as an argument.
pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the path is not UTF-8")
}
