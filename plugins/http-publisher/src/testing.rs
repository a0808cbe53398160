//! Short ways to make messages, for the unit tests.

use outhaul_sdk::{Batch, Column, Destinations, NewMessage};

/// A batch of these messages.
pub(crate) fn batch_of(messages: &[NewMessage<'_>]) -> Batch {
    let mut batch = Batch::new();
    for message in messages {
        batch.push(message);
    }
    batch
}

/// A subscriber's name, URL, signing scope and authentication.
pub(crate) type To<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);

/// A batch of deliveries of these messages to these subscribers, one each, of the tenant `acme`.
pub(crate) fn to_subscribers(messages: &[NewMessage<'_>], subscribers: &[To<'_>]) -> Batch {
    let mut batch = batch_of(messages);
    let mut to = Destinations {
        urls: Column::new(),
        tenants: Column::new(),
        subscribers: Column::new(),
        signing_scopes: Column::new(),
        authentications: Column::new(),
    };
    for (subscriber, url, scope, authentication) in subscribers {
        to.urls.push(Some(url.as_bytes()));
        to.tenants.push(Some(b"acme"));
        to.subscribers.push(Some(subscriber.as_bytes()));
        to.signing_scopes.push(scope.map(str::as_bytes));
        to.authentications.push(authentication.map(str::as_bytes));
    }
    batch.destinations = Some(to);
    batch
}
