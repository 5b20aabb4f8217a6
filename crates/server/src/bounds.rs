//! The fixed bounds of the listeners, each with its reason.
//!
//! Timeouts and numbers of connections are settings, because machines differ. The bounds here are fixed, because no legitimate
//! request exceeds them.

/// The accept queue: connections that the kernel has completed and the server has not accepted. When all clients reconnect at
/// the same time, a connection that finds the queue full is retried by its client only after a second or more. The system may
/// allow fewer.
pub(crate) const WAITING: u32 = 4_096;
/// Open files besides connections: the standard streams, the listeners, the log, and files that are open for a moment, such as
/// policies, certificates and the audit log.
pub(crate) const FILES: usize = 32;
/// Open files of a thread with a runtime: its poller, its waker, its signals, and one to spare.
pub(crate) const FILES_PER_WORKER: usize = 4;
/// Connections to a shared store: one for each of its servers, and as many again while they are renewed.
pub(crate) const FILES_OF_STORE: usize = 64;
/// A trusted proxy cannot have the last eighth of a listener's connections.
pub(crate) const LEFT_BY_PROXIES: usize = 8;
/// Bytes of a request line: the longest URL that browsers and proxies agree on.
pub(crate) const REQUEST_LINE: usize = 8 * 1024;
/// Bytes of empty lines before a request: two lines.
pub(crate) const EMPTY_LINES: usize = 4;
/// Bytes of all header fields, the usual bound of proxies.
pub(crate) const HEADER_BLOCK: usize = 16 * 1024;
/// Header fields of a request.
pub(crate) const HEADERS: usize = 100;
/// Bytes of a body with one request.
pub(crate) const BODY: usize = 64 * 1024;
/// Bytes of a body with many requests: a batch.
pub(crate) const BATCH_BODY: usize = 1024 * 1024;
/// Requests in a batch: some milliseconds of work, done in pieces.
pub(crate) const BATCH: usize = 1_000;
/// Requests or commands of a pipeline that are short work: they are answered without queueing. Deciding them takes about as
/// long as reading and writing them.
pub(crate) const SHORT_PIPELINE: usize = 16;
/// The first bytes of a body, which are short work. The rest is long work.
pub(crate) const SHORT_BODY: usize = 16 * 1024;
/// A gRPC call of up to this many bytes is short work: a few dozen descriptors.
pub(crate) const SHORT_MESSAGE: usize = 4 * 1024;
/// Bytes of an uploaded policy: as large as a policy file may be.
pub(crate) const POLICY_BODY: usize = 4 * 1024 * 1024;
/// The line before a chunk, with its extensions: sixteen digits and some space for extensions.
pub(crate) const CHUNK_LINE: usize = 256;
/// Bytes of the trailers of a chunked body, which are skipped.
pub(crate) const TRAILERS: usize = 4 * 1024;
/// Bytes of a connection that do not count against the connection budget: enough for a small request and its answer, so these
/// are always served.
pub(crate) const UNCOUNTED: usize = 8 * 1024;
/// The smallest connection budget. One connection gets at most a fifth of it, which must be enough for a batch and its answers.
pub(crate) const LEAST_BUDGET: usize = 8 * 1024 * 1024;
/// The connection budget of the admin listener. It is separate, so that an operator can always upload a policy.
pub(crate) const OPERATORS_BUDGET: usize = 32 * 1024 * 1024;
/// Memory for an entry of a batch while it is decided, and for its answer until the client has read it. Verdicts of many limits
/// are longer; they are counted when they exist.
pub(crate) const ENTRY: usize = 1024;
/// Memory of an HTTP/2 stream besides its header fields and its body: the state of the library, a task, a message to the health
/// service.
pub(crate) const STREAM: usize = 4 * 1024;
/// Bytes of every call of a proxy that do not count against the budget: a stream with a small head and message. The calls of all
/// clients of the proxy share one connection, and long calls must not make the short ones be refused.
pub(crate) const GRPC_UNCOUNTED: usize = 8 * 1024;
/// The flow control window of an HTTP/2 connection: the smallest that the protocol allows. Bytes are counted when they are read.
pub(crate) const WINDOW: u32 = 65_535;
/// The flow control window of an HTTP/2 connection of a proxy, which has a thousand calls in flight on few connections.
pub(crate) const GRPC_WINDOW: u32 = 1024 * 1024;
/// How long a connection that holds more than its share may make no progress.
pub(crate) const STALLED_MILLIS: u64 = 1_000;
/// Bytes of answers that are collected before they are written.
pub(crate) const UNWRITTEN: usize = 64 * 1024;
/// Bytes that are read and discarded after the last answer, so that closing the socket does not destroy the answer.
pub(crate) const LINGER_BYTES: usize = 256 * 1024;
/// How long bytes are discarded after the last answer. Also how long an idle connection stays open when the server stops, so
/// that a client that had just sent a request gets its answer.
pub(crate) const LINGER_MILLIS: u64 = 1_000;
/// A closing HTTP/2 connection gets no more requests if nothing has arrived for this long.
pub(crate) const QUIET_MILLIS: u64 = 50;
/// Concurrent streams of an HTTP/2 connection.
pub(crate) const STREAMS: u32 = 100;
/// Streams that a client has reset before the server looked at them (CVE-2023-44487, rapid reset).
pub(crate) const PENDING_RESETS: usize = 20;
/// Concurrent calls of a gRPC connection. A proxy has one connection for each of its threads, and queues the rest.
pub(crate) const GRPC_STREAMS: u32 = 1_000;
/// Calls that a proxy has cancelled before the server looked at them. After a stall of the server these are all calls that the
/// proxy made meanwhile, each cancelled after the proxy's timeout of 20 ms. If the connection were closed, the next requests
/// would pass without a decision.
pub(crate) const GRPC_PENDING_RESETS: usize = 8_192;
/// Bytes of a gRPC message, the usual bound of gRPC libraries. Envoy forwards what its clients send, so a client that could make
/// a call too long would get past a proxy that fails open. A longer message is refused unread.
pub(crate) const GRPC_MESSAGE: usize = 4 * 1024 * 1024;
/// Bytes of all header fields of a gRPC call. Envoy copies headers of its client into them, for tracing or by
/// `initial_metadata`, and accepts 60 KiB of those.
pub(crate) const GRPC_HEADER_BLOCK: usize = 256 * 1024;
/// Bytes of a message to the health or reflection service: the name of a service.
pub(crate) const GRPC_QUESTION: usize = 4 * 1024;
/// Descriptors of a gRPC call: ten times as many as usual configurations have. A call with more is refused.
pub(crate) const DESCRIPTORS: usize = 512;
/// Entries of a descriptor: twice as many as the deepest rule file has levels. A call with more is refused.
pub(crate) const ENTRIES: usize = 128;
/// How often an HTTP/2 client is pinged to detect that it is gone.
pub(crate) const PING_SECONDS: u64 = 60;
/// Streams that a client makes the server reset (CVE-2025-8671).
pub(crate) const PROVOKED_RESETS: usize = 20;
/// HTTP/2 control frames (`PING`, `SETTINGS`, `WINDOW_UPDATE`, …): the size of their token bucket.
pub(crate) const IDLE_FRAMES: u32 = 1_000;
/// Control frames that are added to the bucket every second.
pub(crate) const IDLE_FRAMES_PER_SECOND: u32 = 10;
/// Control frames that are added to the bucket with every request.
pub(crate) const IDLE_FRAMES_PER_REQUEST: u32 = 8;
/// Bytes of the head of an upstream server's answer, and of a piece of its body.
pub(crate) const UPSTREAM_BUFFER: usize = 64 * 1024;
/// Memory of an exchange with an upstream server besides the pieces of its bodies: the connection's first read buffer, the heads.
pub(crate) const EXCHANGE: usize = 12 * 1024;
/// Fields of the trailers of a request that the proxy passes on.
pub(crate) const TRAILER_FIELDS: usize = 32;
/// Bytes of a client's request body that are passed on as one piece.
pub(crate) const PROXY_PIECE: usize = 64 * 1024;
/// Bytes of an inline RESP command: one that is typed as a line.
pub(crate) const RESP_LINE: usize = 1024;
/// Words of a RESP command.
pub(crate) const RESP_WORDS: usize = 64;
/// Bytes of a word of a RESP command.
pub(crate) const RESP_BULK: usize = 8 * 1024;
/// Words of a command before the client has authenticated, if it must.
pub(crate) const RESP_WORDS_BEFORE_AUTH: usize = 10;
/// Bytes of a word before the client has authenticated, so that it can use less than 16 KiB of memory.
pub(crate) const RESP_BULK_BEFORE_AUTH: usize = 1024;
/// Unparsed bytes of a RESP connection: the largest command, and a pipeline behind it.
pub(crate) const RESP_UNREAD: usize = 1024 * 1024;
/// Unparsed bytes before the client has authenticated, and so its longest command. `HELLO` with a name and a token fits, and
/// every connection has a buffer of this size anyway.
pub(crate) const RESP_UNREAD_BEFORE_AUTH: usize = 4 * 1024;
/// Empty lines and empty lists in a row.
pub(crate) const RESP_EMPTY: usize = 100;
/// Commands that are decided together. The rest of a longer pipeline is long work.
pub(crate) const RESP_BATCH: usize = 128;
/// Bytes of replies that are collected before they are written.
pub(crate) const RESP_UNWRITTEN: usize = 256 * 1024;

/// Questions of lists and pipelines that wait for a store elsewhere, in the whole process: three quarters of the calls that a server of the
/// store gets at a time, so that there is always a place for single requests.
pub(crate) const ASKED_TOGETHER: usize = 768;
/// Commands of a pipeline that ask the store together.
pub(crate) const RESP_TOGETHER: usize = 256;
