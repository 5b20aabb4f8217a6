//! The table of settings: each is declared here once, with its name, type, kind of value, default, and what it is for.

use super::declare::{Setting, settings};
use super::kinds::{self, StoreUrl};
use super::reader::{Given, Reader};
use crate::front::grpc::HeaderChoice;
use crate::line_writer::LogPlace;
use crate::log::LogFormat;
use crate::net::Listener;
use crate::recorder::SampleBy;
use crate::shown_key::KeyForm;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tidegate::Secret;
use tidegate::http::LegacyReset;
use tidegate_store::RedisClock;

settings! {
    /// The server
    server "": ServerGroup {
        /// Policy file; without one, each client address may send 15 requests a second
        policy: Option<PathBuf> = FILE(""),
        /// Where counters are kept: `memory:` for this server alone; `file:` the same, and they survive a restart; or shared by
        /// several servers: `redis://host:6379/`, `redis+cluster://host:port,host:port` or `redis+sentinel://host:port/name`,
        /// where `rediss` uses TLS; or `memcached://host:port,host:port`
        store: StoreUrl = STORE("memory:"),
        /// Directory for the secret, the tokens, changes made by operators, the audit log and, with the store `file:`, the
        /// counters
        data_dir: PathBuf = DATA_DIR("tidegate-data"),
        /// Secret of the deployment; by default the file `secret` in the data directory
        secret_file: Option<PathBuf> = FILE(""),
        /// Worker threads; `auto` starts one per core
        workers: usize = WORKERS("auto"),
        /// How long a receipt can be settled
        receipt_ttl: Duration = TIME("60s"),
        /// How long a shutdown waits for requests that were already received
        drain_timeout: Duration = TIME("10s"),
        /// Maximum number of open files, one per connection; `auto` uses what the system allows
        max_open_files: Option<u64> = OPEN_FILES("auto"),
        /// Denial log, with a line of JSON for each refused key, rule and minute: a file, or `stdout`; `off` disables it
        denial_log: Option<LogPlace> = LOG_PLACE("off"),
        /// How the denial log shows keys: `clear`, `hashed` (digests by the secret of the deployment) or `omitted`; API keys and
        /// other secrets are always digests
        denial_log_keys: KeyForm = KEY_FORM("clear"),
    }

    /// The recording, for `tidegate replay`
    record "record.": RecordGroup {
        /// Records decisions in this file, for `tidegate replay --format recorded`; `off` disables it
        file: Option<PathBuf> = RECORDING("off"),
        /// Record all requests of one in N keys
        sample: u64 = SAMPLE("1"),
        /// Which keys are sampled: `user` (without one, the address) or `ip`
        sample_by: SampleBy = SAMPLE_BY("user"),
        /// How the recording shows addresses, users and other attributes: `hashed` (digests by the secret of the deployment) or
        /// `clear`; secrets are always digests
        attributes: bool = CLEAR("hashed"),
        /// Maximum size of the recording; the oldest half is removed
        max_bytes: u64 = MEBIBYTES("64MiB"),
        /// Maximum age of recorded decisions
        max_age: Duration = TIME("1day"),
    }

    /// Top keys and recent refusals
    top_keys "top_keys.": TopKeysGroup {
        /// Maximum memory for the most used and most refused keys and for recent refusals, which the admin API shows; `0`
        /// disables both
        memory: usize = TOP_KEYS_MEMORY("4MiB"),
        /// How top keys and recent refusals show keys: `clear`, `hashed` (digests by the secret of the deployment) or `omitted`;
        /// API keys and other secrets are always digests
        show: KeyForm = KEY_FORM("clear"),
    }

    /// Memory
    memory "memory.": MemoryGroup {
        /// Maximum memory for counters
        budget: usize = SIZE("256MiB"),
        /// Maximum memory for request and response buffers; the first 8 KiB of each connection are not counted
        connection_budget: usize = BUDGET("64MiB"),
    }

    /// The data directory, with the store `file:`
    file "file.": FileGroup {
        /// How often changed counters are written to the data directory; a crash of the server loses as much
        write_interval: Duration = TIME("50ms"),
        /// How often what was written is synced to the disk; a power failure loses as much
        sync_interval: Duration = TIME("250ms"),
        /// Maximum number of bytes written in a second; when more changes, it is written less often
        write_rate: u64 = MEBIBYTES("64MiB"),
    }

    /// The store on Redis or Valkey
    redis "redis.": RedisGroup {
        /// Maximum time a decision waits for the store
        timeout: Duration = TIME("50ms"),
        /// Timeout for connecting to the store
        connect_timeout: Duration = TIME("1s"),
        /// CA bundle (PEM) used to verify the store's certificate, instead of the CAs that this machine trusts
        ca_file: Option<PathBuf> = FILE(""),
        /// Client certificate (PEM) to show to the store
        certificate: Option<PathBuf> = FILE(""),
        /// Private key (PEM) of redis.certificate
        key: Option<PathBuf> = FILE(""),
        /// Clock that decides: `server` is the store's; `node` is this server's estimate of it, for engines whose scripts cannot
        /// read the time
        clock: RedisClock = REDIS_CLOCK("server"),
        /// Repeat a denial for half a second without asking the store again
        denial_cache: bool = SWITCH("on"),
    }

    /// The store on memcached
    memcached "memcached.": MemcachedGroup {
        /// Maximum time a decision waits for the store
        timeout: Duration = TIME("50ms"),
        /// Timeout for connecting to the store
        connect_timeout: Duration = TIME("1s"),
    }

    /// Several servers that share a store
    cluster "cluster.": ClusterGroup {
        /// Number of servers that share the store; while it is unreachable, each allows its share of a limit; `auto` counts the
        /// servers through the store, and assumes 8 with memcached, which cannot count them
        nodes: Option<u32> = NODES("auto"),
    }

    /// TLS
    tls "tls.": TlsGroup {
        /// Server certificate and its chain (PEM); turns on TLS for the listeners in tls.listeners. Several, with commas between
        /// them, are chosen by the name that the client asks for
        certificate: Vec<PathBuf> = FILES(""),
        /// Private key (PEM) of tls.certificate; for several certificates, their keys in the same order
        key: Vec<PathBuf> = FILES(""),
        /// CA bundle (PEM) used to verify client certificates; clients must then show one
        client_ca_file: Option<PathBuf> = FILE(""),
        /// Listeners that use TLS
        listeners: Vec<Listener> = LISTENERS("http,grpc,resp,proxy,admin,metrics"),
        /// Timeout for a TLS handshake
        handshake_timeout: Duration = TIME("5s"),
    }

    /// Tokens of clients of the reverse proxy
    jwt "jwt.": JwtGroup {
        /// Public keys that verify the tokens of clients of the proxy: a JWKS file, or PEM; for attributes such as `user:
        /// jwt:sub`
        keys: Option<PathBuf> = FILE(""),
        /// Issuer that tokens must name (`iss`); without one, any
        issuer: Option<String> = TEXT(""),
        /// Audiences, of which tokens must name at least one (`aud`); without one, any
        audience: Vec<String> = AUDIENCES(""),
    }

    /// The HTTP listener
    http "http.": HttpGroup {
        /// HTTP API address; `off` disables it
        listen: Option<SocketAddr> = ADDRESS("127.0.0.1:8080"),
        /// Maximum time from the first byte of a request to the end of its header fields
        header_timeout: Duration = TIME("10s"),
        /// Maximum time to receive a body, and for the client to read a response
        body_timeout: Duration = TIME("20s"),
        /// How long a connection may be idle between requests
        idle_timeout: Duration = TIME("60s"),
        /// Maximum number of open connections
        max_connections: usize = COUNT("10000"),
        /// Maximum number of open connections from one IPv4 address or IPv6 /64; an address that the policy trusts may have 7/8
        /// of http.max_connections
        max_connections_per_source: usize = COUNT("1000"),
        /// Host names of the HTTP API and of the metrics listener, besides addresses, names of one label, and names in `.local`,
        /// `.internal` and `.svc`, which are always accepted
        hosts: Vec<String> = HOSTS(""),
        /// Send X-RateLimit-* in forward auth, with the reset in seconds from now (`delta`) or as Unix time (`epoch`)
        legacy_headers: Option<LegacyReset> = LEGACY_HEADERS("off"),
    }

    /// The gRPC listener
    grpc "grpc.": GrpcGroup {
        /// gRPC address, for Envoy; `off` disables it
        listen: Option<SocketAddr> = ADDRESS("127.0.0.1:8081"),
        /// Maximum time from accepting a connection to its first bytes
        header_timeout: Duration = TIME("10s"),
        /// Maximum time to receive a message, and for the client to read a response
        body_timeout: Duration = TIME("20s"),
        /// How long a connection may be idle between calls
        idle_timeout: Duration = TIME("1h"),
        /// Maximum number of open connections
        max_connections: usize = COUNT("10000"),
        /// Maximum number of open connections from one IPv4 address or IPv6 /64; an address that the policy trusts may have 7/8
        /// of grpc.max_connections
        max_connections_per_source: usize = COUNT("1000"),
        /// Header fields that Envoy adds to responses: `ratelimit` (RateLimit, RateLimit-Policy), `legacy` (X-RateLimit-*) or
        /// `reference` (RateLimit-Limit, -Remaining, -Reset)
        response_headers: HeaderChoice = RESPONSE_HEADERS("off"),
        /// Send Envoy dynamic metadata about calls that rule files decide, with the `metadata` of rules that let a call pass
        dynamic_metadata: bool = SWITCH("on"),
    }

    /// Rule files of Envoy's reference rate limit service
    envoy "envoy.": EnvoyGroup {
        /// Directory of envoyproxy/ratelimit rule files, which then decide over gRPC instead of the policy
        config: Option<PathBuf> = DIR(""),
        /// Accept several rule files for one domain
        merge_domains: bool = SWITCH("off"),
    }

    /// The RESP listener
    resp "resp.": RespGroup {
        /// RESP address, for Redis clients; `off` disables it
        listen: Option<SocketAddr> = ADDRESS("127.0.0.1:6380"),
        /// Users of the RESP listener; without this file, every client that can connect may ask
        users_file: Option<PathBuf> = FILE(""),
        /// Maximum time from the first byte of a command to its end
        command_timeout: Duration = TIME("10s"),
        /// Maximum time for the client to read replies
        write_timeout: Duration = TIME("20s"),
        /// How long a connection may be idle between commands
        idle_timeout: Duration = TIME("5min"),
        /// Maximum number of open connections
        max_connections: usize = COUNT("10000"),
        /// Maximum number of open connections from one IPv4 address or IPv6 /64
        max_connections_per_source: usize = COUNT("1000"),
    }

    /// The reverse proxy
    proxy "proxy.": ProxyGroup {
        /// Reverse proxy address: requests that may pass are forwarded to upstream servers; `off` disables it
        listen: Option<SocketAddr> = ADDRESS("off"),
        /// Upstream server of the proxy, such as `http://127.0.0.1:3000`; for several use proxy.routes
        upstream: Option<String> = URL(""),
        /// Routes file of the proxy: groups of upstream servers, and which requests they get
        routes: Option<PathBuf> = FILE(""),
        /// Access log of the proxy, with a line of JSON for each request: a file, or `stdout`; `off` disables it
        access_log: Option<LogPlace> = LOG_PLACE("off"),
        /// Write one in N of the requests that were answered with a status below 400; refusals and errors are always written
        access_log_sample: u64 = SAMPLE("1"),
        /// Require a PROXY protocol header (version 1 or 2) on every connection, from a load balancer that the policy trusts
        proxy_protocol: bool = SWITCH("off"),
        /// Maximum size of a request body
        max_body: usize = SIZE("1GiB"),
        /// Maximum memory for requests and bodies on their way through the proxy; at the bound nothing more is read
        buffer_budget: usize = BUDGET("256MiB"),
        /// Like http.header_timeout
        header_timeout: Duration = TIME("10s"),
        /// How long a client may neither send a part of its body nor read a part of the response
        body_timeout: Duration = TIME("20s"),
        /// Like http.idle_timeout
        idle_timeout: Duration = TIME("60s"),
        /// Maximum number of open connections
        max_connections: usize = COUNT("10000"),
        /// Like http.max_connections_per_source
        max_connections_per_source: usize = COUNT("1000"),
    }

    /// The admin listener
    admin "admin.": AdminGroup {
        /// Admin API address; `off` disables it
        listen: Option<SocketAddr> = ADDRESS("127.0.0.1:8082"),
        /// Host names of the admin listener, besides its address and `localhost`
        hosts: Vec<String> = HOSTS(""),
        /// Operator token; by default a generated one in the data directory
        operator_token_file: Option<PathBuf> = FILE(""),
        /// Reader token; by default a generated one in the data directory
        reader_token_file: Option<PathBuf> = FILE(""),
        /// Users of the admin listener with tokens of their own, so that the audit log names them: lines `NAME reader|operator
        /// TOKEN`; read again when it changes
        users_file: Option<PathBuf> = FILE(""),
        /// Like http.header_timeout
        header_timeout: Duration = TIME("10s"),
        /// Like http.body_timeout
        body_timeout: Duration = TIME("20s"),
        /// Like http.idle_timeout
        idle_timeout: Duration = TIME("60s"),
        /// Maximum number of open connections
        max_connections: usize = COUNT("200"),
        /// Maximum number of open connections from one IPv4 address or IPv6 /64
        max_connections_per_source: usize = COUNT("50"),
    }

    /// The metrics listener
    metrics "metrics.": MetricsGroup {
        /// Address that serves only /metrics, without a token, with the timeouts and numbers of connections of the admin
        /// listener; `off` disables it
        listen: Option<SocketAddr> = ADDRESS("off"),
    }

    /// The log
    log "log.": LogGroup {
        /// `text` or `json`; `auto` is `text` on a terminal and `json` elsewhere
        format: LogFormat = LOG_FORMAT("auto"),
        /// `error`, `warn`, `info`, `debug` or `trace`
        level: tracing::Level = LEVEL("info"),
    }
}
