//! Who was refused lately: a bounded ring of refused keys, newest last.
//!
//! The ring answers "since when is this client refused, by which rule, and how often" for clients of the last minutes. It holds one
//! entry for each rule and key, however often the key is refused.

/// The keys that were refused lately, if they are kept.
#[derive(Clone, Default)]
pub(crate) struct RecentDenials(());

/// A key that a rule refused, or would have refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedKey {
    pub(crate) rule: String,
    /// The limit of the rule that refused last.
    pub(crate) limit: Option<String>,
    /// The attributes of the key with their values, as the settings say that they are shown.
    pub(crate) key: Vec<(String, String)>,
    /// The first and the last of these denials, in Unix time.
    pub(crate) first_ms: u64,
    pub(crate) last_ms: u64,
    pub(crate) denials: u64,
    /// `None`: such a request never passes, or nothing says when it would.
    pub(crate) retry_after_ms: Option<u64>,
    /// The rule is in shadow mode: it would have refused.
    pub(crate) would_deny: bool,
}

impl RecentDenials {
    /// Entries of the ring whose key agrees with every given attribute that it has, and has at least one of them.
    #[allow(dead_code, unused_variables, reason = "the interface; its users follow")]
    pub(crate) fn matching(&self, attributes: &[(&str, &str)]) -> Vec<DeniedKey> {
        let Self(()) = self;
        Vec::new()
    }

    /// The newest entries, the last refused first.
    #[allow(dead_code, unused_variables, reason = "the interface; its users follow")]
    pub(crate) fn newest(&self, most: usize) -> Vec<DeniedKey> {
        let Self(()) = self;
        Vec::new()
    }
}
