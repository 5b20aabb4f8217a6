//! Attributes: what is known about a request.
//!
//! ```text
//!   ip 203.0.113.7 · user alice · method POST · path /urls · tenant acme · …
//! ```
//!
//! Three names are special. `ip` is an address. `path` is stored in its canonical form, together with the other paths that
//! servers may read it as. `method` is stored in capitals, together with the other methods for which servers may take it. All other names are free and hold text: `user`, `api_key`,
//! `device`, `shard`. An empty value counts as absent: otherwise all requests with an empty header would share one counter.

use crate::document::shown;
use crate::model::address::parse_address;
use crate::model::path::{Case, NormalPath, PathError, Readings};
use std::borrow::Cow;
use std::net::IpAddr;

/// What is known about a request.
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
    /// The methods that the request asks servers to take it for, in capitals; nearly always none.
    other_methods: Vec<String>,
    path: Option<Readings<'a>>,
    /// Why the path that a client sent is not readable.
    unreadable: Option<PathError>,
    address: Option<IpAddr>,
    named: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// A request with one of its methods, and one of the readings of its path.
#[derive(Clone, Copy)]
pub(crate) struct RequestReading<'s> {
    request: &'s Attributes<'s>,
    method: Option<&'s str>,
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
    /// `ip` is not an address.
    #[error("`{0}` is not a valid address; write it like `203.0.113.7` or `2001:db8::7`")]
    Address(String),
    /// `path` is not a valid path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A name that is not valid.
    #[error("`{0}` is not a valid attribute name; use 1 to 64 bytes without control characters")]
    Name(String),
    /// `method` is not a single word.
    #[error("`{0}` is not a valid method; write it like `POST`")]
    Method(String),
    /// A value that is too long, even for its digest.
    #[error("the value of `{0}` has more than {LONGEST_VALUE} bytes")]
    Value(String),
    /// Several different values where one is expected: the attribute, and its source.
    #[error(
        "{1} appears more than once, with different values; send it once, or let the policy choose one for `{0}` (`duplicates: first` or `last`)"
    )]
    Duplicates(String, String),
    /// An attribute whose source the caller does not verify: the attribute, and its source.
    #[error(
        "`{0}` comes from `{1}`, which only the reverse proxy of the server verifies; send the request to that proxy, or let another proxy verify it and set a header field"
    )]
    Unverified(String, String),
    /// It asks servers to take it for one of another method, and the policy refuses such requests.
    #[error("the request asks to be taken for a `{0}`; send it with that method")]
    Override(String),
    /// More than 32 attributes.
    #[error("a request has at most {MOST} attributes")]
    TooMany,
}

/// Attributes of one request, beside `ip`, `method` and `path`. No real caller sends more.
const MOST: usize = 32;
const LONGEST_NAME: usize = 64;
/// Methods of one request beside its own. No real client names two.
const MOST_METHODS: usize = 4;
/// The longest line of an HTTP request that the front ends accept.
const LONGEST_VALUE: usize = 8 * 1024;

impl<'a> Attributes<'a> {
    /// No attributes.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Attributes::new().iter().count(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The attributes in the first line of an HTTP request.
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

    /// Adds an attribute, or replaces its value. An empty value removes it.
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
            "method" => {
                self.method = present.then(|| method(value)).transpose()?;
                self.other_methods.clear();
            }
            _ => self.set_named(name, value)?,
        }
        Ok(())
    }

    /// Adds all attributes of `others`. They replace attributes of the same name.
    ///
    /// ```
    /// use tidegate_policy::Attributes;
    /// let request = Attributes::new().with("path", "/urls")?.with("user", "from a header field")?;
    /// let known = Attributes::new().with("user", "alice")?.with("tier", "pro")?;
    /// let request = request.with_all(known);
    /// let all: Vec<_> = request.iter().map(|(name, value)| format!("{name}={value}")).collect();
    /// assert_eq!(all, ["path=/urls", "user=alice", "tier=pro"]);
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    #[must_use]
    pub fn with_all(mut self, others: Self) -> Self {
        if others.method.is_some() {
            (self.method, self.other_methods) = (others.method, others.other_methods);
        }
        self.address = others.address.or(self.address);
        if others.path.is_some() || others.unreadable.is_some() {
            (self.path, self.unreadable) = (others.path, others.unreadable);
        }
        for (name, value) in others.named {
            self.replace(name, value);
        }
        self
    }

    /// Sets an attribute to a value that a client of the caller sent. An unreadable path is not an error here, because some
    /// callers let a request pass on errors. It is remembered instead, and the limiter denies the request.
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

    /// Why the path that a client sent is not readable, if that is so.
    #[must_use]
    pub const fn unreadable(&self) -> Option<PathError> {
        self.unreadable
    }

    /// [`Attributes::set`] for the description of a client's request by a proxy. The client controls these values, so their
    /// length and number must not cause an error; the caller bounds the size of the whole message. Names that no rule can use
    /// are ignored.
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

    /// Adds a method that servers may take the request for, beside its own.
    pub(crate) fn may_be(&mut self, other: &str) -> Result<(), AttributeError> {
        let other = method(Cow::Borrowed(other))?;
        let is_known = self.methods().any(|known| known == Some(&*other));
        if !is_known && self.other_methods.len() >= MOST_METHODS {
            return Err(AttributeError::Override(other.into_owned()));
        }
        if !is_known {
            self.other_methods.push(other.into_owned());
        }
        Ok(())
    }

    /// Sets the address of the client.
    ///
    /// ```
    /// let request = tidegate_policy::Attributes::new().from_address([203, 0, 113, 7].into());
    /// assert_eq!(request.get("ip").as_deref(), Some("203.0.113.7"));
    /// ```
    #[must_use]
    pub fn from_address(self, address: IpAddr) -> Self {
        Self { address: Some(address.to_canonical()), ..self }
    }

    /// Sets the path, which is already in canonical form.
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

    /// All attributes, as text.
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

    /// Replaces each value for which `conceals` returns another one, such as a secret by its digest.
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

    /// The request with its own method, and the canonical reading of its path.
    pub(crate) fn canonical(&self) -> RequestReading<'_> {
        let path = self.path.as_ref().map(Readings::first);
        RequestReading { request: self, method: self.method.as_deref(), path }
    }

    /// The request with every other combination of a method and a reading of its path; nearly all requests have none.
    pub(crate) fn other_readings(&self) -> impl Iterator<Item = RequestReading<'_>> {
        let of_method = move |method| {
            self.paths().map(move |path| RequestReading { request: self, method, path })
        };
        self.methods().flat_map(of_method).skip(1)
    }

    /// The readings of its path, the canonical one first; `None` if it has no path.
    pub(crate) fn paths(&self) -> impl Iterator<Item = Option<&NormalPath<'_>>> {
        let others = self.path.as_ref().map_or(&[][..], Readings::others);
        [self.path.as_ref().map(Readings::first)].into_iter().chain(others.iter().map(Some))
    }

    /// Its own method, if it has one, and the others for which servers may take it.
    pub(crate) fn methods(&self) -> impl Iterator<Item = Option<&str>> {
        let others = self.other_methods.iter().map(|method| Some(method.as_str()));
        [self.method.as_deref()].into_iter().chain(others)
    }

    /// The first method that it asks servers to take it for, if it is not its own.
    pub(crate) fn other_method(&self) -> Option<&str> {
        self.other_methods.first().map(String::as_str)
    }

    /// Whether servers read the path in several ways.
    pub(crate) fn has_ambiguous_path(&self) -> bool {
        self.path.as_ref().is_some_and(|path| !path.others().is_empty())
    }

    /// Whether servers read the path in several ways, or may take the request for one of another method.
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
        self.has_ambiguous_path() || !self.other_methods.is_empty()
    }

    /// The value of an attribute that is not special.
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

    /// Replaces an earlier value. An empty value removes it.
    fn replace(&mut self, name: Cow<'a, str>, value: Cow<'a, str>) {
        self.named.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            self.named.push((name, value));
        }
    }
}

// === impl RequestReading ===

impl<'s> RequestReading<'s> {
    pub(crate) const fn request(&self) -> &'s Attributes<'s> {
        self.request
    }

    pub(crate) const fn path(&self) -> Option<&'s NormalPath<'s>> {
        self.path
    }

    pub(crate) const fn method(&self) -> Option<&'s str> {
        self.method
    }

    /// An attribute as text; the path in the case in which it is compared.
    pub(crate) fn get(&self, name: &str, case: Case) -> Option<Cow<'s, str>> {
        match name {
            "path" => self.path.map(|path| case.fold(path.as_str())),
            "method" => self.method.map(Cow::Borrowed),
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

/// The method in capitals. Servers that distinguish `get` from `GET` do not support the former.
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

/// Whether a policy may use this name for an attribute.
pub(crate) fn is_attribute(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
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
        request.set("0", "y").unwrap(); // replaces a value, so it is not one more attribute
        assert_eq!(request.get("0").as_deref(), Some("y"));
        let long = "x".repeat(LONGEST_VALUE + 1);
        assert_eq!(request.set("0", long), Err(AttributeError::Value("0".to_owned())));
        for name in ["", "a\nb", &"n".repeat(65)] {
            assert!(matches!(request.set(name.to_owned(), "x"), Err(AttributeError::Name(_))));
        }
        let mut overridden = Attributes::new().with("method", "POST").unwrap();
        for method in ["put", "PUT", "post", "PATCH", "DELETE", "GET"] {
            overridden.may_be(method).unwrap();
        }
        assert_eq!(
            overridden.methods().flatten().collect::<Vec<_>>(),
            ["POST", "PUT", "PATCH", "DELETE", "GET"]
        );
        assert_eq!(overridden.may_be("HEAD"), Err(AttributeError::Override("HEAD".to_owned())));
        for method in ["GET /", "G\r\nX: y", "\u{e9}"] {
            assert!(matches!(request.set("method", method), Err(AttributeError::Method(_))));
        }
    }

    #[test]
    fn a_request_line_equals_its_parts_set_one_by_one() {
        for (method, target) in [("get", "/a//b?x#y"), ("", ""), ("GET", "?x"), ("GET", "#y")] {
            let path = target.split(['?', '#']).next().unwrap();
            let parts = Attributes::new().with("method", method).unwrap().with("path", path);
            assert_eq!(Attributes::of(method, target), parts, "{method} {target}");
        }
        assert!(Attributes::of("GET", "no-slash").is_err());
    }

    /// The built-in attributes have fields of their own, so each of them could be forgotten, and an unreadable path could hide
    /// behind a readable one.
    #[test]
    fn attributes_that_are_added_replace_those_of_the_same_name_and_no_others() {
        let of = |all: &[(&'static str, &'static str)]| {
            let mut request = Attributes::new();
            for (name, value) in all {
                request.set(*name, *value).unwrap();
            }
            request
        };
        let first = [("ip", "192.0.2.1"), ("method", "GET"), ("path", "/a"), ("user", "alice")];
        let second = [("ip", "192.0.2.2"), ("method", "PUT"), ("path", "/b"), ("user", "bob")];
        assert_eq!(of(&first).with_all(of(&second)), of(&second));
        assert_eq!(of(&first).with_all(Attributes::new()), of(&first));
        for (n, one) in second.iter().enumerate() {
            let mut expected = first;
            expected[n] = *one;
            assert_eq!(of(&first).with_all(of(&[*one])), of(&expected));
        }
        let mut unreadable = Attributes::new();
        unreadable.set_from_client("path", "/a%2541").unwrap();
        let mut overridden = of(&first);
        overridden.may_be("delete").unwrap();
        assert_eq!(
            overridden.clone().with_all(of(&[("user", "bob")])).other_method(),
            Some("DELETE")
        );
        assert_eq!(overridden.with_all(of(&second)), of(&second));
        let both = of(&first).with_all(unreadable);
        assert!(both.unreadable().is_some() && both.get("path").is_none());
        assert_eq!(both.with_all(of(&second)).unreadable(), None);
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
