//! The command line, built beside the test suite so that its tests can run it as a process.

fn main() -> std::process::ExitCode {
    throughline_node::cli::main()
}
