//! Every error code of Kafka that a producer can meet, in one table: what to do, whose fault it is, and what to say.
//!
//! The codes are those of the protocol guide (`Errors.java`). What only consumers, transactions and administration meet is not
//! in the table and falls under the last rule of [`reason`].

use kafka_protocol::error::ResponseError;
use outhaul_sdk::{Failure, FailureCode};
use std::fmt;

/// What a record batch with this error needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing: it has been written.
    None,
    /// The same bytes again, after a pause.
    Again,
    /// The same bytes again, after a pause, to the leader that fresh metadata names.
    FindLeader,
    /// The same records under a fresh producer id: the broker does not know, or does not believe, this one's sequence.
    FreshProducer,
    /// Smaller batches; a record that is alone ends dead.
    Split,
    /// Some records are at fault: those that the broker names end dead, or, if it names none, each is tried alone.
    BlameRecords,
    /// Nothing that the publisher can do: the host tries again later, because what is wrong can be put right.
    Later,
    /// Nothing that anybody can do.
    Never,
}

/// Whether a batch that came back with this error may have been written all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It has not.
    Unwritten,
    /// It may have, or may yet: only the same bytes, under the same sequence, are sure not to be written twice.
    Unknown,
}

#[derive(Clone, Copy)]
enum Kind {
    Network,
    Timeout,
    Throttled,
    Unavailable,
    Unauthorized,
    Message,
    TooLarge,
    Configuration,
    Other,
}

struct Entry {
    number: i16,
    name: &'static str,
    remedy: Remedy,
    fate: Fate,
    kind: Kind,
    text: &'static str,
}

const fn entry(number: i16, name: &'static str, remedy: Remedy, fate: Fate, kind: Kind, text: &'static str) -> Entry {
    Entry { number, name, remedy, fate, kind, text }
}

use Fate::{Unknown, Unwritten};
use Remedy::{Again, BlameRecords, FindLeader, FreshProducer, Later, Never, Split};

#[rustfmt::skip]
const TABLE: &[Entry] = &[
    entry(-1, "UNKNOWN_SERVER_ERROR", Again, Unknown, Kind::Unavailable, "the broker failed; its log says why"),
    entry(2, "CORRUPT_MESSAGE", Again, Unwritten, Kind::Other, "the checksum did not match, or the topic is compacted and the message has no key"),
    entry(3, "UNKNOWN_TOPIC_OR_PARTITION", FindLeader, Unwritten, Kind::Unavailable, "the topic does not exist, and the broker does not create topics by itself (or this user may not see it): create it, or allow `auto.create.topics.enable`"),
    entry(5, "LEADER_NOT_AVAILABLE", FindLeader, Unwritten, Kind::Unavailable, "the partition has no leader at present"),
    entry(6, "NOT_LEADER_OR_FOLLOWER", FindLeader, Unwritten, Kind::Unavailable, "the leader of the partition has changed"),
    entry(7, "REQUEST_TIMED_OUT", Again, Unknown, Kind::Timeout, "the replicas did not confirm in time"),
    entry(8, "BROKER_NOT_AVAILABLE", FindLeader, Unwritten, Kind::Unavailable, "the broker is not available"),
    entry(9, "REPLICA_NOT_AVAILABLE", FindLeader, Unwritten, Kind::Unavailable, "the replica is not available"),
    entry(10, "MESSAGE_TOO_LARGE", Split, Unwritten, Kind::TooLarge, "larger than the topic takes (`max.message.bytes`)"),
    entry(13, "NETWORK_EXCEPTION", FindLeader, Unknown, Kind::Network, "the broker lost a connection of its own"),
    entry(14, "COORDINATOR_LOAD_IN_PROGRESS", Again, Unwritten, Kind::Unavailable, "the coordinator is loading"),
    entry(15, "COORDINATOR_NOT_AVAILABLE", Again, Unwritten, Kind::Unavailable, "the coordinator is not available"),
    entry(16, "NOT_COORDINATOR", FindLeader, Unwritten, Kind::Unavailable, "the coordinator has changed"),
    entry(17, "INVALID_TOPIC_EXCEPTION", Never, Unwritten, Kind::Message, "the broker does not take messages under this topic name"),
    entry(18, "RECORD_LIST_TOO_LARGE", Split, Unwritten, Kind::TooLarge, "larger than a segment of the topic (`segment.bytes`)"),
    entry(19, "NOT_ENOUGH_REPLICAS", Again, Unwritten, Kind::Unavailable, "fewer replicas in sync than the topic demands (`min.insync.replicas`)"),
    entry(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", Again, Unknown, Kind::Unavailable, "written, but by fewer replicas than the topic demands (`min.insync.replicas`)"),
    entry(21, "INVALID_REQUIRED_ACKS", Later, Unwritten, Kind::Other, "the broker does not take `acks=all`"),
    entry(29, "TOPIC_AUTHORIZATION_FAILED", Later, Unwritten, Kind::Unauthorized, "this user may not write to the topic: grant WRITE and DESCRIBE on it"),
    entry(31, "CLUSTER_AUTHORIZATION_FAILED", Later, Unwritten, Kind::Unauthorized, "this user may not write idempotently: grant IDEMPOTENT_WRITE on the cluster (needed before Kafka 2.8)"),
    entry(32, "INVALID_TIMESTAMP", BlameRecords, Unwritten, Kind::Message, "the message's creation time is further from now than the topic allows (`message.timestamp.before.max.ms`, `message.timestamp.after.max.ms`)"),
    entry(33, "UNSUPPORTED_SASL_MECHANISM", Later, Unwritten, Kind::Configuration, "the broker does not offer this mechanism (`sasl.mechanism`)"),
    entry(34, "ILLEGAL_SASL_STATE", Later, Unwritten, Kind::Configuration, "the listener expects a login (`sasl`), or does not expect one"),
    entry(35, "UNSUPPORTED_VERSION", Later, Unwritten, Kind::Configuration, "the broker is too old for this request: it takes Kafka 0.11, 1.0 for `sasl`, 2.1 for `compression = \"zstd\"`"),
    entry(37, "INVALID_PARTITIONS", Later, Unwritten, Kind::Unavailable, "the broker could not create the topic: its default number of partitions is not valid"),
    entry(38, "INVALID_REPLICATION_FACTOR", Later, Unwritten, Kind::Unavailable, "the broker could not create the topic: it has fewer brokers than `default.replication.factor`"),
    entry(41, "NOT_CONTROLLER", FindLeader, Unwritten, Kind::Unavailable, "the controller has changed"),
    entry(42, "INVALID_REQUEST", Later, Unwritten, Kind::Other, "the broker did not understand the request; its log says why"),
    entry(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", Later, Unwritten, Kind::Configuration, "the topic keeps an old message format (`message.format.version`)"),
    entry(44, "POLICY_VIOLATION", Never, Unwritten, Kind::Message, "against a policy of the cluster"),
    entry(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", FreshProducer, Unwritten, Kind::Unavailable, "the broker has lost track of this producer"),
    entry(46, "DUPLICATE_SEQUENCE_NUMBER", Remedy::None, Unknown, Kind::Other, "already written"),
    entry(47, "INVALID_PRODUCER_EPOCH", FreshProducer, Unwritten, Kind::Unavailable, "the broker does not accept this producer any more"),
    entry(49, "INVALID_PRODUCER_ID_MAPPING", FreshProducer, Unwritten, Kind::Unavailable, "the broker does not know this producer"),
    entry(51, "CONCURRENT_TRANSACTIONS", Again, Unwritten, Kind::Unavailable, "the producer id is being changed"),
    entry(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Later, Unwritten, Kind::Unauthorized, "this user may not produce"),
    entry(54, "SECURITY_DISABLED", Later, Unwritten, Kind::Configuration, "the broker has no security features enabled"),
    entry(55, "OPERATION_NOT_ATTEMPTED", Again, Unwritten, Kind::Unavailable, "the broker did not come to it"),
    entry(56, "KAFKA_STORAGE_ERROR", FindLeader, Unknown, Kind::Unavailable, "the broker's disk failed"),
    entry(58, "SASL_AUTHENTICATION_FAILED", Later, Unwritten, Kind::Unauthorized, "wrong name or password (`sasl`)"),
    entry(59, "UNKNOWN_PRODUCER_ID", FreshProducer, Unwritten, Kind::Unavailable, "the broker has forgotten this producer"),
    entry(60, "REASSIGNMENT_IN_PROGRESS", Again, Unwritten, Kind::Unavailable, "partitions are being moved"),
    entry(67, "INVALID_PRINCIPAL_TYPE", Later, Unwritten, Kind::Unauthorized, "the broker does not know this kind of user"),
    entry(72, "LISTENER_NOT_FOUND", FindLeader, Unwritten, Kind::Configuration, "the leader has no listener of the kind that the `brokers` belong to"),
    entry(74, "FENCED_LEADER_EPOCH", FindLeader, Unwritten, Kind::Unavailable, "the leader of the partition has changed"),
    entry(75, "UNKNOWN_LEADER_EPOCH", FindLeader, Unwritten, Kind::Unavailable, "the leader of the partition has changed"),
    entry(76, "UNSUPPORTED_COMPRESSION_TYPE", Later, Unwritten, Kind::Configuration, "the topic or the broker does not take this compression: choose another `compression`"),
    entry(80, "PREFERRED_LEADER_NOT_AVAILABLE", FindLeader, Unwritten, Kind::Unavailable, "the partition has no leader at present"),
    entry(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", FindLeader, Unwritten, Kind::Unavailable, "the partition has no leader at present"),
    entry(87, "INVALID_RECORD", BlameRecords, Unwritten, Kind::Message, "the broker does not take this record; a compacted topic takes none without a key"),
    entry(89, "THROTTLING_QUOTA_EXCEEDED", Later, Unwritten, Kind::Throttled, "over the quota of this client"),
    entry(90, "PRODUCER_FENCED", FreshProducer, Unwritten, Kind::Unavailable, "the broker does not accept this producer any more"),
    entry(97, "PRINCIPAL_DESERIALIZATION_FAILURE", Later, Unwritten, Kind::Unauthorized, "the cluster's security setup is at fault; the broker's log says why"),
    entry(100, "UNKNOWN_TOPIC_ID", FindLeader, Unwritten, Kind::Unavailable, "the topic was deleted, or created anew"),
    entry(103, "INCONSISTENT_TOPIC_ID", FindLeader, Unwritten, Kind::Unavailable, "the topic was deleted, or created anew"),
    entry(108, "NEW_LEADER_ELECTED", FindLeader, Unwritten, Kind::Unavailable, "the leader of the partition has changed"),
    entry(114, "MISMATCHED_ENDPOINT_TYPE", Later, Unwritten, Kind::Configuration, "`brokers` names a controller: name brokers"),
    entry(115, "UNSUPPORTED_ENDPOINT_TYPE", Later, Unwritten, Kind::Configuration, "`brokers` names a controller: name brokers"),
    entry(129, "REBOOTSTRAP_REQUIRED", FindLeader, Unwritten, Kind::Unavailable, "the cluster asks its clients to start again from `brokers`"),
];

/// An error code, explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// As in the protocol.
    pub number: i16,
    /// What to do.
    pub remedy: Remedy,
    /// What may have happened.
    pub fate: Fate,
    /// For the host.
    pub code: FailureCode,
    name: String,
    text: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({} {})", self.text, self.name, self.number)
    }
}

impl Reason {
    /// As a failure of a message of this topic. `said` is what the broker added, if it did.
    #[must_use]
    pub fn failure(&self, topic: &str, said: Option<&str>) -> Failure {
        match said.filter(|said| !said.is_empty()) {
            Some(said) => Failure::of(self.code.clone(), format!("topic {topic}: {self}: {said}")),
            None => Failure::of(self.code.clone(), format!("topic {topic}: {self}")),
        }
    }
}

/// Explains a code other than 0. One that is not in the table is no fault of the message as far as anybody can tell: the host
/// tries again later, and ends the message dead when its attempts are used up.
#[must_use]
pub fn reason(number: i16) -> Reason {
    if let Some(entry) = TABLE.iter().find(|entry| entry.number == number) {
        let code = match entry.kind {
            Kind::Network => FailureCode::Network,
            Kind::Timeout => FailureCode::Timeout,
            Kind::Throttled => FailureCode::Throttled,
            Kind::Unavailable => FailureCode::Unavailable,
            Kind::Unauthorized => FailureCode::Unauthorized,
            Kind::Message => FailureCode::InvalidMessage,
            Kind::TooLarge => FailureCode::TooLarge,
            Kind::Configuration => FailureCode::InvalidConfiguration,
            Kind::Other => FailureCode::Other(format!("kafka-{number}")),
        };
        return Reason { number, remedy: entry.remedy, fate: entry.fate, code, name: entry.name.into(), text: entry.text.into() };
    }
    let name = ResponseError::try_from_code(number).map_or_else(|| "no error".into(), |error| error.to_string());
    let (code, text) =
        (FailureCode::Other(format!("kafka-{number}")), "the broker answered with an error that producers do not meet".into());
    Reason { number, remedy: Later, fate: Unknown, code, name, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_nothing_twice() {
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
    }

    /// The names are ours (in the protocol's spelling); the crate's know no underscores.
    #[test]
    fn names_and_numbers_belong_together() {
        for entry in TABLE {
            let theirs = ResponseError::try_from_code(entry.number).unwrap().to_string().to_lowercase();
            let ours = entry.name.replace('_', "").to_lowercase();
            assert_eq!(ours, theirs, "{}", entry.number);
        }
    }

    /// What the protocol calls retriable is never the end of a message.
    #[test]
    fn retriable_errors_are_tried_again() {
        for number in (-1..=200).filter(|number| *number != 0) {
            let reason = reason(number);
            if ResponseError::try_from_code(number).unwrap().is_retriable() {
                assert!(!matches!(reason.remedy, Remedy::Never | Remedy::Split | Remedy::BlameRecords), "{reason}");
            }
        }
    }

    #[test]
    fn texts_name_the_error_and_what_to_do() {
        assert_eq!(
            reason(29).failure("orders", None).detail,
            "topic orders: this user may not write to the topic: grant WRITE and DESCRIBE on it (TOPIC_AUTHORIZATION_FAILED 29)"
        );
        assert_eq!(reason(10).failure("t", Some("limit 100")).code, FailureCode::TooLarge);
        assert_eq!(reason(999).code, FailureCode::Other("kafka-999".into()));
        assert_eq!(reason(25).remedy, Remedy::Later);
    }
}
