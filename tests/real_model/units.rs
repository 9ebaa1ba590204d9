//! The systemd units are such as systemd takes.

use std::process::Command;

use crate::support::repository;

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let mut units = Vec::new();
    for name in ["cadenced.service", "cadenced.socket"] {
        let unit =
            std::fs::read_to_string(repository("config/systemd").join(name)).expect("the unit");
        // The binary's place is checked too, and the tests install nothing.
        let unit = unit.replace("/usr/local/bin/cadenced", env!("CARGO_BIN_EXE_cadenced"));
        let path = dir.path().join(name);
        std::fs::write(&path, unit).expect("a copy");
        units.push(path);
    }
    let verify = Command::new("systemd-analyze")
        .arg("verify")
        .args(&units)
        .output()
        .expect("systemd-analyze");
    let said = String::from_utf8_lossy(&verify.stderr);
    // It checks the machine's own units along the way; those are not ours.
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("cadenced"))
        .collect();
    assert!(verify.status.success() && ours.is_empty(), "{said}");
}
