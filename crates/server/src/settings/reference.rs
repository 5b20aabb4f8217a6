//! Environment variables of Envoy's reference rate limit service, which tidegate does not read, and what to set instead.
//!
//! An operator who moves from that service keeps its environment at first. If its variables were ignored silently, tidegate
//! would refuse requests in spite of `SHADOW_MODE=true`, or count in memory in spite of `REDIS_URL`.

/// The variables of the service, each with its replacement. `*` matches any text. The first pattern that matches counts.
const VARIABLES: [(&str, &str); 44] = [
    ("RUNTIME_ROOT", "--envoy-config, the folder of the rule files itself"),
    ("RUNTIME_SUBDIRECTORY", "--envoy-config, the folder of the rule files itself"),
    ("RUNTIME_APPDIRECTORY", "--envoy-config, the folder of the rule files itself"),
    ("RUNTIME_*", "nothing; files and links are watched"),
    ("MERGE_DOMAIN_CONFIG", "--envoy-merge-domains"),
    ("CONFIG_TYPE", "--envoy-config; only files are read"),
    ("CONFIG_GRPC_XDS_*", "--envoy-config; only files are read"),
    ("XDS_CLIENT_*", "--envoy-config; only files are read"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "nothing; the start needs rules without mistakes"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "nothing; the start needs rules without mistakes"),
    ("GRPC_UDS", "--grpc-listen; there are no Unix sockets"),
    ("GRPC_HOST", "--grpc-listen"),
    ("GRPC_PORT", "--grpc-listen"),
    ("GRPC_MAX_CONNECTION_AGE*", "nothing; --grpc-idle-timeout ends idle connections"),
    ("GRPC_SERVER_USE_TLS", "--tls-certificate, --tls-key and --tls-listeners"),
    ("GRPC_SERVER_TLS_CERT", "--tls-certificate"),
    ("GRPC_SERVER_TLS_KEY", "--tls-key"),
    ("GRPC_CLIENT_TLS_CACERT", "--tls-client-ca-file"),
    ("GRPC_CLIENT_TLS_SAN", "nothing; every client with a certificate of the CA is accepted"),
    ("DEBUG_HOST", "--admin-listen"),
    ("DEBUG_PORT", "--admin-listen"),
    ("BACKEND_TYPE", "--store"),
    ("REDIS_TLS_CACERT", "--redis-ca-file"),
    ("REDIS_TLS_CLIENT_CERT", "--redis-certificate"),
    ("REDIS_TLS_CLIENT_KEY", "--redis-key"),
    ("REDIS_TIMEOUT", "--redis-timeout"),
    ("REDIS_PERSECOND*", "--store; one store counts all"),
    ("REDIS_*", "--store"),
    ("MEMCACHE_*", "--store; memory or Redis"),
    ("CACHE_KEY_PREFIX", "--secret-file"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "--redis-denial-cache"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "nothing"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "a policy, where refused requests count nothing"),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "--grpc-response-headers reference"),
    ("LIMIT_*_HEADER", "nothing; the names are fixed"),
    ("RESPONSE_DYNAMIC_METADATA", "--grpc-dynamic-metadata"),
    ("SHADOW_MODE", "`shadow_mode` in the rule files, or Envoy's `filter_enforced`"),
    ("GLOBAL_SHADOW_MODE", "`shadow_mode` in the rule files, or Envoy's `filter_enforced`"),
    ("QUOTA_MODE", "`quota_mode` in the rule files"),
    ("NEAR_LIMIT_RATIO", "nothing; near the limit is above 80 %"),
    ("USE_*", "/metrics on --admin-listen, for Prometheus"),
    ("STATSD_*", "/metrics on --admin-listen, for Prometheus"),
    ("PROMETHEUS_*", "/metrics on --admin-listen, for Prometheus"),
    ("TRACING_*", "nothing"),
];

/// Variables that many programs use. They are reported only if one of the others is set too.
const COMMON: [(&str, &str); 7] = [
    ("HOST", "--http-listen"),
    ("PORT", "--http-listen"),
    ("LOG_LEVEL", "--log-level"),
    ("LOG_FORMAT", "--log-format"),
    ("EXTRA_TAGS", "nothing"),
    ("STATS_FLUSH_INTERVAL", "nothing; Prometheus chooses when to scrape"),
    ("DISABLE_STATS", "nothing"),
];

/// The variables of the reference service among `names`, each with its replacement.
pub(crate) fn ignored(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    let replaced = |name: &String, table: &[(&str, &str)]| {
        let (_, here) = table.iter().find(|(pattern, _)| fits(pattern, name))?;
        Some(format!("{name} (here: {here})"))
    };
    let own: Vec<String> = names.iter().filter_map(|name| replaced(name, &VARIABLES)).collect();
    if own.is_empty() {
        return own;
    }
    let common = names.iter().filter_map(|name| replaced(name, &COMMON));
    own.iter().cloned().chain(common).collect()
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((first, last)) => name.strip_prefix(first).is_some_and(|rest| rest.ends_with(last)),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_reference_service_are_reported_with_their_replacement() {
        let told = |names: &[&str]| ignored(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(told(&["HOST", "PORT", "LOG_LEVEL", "PATH"]), [""; 0]);
        assert_eq!(
            told(&["REDIS_URL", "PORT", "PATH", "REDIS_TLS_CACERT", "LIMIT_RESET_HEADER"]),
            [
                "LIMIT_RESET_HEADER (here: nothing; the names are fixed)",
                "REDIS_TLS_CACERT (here: --redis-ca-file)",
                "REDIS_URL (here: --store)",
                "PORT (here: --http-listen)",
            ]
        );
    }
}
