//! How llama.cpp's compute threads wait for one another: they spin for a moment, then sleep.
//!
//! A decode meets hundreds of barriers. OpenMP's threads spin at them for milliseconds by default, which costs whole
//! time slices when a thread has no core to itself: the one that is waited for can't run, because one that waits
//! holds its core. Beside many busy neighbours a reply took ten times as long. Threads that sleep at once hold nobody
//! up, but waking them at every barrier halves the speed of an idle machine. A short spin keeps that speed and gives
//! the core away soon (bench/README.md has the table). libgomp reads the setting when it is loaded, before `main`, so
//! the process sets it and executes itself again: same process id, same open sockets, a millisecond.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const POLICY: &str = "OMP_WAIT_POLICY";
/// libgomp's finer form of the same setting.
const SPIN: &str = "GOMP_SPINCOUNT";
/// Some tens of microseconds: longer than the wait at a barrier that everybody is on the way to.
const SPINS: &str = "1000";

/// Bounds the spinning of this process, unless its environment says how to wait. Returns where nothing is to be
/// done, or where the process can't be executed again; it then runs on with the default.
pub fn bound_spinning() {
    if !cfg!(feature = "openmp") || is_set(POLICY) || is_set(SPIN) {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).env(SPIN, SPINS).exec();
    eprintln!("cadenced: compute threads will spin; setting {SPIN} failed: {error}");
}

/// How they wait: as the environment says, else OpenMP's default.
#[must_use]
pub fn in_force() -> String {
    if !cfg!(feature = "openmp") {
        return "without OpenMP".into();
    }
    match (std::env::var(SPIN), std::env::var(POLICY)) {
        (Ok(count), _) if !count.is_empty() => format!("spins {count} times"),
        (_, Ok(policy)) if !policy.is_empty() => policy,
        _ => "default".into(),
    }
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != OsStr::new(""))
}
