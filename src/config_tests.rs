use super::*;
use crate::logic::kv::sizing::Bound;

fn load(file: Option<&str>, env: &[(&str, &str)], flags: &Flags) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = file.map(|text| {
        let path = dir.path().join("test.toml");
        std::fs::write(&path, text).unwrap();
        path
    });
    let env = env
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect::<Vec<_>>();
    Config::load(path.as_deref(), env, flags)
}

fn error(file: &str) -> String {
    load(Some(file), &[], &Flags::default())
        .unwrap_err()
        .to_string()
}

#[test]
fn defaults_are_valid_and_every_rung_file_too() {
    load(None, &[], &Flags::default()).unwrap();
    let config = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut rungs = Vec::new();
    for entry in std::fs::read_dir(config).unwrap() {
        let path = entry.unwrap().path();
        if path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("rung")
        {
            let c = Config::load(Some(&path), [], &Flags::default()).unwrap();
            rungs.push(c.rung());
        }
    }
    rungs.sort_unstable();
    let all = [
        "rung1-fifo",
        "rung2-static",
        "rung3-continuous",
        "rung4-cache",
        "rung5-conformal",
        "rung5-static",
        "rung6-best-effort",
    ];
    assert_eq!(rungs, all);
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let file = "[scheduler]\nmax_running = 3\n[server]\nlisten = \"127.0.0.1:1\"\n";
    let env = [
        ("CADENCED__SCHEDULER__MAX_RUNNING", "5"),
        ("CADENCED__SERVER__LISTEN", "127.0.0.1:2"),
    ];
    let flags = Flags {
        listen: Some("127.0.0.1:3".parse().unwrap()),
        ..Flags::default()
    };
    assert_eq!(
        load(None, &[], &Flags::default())
            .unwrap()
            .scheduler
            .max_running,
        16
    );
    assert_eq!(
        load(Some(file), &[], &Flags::default())
            .unwrap()
            .scheduler
            .max_running,
        3
    );
    assert_eq!(
        load(Some(file), &env, &Flags::default())
            .unwrap()
            .scheduler
            .max_running,
        5
    );
    assert_eq!(
        load(Some(file), &env, &Flags::default())
            .unwrap()
            .server
            .listen
            .port(),
        2
    );
    assert_eq!(
        load(Some(file), &env, &flags).unwrap().server.listen.port(),
        3
    );
}

#[test]
fn an_empty_variable_is_as_good_as_unset_and_others_are_not_ours() {
    let env = [
        ("CADENCED__SCHEDULER__MAX_RUNNING", ""),
        ("CADENCED_SCHEDULER_MAX_RUNNING", "9"),
        ("PATH", "/"),
    ];
    assert_eq!(
        load(None, &env, &Flags::default())
            .unwrap()
            .scheduler
            .max_running,
        16
    );
}

#[test]
fn every_kind_of_value_can_be_set_by_environment() {
    let env = [
        ("CADENCED__RUNNER__THREADS", "3"),
        ("CADENCED__RUNNER__THREADS_BATCH", "auto"),
        ("CADENCED__ENGINE__CHECK_INVARIANTS", "true"),
        ("CADENCED__FAKE__STEP_US", "0"),
        ("CADENCED__MODEL__NAME", "42"),
        ("CADENCED__SCHEDULER__POLICY", "fifo"),
    ];
    let c = load(None, &env, &Flags::default()).unwrap();
    assert_eq!(c.runner.threads, AutoOr::Count(3));
    assert_eq!(c.runner.threads_batch, AutoOr::Auto(Auto::Auto));
    assert!(c.engine.check_invariants);
    assert_eq!(c.fake.step_us, 0.0);
    assert_eq!(c.model.name, "42");
    assert_eq!(c.policy(), Policy::Fifo);
}

#[test]
fn an_unknown_key_is_named() {
    assert!(error("[scheduler]\nmax_runing = 3\n").contains("max_runing"));
    assert!(error("[shceduler]\nmax_running = 3\n").contains("shceduler"));
    let env = [("CADENCED__SCHEDULER__MAX_RUNING", "3")];
    // The file, which is in order, is not to blame.
    let file = Some("[scheduler]\nmax_running = 3\n");
    let e = load(file, &env, &Flags::default()).unwrap_err().to_string();
    assert!(
        e.starts_with("CADENCED__SCHEDULER__MAX_RUNING: unknown field `max_runing`"),
        "{e}"
    );
    assert!(e.contains("`max_running`") && !e.contains(".toml"), "{e}");
}

#[test]
fn one_underscore_where_two_belong_is_refused_in_what_is_meant_for_a_section() {
    let env = [("CADENCED_SCHEDULER__MAX_RUNNING", "3")];
    let e = load(None, &env, &Flags::default()).unwrap_err().to_string();
    assert!(
        e.starts_with("CADENCED_SCHEDULER__MAX_RUNNING: ")
            && e.ends_with(" CADENCED__SCHEDULER__MAX_RUNNING"),
        "{e}"
    );
    let others = [
        ("CADENCED_SCHEDULER__MAX_RUNNING", ""),
        ("CADENCED_IMAGE__TAG", "3"),
    ];
    load(None, &others, &Flags::default()).unwrap();
}

#[test]
fn a_bad_value_is_told_with_where_it_is_set_and_what_it_may_be() {
    let env = |name: &str, value: &str| {
        load(None, &[(name, value)], &Flags::default())
            .unwrap_err()
            .to_string()
    };
    for (name, value, why) in [
        (
            "CADENCED__LOG__FORMAT",
            "xml",
            "unknown variant `xml`, expected `text` or `json`",
        ),
        (
            "CADENCED__SERVER__LISTEN",
            "localhost:8131",
            "\"localhost:8131\": an IP address and a port are needed, such as 127.0.0.1:8000",
        ),
        (
            "CADENCED__RUNNER__THREADS",
            "all",
            "\"auto\" or a number from 0 on is needed",
        ),
    ] {
        assert_eq!(env(name, value), format!("{name}: {why}"));
    }
    let e = error("[server]\nworkers = 1\n[log]\nfilter = \"info\"\nformat = \"xml\"\n");
    let (path, why) = e.split_once(": ").unwrap();
    assert!(path.ends_with("test.toml"), "{e}");
    assert_eq!(
        why,
        "log.format: unknown variant `xml`, expected `text` or `json`"
    );
}

#[test]
fn a_bad_value_is_named_by_its_key_in_one_line() {
    for (file, key) in [
        ("[scheduler]\nmax_running = \"many\"\n", "max_running"),
        ("[scheduler]\nmax_running = 0\n", "scheduler.max_running"),
        ("[scheduler]\nmax_running = 257\n", "scheduler.max_running"),
        ("[scheduler]\npolicy = \"round_robin\"\n", "policy"),
        (
            "[scheduler]\nprefill_budget = 500\n",
            "scheduler.prefill_budget",
        ),
        ("[runner]\nthreads = 0\n", "runner.threads"),
        ("[runner]\nthreads = \"all\"\n", "threads"),
        ("[runner]\nn_ubatch = 1024\n", "runner.n_ubatch"),
        ("[kv]\ncells = 100\n", "kv.cells"),
        (
            "[kv]\ntype_v = \"q8_0\"\n[runner]\nflash_attention = \"off\"\n",
            "kv.type_v",
        ),
        ("[server]\nlisten = \"localhost\"\n", "listen"),
        (
            "[limits]\ndefault_max_tokens = 5000\n",
            "limits.default_max_tokens",
        ),
        (
            "[limits]\nretry_after_s_max = 3600\n",
            "limits.retry_after_s_max",
        ),
        ("[fake]\nstep_us = -1\n", "fake.step_us"),
        ("[model]\npath = \"\"\n", "model.path"),
    ] {
        let e = error(file);
        assert!(e.contains(key), "{file:?}: {e}");
        assert!(!e.contains('\n'), "{e:?}");
    }
}

#[test]
fn what_is_no_toml_and_what_is_not_there_name_the_file() {
    let e = error("[scheduler\n");
    assert!(e.contains("test.toml") && !e.contains('\n'), "{e:?}");
    let missing = std::path::Path::new("/no/such/file.toml");
    let e = Config::load(Some(missing), [], &Flags::default())
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("/no/such/file.toml") && e.contains("No such file"),
        "{e}"
    );
}

#[test]
fn what_check_config_prints_is_a_configuration() {
    let c = load(
        None,
        &[("CADENCED__RUNNER__THREADS", "2")],
        &Flags::default(),
    )
    .unwrap();
    assert_eq!(
        load(Some(&c.to_toml().unwrap()), &[], &Flags::default()).unwrap(),
        c
    );
}

/// A layout that was named stays; one that was not follows the memory, and an explicit pool is unified.
#[test]
fn the_layout_is_chosen_where_it_and_the_cells_are_left_open() {
    let sized = |keys: &str, available: u64| {
        let file = format!("[scheduler]\nmax_running = 4\n{keys}");
        let c = load(Some(&file), &[], &Flags::default()).unwrap();
        let (c, plan) = c.sized(1024, 1000, available).unwrap();
        (c.kv.layout.resolved(), c.cells(), plan.map(|p| p.bound))
    };
    // Eight slabs of 1024 tokens, in half of what is left beside the headroom of 512 MiB.
    let (plenty, short) = ((512 + 8) << 21, (512 + 7) << 21);
    let open = "[kv]\ncells = \"auto\"\n";
    let named = |layout: &str| format!("{open}layout = \"{layout}\"\n");
    let shared = format!("{open}[prefix]\nreuse = \"auto\"\n");
    let (streams, unified) = (KvLayout::Streams, KvLayout::Unified);
    for (keys, available, expected) in [
        (open, plenty, (streams, 8192, Some(Bound::Requests))),
        (open, short, (unified, 4096, Some(Bound::Requests))),
        (&shared, plenty, (unified, 4096, Some(Bound::Requests))),
        (
            &named("unified"),
            plenty,
            (unified, 4096, Some(Bound::Requests)),
        ),
        (
            &named("streams"),
            short,
            (streams, 7168, Some(Bound::Memory)),
        ),
        ("", plenty, (unified, 16_384, None)),
    ] {
        assert_eq!(sized(keys, available), expected, "{keys}");
    }
}
