//! What is known of the cluster: where its brokers listen, and who leads each partition. A cache; the brokers are always right.

use crate::address::Address;
use kafka_protocol::messages::MetadataResponse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// After so long it is asked for again without need, so that new partitions are found. As `metadata.max.age.ms` of the Java client.
const MAX_AGE: Duration = Duration::from_secs(5 * 60);

/// Topics that are remembered. The rows say which topics there are: without a bound they could fill the memory.
const MAX_TOPICS: usize = 10_000;

/// A topic that exists and may be written to, as the cluster last told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The leading broker of each partition; none: it has no leader at present.
    pub leaders: Vec<Option<i32>>,
    /// When.
    pub learned: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Metadata {
    brokers: BTreeMap<i32, Address>,
    topics: HashMap<String, Topic>,
}

impl Metadata {
    /// Where a broker listens.
    #[must_use]
    pub fn broker(&self, id: i32) -> Option<&Address> {
        self.brokers.get(&id)
    }

    /// Every broker that is known.
    pub fn brokers(&self) -> impl Iterator<Item = &Address> {
        self.brokers.values()
    }

    /// A topic, if it is known well enough.
    #[must_use]
    pub fn topic(&self, name: &str, now: Instant) -> Option<&Topic> {
        self.topics.get(name).filter(|topic| now.duration_since(topic.learned) < MAX_AGE)
    }

    /// Forgets a topic: its leaders have moved, or it has changed.
    pub fn forget(&mut self, name: &str) {
        self.topics.remove(name);
    }

    /// Forgets all that is known of the leaders: a broker could not be reached.
    pub fn forget_leaders(&mut self, broker: i32) {
        self.topics.retain(|_, topic| !topic.leaders.contains(&Some(broker)));
    }

    /// Takes in what a broker told, and returns the topics that it told nothing of but an error: these are not remembered, so
    /// that they are asked for again. Brokers that it does not name are gone.
    pub fn learn(&mut self, response: MetadataResponse, now: Instant) -> Vec<(String, i16)> {
        let mut errors = Vec::new();
        self.brokers = response
            .brokers
            .into_iter()
            .filter_map(|broker| {
                Some((broker.node_id.0, Address { host: broker.host.to_string(), port: u16::try_from(broker.port).ok()? }))
            })
            .collect();
        if self.topics.len() + response.topics.len() > MAX_TOPICS {
            self.topics.clear();
        }
        for topic in response.topics {
            let Some(name) = topic.name else { continue };
            let name = name.0.to_string();
            if topic.error_code != 0 {
                self.topics.remove(&name);
                errors.push((name, topic.error_code));
                continue;
            }
            let mut leaders = vec![None; topic.partitions.len()];
            for partition in &topic.partitions {
                let slot = usize::try_from(partition.partition_index).ok().and_then(|index| leaders.get_mut(index));
                // A partition's own error (a replica is missing) does not keep its leader from taking messages.
                if let Some(slot) = slot {
                    *slot = Some(partition.leader_id.0).filter(|leader| self.brokers.contains_key(leader));
                }
            }
            self.topics.insert(name, Topic { leaders, learned: now });
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
    use kafka_protocol::messages::{BrokerId, TopicName};
    use kafka_protocol::protocol::StrBytes;

    fn response(topic: &'static str, leaders: &[i32]) -> MetadataResponse {
        let broker =
            |id| MetadataResponseBroker::default().with_node_id(BrokerId(id)).with_host(StrBytes::from_static_str("h")).with_port(9092);
        let partition = |(index, leader): (i32, &i32)| {
            MetadataResponsePartition::default().with_partition_index(index).with_leader_id(BrokerId(*leader))
        };
        let mut partitions: Vec<_> = (0..).zip(leaders).map(partition).collect();
        partitions.reverse();
        let topic =
            MetadataResponseTopic::default().with_name(Some(TopicName(StrBytes::from_static_str(topic)))).with_partitions(partitions);
        MetadataResponse::default().with_brokers(vec![broker(1), broker(2)]).with_topics(vec![topic])
    }

    #[test]
    fn leaders_are_learned_and_forgotten() {
        let (mut metadata, now) = (Metadata::default(), Instant::now());
        metadata.learn(response("a", &[1, 2, -1, 9]), now);
        metadata.learn(response("b", &[1]), now);
        assert_eq!(metadata.topic("a", now).unwrap().leaders, [Some(1), Some(2), None, None]);
        assert_eq!(metadata.broker(2).unwrap().to_string(), "h:9092");
        assert!(metadata.topic("a", now + MAX_AGE).is_none());
        let mut unknown = response("b", &[]);
        unknown.topics[0].error_code = 3;
        assert_eq!(metadata.learn(unknown, now), [("b".to_owned(), 3)]);
        assert!(metadata.topic("b", now).is_none());
        assert!(metadata.learn(response("b", &[1]), now).is_empty());
        metadata.forget_leaders(2);
        assert!(metadata.topic("a", now).is_none() && metadata.topic("b", now).is_some());
        metadata.forget("b");
        assert!(metadata.topic("b", now).is_none());
    }

    #[test]
    fn what_a_broker_tells_is_bounded() {
        let (mut metadata, now) = (Metadata::default(), Instant::now());
        let mut wrong = response("a", &[1, 1]);
        wrong.topics[0].partitions[0].partition_index = 1_000_000_000;
        wrong.topics[0].partitions[1].partition_index = -1;
        metadata.learn(wrong, now);
        assert_eq!(metadata.topic("a", now).unwrap().leaders, [None, None]);
        for name in 0..MAX_TOPICS {
            metadata.topics.insert(name.to_string(), metadata.topic("a", now).unwrap().clone());
        }
        metadata.learn(response("b", &[1]), now);
        assert!(metadata.topics.len() < MAX_TOPICS && metadata.topic("b", now).is_some());
    }
}
