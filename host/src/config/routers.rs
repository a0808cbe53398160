//! `[routers.NAME]`: who subscribes to what, out of a component, a table, or the file itself.

use super::adapters::{self, Names, refers};
use super::endpoint;
use super::model::{EndpointUrl, Router, RouterKind, SqlName, Subscriber, SubscriptionColumns, SubscriptionTable, TopicPattern};
use super::section::{Located, Section};

use std::collections::HashMap;

/// The key that says of which kind a router is, and what to write, for errors.
const KINDS: [(&str, &str); 3] =
    [("plugin", "plugin = \"NAME\""), ("table", "table = \"subscriptions\" with its database"), ("subscribers", "subscribers = [ ... ]")];

/// Reads a router; none where something without a default is missing or wrong.
pub(super) fn router(name: &str, section: Section<'_>, names: &Names<'_>) -> Option<Router> {
    let mut written = KINDS.iter().filter(|(key, _)| section.has(key)).map(|(key, _)| *key);
    let kind = match (written.next(), written.next()) {
        (Some(first), Some(second)) => {
            section.problem_here(format!("has both {first} and {second}: a router is of one kind, so leave one of the two out"));
            return None;
        }
        (None, _) => {
            let choices = KINDS.map(|(_, example)| example).join(", or ");
            section.problem_here(format!("says not where the subscribers come from: add {choices}"));
            return None;
        }
        (Some("plugin"), None) => RouterKind::Plugin(Box::new(adapters::router(name, section, names)?)),
        (Some("table"), None) => RouterKind::Table(Box::new(table(section, names)?)),
        (Some(_), None) => RouterKind::List(list(section, names)),
    };
    Some(Router { name: name.to_owned(), kind })
}

fn table(section: Section<'_>, names: &Names<'_>) -> Option<SubscriptionTable> {
    let database = section
        .required("database", "\"main\" (a [databases.NAME] of this file)")
        .filter(|database| refers(&section, database, "database", "database", &names.databases));
    let table = section
        .required("table", "\"subscriptions\"")
        .and_then(|table| SqlName::table(table.value).map_err(|error| section.problem(table.at, "table", error)).ok());
    let columns = columns(section.section("columns"));
    let secrets = section.texts("allow_secrets");
    let secrets = secrets.into_iter().filter(|secret| refers(&section, secret, "allow_secrets", "secret", &names.secrets));
    let secrets = secrets.map(|secret| secret.value.to_owned()).collect();
    section.finish();
    Some(SubscriptionTable { database: database?.value.to_owned(), table: table?, columns: columns?, secrets })
}

fn columns(section: Section<'_>) -> Option<SubscriptionColumns> {
    let named = |at: usize, key: &str, name: &str| SqlName::column(name).map_err(|error| section.problem(at, key, error)).ok();
    let always = |key: &'static str| match section.text(key) {
        Some(name) => named(name.at, key, name.value),
        None => SqlName::column(key).ok(),
    };
    let maybe = |key: &'static str| match section.text_or_false(key) {
        Some(name) => name.value.and_then(|text| named(name.at, key, text)),
        None => SqlName::column(key).ok(),
    };
    let (subscriber, url) = (always("subscriber"), always("url"));
    let columns = SubscriptionColumns {
        tenant: maybe("tenant"),
        subscriber: subscriber?,
        url: url?,
        event_types: maybe("event_types"),
        signing_scope: maybe("signing_scope"),
        authentication: maybe("authentication"),
        principal: maybe("principal"),
        revision: maybe("revision"),
        active: maybe("active"),
    };
    section.finish();
    Some(columns)
}

fn list(section: Section<'_>, names: &Names<'_>) -> Vec<Subscriber> {
    let mut seen: HashMap<(String, String), usize> = HashMap::new();
    let mut subscribers = Vec::new();
    for (index, entry) in section.list("subscribers").into_iter().enumerate() {
        let tenant = entry.text("tenant").map_or("", |tenant| tenant.value);
        let name = entry.required("subscriber", "\"crm\"");
        if let Some(name) = name
            && let Some(earlier) = seen.insert((tenant.to_owned(), name.value.to_owned()), index)
        {
            let text = format!("subscribers[{earlier}] of the same tenant is called {:?} too: give each its own name", name.value);
            entry.problem(name.at, "subscriber", text);
        }
        let url = url(&entry, names);
        let topics = topics(&entry);
        let scope = entry.text("signing_scope").filter(|scope| !is_empty(&entry, scope, "signing_scope"));
        let authentication =
            entry.text("authentication_secret").filter(|secret| refers(&entry, secret, "authentication_secret", "secret", &names.secrets));
        let principal = entry.text("principal").map_or("", |principal| principal.value);
        let active = entry.flag("active", true).value;
        entry.finish();
        if let (Some(name), Some(url)) = (name, url) {
            subscribers.push(Subscriber {
                tenant: tenant.to_owned(),
                subscriber: name.value.to_owned(),
                principal: principal.to_owned(),
                url,
                topics,
                signing_scope: scope.map(|scope| scope.value.to_owned()),
                authentication_secret: authentication.map(|secret| secret.value.to_owned()),
                active,
            });
        }
    }
    section.finish();
    subscribers
}

fn url(entry: &Section<'_>, names: &Names<'_>) -> Option<EndpointUrl> {
    match (entry.text("url"), entry.text("url_secret")) {
        (Some(_), Some(secret)) => {
            entry.problem(secret.at, "url_secret", "contradicts url: leave one of the two out");
            None
        }
        (Some(url), None) => match endpoint::fault(url.value) {
            // Whatever it is, it may be a credential: nothing of it is repeated.
            Some(fault) => {
                entry.problem(url.at, "url", fault);
                None
            }
            None => Some(EndpointUrl::Written(url.value.to_owned())),
        },
        (None, Some(secret)) => {
            let known = refers(entry, &secret, "url_secret", "secret", &names.secrets);
            known.then(|| EndpointUrl::Secret(secret.value.to_owned()))
        }
        (None, None) => {
            if !entry.has("url") && !entry.has("url_secret") {
                entry
                    .problem_here("says not where to: add url = \"https://...\", or url_secret = \"NAME\" (a [secrets.NAME] of this file)");
            }
            None
        }
    }
}

fn topics(entry: &Section<'_>) -> Vec<TopicPattern> {
    let parse = |topic: &Located<&str>| TopicPattern::parse(topic.value).map_err(|error| entry.problem(topic.at, "topics", error)).ok();
    if entry.has("topics") {
        return entry.texts("topics").iter().filter_map(parse).collect();
    }
    entry.texts("topics");
    TopicPattern::parse("*").into_iter().collect()
}

fn is_empty(entry: &Section<'_>, text: &Located<&str>, key: &str) -> bool {
    if text.value.is_empty() {
        entry.problem(text.at, key, "is empty: name one, or leave it out");
    }
    text.value.is_empty()
}
