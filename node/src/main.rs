//! The command line of Throughline.

fn main() -> std::process::ExitCode {
    throughline_node::cli::main()
}
