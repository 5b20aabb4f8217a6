//! Finds mistakes in policies that are valid by their grammar.
//!
//! Errors are rules that can never have an effect, and requests with more limits than a store decides together. Warnings are
//! valid but probably mistakes: a limit that a stricter one makes useless, a header that no trusted peer sends, requests that
//! no rule counts.
//!
//! Comparing every rule with every other would be quadratic. Instead, rules are compared by *witnesses*: a witness is a
//! request that satisfies the `match` of one rule. A rule that covers another one applies to its witness, so the index finds
//! the few rules worth comparing, even among twenty thousand.

mod errors;
mod throughput;
mod warnings;
mod witness;

pub(crate) use errors::errors;
pub(crate) use warnings::warnings;

/// Pairs of rules that are compared. If thousands of rules have the same conditions, not every one is compared with every
/// other, so that a file is still checked within a second.
const MOST_COMPARED: usize = 1_000_000;
/// Attributes that every HTTP request has.
const ALWAYS_PRESENT: [&str; 3] = ["ip", "method", "path"];

fn is_always_present(name: &str) -> bool {
    ALWAYS_PRESENT.contains(&name)
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    fn with_rules(rules: &str) -> String {
        format!("version: 1\nrules:\n{rules}")
    }

    fn errors(rules: &str) -> Vec<String> {
        let error = Policy::parse(with_rules(rules)).unwrap_err();
        error.problems().iter().map(ToString::to_string).collect()
    }

    fn warnings(text: &str) -> Vec<String> {
        Policy::parse(text).unwrap().warnings().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_behind_a_stop_that_covers_it_is_an_error() {
        for (first, second, hidden) in [
            ("key: [ip]", "key: [ip]", true),
            ("key: [ip]", "match: { path: /a }, key: [ip]", true),
            ("key: []", "key: [user]", true),
            ("key: [user|ip]", "key: [ip]", true),
            ("match: { path: /a/** }, key: [ip]", "match: { path: [/a, /a/b] }, key: [ip]", true),
            ("match: { tenant: [x, y] }, key: [tenant]", "match: { tenant: x }, key: []", true),
            // Anonymous requests continue to the second rule.
            ("key: [user]", "key: [ip]", false),
            ("key: [user]", "key: [user|ip]", false),
            ("match: { path: /a }, key: [ip]", "match: { path: [/a, /b] }, key: [ip]", false),
            ("match: { path: /a }, key: [ip]", "key: [ip]", false),
            ("when: 'cost > 1', key: [ip]", "key: [ip]", false),
            ("enabled: false, key: [ip]", "key: [ip]", false),
        ] {
            let rules = format!(
                "  - {{ name: first, stop: true, limits: [1/s], {first} }}\n  - {{ name: second, limits: [2/s], {second} }}\n"
            );
            let refused = Policy::parse(with_rules(&rules));
            assert_eq!(refused.is_err(), hidden, "{rules}");
            if hidden {
                let text = refused.unwrap_err().to_string();
                assert_eq!(
                    text,
                    "4:5: rule `second` is never reached: `first` at 3:5 matches all of its requests and has `stop: true`"
                );
            }
        }
    }

    #[test]
    fn a_lease_without_effect_is_a_warning() {
        let warning = |limit: &str| {
            let rule =
                format!("  - {{ name: a, key: [ip], limits: [{limit}], consistency: lease }}\n");
            warnings(&with_rules(&rule)).into_iter().find(|text| text.contains("lease"))
        };
        for (limit, why) in [
            ("31/s", "a limit is leased from 16 for each node on"),
            ("{ rate: 5000/s, algorithm: sliding_buckets }", "at least ten intervals"),
            ("{ rate: 5000/500ms, algorithm: fixed_window }", "at least ten intervals"),
        ] {
            let text = warning(limit).unwrap();
            assert!(text.contains("has no effect") && text.contains(why), "{text}");
        }
        for limit in ["32/s", "{ rate: 5000/s, algorithm: fixed_window }", "5000/calendar-day"] {
            assert_eq!(warning(limit), None, "{limit}");
        }
    }

    #[test]
    fn limits_that_cannot_be_leased_are_an_error() {
        for (limit, why) in [
            ("{ rate: 99/s, algorithm: leaky_bucket }", "promises turns"),
            ("{ rate: 99/s, algorithm: sliding_log }", "at its own instant"),
            ("{ concurrent: 99 }", "in flight"),
        ] {
            let rule = format!(
                "  - {{ name: a, key: [ip], limits: [99/s], tiers: {{ pro: {{ limits: [{limit}] }} }}, consistency: lease }}\n"
            );
            let text = with_rules(&rule)
                .replace("rules:", "tiers: { default: free, known: [free, pro] }\nrules:");
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains("cannot be leased") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn more_limits_than_fit_in_a_plan_are_an_error() {
        let rules: String = (0..6)
            .map(|n| format!("  - {{ name: r{n}, key: [ip], limits: [1/s, 10/min, 100/h] }}\n"))
            .collect();
        assert!(errors(&rules)[0].contains("more than 16 limits can apply to one request"));
        // Nine rules on a method and nine on a path can apply to one request.
        let crossed: String = (0..9)
            .map(|n| format!("  - {{ name: m{n}, match: {{ method: [PUT, GET] }}, key: [ip], limits: [1/s] }}\n  - {{ name: p{n}, match: {{ path: /a }}, key: [ip], limits: [1/s] }}\n"))
            .collect();
        assert!(errors(&crossed)[0].contains("more than 16 limits"));
        // Requests of the first rule never reach the others.
        let stopped: String =
            (0..16).map(|n| format!("  - {{ name: r{n}, key: [ip], limits: [1/s] }}\n")).collect();
        let stopped = format!(
            "  - {{ name: first, match: {{ path: /x }}, key: [ip], limits: [1/s], stop: true }}\n{stopped}"
        );
        assert!(Policy::parse(with_rules(&stopped)).is_ok());
        let apart: String = (0..6)
            .map(|n| format!("  - {{ name: r{n}, match: {{ path: /{n} }}, key: [ip], limits: [1/s, 10/min, 100/h] }}\n"))
            .collect();
        assert!(Policy::parse(with_rules(&apart)).is_ok());
    }

    #[test]
    fn settings_that_contradict_a_concurrency_limit_are_errors() {
        for (setting, expected) in [
            (
                "count: failures",
                "a concurrency limit counts every request until it ends; write `count: all`",
            ),
            ("count: successes", "write `count: all`"),
            ("count_rejected: true", "a rejected request does not run, so it cannot count"),
        ] {
            for limits in [
                "limits: [{ concurrent: 5 }]",
                "limits: [1/s, { concurrent: 5, lease: 1min }]",
                "limits: [1/s], overrides: [{ key: { ip: 10.0.0.1 }, limits: [{ concurrent: 5 }] }]",
            ] {
                let rules = format!("  - {{ name: a, key: [ip], {limits}, {setting} }}\n");
                let found = errors(&rules);
                assert!(found.len() == 1 && found[0].contains(expected), "{rules}: {found:?}");
            }
            let rules = format!("  - {{ name: a, key: [ip], limits: [1/s], {setting} }}\n");
            assert!(Policy::parse(with_rules(&rules)).is_ok());
        }
        let rules = "  - { name: a, key: [ip], limits: [{ concurrent: 5 }], count: all, count_rejected: false }\n";
        assert!(Policy::parse(with_rules(rules)).is_ok());
        let twice = "  - { name: a, key: [ip], limits: [{ concurrent: 5 }, { concurrent: 9 }] }\n";
        assert!(errors(twice)[0].contains("`{ concurrent: 9, name: … }`"));
    }

    #[test]
    fn probable_mistakes_are_warned_about() {
        for (text, expected) in [
            (
                "rules: [{ name: a, key: [ip], limits: [2/s, { rate: 10000/min, algorithm: sliding_log }] }]",
                "`10000/min` has no effect, because `2/s` is stricter",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [{ rate: 1/s, burst: 5 }, { rate: 10/s, burst: 5, name: b }] }]",
                "`10/s` has no effect, because `1/s` is stricter",
            ),
            (
                "identity: { user: 'header:x-user' }\nrules: [{ name: a, key: [user|ip], limits: [2/s] }]",
                "`trusted` is empty: the attribute will always be absent",
            ),
            (
                "identity: { api_key: { from: 'header:x', peers: any } }\nrules: [{ name: a, key: [api_key|ip], limits: [2/s] }]",
                "a client that invents values gets a new counter for each of them; add a rule with `key: [ip]`",
            ),
            (
                "identity: { api_key: { from: 'header:x', peers: any } }\nrules: [{ name: a, match: { path: /a }, key: [method, api_key|ip], limits: [2/s] }, { name: b, match: { path: /b }, key: [ip], limits: [2/s] }]",
                "`api_key` is read from every peer",
            ),
            (
                "rules: [{ name: a, match: { path: /healthz }, limits: unlimited }, { name: b, key: [ip], limits: [2/s] }]",
                "`limits: unlimited` has no effect: the other rules still count its requests; add `stop: true`",
            ),
            (
                "rules: [{ name: b, key: [ip], limits: [2/s] }, { name: a, match: { path: /healthz }, limits: unlimited, stop: true }]",
                "`stop: true` skips only later rules, and there are none; put it above",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [{ rate: 3/min, algorithm: sliding_log }], overrides: [{ key: { ip: 192.0.2.1 }, limits: [{ rate: 4/min, algorithm: token_bucket }] }] }]",
                "an override: `4/min` is a token_bucket, but `3/min` of the rule, which it replaces, is a sliding_log",
            ),
            (
                "tiers: { default: free, known: [free, pro] }\nrules: [{ name: a, key: [ip], limits: [{ rate: 3/min, algorithm: sliding_log }], tiers: { pro: { limits: [{ rate: 4/min, burst: 9 }] } } }]",
                "tier `pro`: `4/min` is a token_bucket",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [{ rate: 3/min, algorithm: sliding_log }, 2/s], overrides: [{ key: { ip: 192.0.2.1 }, limits: [9/2min] }] }]",
                "`9/2min` replaces no limit of the rule, so it is a token_bucket; write `{ rate: 9/2min, algorithm: … }`",
            ),
            (
                "identity: { trusted: everyone }\nrules: [{ name: a, key: [ip], limits: [2/s] }]",
                "can forge these headers",
            ),
            (
                "identity: { ip: { ipv6_prefix: 128 } }\nrules: [{ name: a, key: [ip], limits: [2/s] }]",
                "2⁶⁴ addresses",
            ),
            (
                "rules: [{ name: a, key: [user], limits: [2/s] }]",
                "no rule counts a request without `user`",
            ),
            (
                "rules: [{ name: a, key: [user], limits: [2/s] }, { name: b, match: { method: POST }, key: [ip], limits: [2/s] }]",
                "no rule counts a request without `user`",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [2/s] }, { name: b, key: [ip], limits: [9/min] }]",
                "rule `b` has the same conditions and key as `a` at 2:9",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [2/s], count_rejected: true, on_limit: { delay: { max_wait: 1s } } }]",
                "charges a waiting request for every attempt",
            ),
            (
                "rules: [{ name: a, match: { path: [/login, /x, /Login] }, key: [ip], limits: [2/s] }]",
                "`/login` and `/Login` differ only in case; `case_insensitive: true`",
            ),
            (
                "identity: { trusted: [10.0.0.0/8], user: 'header:x-user' }\nrules: [{ name: a, key: [usr|ip], limits: [2/s] }]",
                "did you mean `user`?",
            ),
        ] {
            let found = warnings(&format!("version: 1\n{text}"));
            assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn sensible_policies_cause_no_warnings() {
        for text in [
            "rules: [{ name: a, key: [ip], limits: [2/s, { rate: 10/min, algorithm: sliding_weighted }, { rate: 500/h, algorithm: sliding_buckets }] }]",
            "rules: [{ name: a, key: [user], limits: [2/s] }, { name: b, key: [ip], limits: [2/s] }]",
            "rules: [{ name: a, match: { path: /x/** }, key: [user], limits: [2/s] }, { name: b, match: { path: /** }, key: [ip], limits: [2/s] }]",
            "identity: { api_key: { from: 'header:x', peers: any } }\nrules: [{ name: a, key: [api_key|ip], limits: [2/s] }, { name: b, key: [ip], limits: [9/s] }]",
            "rules: [{ name: a, match: { path: /healthz }, limits: unlimited, stop: true }, { name: b, key: [ip], limits: [2/s] }]",
            "rules: [{ name: a, match: { path: /healthz }, limits: unlimited, stop: true }, { name: b, key: [user|ip], limits: [2/s] }]",
            "rules: [{ name: a, key: [ip], limits: [{ rate: 3/min, algorithm: sliding_log }], overrides: [{ key: { ip: 192.0.2.1 }, limits: [4/min, { rate: 9/calendar-day }] }] }]",
            "rules: [{ name: a, match: { tenant: x }, key: [tenant], limits: [2/s] }]",
            "rules: [{ name: a, key: [ip], limits: [{ rate: 10/min, algorithm: fixed_window }, 2/s] }]",
            "rules: [{ name: a, key: [ip], limits: [{ concurrent: 5 }, 1/s, 900/h] }]",
            "rules: [{ name: a, key: [ip], limits: [{ concurrent: 9, lease: 1min }, { concurrent: 5, name: b }] }]",
        ] {
            assert_eq!(warnings(&format!("version: 1\n{text}")), [""; 0], "{text}");
        }
    }
}
