//! How real servers read paths, as functions. `servers.rs` compares them with what these servers were seen to do; the tests of the
//! reverse proxy ask them which path a server would make of a generated spelling.

#![allow(dead_code, reason = "each test program uses a part of this")]

/// A server that was observed, by its column in the table of `servers.rs`.
pub(crate) struct Reader {
    pub(crate) column: usize,
    /// The path that it looks up; `None` if it refuses the request.
    pub(crate) path: fn(&str) -> Option<String>,
    /// Whether it takes `/LOGIN` for `/login`.
    pub(crate) ignores_case: bool,
    /// Whether it takes `/login/` for `/login`.
    pub(crate) ignores_last_slash: bool,
}

pub(crate) const READERS: [Reader; 6] = [
    Reader { column: 0, path: tomcat, ignores_case: false, ignores_last_slash: false },
    Reader { column: 1, path: lenient_tomcat, ignores_case: false, ignores_last_slash: false },
    Reader { column: 2, path: nginx, ignores_case: false, ignores_last_slash: true },
    Reader { column: 3, path: node, ignores_case: false, ignores_last_slash: false },
    Reader { column: 4, path: node_decoded, ignores_case: false, ignores_last_slash: false },
    Reader { column: 5, path: express, ignores_case: true, ignores_last_slash: true },
];

impl Reader {
    /// The path in the form in which routes are compared.
    pub(crate) fn route(&self, target: &str) -> Option<String> {
        let path = (self.path)(target)?;
        let path = if self.ignores_case { path.to_lowercase() } else { path };
        let cut = path.strip_suffix('/').filter(|cut| self.ignores_last_slash && !cut.is_empty());
        Some(cut.map_or(path.clone(), str::to_owned))
    }
}

fn tomcat(target: &str) -> Option<String> {
    let path = without_parameters(without_query(target));
    let refused = path.contains(['\\', '#']) || path.to_lowercase().contains("%2f");
    let path = decoded(&path)?;
    if refused || path.contains('\\') { None } else { resolved(&path) }
}

/// With `allowBackslash`, `encodedSolidusHandling` and `encodedReverseSolidusHandling: decode`.
fn lenient_tomcat(target: &str) -> Option<String> {
    let path = without_parameters(without_query(target));
    if path.contains('#') { None } else { resolved(&decoded(&path)?.replace('\\', "/")) }
}

fn nginx(target: &str) -> Option<String> {
    resolved(&decoded(without_fragment(without_query(target)))?)
}

/// `new URL(request.url, base).pathname`
fn node(target: &str) -> Option<String> {
    let path = without_fragment(without_query(target)).replace('\\', "/");
    let path = match path.strip_prefix("//") {
        None => path.as_str(),
        // Two slashes begin a host, and more of them are skipped.
        Some(rest) => {
            let rest = rest.trim_start_matches('/');
            let host = rest.find('/').unwrap_or(rest.len());
            rest.get(host..).filter(|_| host > 0)?
        }
    };
    let mut kept = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let dots = segment.to_lowercase().replace("%2e", ".");
        match dots.as_str() {
            ".." => _ = kept.pop(),
            "." => {}
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if segments.peek().is_none() {
            kept.push("");
        }
    }
    Some(format!("/{}", kept.join("/")))
}

fn node_decoded(target: &str) -> Option<String> {
    decoded(&node(target)?)
}

fn express(target: &str) -> Option<String> {
    Some(without_fragment(without_query(target)).to_owned())
}

fn without_query(target: &str) -> &str {
    target.split('?').next().unwrap_or(target)
}

fn without_fragment(path: &str) -> &str {
    path.split('#').next().unwrap_or(path)
}

/// A path without the text from each `;` to the next `/`.
fn without_parameters(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or(segment));
    segments.collect::<Vec<_>>().join("/")
}

/// A path with its escapes decoded once.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let digit = |digit: Option<u8>| char::from(digit?).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A path without empty segments and dots; `None` if it leads above the root.
fn resolved(path: &str) -> Option<String> {
    let mut kept = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => _ = kept.pop()?,
            segment => kept.push(segment),
        }
    }
    let last = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    Some(format!("/{}{last}", kept.join("/")))
}
