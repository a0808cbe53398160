//! Subscribers that stand in the configuration.

use super::resolve::Readings;
use crate::config::model::{EndpointUrl, Subscriber};
use crate::domain::{Batch, Failure, FailureCode};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use crate::secrets::Secrets;
use async_trait::async_trait;
use std::collections::HashMap;
use std::time::Duration;

/// A router of which the subscribers do not change while it lives; their secrets may.
pub(crate) struct ListRouter {
    name: String,
    subscribers: Vec<Subscriber>,
    /// Places in the list by tenant.
    tenants: HashMap<String, Vec<usize>>,
    secrets: Secrets,
}

impl ListRouter {
    pub(crate) fn new(name: &str, subscribers: Vec<Subscriber>, secrets: Secrets) -> Self {
        let mut tenants: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, subscriber) in subscribers.iter().enumerate().filter(|(_, subscriber)| subscriber.active) {
            tenants.entry(subscriber.tenant.clone()).or_default().push(index);
        }
        Self { name: name.to_owned(), subscribers, tenants, secrets }
    }

    /// The active subscribers of a tenant that want a topic, with their places.
    fn wanting<'a>(&'a self, tenant: &str, topic: &'a str) -> impl Iterator<Item = (usize, &'a Subscriber)> {
        let places = self.tenants.get(tenant).into_iter().flatten();
        let subscribers = places.filter_map(|place| Some((*place, self.subscribers.get(*place)?)));
        subscribers.filter(|(_, subscriber)| subscriber.topics.iter().any(|pattern| pattern.is_match(topic)))
    }

    async fn expanded(&self, events: &Batch, tenants: &[String]) -> Vec<Result<Vec<Subscription>, Failure>> {
        let mut call = Call::new(self);
        let mut answers = Vec::with_capacity(events.len());
        for (index, event) in events.messages().enumerate() {
            let tenant = tenants.get(index).map_or("", String::as_str);
            let mut answer = Ok(Vec::new());
            for (place, subscriber) in self.wanting(tenant, event.topic()) {
                match (call.subscription(place, subscriber).await, &mut answer) {
                    (Ok(subscription), Ok(subscriptions)) => subscriptions.push(subscription),
                    (Err(failure), _) => answer = Err(failure),
                    (Ok(_), Err(_)) => {}
                }
            }
            answers.push(answer);
        }
        answers
    }

    async fn looked_up(&self, inquiries: &[Inquiry]) -> Vec<Result<Option<Subscription>, Failure>> {
        let mut call = Call::new(self);
        let mut answers = Vec::with_capacity(inquiries.len());
        for Inquiry { tenant, subscriber, topic } in inquiries {
            answers.push(match self.wanting(tenant, topic).find(|(_, found)| found.subscriber == *subscriber) {
                None => Ok(None),
                Some((place, found)) => call.subscription(place, found).await.map(Some),
            });
        }
        answers
    }

    /// Reads every secret that it names.
    ///
    /// # Errors
    /// The first that has no value of use.
    pub(crate) async fn probe(&self) -> Result<(), Failure> {
        let mut call = Call::new(self);
        for (place, subscriber) in self.subscribers.iter().enumerate().filter(|(_, subscriber)| subscriber.active) {
            call.subscription(place, subscriber).await?;
        }
        Ok(())
    }

    fn late(&self) -> Failure {
        Failure::new(FailureCode::Timeout, format!("router {:?}: its secrets could not be read in time", self.name))
    }
}

#[async_trait]
impl Router for ListRouter {
    async fn expand(
        &self,
        events: &Batch,
        tenants: &[String],
        deadline: Duration,
    ) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure> {
        tokio::time::timeout(deadline, self.expanded(events, tenants)).await.map_err(|_| self.late())
    }

    async fn current(&self, inquiries: &[Inquiry], deadline: Duration) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure> {
        tokio::time::timeout(deadline, self.looked_up(inquiries)).await.map_err(|_| self.late())
    }
}

/// What one call has found so far.
struct Call<'a> {
    router: &'a ListRouter,
    readings: Readings<'a>,
    found: HashMap<usize, Result<Subscription, Failure>>,
}

impl<'a> Call<'a> {
    fn new(router: &'a ListRouter) -> Self {
        Self { router, readings: Readings::new(&router.secrets), found: HashMap::new() }
    }

    async fn subscription(&mut self, place: usize, subscriber: &Subscriber) -> Result<Subscription, Failure> {
        if let Some(found) = self.found.get(&place) {
            return found.clone();
        }
        let found = self.resolved(subscriber).await.map_err(|failure| {
            let text = format!("router {:?}, subscribers[{place}] ({:?}): {}", self.router.name, subscriber.subscriber, failure.detail);
            Failure::new(failure.code, text)
        });
        self.found.insert(place, found.clone());
        found
    }

    async fn resolved(&mut self, subscriber: &Subscriber) -> Result<Subscription, Failure> {
        let url = match &subscriber.url {
            EndpointUrl::Written(url) => url.clone(),
            EndpointUrl::Secret(name) => self.readings.url(name).await?,
        };
        let authentication = match &subscriber.authentication_secret {
            None => None,
            Some(name) => Some(self.readings.authentication(name).await?),
        };
        Ok(Subscription {
            tenant: subscriber.tenant.clone(),
            subscriber: subscriber.subscriber.clone(),
            principal: subscriber.principal.clone(),
            url,
            signing_scope: subscriber.signing_scope.clone(),
            authentication,
            // The other fields are all that there is.
            revision: String::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::config::model::RouterKind;
    use crate::domain::NewMessage;
    use std::path::Path;

    const FILE: &str = r#"
[secrets]
hook.file = "hook"
auth.file = "auth"
[routers.list]
subscribers = [
    { tenant = "acme", subscriber = "crm", url = "https://crm.example/in", topics = ["orders.*"], signing_scope = "acme", principal = "p" },
    { tenant = "acme", subscriber = "erp", url_secret = "hook", authentication_secret = "auth" },
    { tenant = "acme", subscriber = "off", url = "https://off.example/", active = false },
    { tenant = "initech", subscriber = "crm", url = "https://initech.example/" },
    { subscriber = "nobodys", url = "https://nobody.example/" },
]
"#;

    const DEADLINE: Duration = Duration::from_secs(60);

    fn router(folder: &Path) -> ListRouter {
        let config = config::parse(FILE, &folder.join("o.toml")).unwrap();
        let RouterKind::List(subscribers) = config.routers[0].kind.clone() else { panic!() };
        ListRouter::new("list", subscribers, Secrets::new(config.secrets))
    }

    fn events(events: &[(&str, &str)]) -> (Batch, Vec<String>) {
        let mut batch = Batch::default();
        for (index, (_, topic)) in events.iter().enumerate() {
            batch.push(&NewMessage { id: Some(&index.to_string()), topic, ..NewMessage::default() });
        }
        (batch, events.iter().map(|(tenant, _)| (*tenant).to_owned()).collect())
    }

    fn inquiry(tenant: &str, subscriber: &str, topic: &str) -> Inquiry {
        Inquiry { tenant: tenant.to_owned(), subscriber: subscriber.to_owned(), topic: topic.to_owned() }
    }

    #[tokio::test]
    async fn each_event_has_the_active_subscribers_of_its_tenant_that_want_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hook"), "https://erp.example/hook?token=t\n").unwrap();
        std::fs::write(folder.path().join("auth"), "{\"type\":\"bearer\",\"token\":\"t\"}").unwrap();
        let router = router(folder.path());
        router.probe().await.unwrap();
        let (batch, tenants) =
            events(&[("acme", "orders.paid"), ("acme", "users.new"), ("initech", "x"), ("", "x"), ("hooli", "orders.paid")]);
        let answers = router.expand(&batch, &tenants, DEADLINE).await.unwrap();
        let names: Vec<Vec<(String, String)>> =
            answers.into_iter().map(|answer| answer.unwrap().into_iter().map(|one| (one.subscriber, one.url)).collect()).collect();
        let erp = ("erp".to_owned(), "https://erp.example/hook?token=t".to_owned());
        assert_eq!(
            names,
            [
                vec![("crm".to_owned(), "https://crm.example/in".to_owned()), erp.clone()],
                vec![erp],
                vec![("crm".to_owned(), "https://initech.example/".to_owned())],
                vec![("nobodys".to_owned(), "https://nobody.example/".to_owned())],
                vec![],
            ]
        );
    }

    #[tokio::test]
    async fn a_subscription_is_the_same_when_asked_for_and_none_where_it_is_not_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let router = router(folder.path());
        let (batch, tenants) = events(&[("acme", "orders.paid"), ("initech", "orders.paid")]);
        // A secret that is not there stands in the way of those events only that need it.
        let expanded = router.expand(&batch, &tenants, DEADLINE).await.unwrap();
        let failure = expanded[0].as_ref().err().unwrap();
        assert_eq!(failure.code, FailureCode::SigningUnavailable);
        assert!(failure.detail.starts_with("router \"list\", subscribers[1] (\"erp\"): secret \"hook\": "), "{failure}");
        let initech = expanded[1].as_ref().ok().unwrap();
        let asked = [
            inquiry("acme", "crm", "orders.paid"),
            inquiry("acme", "crm", "users.new"),
            inquiry("acme", "off", "orders.paid"),
            inquiry("acme", "gone", "orders.paid"),
            inquiry("hooli", "crm", "orders.paid"),
            inquiry("initech", "crm", "orders.paid"),
            inquiry("acme", "erp", "orders.paid"),
        ];
        let answers = router.current(&asked, DEADLINE).await.unwrap();
        let crm = answers[0].as_ref().ok().unwrap().as_ref().unwrap();
        assert_eq!((crm.tenant.as_str(), crm.principal.as_str(), crm.signing_scope.as_deref()), ("acme", "p", Some("acme")));
        assert_eq!((crm.authentication.as_deref(), crm.revision.as_str()), (None, ""));
        assert!(answers[1..5].iter().all(|answer| matches!(answer, Ok(None))));
        assert!(answers[5].as_ref().ok().unwrap().as_ref() == initech.first());
        assert!(answers[6].is_err());
        assert!(router.probe().await.is_err());
    }
}
