//! Laws.
fn main() {}
