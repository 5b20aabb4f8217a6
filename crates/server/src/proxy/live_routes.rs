//! The routes in force: the file as it was last read, and its groups. Groups that did not change keep their connections' health.

use super::routes::Routes;
use super::upstream::UpstreamGroup;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// Routes and the groups that they lead to.
pub(crate) struct RouteTable {
    pub(crate) routes: Routes,
    /// In the order of the file.
    pub(crate) groups: Vec<Arc<UpstreamGroup>>,
}

/// The routes in force, which all workers share.
pub(crate) struct LiveRoutes(ArcSwap<RouteTable>);

impl LiveRoutes {
    pub(crate) fn new(routes: Routes) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(RouteTable::new(routes, &[]))))
    }

    pub(crate) fn load(&self) -> Arc<RouteTable> {
        self.0.load_full()
    }

    /// Whether these routes are still in force.
    pub(crate) fn is(&self, table: &Arc<RouteTable>) -> bool {
        Arc::ptr_eq(&self.0.load(), table)
    }

    /// Puts other routes in force.
    pub(crate) fn replace(&self, routes: Routes) {
        let table = RouteTable::new(routes, &self.load().groups);
        self.0.store(Arc::new(table));
    }
}

impl RouteTable {
    fn new(routes: Routes, before: &[Arc<UpstreamGroup>]) -> Self {
        let group = |spec: &super::routes::GroupSpec| {
            let same = before.iter().find(|group| group.spec == *spec);
            same.cloned().unwrap_or_else(|| UpstreamGroup::new(spec.clone()))
        };
        let groups = routes.groups.iter().map(group).collect();
        Self { routes, groups }
    }
}
