//! Background tasks: watching files, the shared store, and changes that operators make on other nodes.

use super::Server;
use crate::backend::Backend;
use crate::front::admin::AdminUsers;
use crate::health::Health;
use crate::net::Certificate;
use crate::rulebook::Caution;
use crate::shared_store::{StoreWatch, follow, publish_top_keys};
use crate::supervise::supervised;
use crate::watch;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

impl<S: Backend> Server<S> {
    /// Watches the policy, the rule files and the certificate, and reads them again when they change.
    pub(super) fn watch_files(&self) {
        self.watch_policy();
        self.watch_rule_files();
        self.watch_certificate();
    }

    fn watch_policy(&self) {
        if let Some(path) = self.rulebook.file() {
            let (paths, rulebook) = (vec![path.to_owned()], Arc::clone(&self.rulebook));
            let read = move || rulebook.reload(Caution::Careful);
            supervised("watching the policy", Arc::clone(&self.metrics), move || {
                let paths = paths.clone();
                watch::on_change("policy", move || paths.clone(), read.clone())
            });
        }
    }

    fn watch_rule_files(&self) {
        if let Some(rules) = &self.rule_files {
            let (rules, read) = (Arc::clone(rules), Arc::clone(rules));
            let read = move || read.reload();
            supervised("watching the rule files", Arc::clone(&self.metrics), move || {
                let rules = Arc::clone(&rules);
                watch::on_change("rule files", move || rules.paths(), read.clone())
            });
        }
    }

    fn watch_certificate(&self) {
        if let Some(certificate) = &self.certificate {
            let paths: Vec<PathBuf> = certificate.files().map(Path::to_owned).collect();
            let (certificate, health) = (Arc::clone(certificate), Arc::clone(&self.health));
            let read = move || renew(&certificate, &health);
            supervised("watching the certificate", Arc::clone(&self.metrics), move || {
                let paths = paths.clone();
                watch::on_change("certificate", move || paths.clone(), read.clone())
            });
        }
    }

    /// Watches the users file of the admin listener, if there is one.
    pub(super) fn watch_admin_users(&self, users: Option<Arc<AdminUsers>>) {
        let Some(users) = users else { return };
        let path = users.path().to_owned();
        let health = Arc::clone(&self.health);
        let read = move || users.reload(&health);
        supervised("watching the admin users", Arc::clone(&self.metrics), move || {
            let paths = vec![path.clone()];
            watch::on_change("admin users", move || paths.clone(), read.clone())
        });
    }

    /// Ends changes of operators that have expired.
    pub(super) fn watch_expiry(&self) {
        let rulebook = Arc::clone(&self.rulebook);
        supervised("ending changes that expire", Arc::clone(&self.metrics), move || {
            Arc::clone(&rulebook).watch_expiry()
        });
    }

    /// Closes each minute of the denial log.
    pub(super) fn watch_denials(&self) {
        let denials = self.decisions.denials.clone();
        supervised("watching the denial log", Arc::clone(&self.metrics), move || {
            denials.clone().watch_minutes()
        });
    }

    /// Reads the clock for the top keys, and tells the other nodes about them.
    pub(super) fn watch_top_keys(&self) {
        let top = self.decisions.top.clone();
        if !top.is_on() {
            return;
        }
        let metrics = || Arc::clone(&self.metrics);
        supervised("reading the clock for top keys", metrics(), {
            let top = top.clone();
            move || top.clone().watch_clock()
        });
        if S::SHARED {
            let limiter = self.limiter.clone();
            supervised("publishing top keys", metrics(), move || {
                publish_top_keys(limiter.clone(), top.clone())
            });
        }
    }

    /// Watches the health of a store outside this process.
    pub(super) fn watch_store(&self) {
        if !S::WATCHED {
            return;
        }
        let watch = Rc::new(StoreWatch::new(
            self.limiter.clone(),
            Arc::clone(&self.health),
            &self.settings.server.data_dir,
        ));
        // Once before the server reports that it is ready.
        watch.check();
        supervised("watching the store", Arc::clone(&self.metrics), move || {
            let watch = Rc::clone(&watch);
            async move { watch.run().await }
        });
    }

    /// Applies the changes that operators make on other nodes.
    pub(super) fn follow_other_nodes(&self) {
        if !S::SHARED {
            return;
        }
        let (limiter, rulebook) = (self.limiter.clone(), Arc::clone(&self.rulebook));
        let health = Arc::clone(&self.health);
        supervised("following other nodes", Arc::clone(&self.metrics), move || {
            follow(limiter.clone(), Arc::clone(&rulebook), Arc::clone(&health))
        });
    }
}

/// Reads the certificates again. If one is not valid, the old ones stay in use, and the log and `/ready` say why.
pub(super) fn renew(certificate: &Certificate, health: &Health) {
    let problem = certificate.reload().err().map(|error| error.to_string());
    match &problem {
        None => tracing::info!("the certificates were read"),
        Some(error) => tracing::error!("the certificates are not changed: {error}"),
    }
    health.set_problem("certificate", problem);
}
