//! A file descriptor for every request that may be open at once.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Beyond this the table is left to grow by itself: 8 bytes each.
const MOST: usize = 1 << 16;
/// Those that are open anyway.
const OTHERS: usize = 64;

/// Allows as many open files as the system lets this process have, and makes room for `requests` connections
/// now. The kernel doubles its table when it is full, and a process with threads waits 10 to 20 ms for that each
/// time: at 256 and at 512 connections all requests were late.
///
/// Does what it can: a connection that can't be opened is in its request's record.
pub fn prepare(requests: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let allowed = getrlimit(Resource::Nofile)
        .current
        .map_or(MOST, |n| n as usize);
    let wanted = (requests + OTHERS).min(MOST).min(allowed);
    // The table has room for the highest descriptor; it does not shrink when that one is closed.
    let highest = i32::try_from(wanted).unwrap_or(i32::MAX) - 1;
    drop(fcntl_dupfd_cloexec(std::io::stderr(), highest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_every_request() {
        prepare(3000);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status
            .lines()
            .find_map(|l| l.strip_prefix("FDSize:"))
            .unwrap();
        let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(
            size.trim().parse::<u64>().unwrap() >= allowed.min(3000),
            "{size}"
        );
    }
}
