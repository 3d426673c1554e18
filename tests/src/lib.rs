//! What more than one test binary needs. The suite itself is `suite/main.rs`.
