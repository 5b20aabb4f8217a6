//! What is known of a request: who sends it, and what it asks for.
//!
//! ```text
//!   ip 203.0.113.7 · user alice · method POST · path /urls · tenant acme · …
//! ```
//!
//! Three names have a meaning of their own: `ip` is an address, `path` is kept in its usual spelling and in the others
//! that servers may read it as, and `method` in capitals. All others are text, and free: `user`, `api_key`, `device`, `shard`. An attribute
//! without text is an absent one: nobody shares a bucket with everybody whose header was empty.

use crate::address::parse_address;
use crate::document::is_obeyed;
use crate::key::is_attribute;
use crate::path::{NormalPath, PathError};
use crate::pattern::Case;
use crate::readings::Readings;
use std::borrow::Cow;
use std::net::IpAddr;

/// What is known of a request.
///
/// ```
/// use tidegate_policy::Attributes;
/// let request = Attributes::new()
///     .with("method", "post")?
///     .with("path", "/urls//42")?
///     .with("ip", "::ffff:203.0.113.7")?
///     .with("user", "alice")?;
/// assert_eq!(request.get("path").as_deref(), Some("/urls/42"));
/// assert_eq!(request.get("ip").as_deref(), Some("203.0.113.7"));
/// assert_eq!(request.get("tenant"), None);
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    method: Option<Cow<'a, str>>,
    path: Option<Readings<'a>>,
    /// Why the path of a client could not be read.
    unreadable: Option<PathError>,
    address: Option<IpAddr>,
    named: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// A request, its path in one of its readings.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'s> {
    request: &'s Attributes<'s>,
    path: Option<&'s NormalPath<'s>>,
}

/// Why an attribute was refused.
///
/// ```
/// use tidegate_policy::{AttributeError, Attributes};
/// let error = Attributes::new().with("ip", "localhost").unwrap_err();
/// assert_eq!(error, AttributeError::Address("localhost".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// `ip` is no address.
    #[error("`{0}` is no address; write it like `203.0.113.7` or `2001:db8::7`")]
    Address(String),
    /// `path` is no path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A name that cannot be one.
    #[error("`{0}` is no name of an attribute; it has 1 to 64 bytes and no control characters")]
    Name(String),
    /// `method` is no word.
    #[error("`{0}` is no method; write it like `POST`")]
    Method(String),
    /// A value that is too long even to be hashed.
    #[error("the value of `{0}` has more than {LONGEST_VALUE} bytes")]
    Value(String),
    /// Different values where a request should have one: the attribute, and where it is read.
    #[error(
        "{1} is there more than once, with different values; send it once, or let the policy say which counts for `{0}` (`duplicates: first` or `last`)"
    )]
    Duplicates(String, String),
    /// More than 32.
    #[error("a request has at most {MOST} attributes")]
    TooMany,
}

/// Enough for every header that names somebody; a request with more is no request.
const MOST: usize = 32;
const LONGEST_NAME: usize = 64;
/// As long as the longest line of a request.
const LONGEST_VALUE: usize = 8 * 1024;

impl<'a> Attributes<'a> {
    /// Nothing is known.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Attributes::new().iter().count(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a request line tells.
    pub(crate) fn of(method_text: &'a str, target: &'a str) -> Result<Self, AttributeError> {
        let [method_text, target] =
            [method_text, target].map(|text| Some(text).filter(|text| !text.is_empty()));
        let target = target.filter(|target| !target.starts_with(['?', '#']));
        Ok(Self {
            method: method_text.map(|text| method(text.into())).transpose()?,
            path: target.map(Readings::new).transpose()?,
            ..Self::default()
        })
    }

    /// These, and one more; an earlier value of the same name gives way. An empty value is none.
    ///
    /// ```
    /// use tidegate_policy::Attributes;
    /// let request = Attributes::new().with("user", "")?;
    /// assert_eq!(request.get("user"), None);
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn with(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<Self, AttributeError> {
        self.set(name, value)?;
        Ok(self)
    }

    /// Sets an attribute. An empty value removes it.
    ///
    /// ```
    /// let mut request = tidegate_policy::Attributes::new();
    /// request.set("user", "alice")?;
    /// assert_eq!(request.get("user").as_deref(), Some("alice"));
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn set(
        &mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<(), AttributeError> {
        let (name, value) = (name.into(), value.into());
        let present = !value.is_empty();
        match &*name {
            "ip" => self.address = present.then(|| address(&value)).transpose()?,
            "path" => {
                self.path = present.then(|| path(value)).transpose()?;
                self.unreadable = None;
            }
            "method" => self.method = present.then(|| method(value)).transpose()?,
            _ => self.set_named(name, value)?,
        }
        Ok(())
    }

    /// Sets an attribute to what a client of the caller wrote. A path that cannot be read is not an error here, because a
    /// caller might let the request pass on errors. It is remembered instead, and the limiter refuses the request.
    ///
    /// ```
    /// let mut request = tidegate_policy::Attributes::new();
    /// request.set_from_client("path", "/a%2541")?;
    /// assert!(request.unreadable().is_some());
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn set_from_client(
        &mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<(), AttributeError> {
        match self.set(name, value) {
            Err(AttributeError::Path(error)) => {
                self.path = None;
                self.unreadable = Some(error);
                Ok(())
            }
            other => other,
        }
    }

    /// Why the path that a client wrote cannot be read, if it cannot.
    #[must_use]
    pub const fn unreadable(&self) -> Option<PathError> {
        self.unreadable
    }

    /// [`Attributes::set`] for what a proxy says about its client's request. The client chooses these values, so none of them
    /// is too long and there are never too many; the caller bounds the message that they came in. A name that no rule can be
    /// about is ignored.
    ///
    /// ```
    /// let mut request = tidegate_policy::Attributes::new();
    /// request.describe("agent", "x".repeat(33_000))?;
    /// assert_eq!(request.get("agent").unwrap().len(), 33_000);
    /// request.describe("no name of a rule", "x")?;
    /// assert_eq!(request.iter().count(), 1);
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn describe(
        &mut self,
        name: &'a str,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<(), AttributeError> {
        match name {
            "ip" | "path" | "method" => self.set(name, value)?,
            _ if is_attribute(name) => self.replace(name.into(), value.into()),
            _ => {}
        }
        Ok(())
    }

    /// The address of the client.
    ///
    /// ```
    /// let request = tidegate_policy::Attributes::new().from_address([203, 0, 113, 7].into());
    /// assert_eq!(request.get("ip").as_deref(), Some("203.0.113.7"));
    /// ```
    #[must_use]
    pub fn from_address(self, address: IpAddr) -> Self {
        Self { address: Some(address.to_canonical()), ..self }
    }

    /// The path, already in its one spelling.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, NormalPath};
    /// let request = Attributes::new().at_path(NormalPath::new("/a/./b").unwrap());
    /// assert_eq!(request.get("path").as_deref(), Some("/a/b"));
    /// ```
    #[must_use]
    pub fn at_path(self, path: NormalPath<'a>) -> Self {
        Self { path: Some(path.into()), unreadable: None, ..self }
    }

    /// An attribute as text.
    ///
    /// ```
    /// let request = tidegate_policy::Attributes::new().with("user", "alice")?;
    /// assert_eq!(request.get("user").as_deref(), Some("alice"));
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            "ip" => self.address.map(|address| address.to_string().into()),
            "path" => self.path.as_ref().map(|path| path.first().as_str().into()),
            "method" => self.method.as_deref().map(Cow::Borrowed),
            _ => self.named(name).map(Cow::Borrowed),
        }
    }

    /// All of them, as text.
    ///
    /// ```
    /// let request = tidegate_policy::Attributes::new().with("user", "alice")?;
    /// assert_eq!(request.iter().collect::<Vec<_>>(), [("user", "alice".into())]);
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let built_in = ["ip", "method", "path"];
        let built_in = built_in.into_iter().filter_map(|name| Some((name, self.get(name)?)));
        let named = self.named.iter().map(|(name, value)| (&**name, Cow::Borrowed(&**value)));
        built_in.chain(named)
    }

    /// Replaces the values that `conceals` answers for, such as secrets by their digests.
    ///
    /// ```
    /// let mut request = tidegate_policy::Attributes::new().with("api_key", "hunter2")?;
    /// request.conceal(|name, _| (name == "api_key").then(|| "#5f".to_owned()));
    /// assert_eq!(request.get("api_key").as_deref(), Some("#5f"));
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn conceal(&mut self, conceals: impl Fn(&str, &str) -> Option<String>) {
        for (name, value) in &mut self.named {
            if let Some(concealed) = conceals(name, value) {
                *value = concealed.into();
            }
        }
    }

    pub(crate) fn any_named(&self, holds: impl Fn(&str, &str) -> bool) -> bool {
        self.named.iter().any(|(name, value)| holds(name, value))
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The request, its path in the usual reading.
    pub(crate) fn seen(&self) -> Seen<'_> {
        Seen { request: self, path: self.path.as_ref().map(Readings::first) }
    }

    /// The same for every other reading of its path; for nearly all requests there is none.
    pub(crate) fn seen_otherwise(&self) -> impl Iterator<Item = Seen<'_>> {
        let others = self.path.as_ref().map_or(&[][..], Readings::others);
        others.iter().map(|path| Seen { request: self, path: Some(path) })
    }

    /// Whether servers read the path in several ways.
    ///
    /// ```
    /// use tidegate_policy::Attributes;
    /// let plain = Attributes::new().with("path", "/login")?;
    /// let spelled = Attributes::new().with("path", "/x%2fy/../login")?; // Node: /login, nginx: /x/login
    /// assert!(!plain.is_ambiguous() && spelled.is_ambiguous());
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.path.as_ref().is_some_and(|path| !path.others().is_empty())
    }

    pub(crate) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// An attribute that has no meaning of its own.
    pub(crate) fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn set_named(&mut self, name: Cow<'a, str>, value: Cow<'a, str>) -> Result<(), AttributeError> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(AttributeError::Name(shown(&name)));
        }
        if value.len() > LONGEST_VALUE {
            return Err(AttributeError::Value(name.into_owned()));
        }
        let is_new = !value.is_empty() && self.named(&name).is_none();
        if is_new && self.named.len() >= MOST {
            return Err(AttributeError::TooMany);
        }
        self.replace(name, value);
        Ok(())
    }

    /// Puts a value in the place of an earlier one; an empty value is none.
    fn replace(&mut self, name: Cow<'a, str>, value: Cow<'a, str>) {
        self.named.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            self.named.push((name, value));
        }
    }
}

// === impl Seen ===

impl<'s> Seen<'s> {
    pub(crate) const fn request(&self) -> &'s Attributes<'s> {
        self.request
    }

    pub(crate) const fn path(&self) -> Option<&'s NormalPath<'s>> {
        self.path
    }

    /// An attribute as text, the path as it is compared.
    pub(crate) fn get(&self, name: &str, case: Case) -> Option<Cow<'s, str>> {
        match name {
            "path" => self.path.map(|path| case.fold(path.as_str())),
            _ => self.request.get(name),
        }
    }
}

fn path(text: Cow<'_, str>) -> Result<Readings<'_>, PathError> {
    match text {
        Cow::Borrowed(text) => Readings::new(text),
        Cow::Owned(text) => Readings::new(&text).map(Readings::into_owned),
    }
}

fn address(text: &str) -> Result<IpAddr, AttributeError> {
    parse_address(text).ok_or_else(|| AttributeError::Address(shown(text)))
}

/// In capitals: no server that tells `get` from `GET` answers the former.
fn method(text: Cow<'_, str>) -> Result<Cow<'_, str>, AttributeError> {
    let word = text.len() <= LONGEST_NAME && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !word {
        return Err(AttributeError::Method(shown(&text)));
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(text.to_ascii_uppercase().into());
    }
    Ok(text)
}

/// Text for an error: not longer than a reader wants to see, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(40).map(|c| if is_obeyed(c) { '�' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_bounded() {
        let mut request = Attributes::new();
        for n in 0..MOST {
            request.set(n.to_string(), "x").unwrap();
        }
        assert_eq!(request.set("one more", "x"), Err(AttributeError::TooMany));
        request.set("0", "y").unwrap(); // a new value for an old name is no new attribute
        assert_eq!(request.get("0").as_deref(), Some("y"));
        let long = "x".repeat(LONGEST_VALUE + 1);
        assert_eq!(request.set("0", long), Err(AttributeError::Value("0".to_owned())));
        for name in ["", "a\nb", &"n".repeat(65)] {
            assert!(matches!(request.set(name.to_owned(), "x"), Err(AttributeError::Name(_))));
        }
        for method in ["GET /", "G\r\nX: y", "\u{e9}"] {
            assert!(matches!(request.set("method", method), Err(AttributeError::Method(_))));
        }
    }

    #[test]
    fn a_request_line_says_what_its_parts_would() {
        for (method, target) in [("get", "/a//b?x#y"), ("", ""), ("GET", "?x"), ("GET", "#y")] {
            let path = target.split(['?', '#']).next().unwrap();
            let parts = Attributes::new().with("method", method).unwrap().with("path", path);
            assert_eq!(Attributes::of(method, target), parts, "{method} {target}");
        }
        assert!(Attributes::of("GET", "no-slash").is_err());
    }

    #[test]
    fn an_empty_value_is_an_absent_attribute() {
        let mut request = Attributes::new();
        for name in ["ip", "method", "path", "user"] {
            let value = if name == "path" { "/x" } else { "1.2.3.4" };
            request.set(name, value).unwrap();
            assert!(request.get(name).is_some());
            request.set(name, "").unwrap();
            assert_eq!(request.get(name), None, "{name}");
        }
    }
}
