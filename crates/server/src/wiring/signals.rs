//! Signals: reload on SIGHUP, stop on SIGTERM and SIGINT.

use super::Server;
use super::proxy::renew_keys;
use super::watchers::renew;
use crate::backend::Backend;
use crate::rulebook::Caution;
use std::io;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that the process handles.
pub(super) struct Signals {
    hangup: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// Other servers reopen their logs or print their state on these two. They do nothing here, but unhandled they would kill
    /// the process.
    user_1: tokio::signal::unix::Signal,
    user_2: tokio::signal::unix::Signal,
}

/// Waits for one of two signals.
async fn either(one: &mut tokio::signal::unix::Signal, two: &mut tokio::signal::unix::Signal) {
    tokio::select! { _ = one.recv() => {}, _ = two.recv() => {} }
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }
}

impl<S: Backend> Server<S> {
    /// Handles signals until one of them stops the server.
    pub(super) async fn until_stopped(&self, mut signals: Signals) {
        loop {
            tokio::select! {
                _ = signals.hangup.recv() => self.reload().await,
                () = either(&mut signals.user_1, &mut signals.user_2) => {
                    tracing::info!("SIGUSR1 and SIGUSR2 do nothing; SIGHUP reads the files again");
                }
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
            }
        }
        tokio::task::spawn_local(async move {
            // A second signal ends the process without waiting for the drain.
            either(&mut signals.terminate, &mut signals.interrupt).await;
            std::process::exit(130);
        });
    }

    /// Reads the policy, the rule files, the certificate and the keys for tokens again.
    async fn reload(&self) {
        let rulebook = Arc::clone(&self.rulebook);
        let (certificate, health) = (self.certificate.clone(), Arc::clone(&self.health));
        let (rules, keys) = (self.rule_files.clone(), self.keys.clone());
        let read = tokio::task::spawn_blocking(move || {
            rulebook.reload(Caution::Forced);
            rules.iter().for_each(|rules| rules.reload());
            certificate.iter().for_each(|certificate| renew(certificate, &health));
            keys.iter().for_each(|keys| renew_keys(keys, &health));
        });
        if read.await.is_err() {
            tracing::error!(
                "a bug in tidegate: reading the files panicked; the old ones stay in force"
            );
        }
    }
}
