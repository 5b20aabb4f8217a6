//! Tests of the scheduler: fairness over keys, laws of the machine, waiting tasks, and a simulated upstream.

mod fairness;
mod laws;
mod simulation;
mod waiting;
