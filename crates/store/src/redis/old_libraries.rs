//! Libraries of other versions of tidegate, which stay on a server after an upgrade.
//!
//! ```text
//!   once a day, on every server: mark our own library for seven days ──► delete libraries of tidegate that have no mark
//! ```
//!
//! A node of another version whose library was deleted nevertheless, because it was stopped for days or because the server evicted
//! the mark, loads it again at its next call. So nothing depends on these marks.

use super::command_error::CommandError;
use super::connection::{Connection, Host};
use super::library::{self, ProgramKind};
use super::link_state::LinkCore;
use super::wire;
use crate::sync::lock;
use ::redis::{Cmd, Value, cmd, from_redis_value};
use std::collections::HashMap;
use tidegate_core::{Span, StateId};

/// How often a node looks for old libraries.
pub(super) const LOOK_INTERVAL: Span = Span::from_secs(86_400);
/// How long a library is kept after its last use, in milliseconds.
const KEPT_MILLIS: u64 = 7 * 86_400_000;

impl LinkCore {
    /// Marks the library that this node uses, and deletes those that no node uses. An error, such as a missing permission, means
    /// that they stay.
    pub(super) async fn delete_old_libraries(&self) {
        let connection = self.gate.connection().ok().map(|(connection, _)| connection);
        let canary = *lock(&self.canary);
        let uses_functions = self.program_kind() == ProgramKind::Functions;
        if let (Some(connection), Some(canary), true) = (connection, canary, uses_functions)
            && matches!(self.host, Host::Server(_))
        {
            let deleting = self.delete_unmarked(&connection, canary);
            let timeout = self.context.settings.longest_timeout();
            let _ = tokio::time::timeout(timeout.into(), deleting).await;
        }
    }

    async fn delete_unmarked(
        &self,
        connection: &Connection,
        canary: StateId,
    ) -> Result<(), CommandError> {
        let mark = |library: &str| wire::library_key(library, canary);
        let mut own = cmd("SET");
        own.arg(mark(library::name())).arg(1).arg("PX").arg(KEPT_MILLIS);
        let () = self.query(connection, &own).await?;
        for library in self.libraries(connection).await? {
            let mut look = cmd("EXISTS");
            look.arg(mark(&library));
            if self.query::<u64>(connection, &look).await? == 0 {
                let () = self.query(connection, function("DELETE").arg(library)).await?;
            }
        }
        Ok(())
    }

    /// The names of the libraries of all versions of tidegate.
    async fn libraries(&self, connection: &Connection) -> Result<Vec<String>, CommandError> {
        let pattern = format!("{}*", library::PREFIX);
        let mut list = function("LIST");
        let libraries: Vec<HashMap<String, Value>> =
            self.query(connection, list.arg("LIBRARYNAME").arg(pattern)).await?;
        let name = |mut library: HashMap<String, Value>| library.remove("library_name");
        let names = libraries.into_iter().filter_map(name);
        Ok(names.filter_map(|name| from_redis_value(name).ok()).collect())
    }
}

fn function(word: &str) -> Cmd {
    let mut command = cmd("FUNCTION");
    command.arg(word);
    command
}
