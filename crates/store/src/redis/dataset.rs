//! Whether a new connection leads to the data of the one before.
//!
//! What a node holds of a limit counts in the store. When a connection ends, the node cannot know why: perhaps the server was
//! restarted or replaced, and lost what it had counted last. Then the node must not spend what it holds. But if only the connection
//! ended, dropping it would burn a part of the limit each time.
//!
//! ```text
//!   INFO ──► run_id: a random number of the process    ──┐
//!            master_replid: a random number of the        ├──► both as before: the same process, which never took over
//!            history of its data                         ──┘     the data of another one
//! ```
//!
//! A server that does not answer that, for example because our user may not call INFO, has other data each time.

use crate::sync::{Mutex, lock};

/// Which data the connections to a server lead to.
#[derive(Debug, Default)]
pub(super) struct DatasetWatch(Mutex<Connected>);

#[derive(Debug, Default)]
struct Connected {
    /// The data to which the connection in use leads, or the last connection.
    current: Option<Dataset>,
    /// The data to which a new connection leads that is not in use yet.
    next: Option<Dataset>,
}

/// The process of a server, and the history of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dataset {
    process: String,
    history: String,
}

impl DatasetWatch {
    /// A connection was opened, and leads to this data.
    pub(super) fn opened(&self, dataset: Option<Dataset>) {
        lock(&self.0).next = dataset;
    }

    /// The connection is used from now on. Returns whether it leads to the data of the one before.
    pub(super) fn is_the_same(&self) -> bool {
        let mut connected = lock(&self.0);
        let next = connected.next.take();
        let is_the_same = next.is_some() && next == connected.current;
        connected.current = next;
        is_the_same
    }
}

impl Dataset {
    /// Reads the reply to INFO.
    pub(super) fn read(info: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(known, _)| *known == name)?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        Some(Self { process: value("run_id")?, history: value("master_replid")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(process: &str, history: &str) -> Option<Dataset> {
        Dataset::read(&format!(
            "# Server\r\nredis_version:7.0.15\r\nrun_id:{process}\r\n\r\n# Replication\r\nrole:master\r\nmaster_replid:{history}\r\n"
        ))
    }

    #[test]
    fn only_a_server_with_the_same_process_and_history_has_the_same_data() {
        let watch = DatasetWatch::default();
        for (opened, is_the_same) in [
            (vec![dataset("a", "h")], false),
            (vec![dataset("a", "h")], true),
            (vec![dataset("b", "h")], false),
            (vec![dataset("b", "i")], false),
            (vec![None], false),
            (vec![dataset("b", "i")], false),
            (vec![dataset("b", "i")], true),
            // A connection that was never used changes nothing.
            (vec![dataset("c", "j"), dataset("b", "i")], true),
            (vec![dataset("b", "i"), None], false),
        ] {
            for dataset in opened {
                watch.opened(dataset);
            }
            assert_eq!(watch.is_the_same(), is_the_same);
        }
        assert_eq!(Dataset::read("run_id:a\r\n"), None);
        assert_eq!(dataset("", "h"), None);
    }
}
