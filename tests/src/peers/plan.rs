//! Who runs against whom, and how.

use serde::Serialize;

/// Somebody else's relay, or the server by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Peer {
    /// txoutbox, a Python relay, on SQLite and PostgreSQL.
    Txoutbox,
    /// The forwarder of Watermill, a Go library, on PostgreSQL.
    Watermill,
    /// Debezium embedded with its outbox event router, on PostgreSQL's log; to nowhere and to Kafka.
    Debezium,
    /// Claim and settle in a loop inside PostgreSQL.
    Limit,
}

/// From where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// SQLite to nowhere.
    Sqlite,
    /// PostgreSQL to nowhere.
    Postgres,
    /// PostgreSQL to one broker of Kafka.
    PostgresToKafka,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::PostgresToKafka];

    /// As people read it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite to nowhere",
            Self::Postgres => "PostgreSQL to nowhere",
            Self::PostgresToKafka => "PostgreSQL to Apache Kafka, one broker, acks=all",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::PostgresToKafka => "postgres-kafka",
        }
    }
}

/// What all of a match have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setting {
    /// From where to where.
    pub way: Way,
    /// Rows a claim.
    pub batch: u32,
    /// Relays on one table.
    pub workers: u32,
}

impl Setting {
    /// For files and progress: `postgres-b50-w1`.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}-b{}-w{}", self.way.name(), self.batch, self.workers)
    }
}

/// One who runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// `outhaul bench`, through components.
    Outhaul,
    /// [`Peer::Txoutbox`].
    Txoutbox,
    /// [`Peer::Watermill`].
    Watermill,
    /// [`Peer::Debezium`].
    Debezium,
    /// [`Peer::Limit`], in order per key.
    LimitStrict,
    /// The same, with a settle and the next claim in one transaction.
    LimitFused,
    /// [`Peer::Limit`], without regard to keys.
    LimitUnordered,
}

impl Contender {
    /// As people read it, and in the files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Outhaul => "outhaul",
            Self::Txoutbox => "txoutbox",
            Self::Watermill => "Watermill forwarder",
            Self::Debezium => "Debezium embedded",
            Self::LimitStrict => "server limit, strict",
            Self::LimitFused => "server limit, strict, fused",
            Self::LimitUnordered => "server limit, unordered",
        }
    }

    /// Whose it is; none: ours.
    #[must_use]
    pub fn peer(self) -> Option<Peer> {
        match self {
            Self::Outhaul => None,
            Self::Txoutbox => Some(Peer::Txoutbox),
            Self::Watermill => Some(Peer::Watermill),
            Self::Debezium => Some(Peer::Debezium),
            Self::LimitStrict | Self::LimitFused | Self::LimitUnordered => Some(Peer::Limit),
        }
    }
}

/// Those who run in turn under one setting; outhaul is always one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The setting.
    pub setting: Setting,
    /// At least two.
    pub contenders: Vec<Contender>,
}

impl Match {
    /// The order of a round: every other one backwards, so that a drift of the machine falls on all.
    pub fn turns(&self, round: usize) -> impl Iterator<Item = Contender> + '_ {
        let last = self.contenders.len() - 1;
        (0..self.contenders.len()).map(move |place| self.contenders[if round.is_multiple_of(2) { place } else { last - place }])
    }
}

/// All matches of these peers.
#[must_use]
pub fn matches(peers: &[Peer]) -> Vec<Match> {
    use Contender::{Debezium, LimitFused, LimitStrict, LimitUnordered, Outhaul, Txoutbox, Watermill};
    let mut matches = Vec::new();
    for way in [Way::Sqlite, Way::Postgres] {
        for batch in [50, 500, 1000] {
            for workers in [1, 4] {
                let mut contenders = vec![Outhaul, Txoutbox];
                if way == Way::Postgres && workers == 1 && batch < 1000 {
                    contenders.extend([Watermill, LimitStrict, LimitFused, LimitUnordered]);
                    // Its batches are its own affair: once is enough.
                    contenders.extend((batch == 500).then_some(Debezium));
                }
                matches.push(Match { setting: Setting { way, batch, workers }, contenders });
            }
        }
    }
    let setting = Setting { way: Way::PostgresToKafka, batch: 500, workers: 1 };
    matches.push(Match { setting, contenders: vec![Outhaul, Debezium] });
    for one in &mut matches {
        one.contenders.retain(|contender| contender.peer().is_none_or(|peer| peers.contains(&peer)));
    }
    matches.retain(|one| one.contenders.len() > 1);
    matches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_runs_alone() {
        let names = |peers: &[Peer]| -> Vec<(String, usize)> {
            matches(peers).iter().map(|one| (one.setting.name(), one.contenders.len())).collect()
        };
        assert_eq!(names(&[]), []);
        assert_eq!(names(&[Peer::Debezium]), [("postgres-b500-w1".to_owned(), 2), ("postgres-kafka-b500-w1".to_owned(), 2)]);
        assert_eq!(names(&[Peer::Limit]), [("postgres-b50-w1".to_owned(), 4), ("postgres-b500-w1".to_owned(), 4)]);
        let all = names(&[Peer::Txoutbox, Peer::Watermill, Peer::Debezium, Peer::Limit]);
        assert_eq!(all.len(), 13);
        assert_eq!(all.iter().map(|(_, contenders)| contenders).sum::<usize>(), 13 * 2 + 9);
    }

    #[test]
    fn every_other_round_goes_backwards() {
        let one = &matches(&[Peer::Debezium])[0];
        assert_eq!(one.turns(0).collect::<Vec<_>>(), [Contender::Outhaul, Contender::Debezium]);
        assert_eq!(one.turns(1).collect::<Vec<_>>(), [Contender::Debezium, Contender::Outhaul]);
    }
}
