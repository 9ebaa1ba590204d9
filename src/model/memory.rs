//! How much memory is left: the machine's, and within the limits of the control groups that this process is in.

use std::path::{Path, PathBuf};

/// Bytes that could still be used without swapping, as the kernel and the control groups have it; `None` where
/// the kernel does not say.
#[must_use]
pub fn available() -> Option<u64> {
    available_under(Path::new("/"))
}

/// The same, with the file system's root elsewhere.
fn available_under(root: &Path) -> Option<u64> {
    let machine = mem_available(&read(&root.join("proc/meminfo"))?)?;
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let left = groups
        .lines()
        .filter_map(|line| group_left(&root.join("sys/fs/cgroup"), line));
    Some(left.min().unwrap_or(machine).min(machine))
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// What the tightest limit along a group's path leaves. `line` is `hierarchy:controllers:path`.
fn group_left(mount: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    // Version 2 has one hierarchy without names; version 1 has one for memory.
    let (mount, limit, used, reclaimable) = match controllers {
        "" => (
            mount.to_path_buf(),
            "memory.max",
            "memory.current",
            "inactive_file ",
        ),
        c if c.split(',').any(|c| c == "memory") => (
            mount.join("memory"),
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file ",
        ),
        _ => return None,
    };
    let group = mount.join(path.trim_start_matches('/'));
    let number = |file: PathBuf| read(&file)?.trim().parse::<u64>().ok();
    let left = |group: &Path| {
        // No limit is "max", which is no number.
        let limit = number(group.join(limit))?;
        let used = number(group.join(used)).unwrap_or(0);
        // A file that was read, such as a model just fetched, is in use and can be dropped.
        let stat = read(&group.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|l| l.strip_prefix(reclaimable));
        let cached = cached.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    };
    group
        .ancestors()
        .take_while(|g| g.starts_with(&mount))
        .filter_map(left)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n",
    );

    #[test]
    fn without_control_groups_it_is_what_the_kernel_calls_available() {
        let machine = root(&[MEMINFO]);
        assert_eq!(available_under(machine.path()), Some(1_024_000));
        assert_eq!(available_under(root(&[]).path()), None);
    }

    #[test]
    fn a_limit_anywhere_above_the_group_counts() {
        let service = root(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/cadenced.service\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "600000\n"),
            ("sys/fs/cgroup/system.slice/memory.current", "100000\n"),
            (
                "sys/fs/cgroup/system.slice/memory.stat",
                "anon 60000\ninactive_file 30000\n",
            ),
            (
                "sys/fs/cgroup/system.slice/cadenced.service/memory.max",
                "max\n",
            ),
        ]);
        assert_eq!(available_under(service.path()), Some(530_000));
    }

    #[test]
    fn a_container_sees_its_limit_at_the_root() {
        let container = root(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "300000"),
            ("sys/fs/cgroup/memory.current", "400000"),
        ]);
        assert_eq!(available_under(container.path()), Some(0), "over its limit");
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory() {
        let old = root(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "700000\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "200000\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(available_under(old.path()), Some(500_000));
    }

    #[test]
    fn this_machine_says_something() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
