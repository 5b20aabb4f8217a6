//! Signals: reload on SIGHUP, stop on SIGTERM and SIGINT.

use super::Server;
use super::watchers::renew;
use crate::backend::Backend;
use crate::rulebook::Caution;
use std::io;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// What a process is told from outside.
pub(super) struct Signals {
    hangup: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// Other servers open their logs again, or show their state; unheard, these two would end the process at once.
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
    /// Reads the policy again whenever somebody says so; comes back when somebody says stop.
    pub(super) async fn until_stopped(&self, mut signals: Signals) {
        loop {
            tokio::select! {
                _ = signals.hangup.recv() => {
                    let rulebook = Arc::clone(&self.rulebook);
                    let (certificate, health) = (self.certificate.clone(), Arc::clone(&self.health));
                    let rules = self.rule_files.clone();
                    let read = tokio::task::spawn_blocking(move || {
                        rulebook.reload(Caution::Forced);
                        rules.iter().for_each(|rules| rules.reload());
                        certificate.iter().for_each(|certificate| renew(certificate, &health));
                    });
                    if read.await.is_err() {
                        tracing::error!("reading the files met a mistake of ours; nothing is changed");
                    }
                }
                () = either(&mut signals.user_1, &mut signals.user_2) => {
                    tracing::info!("SIGUSR1 and SIGUSR2 do nothing; SIGHUP reads the files again");
                }
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
            }
        }
        tokio::task::spawn_local(async move {
            // Whoever says it twice does not want to wait.
            tokio::select! { _ = signals.terminate.recv() => {}, _ = signals.interrupt.recv() => {} }
            std::process::exit(130);
        });
    }
}
