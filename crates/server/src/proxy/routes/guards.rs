//! Which group a request goes to if servers read its path in several ways, and one of them needs an auth server.
//!
//! ```text
//!   /private/..%2fx    nginx reads /x, a route without an auth server ──┐ the auth server of /private/** is asked,
//!                      Node reads /private/..%2fx                     ──┘ and its group serves the request
//!   /PRIVATE/x         Express reads /private/x                           the same
//! ```
//!
//! The upstream server gets the path as the client spelled it, so it may serve what another route guards. A request therefore
//! goes to the group with an auth server if any reading, in upper or lower case, leads there. A plain path has one reading, which
//! nearly always leads to one group.
//!
//! If the readings lead to groups with two different auth servers, or to different upstream servers behind the same one, then no
//! choice is safe, and the request is refused. Groups without an auth server never cause that: their first reading decides.

use super::{GroupSpec, RouteError, Routes};
use tidegate_policy::{NormalPath, Readings};

impl Routes {
    /// Whether a group has an auth server.
    pub(super) fn has_guards(&self) -> bool {
        self.groups.iter().any(|group| group.auth.is_some())
    }

    /// The group for a request whose first reading leads to the group `first`.
    pub(super) fn guarded(
        &self,
        host: Option<&str>,
        target: &str,
        first: usize,
    ) -> Result<Option<usize>, RouteError> {
        let mut guards: Vec<(usize, &GroupSpec)> = Vec::new();
        let readings = Readings::new(target)?;
        // The first reading comes first, so its group is the choice if it has an auth server.
        for group in readings.iter().flat_map(|path| self.groups_of_reading(host, path)) {
            let spec = self.groups.get(group).filter(|spec| spec.auth.is_some());
            guards.extend(spec.map(|spec| (group, spec)));
        }
        let Some((chosen, spec)) = guards.first() else { return Ok(Some(first)) };
        let is_other = |other: &GroupSpec| {
            other.auth != spec.auth || (*chosen != first && other.servers != spec.servers)
        };
        match guards.iter().any(|(_, other)| is_other(other)) {
            true => Err(RouteError::Guards),
            false => Ok(Some(*chosen)),
        }
    }

    /// The groups that a reading leads to: as it is written, and for a server that ignores the case of letters.
    fn groups_of_reading(
        &self,
        host: Option<&str>,
        path: &NormalPath<'_>,
    ) -> impl Iterator<Item = usize> {
        let exact = self.routes.iter().find(|route| route.matches(host, path));
        let in_any_case = self.routes.iter().find(|route| route.matches_in_any_case(host, path));
        exact.into_iter().chain(in_any_case).map(|route| route.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/private` and `/admin` have auth servers, the rest has none. All but `/other` is served by the same server.
    const FILE: &str = "
groups:
  private: { servers: [http://app], auth: { url: http://auth/user } }
  admin: { servers: [http://app], auth: { url: http://auth/admin } }
  also: { servers: [http://two], auth: { url: http://auth/user } }
  open: { servers: [http://app] }
  other: { servers: [http://other] }
routes:
  - { path: /private/open/**, group: open }
  - { path: /private/**, group: private }
  - { path: /admin/**, group: admin }
  - { path: /also/**, group: also }
  - { path: /other/*/x, group: other }
  - { path: /public/**, group: open }
  - { path: /files/*, group: open }
  - { path: /files/**, group: other }
  - { path: /x/**, group: open }
  - { path: /X/**, group: open }
";
    const REST: &str = "  - { group: open }\n";

    fn group(path: &str) -> Result<Option<String>, RouteError> {
        group_in(&format!("{FILE}{REST}"), path)
    }

    fn group_in(file: &str, path: &str) -> Result<Option<String>, RouteError> {
        let routes = Routes::parse(file.as_bytes()).unwrap();
        let group = routes.group_of(Some("site"), path)?;
        Ok(group.map(|group| routes.groups[group].name.clone()))
    }

    #[test]
    fn an_auth_server_is_asked_if_any_reading_needs_it() {
        for path in [
            "/private/x",
            "/private/..%2fx/y",
            "/private/..;/x",
            "//h/private/x",
            "/a%2fb/../private/x",
            "/PRIVATE/x",
            "//h/Private/x",
            "/private/x%2f..%2f..%2fpublic",
            "/public/x%2f..%2f..%2fprivate",
            "/public/..\\private",
            "/x/..;/private",
            "/other/a%2f..%2f..%2fprivate/x",
            "/private/open%2f..",
            "/private;x=1/y",
            "/%70rivate/y",
        ] {
            assert_eq!(group(path), Ok(Some("private".to_owned())), "{path}");
        }
    }

    #[test]
    fn a_request_whose_readings_need_no_auth_server_goes_where_its_first_reading_leads() {
        for (path, expected) in [
            ("/public/x", "open"),
            ("/PUBLIC/../public/x", "open"),
            ("/private/open/x", "open"),
            ("/files/a%2fb", "other"), // one reading leads to `open`, and no group has an auth server
            ("/files/a", "open"),
            ("/other/a/x", "other"),
            ("/public/@scope%2Fname", "open"),
            ("/x/1", "open"),
        ] {
            assert_eq!(group(path), Ok(Some(expected.to_owned())), "{path}");
        }
        // Without a route for the first reading nothing is reached.
        for path in ["/private/..%2fnowhere", "/PRIVATE/x", "/nowhere"] {
            assert_eq!(group_in(FILE, path), Ok(None), "{path}");
        }
    }

    #[test]
    fn two_auth_servers_or_sets_of_servers_cannot_both_be_right() {
        for path in [
            "/private/..%2fadmin/x",
            "/admin/..;/private/x",
            "//private/admin/x",
            "//also/private/..%2f..%2fx",
        ] {
            assert_eq!(group(path), Err(RouteError::Guards), "{path}");
        }
        // The same auth server, and the first reading says which servers.
        assert_eq!(group("/private/..%2falso/x"), Ok(Some("also".to_owned())));
        assert_eq!(
            group("/private/%zz"),
            Err(RouteError::Path(tidegate_policy::PathError::BadEscape))
        );
    }
}
