//! Warnings about routes and groups that are never used.
//!
//! A route is *hidden* if an earlier route matches every request that it matches. Whether one pattern matches all paths of
//! another is found with sample paths, because stars are valid names of segments too:
//!
//! ```text
//!   /api/*/x    sample /api/*/x                  only a star matches the segment `*`
//!   /api/**     samples /api and /api/**/**/…    no segment, and more segments than any pattern has
//! ```
//!
//! A pattern that matches the samples matches all paths in between.

use super::host::HostPattern;
use super::reader::RoutesReader;
use super::{GroupSpec, Route};
use tidegate_policy::{NormalPath, Pattern, Place};

/// Pairs of routes that are compared. Enough for all pairs of 1400 routes; it bounds the time for 4096.
const MOST_COMPARED: usize = 1_000_000;
/// Segments that stand for `**` in the longer sample. Patterns have fewer segments.
const MANY_SEGMENTS: usize = 64;

/// Groups that no route uses. `groups` and `places` have the same order.
pub(super) fn unused(
    reader: &mut RoutesReader,
    groups: &[GroupSpec],
    places: &[Place],
    routes: &[(Place, Route)],
) {
    for (index, (group, place)) in groups.iter().zip(places).enumerate() {
        if !routes.iter().any(|(_, route)| route.group == index) {
            let text =
                format!("no route uses the group `{}`; add a route, or remove it", group.name);
            reader.warn(*place, text);
        }
    }
}

/// Routes that never match, because an earlier route always matches first.
pub(super) fn hidden(reader: &mut RoutesReader, routes: &[(Place, Route)]) {
    let mut compared = 0_usize;
    for (index, (place, route)) in routes.iter().enumerate() {
        compared = compared.saturating_add(index);
        if compared > MOST_COMPARED {
            return;
        }
        let samples = samples(route.path.as_ref());
        let Some(samples) = normal(&samples) else { continue };
        let hides = |(_, earlier): &&(Place, Route)| {
            covers_host(earlier.host.as_ref(), route.host.as_ref())
                && covers_paths(earlier.path.as_ref(), &samples)
        };
        if let Some((first, _)) = routes.iter().take(index).find(hides) {
            let text = format!(
                "this route never matches, because the route at {first} matches the same requests first; move this route before it, or remove one of them"
            );
            reader.warn(*place, text);
        }
    }
}

fn covers_host(earlier: Option<&HostPattern>, later: Option<&HostPattern>) -> bool {
    match (earlier, later) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(earlier), Some(later)) => earlier.covers(later),
    }
}

fn covers_paths(earlier: Option<&Pattern>, samples: &[NormalPath<'_>; 2]) -> bool {
    earlier.is_none_or(|earlier| samples.iter().all(|sample| earlier.matches(sample)))
}

/// The shortest path that a pattern matches, and a long one.
fn samples(path: Option<&Pattern>) -> [String; 2] {
    let text = path.map_or_else(|| "/**".to_owned(), Pattern::to_string);
    let short = text.replace("/**", "");
    let short = if short.is_empty() { "/".to_owned() } else { short };
    [short, text.replace("/**", &"/**".repeat(MANY_SEGMENTS))]
}

/// The samples as paths. `None` if a segment contains a character such as `?`, which a path has to write as an escape.
fn normal(samples: &[String; 2]) -> Option<[NormalPath<'_>; 2]> {
    let path = |text| NormalPath::new(text).ok().filter(|path| path.as_str() == text);
    let [short, long] = samples;
    Some([path(short)?, path(long)?])
}

#[cfg(test)]
mod tests {
    use crate::proxy::routes::Routes;

    fn warnings(text: &str) -> Vec<String> {
        let routes = Routes::parse(text.as_bytes()).unwrap();
        routes.warnings().iter().map(ToString::to_string).collect()
    }

    /// Whether the second route is hidden by the first.
    fn is_hidden(earlier: &str, later: &str) -> bool {
        let text = format!(
            "groups: {{ a: {{ servers: [http://a] }} }}\nroutes:\n  - {{ {earlier} group: a }}\n  - {{ {later} group: a }}\n"
        );
        let found = warnings(&text);
        assert!(found.iter().all(|text| text.starts_with("4:5: this route never matches")));
        !found.is_empty()
    }

    #[test]
    fn sensible_files_cause_no_warnings() {
        let text = "
groups:
  a: { servers: [http://a, http://b, http://a:81, https://a] }
  b: { servers: [http://a] }
routes:
  - { host: a.com, path: /api/*, group: a }
  - { host: a.com, path: /api/**, group: b }
  - { host: '*.a.com', group: b }
  - { group: a }
";
        assert_eq!(warnings(text), [""; 0]);
    }

    #[test]
    fn unused_groups_and_duplicate_servers_are_reported() {
        let text = "
groups:
  a: { servers: [http://a, http://b, 'HTTP://A:80'] }
  b: { servers: [http://a] }
routes: [{ group: a }]
";
        assert_eq!(
            warnings(text),
            [
                "3:38: `http://a` is listed twice; a server gets its share of the requests once, so remove one of them",
                "4:3: no route uses the group `b`; add a route, or remove it",
            ]
        );
    }

    #[test]
    fn hidden_routes_are_reported_with_the_route_that_hides_them() {
        let text = "
groups: { a: { servers: [http://a] } }
routes:
  - { path: /x, group: a }
  - { group: a }
  - { host: a.com, path: /y, group: a }
";
        assert_eq!(
            warnings(text),
            [
                "6:5: this route never matches, because the route at 5:5 matches the same requests first; move this route before it, or remove one of them"
            ]
        );
    }

    #[test]
    fn a_route_is_hidden_if_host_and_path_are_covered() {
        for (earlier, later, expected) in [
            ("", "", true),
            ("", "host: a.com, path: /x,", true),
            ("path: /**,", "", true),
            ("path: /*,", "", false),
            ("path: /api/**,", "path: /api,", true),
            ("path: /api/**,", "path: /api/*/x,", true),
            ("path: /api/**,", "path: /api/**/x,", true),
            ("path: /api/*,", "path: /api/**,", false),
            ("path: /api/*,", "path: /api/x,", true),
            ("path: /api/x,", "path: /api/*,", false),
            ("path: /*/**,", "path: /**,", false),
            ("path: /**/x,", "path: /a/**/x,", true),
            ("path: /**/x,", "path: /a/**,", false),
            ("path: /a/**/x,", "path: /a/x/**,", false),
            ("path: /a/*/b/**,", "path: /a/**/b/b,", false), // not /a/x/x/b/b
            ("path: '/a%3Fb',", "path: '/a%3Fb',", false),   // not compared
            ("path: /a,", "path: '/a%3Fb',", false),
            ("host: a.com,", "", false),
            ("host: a.com,", "host: A.com, path: /x,", true),
            ("host: a.com, path: /x,", "host: a.com,", false),
            ("host: '*.a.com',", "host: x.a.com,", true),
            ("host: x.a.com,", "host: '*.a.com',", false),
        ] {
            assert_eq!(is_hidden(earlier, later), expected, "{earlier} | {later}");
        }
    }

    #[test]
    fn the_comparison_of_routes_is_bounded() {
        let hidden_after = |count: usize| {
            let routes: String =
                (0..count).map(|n| format!("  - {{ path: /{n}, group: a }}\n")).collect();
            let last = "  - { path: /0, group: a }\n";
            let groups = "groups: { a: { servers: [http://a] } }";
            warnings(&format!("{groups}\nroutes:\n{routes}{last}")).len()
        };
        assert_eq!(hidden_after(1_400), 1);
        assert_eq!(hidden_after(1_500), 0);
    }

    #[test]
    fn segments_that_look_like_variables_are_reported() {
        let text = "
groups: { a: { servers: [http://a] } }
routes: [{ path: '/users/{id}/x', group: a }, { path: '/:id', group: a }]
";
        assert_eq!(
            warnings(text),
            [
                "3:18: `{id}` is matched as it is written; write `*` for any one segment",
                "3:55: `:id` is matched as it is written; write `*` for any one segment",
            ]
        );
    }
}
