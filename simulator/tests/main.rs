//! All tests of the simulator, in one program.

mod leases;
mod nodes;
mod promises;
