use super::*;
use crate::config::{Config, Flags};

fn settings(minutes: f64, cells: &str) -> Settings {
    let env = [("CADENCED__KV__CELLS".to_owned(), cells.to_owned())];
    let config = Config::load(None, env, &Flags::default()).unwrap();
    Settings {
        version: "1".into(),
        plan: Plan {
            minutes,
            rounds: 4,
            seed: 0,
        },
        prompts: "built in".into(),
        patience_s: 0.1 + 0.2,
        model: "ab".into(),
        config: serde_json::to_value(&config).unwrap(),
    }
}

fn manifest(settings: Settings) -> Manifest {
    Manifest {
        settings,
        saturation_per_s: 1.25,
        provenance: Provenance {
            backend: "fake".into(),
            model_sha256: "ab".into(),
            quantisation: String::new(),
            threads: 1,
            device: String::new(),
            kv_cells: 1,
            traces_sha256: Vec::new(),
        },
    }
}

#[test]
fn a_folder_is_gone_on_with_under_its_own_settings_only() {
    let dir = tempfile::tempdir().unwrap();
    let work = Workdir::open(&dir.path().join("c.bin")).unwrap();
    let own = settings(1.5, "4096");
    assert_eq!(work.manifest(&own).unwrap(), None);
    work.begin(&manifest(own.clone())).unwrap();
    assert_eq!(work.manifest(&own).unwrap(), Some(manifest(own)));
    let Err(Failure::Usage(why)) = work.manifest(&settings(2.0, "8192")) else {
        panic!("other settings were taken")
    };
    let what = "kv.cells 4096, now 8192, plan.minutes 1.5, now 2.0;";
    assert!(why.contains(what), "{why}");
}

#[test]
fn two_collections_cant_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("c.bin");
    let first = Workdir::open(&out).unwrap();
    let Err(Failure::Unavailable(why)) = Workdir::open(&out) else {
        panic!("it was shared")
    };
    assert!(why.contains("another calibration"), "{why}");
    drop(first);
    assert!(Workdir::open(&out).is_ok());
}
