//! The `outhaul` binary: everything is in the library, so that tests and benchmarks reach it too.

fn main() -> std::process::ExitCode {
    outhaul::cli::main()
}
