//! What a sealed delivery is bound to: the routing columns that stand beside its envelope in the table. All of them are its associated
//! data, so that a row of which one was changed does not open.

use crate::ports::fan_out::Subscription;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The version of the envelope's form.
pub const ENVELOPE_VERSION: u32 = 1;

/// The routing columns, by the names under which they are headers of a delivery and columns of its table.
pub const COLUMNS: [&str; 20] = [
    "account_id",
    "delivery_id",
    "subscriber_id",
    "principal_id",
    "notification_id",
    "notification_type",
    "emission_generation",
    "idempotency_key",
    "destination_sha256",
    "subscription_fingerprint",
    "signing_scope_id",
    "cause_kind",
    "cause_id",
    "cause_generation",
    "consumer_namespace",
    "auth_mode",
    "body_sha256",
    "envelope_version",
    "key_version",
    "order_key",
];

/// The routing columns of one delivery. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// The tenant.
    pub account_id: String,
    /// Id of the delivery.
    pub delivery_id: String,
    /// Unique within the tenant.
    pub subscriber_id: String,
    /// On whose behalf; may be empty.
    pub principal_id: String,
    /// Id of the event.
    pub notification_id: String,
    /// Topic of the event.
    pub notification_type: String,
    /// Emission of the event, from 1.
    pub emission_generation: u32,
    /// The same for every attempt.
    pub idempotency_key: String,
    /// Of the URL, in hexadecimal.
    pub destination_sha256: String,
    /// Of all fields of the subscription, in hexadecimal.
    pub subscription_fingerprint: String,
    /// Names the signing material.
    pub signing_scope_id: Option<String>,
    /// `event`, or `reemit`.
    pub cause_kind: String,
    /// What brought it about: the event.
    pub cause_id: String,
    /// The generation before.
    pub cause_generation: u32,
    /// `fan_out.namespace`.
    pub consumer_namespace: String,
    /// `none`, or the type of the authentication.
    pub auth_mode: String,
    /// Of the payload, in hexadecimal.
    pub body_sha256: String,
    /// [`ENVELOPE_VERSION`].
    pub envelope_version: u32,
    /// Which key it is sealed with.
    pub key_version: String,
    /// The key by which deliveries keep their order; none: it is independent.
    pub order_key: Option<String>,
}

/// What an event has to do with a binding.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    /// `fan_out.namespace`.
    pub namespace: &'a str,
    /// Id of the event.
    pub event: &'a str,
    /// Its topic.
    pub topic: &'a str,
    /// Its key.
    pub key: Option<&'a str>,
    /// Its emission.
    pub generation: u32,
    /// SHA-256 of its payload, in hexadecimal.
    pub body_sha256: &'a str,
}

impl Binding {
    /// Of the delivery of an event to a subscriber, sealed with the key of this version.
    #[must_use]
    pub fn new(cause: &Cause<'_>, subscription: &Subscription, auth_mode: &str, key_version: &str) -> Self {
        let Subscription { tenant, subscriber, principal, url, signing_scope, .. } = subscription;
        let Cause { namespace, event, topic, key, generation, body_sha256 } = *cause;
        Self {
            account_id: tenant.clone(),
            delivery_id: derived("dl_", "delivery", cause, subscription),
            subscriber_id: subscriber.clone(),
            principal_id: principal.clone(),
            notification_id: event.to_owned(),
            notification_type: topic.to_owned(),
            emission_generation: generation,
            idempotency_key: derived("ik_", "idempotency", cause, subscription),
            destination_sha256: sha256(url.as_bytes()),
            subscription_fingerprint: fingerprint(subscription),
            signing_scope_id: signing_scope.clone(),
            cause_kind: if generation <= 1 { "event" } else { "reemit" }.to_owned(),
            cause_id: event.to_owned(),
            cause_generation: generation.saturating_sub(1),
            consumer_namespace: namespace.to_owned(),
            auth_mode: auth_mode.to_owned(),
            body_sha256: body_sha256.to_owned(),
            envelope_version: ENVELOPE_VERSION,
            key_version: key_version.to_owned(),
            order_key: key.map(|key| canonical_text(&[tenant.as_str(), subscriber.as_str(), key])),
        }
    }

    /// The associated data: all of it as canonical JSON (RFC 8785).
    #[must_use]
    pub fn associated_data(&self) -> Vec<u8> {
        canonical(self)
    }

    /// As headers of a delivery: those that are none are left out.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let text = |name, value: &String| Some((name, value.clone()));
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = COLUMNS;
        [
            text(a, &self.account_id),
            text(b, &self.delivery_id),
            text(c, &self.subscriber_id),
            text(d, &self.principal_id),
            text(e, &self.notification_id),
            text(f, &self.notification_type),
            Some((g, self.emission_generation.to_string())),
            text(h, &self.idempotency_key),
            text(i, &self.destination_sha256),
            text(j, &self.subscription_fingerprint),
            self.signing_scope_id.clone().map(|scope| (k, scope)),
            text(l, &self.cause_kind),
            text(m, &self.cause_id),
            Some((n, self.cause_generation.to_string())),
            text(o, &self.consumer_namespace),
            text(p, &self.auth_mode),
            text(q, &self.body_sha256),
            Some((r, self.envelope_version.to_string())),
            text(s, &self.key_version),
            self.order_key.clone().map(|key| (t, key)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Reads what a storage gives back: every column once, no other header, numbers as they were written.
    ///
    /// # Errors
    /// The first column that is missing, doubled, unknown or no number.
    pub fn from_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<Self, BindingFault> {
        let mut values: BTreeMap<&'static str, &str> = BTreeMap::new();
        for (name, value) in headers {
            let name = COLUMNS.into_iter().find(|column| *column == name).ok_or(BindingFault::Unknown)?;
            let value = std::str::from_utf8(value).map_err(|_| BindingFault::Unreadable(name))?;
            if values.insert(name, value).is_some() {
                return Err(BindingFault::Doubled(name));
            }
        }
        let found = |name: &'static str| values.get(name).copied();
        let text = |name| found(name).map(str::to_owned).ok_or(BindingFault::Missing(name));
        let number = |name| {
            let written = found(name).ok_or(BindingFault::Missing(name))?;
            let number: u32 = written.parse().map_err(|_| BindingFault::Unreadable(name))?;
            // What was sealed has one form: "01" is an edit.
            if number.to_string() == written { Ok(number) } else { Err(BindingFault::Unreadable(name)) }
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = COLUMNS;
        Ok(Self {
            account_id: text(a)?,
            delivery_id: text(b)?,
            subscriber_id: text(c)?,
            principal_id: text(d)?,
            notification_id: text(e)?,
            notification_type: text(f)?,
            emission_generation: number(g)?,
            idempotency_key: text(h)?,
            destination_sha256: text(i)?,
            subscription_fingerprint: text(j)?,
            signing_scope_id: found(k).map(str::to_owned),
            cause_kind: text(l)?,
            cause_id: text(m)?,
            cause_generation: number(n)?,
            consumer_namespace: text(o)?,
            auth_mode: text(p)?,
            body_sha256: text(q)?,
            envelope_version: number(r)?,
            key_version: text(s)?,
            order_key: found(t).map(str::to_owned),
        })
    }
}

/// What is wrong with the routing columns of a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindingFault {
    /// A column has no value.
    #[error("the column {0} has no value")]
    Missing(&'static str),
    /// A column is there more than once.
    #[error("the column {0} is there more than once")]
    Doubled(&'static str),
    /// A column is not what it must be.
    #[error("the column {0} is not as it was written")]
    Unreadable(&'static str),
    /// There is a column that is none of these.
    #[error("there is a column that no delivery has")]
    Unknown,
}

/// Which state a subscription is in: the SHA-256 over all of its fields, in hexadecimal.
#[must_use]
pub fn fingerprint(subscription: &Subscription) -> String {
    let Subscription { tenant, subscriber, principal, url, signing_scope, authentication, revision } = subscription;
    let fields =
        [Some(tenant), Some(subscriber), Some(principal), Some(url), signing_scope.as_ref(), authentication.as_ref(), Some(revision)];
    sha256(&zeroize::Zeroizing::new(canonical(&fields)))
}

/// SHA-256 in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A name that follows from what is delivered to whom: the same however often it is made.
fn derived(prefix: &str, what: &str, cause: &Cause<'_>, subscription: &Subscription) -> String {
    let Cause { namespace, event, generation, .. } = cause;
    let hash = sha256(&canonical(&(what, namespace, &subscription.tenant, event, generation, &subscription.subscriber)));
    format!("{prefix}{}", hash.get(..32).unwrap_or(&hash))
}

fn canonical_text(parts: &[&str]) -> String {
    String::from_utf8(canonical(&parts)).unwrap_or_default()
}

fn canonical(value: &impl Serialize) -> Vec<u8> {
    // Texts and small numbers always can be written.
    serde_json_canonicalizer::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::fan_out) fn subscription() -> Subscription {
        Subscription {
            tenant: "acme".into(),
            subscriber: "crm".into(),
            principal: "owner".into(),
            url: "https://crm.example/in?x=1".into(),
            signing_scope: Some("s".into()),
            authentication: Some("{\"type\":\"bearer\",\"token\":\"t\"}".into()),
            revision: "7".into(),
        }
    }

    pub(in crate::fan_out) fn binding() -> Binding {
        let cause =
            Cause { namespace: "n", event: "e1", topic: "orders.placed", key: Some("k"), generation: 1, body_sha256: &sha256(b"{}") };
        Binding::new(&cause, &subscription(), "bearer", "v1")
    }

    fn read(headers: &[(&str, String)]) -> Result<Binding, BindingFault> {
        Binding::from_headers(headers.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    #[test]
    fn the_columns_follow_from_the_event_and_the_subscription() {
        let binding = binding();
        assert_eq!(binding.order_key.as_deref(), Some(r#"["acme","crm","k"]"#));
        assert_eq!((binding.cause_kind.as_str(), binding.cause_generation, binding.cause_id.as_str()), ("event", 0, "e1"));
        // printf '["delivery","n","acme","e1",1,"crm"]' | sha256sum
        let delivery = sha256(br#"["delivery","n","acme","e1",1,"crm"]"#);
        assert_eq!(binding.delivery_id, format!("dl_{}", &delivery[..32]));
        let idempotency = sha256(br#"["idempotency","n","acme","e1",1,"crm"]"#);
        assert_eq!(binding.idempotency_key, format!("ik_{}", &idempotency[..32]));
        assert_eq!(binding.destination_sha256, sha256(b"https://crm.example/in?x=1"));
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn another_emission_has_other_names_and_another_cause() {
        let cause = Cause { namespace: "n", event: "e1", topic: "t", key: None, generation: 3, body_sha256: "" };
        let again = Binding::new(&cause, &subscription(), "none", "v1");
        let first = binding();
        assert_ne!((&again.delivery_id, &again.idempotency_key), (&first.delivery_id, &first.idempotency_key));
        assert_eq!((again.cause_kind.as_str(), again.cause_generation, again.order_key), ("reemit", 2, None));
    }

    #[test]
    fn the_associated_data_is_canonical_json_of_all_columns() {
        let text = String::from_utf8(binding().associated_data()).unwrap();
        let value: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(value.keys().collect::<std::collections::BTreeSet<_>>(), COLUMNS.map(str::to_owned).iter().collect());
        assert!(text.starts_with(r#"{"account_id":"acme","auth_mode":"bearer","body_sha256":""#), "{text}");
        assert!(text.contains(r#""cause_generation":0,"#) && text.contains(r#""order_key":"[\"acme\",\"crm\",\"k\"]""#), "{text}");
        let mut none = binding();
        (none.signing_scope_id, none.order_key) = (None, None);
        let text = String::from_utf8(none.associated_data()).unwrap();
        assert!(text.contains(r#""signing_scope_id":null"#) && text.contains(r#""order_key":null"#), "{text}");
    }

    #[test]
    fn columns_come_back_as_they_were_or_not_at_all() {
        let binding = binding();
        let headers = binding.headers();
        assert_eq!(headers.iter().map(|(name, _)| *name).collect::<Vec<_>>(), COLUMNS);
        assert_eq!(read(&headers), Ok(binding.clone()));
        let mut without = binding.clone();
        (without.signing_scope_id, without.order_key) = (None, None);
        assert_eq!((without.headers().len(), read(&without.headers())), (18, Ok(without)));
        for (index, name) in COLUMNS.into_iter().enumerate() {
            let mut doubled = headers.clone();
            doubled.push(headers[index].clone());
            assert_eq!(read(&doubled), Err(BindingFault::Doubled(name)));
            let mut missing = headers.clone();
            missing.remove(index);
            match name {
                "signing_scope_id" | "order_key" => assert_ne!(read(&missing), Ok(binding.clone())),
                _ => assert_eq!(read(&missing), Err(BindingFault::Missing(name))),
            }
        }
        for (written, index) in [("01", 6), ("+1", 6), ("-1", 13), ("1.0", 17), ("", 17), ("4294967296", 6)] {
            let mut wrong = headers.clone();
            wrong[index].1 = written.to_owned();
            assert_eq!(read(&wrong), Err(BindingFault::Unreadable(COLUMNS[index])), "{written:?}");
        }
        let mut more = headers.clone();
        more.push(("other", String::new()));
        assert_eq!(read(&more), Err(BindingFault::Unknown));
        let broken = [("account_id", &b"\xff"[..])];
        assert_eq!(Binding::from_headers(broken.into_iter()), Err(BindingFault::Unreadable("account_id")));
    }

    #[test]
    fn every_field_of_a_subscription_is_in_its_fingerprint() {
        let changes: [fn(&mut Subscription); 9] = [
            |one| one.tenant.push('x'),
            |one| one.subscriber.push('x'),
            |one| one.principal.push('x'),
            |one| one.url.push('x'),
            |one| one.signing_scope = None,
            |one| one.signing_scope = Some(String::new()),
            |one| one.authentication = None,
            |one| one.authentication = Some("{}".into()),
            |one| one.revision.push('x'),
        ];
        let mut seen = std::collections::BTreeSet::from([fingerprint(&subscription())]);
        for change in changes {
            let mut changed = subscription();
            change(&mut changed);
            assert!(seen.insert(fingerprint(&changed)));
        }
        assert_eq!(fingerprint(&subscription()), fingerprint(&subscription()));
    }
}
