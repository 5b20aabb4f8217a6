//! The server as users start it: all tests that run the binary, in one program.
//!
//! A test says in its name what must hold, and its module what it is about.

#[path = "admin/main.rs"]
mod admin;
mod admin_command;
mod auth_request;
mod blocks;
mod book;
mod check;
mod command_line;
mod data;
mod durable;
#[path = "envoy/main.rs"]
mod envoy;
mod grpc;
mod headroom;
mod held_bytes;
mod http2;
#[path = "http_catalogue/main.rs"]
mod http_catalogue;
mod http_slow;
mod in_flight;
mod jwt;
mod memcached_store;
mod observe;
mod open_files;
mod openapi;
#[path = "policy/main.rs"]
mod policy;
mod priorities;
mod proxies;
mod proxy_bounds;
#[path = "proxy_catalogue/main.rs"]
mod proxy_catalogue;
#[path = "proxy_hostile/main.rs"]
mod proxy_hostile;
mod proxy_observe;
mod proxy_protocol;
mod proxy_recipes;
mod readme;
mod recorder;
mod redis_store;
mod reload;
mod replay;
mod resp;
mod reverse_proxy;
mod serve;
mod serve_check;
mod simulate;
mod sni;
mod stop;
mod support;
mod tls;
mod turns;
#[path = "watching/main.rs"]
mod watching;
