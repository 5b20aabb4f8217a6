//! The readings of a path: the different paths that servers make of one spelling.
//!
//! ```text
//!   /login;%5c..%5c..%5cx    Tomcat removes `;…` first            /login
//!                            other servers decode first           /x
//!   /x%2fy/../login          Node resolves `..` first             /login
//!                            nginx decodes first                  /x/login
//!   //h/login                Node takes `h` for the host          /login
//! ```
//!
//! A rule applies to a request if it applies to any of the readings, so no spelling of a path escapes a rule. A rule with
//! `stop` ends the list only if it applies to all of them. The paths that browsers and libraries send have one reading, and
//! take the fast path.
//!
//! Beside the choices in `interpretation.rs` there are two more:
//!
//! | choice | variants |
//! |---|---|
//! | `//host/…` | `host` is a segment; a host (Node) |
//! | `#…` | removed; ordinary characters |

use super::bytes::{PathByte, PathError, decode};
use super::features::{interpretations, is_separator};
use super::normal::{NormalPath, without_fragment, without_query};

/// The canonical reading of a path, and the readings that differ from it.
///
/// ```
/// use tidegate_policy::Readings;
/// let readings = Readings::new("/x%2fy/../login").unwrap();
/// let paths: Vec<&str> = readings.iter().map(|path| path.as_str()).collect();
/// assert_eq!(paths[0], "/x/login"); // nginx decodes first
/// assert!(paths.contains(&"/login")); // Node resolves `..` first
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings<'p> {
    first: NormalPath<'p>,
    others: Vec<NormalPath<'static>>,
}

/// A path with more readings is refused: no client sends it by accident.
const MOST_READINGS: usize = 16;
/// Bytes that are processed to find all readings. The longest paths that browsers send need a third of it.
const MOST_WORK: usize = 64 * 1024;

// === impl Readings ===

impl<'p> Readings<'p> {
    /// All readings of a request's target.
    ///
    /// ```
    /// use tidegate_policy::Readings;
    /// assert_eq!(Readings::new("/login?x=/../y").unwrap().iter().count(), 1);
    /// ```
    pub fn new(target: &'p str) -> Result<Self, PathError> {
        let whole = without_query(target);
        if let Some(normal) = NormalPath::already_canonical(whole) {
            return Ok(normal.into());
        }
        let with_fragment = Some(whole).filter(|whole| whole.contains('#'));
        let mut found = Vec::new();
        for path in [Some(without_fragment(whole)), with_fragment].into_iter().flatten() {
            let path = decode(path)?;
            add_readings(&path, &mut found)?;
            for path in without_host(&path) {
                add_readings(path, &mut found)?;
            }
        }
        let mut found = found.into_iter();
        match found.next() {
            Some(first) if found.len() < MOST_READINGS => {
                Ok(Self { first, others: found.collect() })
            }
            Some(_) | None => Err(PathError::Ambiguous),
        }
    }

    /// All readings, the canonical one first.
    ///
    /// ```
    /// use tidegate_policy::Readings;
    /// let readings = Readings::new("/a%2fb").unwrap();
    /// assert!(readings.iter().map(|path| path.as_str()).eq(["/a/b", "/a%2Fb"]));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &NormalPath<'_>> {
        [&self.first].into_iter().chain(&self.others)
    }

    /// The canonical reading.
    pub(crate) const fn first(&self) -> &NormalPath<'p> {
        &self.first
    }

    /// The readings that differ from the first.
    pub(crate) fn others(&self) -> &[NormalPath<'static>] {
        &self.others
    }

    pub(crate) fn into_owned(self) -> Readings<'static> {
        Readings { first: self.first.into_owned(), others: self.others }
    }
}

impl<'p> From<NormalPath<'p>> for Readings<'p> {
    fn from(first: NormalPath<'p>) -> Self {
        Self { first, others: Vec::new() }
    }
}

/// Adds every reading of a path that was not found before.
fn add_readings(path: &[PathByte], found: &mut Vec<NormalPath<'static>>) -> Result<(), PathError> {
    let interpretations = interpretations(path);
    if interpretations.len().saturating_mul(path.len()) > MOST_WORK {
        return Err(PathError::Ambiguous);
    }
    for interpretation in interpretations {
        let reading = NormalPath::read(path, interpretation);
        if !found.contains(&reading) {
            found.push(reading);
        }
    }
    Ok(())
}

/// The path after the host, for a path that begins like `//host/…`. Escaped separators may end the host too: a proxy may have
/// decoded or escaped them before a server looks for a host.
fn without_host(path: &[PathByte]) -> impl Iterator<Item = &[PathByte]> {
    let separates = |next: &&PathByte| is_separator(next.byte);
    let slashes = path.iter().take_while(separates).count();
    let rest = path.get(slashes..).filter(|_| slashes > 1);
    let after = |length: usize| rest.and_then(|rest| rest.get(length..));
    let length = |ends: &dyn Fn(&PathByte) -> bool| {
        rest.unwrap_or_default().iter().take_while(|next| !ends(next)).count()
    };
    let any = length(&|next| is_separator(next.byte));
    let unescaped = length(&|next| is_separator(next.byte) && !next.escaped);
    after(any).into_iter().chain(after(unescaped).filter(|_| unescaped != any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Vec<String> {
        let readings = Readings::new(path).unwrap();
        let others = readings.others().iter().map(|path| path.as_str().to_owned());
        [readings.first().as_str().to_owned()].into_iter().chain(others).collect()
    }

    /// Expected results were worked out by hand. The first reading is the canonical one.
    #[test]
    fn every_choice_makes_a_reading() {
        for (path, expected) in [
            ("/login", &["/login"][..]),
            ("/login/?x=/../y", &["/login"]),
            ("/%6cogin", &["/login", "/%6Cogin"]),
            ("/a%20b", &["/a b"]),
            ("/a%2fb", &["/a/b", "/a%2Fb"]),
            ("/a%5cb", &["/a/b", "/a\\b"]),
            ("/a\\b", &["/a/b", "/a\\b"]),
            ("/a;v=1/b", &["/a/b", "/a;v=1/b"]),
            ("/a%3bv/b", &["/a/b", "/a;v/b"]),
            ("/a/../b", &["/b", "/a/../b"]),
            ("/a/%2e./b", &["/b", "/a/../b", "/a/%2E./b"]),
            ("/a//../b", &["/b", "/a/b", "/a/../b"]),
            ("//h/b", &["/h/b", "/b"]),
            ("/\\h\\b", &["/h/b", "/\\h\\b", "/b", "/\\b"]),
            ("//h", &["/h", "/"]),
            ("/%5ch/b", &["/h/b", "/\\h/b", "/b"]),
            ("//h%2fi/b", &["/h/i/b", "/h%2Fi/b", "/i/b", "/%2Fi/b", "/b"]),
            ("/a#b", &["/a", "/a#b"]),
            ("/x%2fy/../b", &["/x/b", "/b", "/x/y/../b", "/x%2Fy/../b"]),
            (
                "/login;%5c..%5c..%5cx",
                &["/x", "/login/../../x", "/login", "/login;/../../x", "/login;\\..\\..\\x"],
            ),
            // Tomcat removes parameters up to the next `/`, and then treats `\` as a slash.
            (
                "/a\\..\\login;\\x",
                &[
                    "/login/x",
                    "/a/../login/x",
                    "/a\\..\\login",
                    "/login",
                    "/a/../login",
                    "/login;/x",
                    "/a/../login;/x",
                    "/a\\..\\login;\\x",
                ],
            ),
        ] {
            let found = readings(path);
            assert_eq!(found.first().map(String::as_str), expected.first().copied(), "{path}");
            let [mut found, mut expected] =
                [found, expected.iter().map(|e| (*e).to_owned()).collect()];
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn the_first_reading_is_the_canonical_path() {
        for path in
            ["/x/..;/a%2f%5cb\\.//../c#d", "//h/../a", "/%61/%2e%2E/b;c", "/a%2541", "x", "/a%"]
        {
            let canonical = NormalPath::new(path).map(NormalPath::into_owned);
            match Readings::new(path) {
                Ok(readings) => {
                    assert_eq!(Ok(readings.into_owned().first()), canonical.as_ref(), "{path}");
                }
                Err(PathError::Ambiguous) => {}
                Err(error) => assert_eq!(canonical, Err(error), "{path}"),
            }
        }
    }

    /// Memory and time for one path are bounded, whatever a client sends.
    #[test]
    fn readings_are_bounded() {
        let many = "/a;b%2f..%5c..\\..//%2e%2e;c/../d#%3b/..%2f/e\\;%2f..";
        assert_eq!(Readings::new(many), Err(PathError::Ambiguous));
        // Two readings of a path of 8 kB are fine, a hundred are not.
        let long = format!("/{}%2fb", "a".repeat(8_000));
        assert_eq!(Readings::new(&long).unwrap().others().len(), 1);
        let long = format!("/{}%2f..%5c;//b", "a".repeat(8_000));
        assert_eq!(Readings::new(&long), Err(PathError::Ambiguous));
        let deep = format!("{}/b", "/..".repeat(1_000));
        assert_eq!(Readings::new(&deep).unwrap().others().len(), 1);
    }
}
