//! The routes in force: the file as it was last read, and its groups. Groups that did not change keep their connections' health.
//! Servers that operators drain stay drained as long as they are in their group, whatever else changes.

use super::routes::{GroupSpec, Routes, ServerUrl};
use super::upstream::{GroupReading, UpstreamGroup};
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Routes and the groups that they lead to.
pub(crate) struct RouteTable {
    pub(crate) routes: Routes,
    /// In the order of the file.
    pub(crate) groups: Vec<Arc<UpstreamGroup>>,
}

/// The routes in force, which all workers share.
pub(crate) struct LiveRoutes {
    table: ArcSwap<RouteTable>,
    /// Locked while the routes are replaced or a server is drained, so that neither change gets lost.
    changing: Mutex<()>,
}

impl LiveRoutes {
    pub(crate) fn new(routes: Routes) -> Arc<Self> {
        let table = ArcSwap::from_pointee(RouteTable::new(routes, &[]));
        Arc::new(Self { table, changing: Mutex::default() })
    }

    pub(crate) fn load(&self) -> Arc<RouteTable> {
        self.table.load_full()
    }

    /// Whether these routes are still in force.
    pub(crate) fn is(&self, table: &Arc<RouteTable>) -> bool {
        Arc::ptr_eq(&self.table.load(), table)
    }

    /// Puts other routes in force.
    pub(crate) fn replace(&self, routes: Routes) {
        let _turn = self.turn();
        let table = RouteTable::new(routes, &self.load().groups);
        self.table.store(Arc::new(table));
    }

    /// Drains a server, or brings it back. The error says which group or server there is not.
    pub(crate) fn drain(&self, group: &str, server: &str, drains: bool) -> Result<(), String> {
        let _turn = self.turn();
        self.at_server(group, server, |group, url| group.drain(url, drains))
    }

    /// Whether there is such a server to drain. The error is that of [`LiveRoutes::drain`].
    pub(crate) fn has(&self, group: &str, server: &str) -> Result<(), String> {
        self.at_server(group, server, |group, url| group.spec.servers.contains(url))
    }

    /// Calls `at` with a group and one of its servers. It returns whether the group has the server.
    fn at_server(
        &self,
        group: &str,
        server: &str,
        at: impl FnOnce(&UpstreamGroup, &ServerUrl) -> bool,
    ) -> Result<(), String> {
        let table = self.load();
        let found = table.groups.iter().find(|one| one.spec.name == group);
        let found = found.ok_or_else(|| {
            let names = table.groups.iter().map(|one| format!("`{}`", one.spec.name));
            let names = names.collect::<Vec<_>>().join(", ");
            format!("there is no such group; the groups are {names}")
        })?;
        let url: ServerUrl = server.parse()?;
        if at(found, &url) {
            return Ok(());
        }
        let servers = found.spec.servers.iter().map(|url| format!("`{url}`"));
        let servers = servers.collect::<Vec<_>>().join(", ");
        Err(format!("the group has no such server; its servers are {servers}"))
    }

    /// The groups as they are now.
    pub(crate) fn readings(&self) -> Vec<GroupReading> {
        self.load().groups.iter().map(|group| group.reading()).collect()
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RouteTable {
    fn new(routes: Routes, before: &[Arc<UpstreamGroup>]) -> Self {
        let group = |spec: &GroupSpec| match before.iter().find(|one| one.spec.name == spec.name) {
            Some(same) if same.spec == *spec => Arc::clone(same),
            Some(changed) => UpstreamGroup::new(spec.clone(), Some(changed)),
            None => UpstreamGroup::new(spec.clone(), None),
        };
        let groups = routes.groups.iter().map(group).collect();
        Self { routes, groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(servers: &str, concurrency: u32) -> Routes {
        let text = format!(
            "groups: {{ api: {{ servers: [{servers}], concurrency: {concurrency} }}, shop: {{ servers: [http://c] }} }}\nroutes: [{{ path: /x, group: shop }}, {{ group: api }}]"
        );
        Routes::parse(text.as_bytes()).unwrap()
    }

    fn draining(live: &LiveRoutes) -> Vec<String> {
        let servers = live.readings().into_iter().flat_map(|group| group.servers);
        servers.filter(|one| one.is_draining).map(|one| one.server).collect()
    }

    #[test]
    fn a_server_stays_drained_as_long_as_it_is_in_its_group() {
        let live = LiveRoutes::new(routes("http://a, http://b", 1));
        live.drain("api", "http://a", true).unwrap();
        live.drain("shop", "HTTP://C:80", true).unwrap();
        assert_eq!(draining(&live), ["http://a", "http://c"]);
        live.replace(routes("http://b, http://a", 2));
        assert_eq!(draining(&live), ["http://a", "http://c"]);
        live.replace(routes("http://b", 2));
        live.replace(routes("http://b, http://a", 2));
        assert_eq!(draining(&live), ["http://c"]);
        live.drain("shop", "http://c", false).unwrap();
        assert_eq!(draining(&live), Vec::<String>::new());
    }

    #[test]
    fn an_error_says_what_there_is() {
        let live = LiveRoutes::new(routes("http://a, http://b", 1));
        let error = |group, server| live.drain(group, server, true).unwrap_err();
        assert_eq!(
            error("pai", "http://a"),
            "there is no such group; the groups are `api`, `shop`"
        );
        let expected = "the group has no such server; its servers are `http://a`, `http://b`";
        assert_eq!(error("api", "http://c"), expected);
        assert!(error("api", "a").contains("a server begins with"), "{}", error("api", "a"));
    }
}
