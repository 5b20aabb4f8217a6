//! How much of everything is enough: every bound of the listeners, each with its reason.
//!
//! Times and numbers of connections are settings, because machines differ; these are not, because a request
//! that passes them is no request.

/// Connections that wait to be let in. When all clients come back at once, whoever finds no place to wait is
/// left alone by the system for a second and more; it takes as many as it is set to, at most these.
pub(crate) const WAITING: u32 = 4_096;
/// Files that are open besides connections: the standard streams, the listeners, the log, and those that are read or written
/// for a moment, such as policies, certificates, the audit log.
pub(crate) const FILES: usize = 32;
/// Files of a thread with a runtime: its poller, its waker, its signals, and one to spare.
pub(crate) const FILES_PER_WORKER: usize = 4;
/// Connections to a shared store: one for each of its servers, and as many again while they are renewed.
pub(crate) const FILES_OF_STORE: usize = 64;
/// Of the connections of a listener, the part that a trusted proxy cannot have: one in so many.
pub(crate) const LEFT_BY_PROXIES: usize = 8;
/// A request line; the longest URL that browsers and proxies agree on.
pub(crate) const REQUEST_LINE: usize = 8 * 1024;
/// The bytes of empty lines before a request: two lines.
pub(crate) const EMPTY_LINES: usize = 4;
/// All header fields together, as most proxies have it.
pub(crate) const HEADER_BLOCK: usize = 16 * 1024;
/// Header fields of a request.
pub(crate) const HEADERS: usize = 100;
/// A body that asks one thing.
pub(crate) const BODY: usize = 64 * 1024;
/// A body that asks many: a batch.
pub(crate) const BATCH_BODY: usize = 1024 * 1024;
/// Requests in a batch: some milliseconds of work, done in pieces.
pub(crate) const BATCH: usize = 1_000;
/// Requests or commands of a pipeline that are short work: answered at once, before others have their turn. They take about as
/// long as reading and writing them does.
pub(crate) const SHORT_PIPELINE: usize = 16;
/// As much of a body is short work. The rest is read in turn with others.
pub(crate) const SHORT_BODY: usize = 16 * 1024;
/// A call of descriptors up to this length is short work: a few dozen descriptors.
pub(crate) const SHORT_MESSAGE: usize = 4 * 1024;
/// A policy that is uploaded: as large as a policy file may be.
pub(crate) const POLICY_BODY: usize = 4 * 1024 * 1024;
/// The line before a chunk, its extensions included: sixteen digits and a little patience.
pub(crate) const CHUNK_LINE: usize = 256;
/// Trailers of a chunked body; they are read over.
pub(crate) const TRAILERS: usize = 4 * 1024;
/// Bytes of a connection that do not count against the budget of all: a small request and its answer, which everybody may have.
pub(crate) const UNCOUNTED: usize = 8 * 1024;
/// The least budget: a fifth of it is the most that one connection gets, and that must be enough for a list and its answers.
pub(crate) const LEAST_BUDGET: usize = 8 * 1024 * 1024;
/// The budget of operators, who have one of their own: whoever shows a token can always send a policy.
pub(crate) const OPERATORS_BUDGET: usize = 32 * 1024 * 1024;
/// What an entry of a list takes while it is decided, and its answer until that is taken. Verdicts of many limits are longer; they
/// are counted when they are there.
pub(crate) const ENTRY: usize = 1024;
/// What a stream of HTTP/2 takes besides its header fields and its body: the state of the library, a task, a question to the
/// health service.
pub(crate) const STREAM: usize = 4 * 1024;
/// Bytes of every call of a proxy that do not count: what a stream takes, and a small head and message. Calls of all its clients
/// are on one connection, and none of them may be refused because others are long.
pub(crate) const GRPC_UNCOUNTED: usize = 8 * 1024;
/// Bytes of a connection of HTTP/2 that may be on their way: as little as the protocol allows. They are counted when they are read.
pub(crate) const WINDOW: u32 = 65_535;
/// The same for a proxy, which has a thousand calls under way and few connections.
pub(crate) const GRPC_WINDOW: u32 = 1024 * 1024;
/// How long a connection that holds more than its share may make no progress.
pub(crate) const STALLED_MILLIS: u64 = 1_000;
/// Answers that wait to be written before the next request is looked at.
pub(crate) const UNWRITTEN: usize = 64 * 1024;
/// What is read over after the last answer, so that closing does not destroy it on its way.
pub(crate) const LINGER_BYTES: usize = 256 * 1024;
/// How long that is done, and how long an idle connection is kept when the server stops: a client that had
/// just sent a request gets its answer.
pub(crate) const LINGER_MILLIS: u64 = 1_000;
/// A connection of HTTP/2 that is about to end is asked nothing more when nothing has come for so long.
pub(crate) const QUIET_MILLIS: u64 = 50;
/// Streams of an HTTP/2 connection at once.
pub(crate) const STREAMS: u32 = 100;
/// Streams that a client resets before they were looked at (CVE-2023-44487).
pub(crate) const PENDING_RESETS: usize = 20;
/// Calls of a gRPC connection at once: a proxy has one connection for each of its threads, and waits with the rest.
pub(crate) const GRPC_STREAMS: u32 = 1_000;
/// Calls that a proxy gives up before they were looked at. After a stall of ours there are as many as it asked meanwhile, all
/// given up after its 20 ms; cutting the connection would let pass what comes next, unasked.
pub(crate) const GRPC_PENDING_RESETS: usize = 8_192;
/// A message of a gRPC call, as gRPC libraries have it: Envoy passes on what its clients send, and a client that could make a
/// call too long would pass a proxy that fails open. What is longer is refused unread.
pub(crate) const GRPC_MESSAGE: usize = 4 * 1024 * 1024;
/// All header fields of a gRPC call together. Envoy puts headers of its client into them, for tracing or by
/// `initial_metadata`, and accepts 60 KiB of those.
pub(crate) const GRPC_HEADER_BLOCK: usize = 256 * 1024;
/// A message to the health or reflection service: the name of something.
pub(crate) const GRPC_QUESTION: usize = 4 * 1024;
/// Descriptors of a gRPC call: ten times as many as anybody configures. A call with more is refused.
pub(crate) const DESCRIPTORS: usize = 512;
/// Entries of a descriptor: twice as many as the deepest rule file has levels. A call with more is refused.
pub(crate) const ENTRIES: usize = 128;
/// A quiet gRPC connection is asked whether it is still there.
pub(crate) const PING_SECONDS: u64 = 60;
/// Streams that a client makes us reset (CVE-2025-8671).
pub(crate) const PROVOKED_RESETS: usize = 20;
/// HTTP/2 frames that ask for nothing (`PING`, `SETTINGS`, `WINDOW_UPDATE`, …): so many at once,
pub(crate) const IDLE_FRAMES: u32 = 1_000;
/// so many more every second,
pub(crate) const IDLE_FRAMES_PER_SECOND: u32 = 10;
/// and so many for each request.
pub(crate) const IDLE_FRAMES_PER_REQUEST: u32 = 8;
/// A RESP command that is typed as a line.
pub(crate) const RESP_LINE: usize = 1024;
/// Words of a RESP command.
pub(crate) const RESP_WORDS: usize = 64;
/// A word of a RESP command.
pub(crate) const RESP_BULK: usize = 8 * 1024;
/// The same before somebody has said who they are, if they must.
pub(crate) const RESP_WORDS_BEFORE_AUTH: usize = 10;
/// So that a stranger holds less than 16 KiB of ours.
pub(crate) const RESP_BULK_BEFORE_AUTH: usize = 1024;
/// What is kept unread of somebody: the largest command, and a pipeline behind it.
pub(crate) const RESP_UNREAD: usize = 1024 * 1024;
/// The same of a stranger, and the longest command of one: a greeting with a name and a token has room in it,
/// and it is no more than every connection is given to begin with.
pub(crate) const RESP_UNREAD_BEFORE_AUTH: usize = 4 * 1024;
/// Empty lines and lists in a row.
pub(crate) const RESP_EMPTY: usize = 100;
/// Commands that are decided together. After so many of them others have their turn.
pub(crate) const RESP_BATCH: usize = 128;
/// Replies that wait to be written before the next command is looked at.
pub(crate) const RESP_UNWRITTEN: usize = 256 * 1024;
