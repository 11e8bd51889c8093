//! The table of routes: the one place from which the router, the rules and the document of the API are made.

mod events;
pub mod exec;
mod feed;
mod files;
mod link;
mod network;
mod processes;
mod sandboxes;
mod sessions;
mod settings;
mod snapshots;
pub mod system;
mod terminal;
pub mod words;

use std::sync::LazyLock;

use crate::route::Route;

static TABLE: LazyLock<Vec<Route>> = LazyLock::new(|| {
    [
        system::routes(),
        events::routes(),
        sandboxes::routes(),
        sessions::routes(),
        snapshots::routes(),
        feed::routes(),
        exec::routes(),
        link::routes(),
        terminal::routes(),
        processes::routes(),
        files::routes(),
        network::routes(),
        settings::routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
});

/// Every route.
pub fn table() -> &'static [Route] {
    &TABLE
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use axum::http::Method;

    use super::*;
    use crate::route::{Bound, Need, Place};

    #[test]
    fn names_are_unique_and_rules_fit_their_paths() {
        let mut names = HashSet::new();
        for route in table() {
            assert!(names.insert(route.id), "{}", route.id);
            assert!(
                !route.tag.is_empty() && !route.summary.is_empty() && !route.answers.is_empty(),
                "{}",
                route.id
            );
            let has_session = route.path.contains("{session}");
            assert_eq!(has_session, route.rule.bound == Bound::Session, "{}", route.id);
            let parts: Vec<_> = route
                .params
                .iter()
                .filter(|param| param.place == Place::Path)
                .map(|param| param.name)
                .collect();
            for part in route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
                assert!(parts.contains(&part), "{} says nothing of {part}", route.id);
            }
            // Nobody changes anything without a credential, or with one that may only look.
            let looks =
                matches!(route.method, Method::GET) || ["login", "logout", "testNetwork"].contains(&route.id);
            assert!(looks || route.rule.need >= Need::Write, "{}", route.id);
        }
    }
}
