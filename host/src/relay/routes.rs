//! Which publisher a topic goes to.

use crate::config::model::Route;
use std::collections::HashMap;

/// Distinct topics remembered; a producer that puts an id into its topics must not fill the memory.
const REMEMBERED: usize = 1024;

/// The routes of a relay, in order: the first match counts.
#[derive(Debug)]
pub(super) struct Routes {
    routes: Vec<(globset::GlobMatcher, usize)>,
    known: HashMap<Box<str>, Option<usize>>,
}

impl Routes {
    /// `publishers`: names in the order of their indices.
    pub(super) fn new(routes: &[Route], publishers: &[String]) -> Self {
        let index = |name: &str| publishers.iter().position(|publisher| publisher == name);
        let routes = routes.iter().filter_map(|route| Some((route.matcher.clone(), index(&route.publisher)?))).collect();
        Self { routes, known: HashMap::new() }
    }

    pub(super) fn publisher(&mut self, topic: &str) -> Option<usize> {
        if let Some(known) = self.known.get(topic) {
            return *known;
        }
        let found = self.routes.iter().find(|(matcher, _)| matcher.is_match(topic)).map(|(_, publisher)| *publisher);
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(topic.into(), found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_match_counts() {
        let route = |topic: &str, publisher: &str| Route {
            topic: topic.into(),
            matcher: globset::Glob::new(topic).unwrap().compile_matcher(),
            publisher: publisher.into(),
        };
        let mut routes = Routes::new(&[route("orders.*", "a"), route("*", "b")], &["a".into(), "b".into()]);
        assert_eq!(routes.publisher("orders.placed/eu"), Some(0));
        assert_eq!(routes.publisher("users"), Some(1));
        let mut none = Routes::new(&[route("orders.*", "a")], &["a".into()]);
        for number in 0..3000 {
            assert_eq!(none.publisher(&format!("x{number}")), None);
        }
        assert!(none.known.len() <= REMEMBERED);
    }
}
