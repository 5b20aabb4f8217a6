//! The table of settings: names, defaults, what they are for.

use tidegate_policy::printable;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file: `http.idle_timeout`.
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    /// What a value looks like.
    pub(super) shape: &'static str,
    pub(super) help: &'static str,
}

const fn setting(
    name: &'static str,
    shape: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { name, default, shape, help }
}

/// All settings; those with a point in their names stand together.
pub(crate) const TABLE: &[Setting] = &[
    setting(
        "policy",
        "FILE",
        "",
        "Policy file; without one, each client address may send 15 requests a second",
    ),
    setting(
        "store",
        "URL",
        "memory:",
        "Where counters are kept: `memory:` for this server alone; `file:` the same, and they survive a restart; or shared by several servers: `redis://host:6379/`, `redis+cluster://host:port,host:port` or `redis+sentinel://host:port/name`, where `rediss` uses TLS; or `memcached://host:port,host:port`",
    ),
    setting(
        "data_dir",
        "DIR",
        "tidegate-data",
        "Directory for the secret, the tokens, changes made by operators, the audit log and, with the store `file:`, the counters",
    ),
    setting(
        "secret_file",
        "FILE",
        "",
        "Secret of the deployment; by default the file `secret` in the data directory",
    ),
    setting("workers", "N", "auto", "Worker threads; `auto` starts one per core"),
    setting("receipt_ttl", "TIME", "60s", "How long a receipt can be settled"),
    setting(
        "drain_timeout",
        "TIME",
        "10s",
        "How long a shutdown waits for requests that were already received",
    ),
    setting(
        "max_open_files",
        "N",
        "auto",
        "Maximum number of open files, one per connection; `auto` uses what the system allows",
    ),
    setting(
        "denial_log",
        "FILE",
        "off",
        "Denial log, with a line of JSON for each refused key, rule and minute: a file, or `stdout`; `off` disables it",
    ),
    setting(
        "denial_log_keys",
        "FORM",
        "clear",
        "How the denial log shows keys: `clear`, `hashed` (digests by the secret of the deployment) or `omitted`; API keys and other secrets are always digests",
    ),
    setting(
        "record.file",
        "FILE",
        "off",
        "Records decisions in this file, for `tidegate replay --format recorded`; `off` disables it",
    ),
    setting("record.sample", "N", "1", "Record all requests of one in N keys"),
    setting(
        "record.sample_by",
        "FORM",
        "user",
        "Which keys are sampled: `user` (without one, the address) or `ip`",
    ),
    setting(
        "record.attributes",
        "FORM",
        "hashed",
        "How the recording shows addresses, users and other attributes: `hashed` (digests by the secret of the deployment) or `clear`; secrets are always digests",
    ),
    setting(
        "record.max_bytes",
        "SIZE",
        "64MiB",
        "Maximum size of the recording; the oldest half is removed",
    ),
    setting("record.max_age", "TIME", "1day", "Maximum age of recorded decisions"),
    setting(
        "top_keys.memory",
        "SIZE",
        "4MiB",
        "Maximum memory for the most used and most refused keys and for recent refusals, which the admin API shows; `0` disables both",
    ),
    setting(
        "top_keys.show",
        "FORM",
        "clear",
        "How top keys and recent refusals show keys: `clear`, `hashed` (digests by the secret of the deployment) or `omitted`; API keys and other secrets are always digests",
    ),
    setting("memory.budget", "SIZE", "256MiB", "Maximum memory for counters"),
    setting(
        "memory.connection_budget",
        "SIZE",
        "64MiB",
        "Maximum memory for request and response buffers; the first 8 KiB of each connection are not counted",
    ),
    setting(
        "file.write_interval",
        "TIME",
        "50ms",
        "How often changed counters are written to the data directory; a crash of the server loses as much",
    ),
    setting(
        "file.sync_interval",
        "TIME",
        "250ms",
        "How often what was written is synced to the disk; a power failure loses as much",
    ),
    setting(
        "file.write_rate",
        "SIZE",
        "64MiB",
        "Maximum number of bytes written in a second; when more changes, it is written less often",
    ),
    setting("redis.timeout", "TIME", "50ms", "Maximum time a decision waits for the store"),
    setting("redis.connect_timeout", "TIME", "1s", "Timeout for connecting to the store"),
    setting(
        "redis.ca_file",
        "FILE",
        "",
        "CA bundle (PEM) used to verify the store's certificate, instead of the CAs that this machine trusts",
    ),
    setting("redis.certificate", "FILE", "", "Client certificate (PEM) to show to the store"),
    setting("redis.key", "FILE", "", "Private key (PEM) of redis.certificate"),
    setting(
        "redis.clock",
        "server|node",
        "server",
        "Clock that decides: `server` is the store's; `node` is this server's estimate of it, for engines whose scripts cannot read the time",
    ),
    setting(
        "redis.denial_cache",
        "on|off",
        "on",
        "Repeat a denial for half a second without asking the store again",
    ),
    setting("memcached.timeout", "TIME", "50ms", "Maximum time a decision waits for the store"),
    setting("memcached.connect_timeout", "TIME", "1s", "Timeout for connecting to the store"),
    setting(
        "cluster.nodes",
        "N",
        "auto",
        "Number of servers that share the store; while it is unreachable, each allows its share of a limit; `auto` counts the servers through the store, and assumes 8 with memcached, which cannot count them",
    ),
    setting(
        "tls.certificate",
        "FILES",
        "",
        "Server certificate and its chain (PEM); turns on TLS for the listeners in tls.listeners. Several, with commas between them, are chosen by the name that the client asks for",
    ),
    setting(
        "tls.key",
        "FILES",
        "",
        "Private key (PEM) of tls.certificate; for several certificates, their keys in the same order",
    ),
    setting(
        "tls.client_ca_file",
        "FILE",
        "",
        "CA bundle (PEM) used to verify client certificates; clients must then show one",
    ),
    setting(
        "tls.listeners",
        "NAMES",
        "http,grpc,resp,proxy,admin,metrics",
        "Listeners that use TLS",
    ),
    setting("tls.handshake_timeout", "TIME", "5s", "Timeout for a TLS handshake"),
    setting(
        "jwt.keys",
        "FILE",
        "",
        "Public keys that verify the tokens of clients of the proxy: a JWKS file, or PEM; for attributes such as `user: jwt:sub`",
    ),
    setting("jwt.issuer", "TEXT", "", "Issuer that tokens must name (`iss`); without one, any"),
    setting(
        "jwt.audience",
        "NAMES",
        "",
        "Audiences, of which tokens must name at least one (`aud`); without one, any",
    ),
    setting("http.listen", "ADDR", "127.0.0.1:8080", "HTTP API address; `off` disables it"),
    setting(
        "http.header_timeout",
        "TIME",
        "10s",
        "Maximum time from the first byte of a request to the end of its header fields",
    ),
    setting(
        "http.body_timeout",
        "TIME",
        "20s",
        "Maximum time to receive a body, and for the client to read a response",
    ),
    setting(
        "http.idle_timeout",
        "TIME",
        "60s",
        "How long a connection may be idle between requests",
    ),
    setting("http.max_connections", "N", "10000", "Maximum number of open connections"),
    setting(
        "http.max_connections_per_source",
        "N",
        "1000",
        "Maximum number of open connections from one IPv4 address or IPv6 /64; an address that the policy trusts may have 7/8 of http.max_connections",
    ),
    setting(
        "http.hosts",
        "NAMES",
        "",
        "Host names of the HTTP API and of the metrics listener, besides addresses, names of one label, and names in `.local`, `.internal` and `.svc`, which are always accepted",
    ),
    setting(
        "http.legacy_headers",
        "FORM",
        "off",
        "Send X-RateLimit-* in forward auth, with the reset in seconds from now (`delta`) or as Unix time (`epoch`)",
    ),
    setting("grpc.listen", "ADDR", "127.0.0.1:8081", "gRPC address, for Envoy; `off` disables it"),
    setting(
        "grpc.header_timeout",
        "TIME",
        "10s",
        "Maximum time from accepting a connection to its first bytes",
    ),
    setting(
        "grpc.body_timeout",
        "TIME",
        "20s",
        "Maximum time to receive a message, and for the client to read a response",
    ),
    setting("grpc.idle_timeout", "TIME", "1h", "How long a connection may be idle between calls"),
    setting("grpc.max_connections", "N", "10000", "Maximum number of open connections"),
    setting(
        "grpc.max_connections_per_source",
        "N",
        "1000",
        "Maximum number of open connections from one IPv4 address or IPv6 /64; an address that the policy trusts may have 7/8 of grpc.max_connections",
    ),
    setting(
        "grpc.response_headers",
        "FORM",
        "off",
        "Header fields that Envoy adds to responses: `ratelimit` (RateLimit, RateLimit-Policy), `legacy` (X-RateLimit-*) or `reference` (RateLimit-Limit, -Remaining, -Reset)",
    ),
    setting(
        "grpc.dynamic_metadata",
        "on|off",
        "on",
        "Send Envoy dynamic metadata about calls that rule files decide, with the `metadata` of rules that let a call pass",
    ),
    setting(
        "envoy.config",
        "DIR",
        "",
        "Directory of envoyproxy/ratelimit rule files, which then decide over gRPC instead of the policy",
    ),
    setting("envoy.merge_domains", "on|off", "off", "Accept several rule files for one domain"),
    setting(
        "resp.listen",
        "ADDR",
        "127.0.0.1:6380",
        "RESP address, for Redis clients; `off` disables it",
    ),
    setting(
        "resp.users_file",
        "FILE",
        "",
        "Users of the RESP listener; without this file, every client that can connect may ask",
    ),
    setting(
        "resp.command_timeout",
        "TIME",
        "10s",
        "Maximum time from the first byte of a command to its end",
    ),
    setting("resp.write_timeout", "TIME", "20s", "Maximum time for the client to read replies"),
    setting(
        "resp.idle_timeout",
        "TIME",
        "5min",
        "How long a connection may be idle between commands",
    ),
    setting("resp.max_connections", "N", "10000", "Maximum number of open connections"),
    setting(
        "resp.max_connections_per_source",
        "N",
        "1000",
        "Maximum number of open connections from one IPv4 address or IPv6 /64",
    ),
    setting(
        "proxy.listen",
        "ADDR",
        "off",
        "Reverse proxy address: requests that may pass are forwarded to upstream servers; `off` disables it",
    ),
    setting(
        "proxy.upstream",
        "URL",
        "",
        "Upstream server of the proxy, such as `http://127.0.0.1:3000`; for several use proxy.routes",
    ),
    setting(
        "proxy.routes",
        "FILE",
        "",
        "Routes file of the proxy: groups of upstream servers, and which requests they get",
    ),
    setting(
        "proxy.access_log",
        "FILE",
        "off",
        "Access log of the proxy, with a line of JSON for each request: a file, or `stdout`; `off` disables it",
    ),
    setting(
        "proxy.access_log_sample",
        "N",
        "1",
        "Write one in N of the requests that were answered with a status below 400; refusals and errors are always written",
    ),
    setting(
        "proxy.proxy_protocol",
        "on|off",
        "off",
        "Require a PROXY protocol header (version 1 or 2) on every connection, from a load balancer that the policy trusts",
    ),
    setting("proxy.max_body", "SIZE", "1GiB", "Maximum size of a request body"),
    setting(
        "proxy.buffer_budget",
        "SIZE",
        "256MiB",
        "Maximum memory for requests and bodies on their way through the proxy; at the bound nothing more is read",
    ),
    setting("proxy.header_timeout", "TIME", "10s", "Like http.header_timeout"),
    setting(
        "proxy.body_timeout",
        "TIME",
        "20s",
        "How long a client may neither send a part of its body nor read a part of the response",
    ),
    setting("proxy.idle_timeout", "TIME", "60s", "Like http.idle_timeout"),
    setting("proxy.max_connections", "N", "10000", "Maximum number of open connections"),
    setting(
        "proxy.max_connections_per_source",
        "N",
        "1000",
        "Like http.max_connections_per_source",
    ),
    setting("admin.listen", "ADDR", "127.0.0.1:8082", "Admin API address; `off` disables it"),
    setting(
        "admin.hosts",
        "NAMES",
        "",
        "Host names of the admin listener, besides its address and `localhost`",
    ),
    setting(
        "admin.operator_token_file",
        "FILE",
        "",
        "Operator token; by default a generated one in the data directory",
    ),
    setting(
        "admin.reader_token_file",
        "FILE",
        "",
        "Reader token; by default a generated one in the data directory",
    ),
    setting(
        "admin.users_file",
        "FILE",
        "",
        "Users of the admin listener with tokens of their own, so that the audit log names them: lines `NAME reader|operator TOKEN`; read again when it changes",
    ),
    setting("admin.header_timeout", "TIME", "10s", "Like http.header_timeout"),
    setting("admin.body_timeout", "TIME", "20s", "Like http.body_timeout"),
    setting("admin.idle_timeout", "TIME", "60s", "Like http.idle_timeout"),
    setting("admin.max_connections", "N", "200", "Maximum number of open connections"),
    setting(
        "admin.max_connections_per_source",
        "N",
        "50",
        "Maximum number of open connections from one IPv4 address or IPv6 /64",
    ),
    setting(
        "metrics.listen",
        "ADDR",
        "off",
        "Address that serves only /metrics, without a token, with the timeouts and numbers of connections of the admin listener; `off` disables it",
    ),
    setting(
        "log.format",
        "FORM",
        "auto",
        "`text` or `json`; `auto` is `text` on a terminal and `json` elsewhere",
    ),
    setting("log.level", "LEVEL", "info", "`error`, `warn`, `info`, `debug` or `trace`"),
];

impl Setting {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|setting| setting.name == name)
    }

    /// `--http-idle-timeout`
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.long())
    }

    /// `TIDEGATE_HTTP_IDLE_TIMEOUT`
    pub(crate) fn variable(&self) -> String {
        variable_of(self.name)
    }

    pub(super) fn long(&self) -> String {
        flag_of(self.name)
    }

    /// A complaint about a name that is none, and which was probably meant.
    pub(crate) fn unknown(name: &str) -> String {
        if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == name) {
            return format!("`{name}` is now called `{new}`");
        }
        let groups =
            TABLE.iter().filter_map(|one| one.name.split_once('.')).map(|(group, _)| group);
        let names = TABLE.iter().map(|one| one.name).chain(groups);
        match nearest(name, names) {
            Some(near) => {
                format!("unknown setting `{}`, did you mean `{near}`?", printable(name))
            }
            None => format!(
                "unknown setting `{}`; `tidegate serve --print-config` shows all",
                printable(name)
            ),
        }
    }

    pub(crate) fn unknown_variable(variable: &str) -> String {
        let renamed = RENAMED.iter().find(|(old, _)| variable_of(old) == variable);
        if let Some((_, new)) = renamed {
            return format!("{}: this setting is now called {}", variable, variable_of(new));
        }
        let names: Vec<String> = TABLE.iter().map(Self::variable).collect();
        let hint = match nearest(variable, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => "`tidegate serve --print-config` shows all".to_owned(),
        };
        format!("{}: there is no such setting; {hint}", printable(variable))
    }
}

pub(super) fn flag_of(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

fn variable_of(name: &str) -> String {
    format!("TIDEGATE_{}", name.replace('.', "_").to_ascii_uppercase())
}

fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known)).min()?;
    (near.0 <= 3 && near.0 < name.len()).then_some(near.1)
}

/// Settings that had another name once, and their names now.
pub(super) const RENAMED: &[(&str, &str)] = &[
    ("settle_within", "receipt_ttl"),
    ("redis.authority", "redis.ca_file"),
    ("tls.client_authority", "tls.client_ca_file"),
    ("http.connections", "http.max_connections"),
    ("http.connections_per_source", "http.max_connections_per_source"),
    ("grpc.connections", "grpc.max_connections"),
    ("grpc.connections_per_source", "grpc.max_connections_per_source"),
    ("resp.connections", "resp.max_connections"),
    ("resp.connections_per_source", "resp.max_connections_per_source"),
    ("admin.connections", "admin.max_connections"),
    ("admin.connections_per_source", "admin.max_connections_per_source"),
];
