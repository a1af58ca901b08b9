//! Server and load on a core each.

use std::process::{Command, Stdio};

/// Keeps all threads of the server on the first core, and this program on the second, where there are two.
pub fn apart(server: u32) {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2) {
        for (core, pid) in [("0", server), ("1", std::process::id())] {
            let _ = Command::new("taskset")
                .args(["--all-tasks", "--cpu-list", "--pid", core, &pid.to_string()])
                .stdout(Stdio::null())
                .status();
        }
    }
}
