//! All tests of the library that need no other program, in one program.

mod acquire;
mod calendars;
mod descriptors;
mod elastic;
mod examples;
mod http;
mod limiter;
mod metrics;
mod paths;
mod permits;
mod permits_in_outages;
mod recipes;
mod tower;
mod warnings;
