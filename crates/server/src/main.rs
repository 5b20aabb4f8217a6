//! The binary `tidegate`; everything is in the library.

fn main() -> std::process::ExitCode {
    tidegate_server::run()
}
