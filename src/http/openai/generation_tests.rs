//! How long a reply may get and how its tokens are drawn: ranges, edges and defaults.

use serde_json::{Value, json};

use super::tests::{limits, parse_bytes, refused, with};
use super::*;

#[test]
fn b092_b094_sampling_ranges() {
    for (name, bad) in [
        (
            "temperature",
            json!([999_999.0, -0.1, 2.01, "hot", true, [], {}]),
        ),
        ("top_p", json!([-1.0, 1.01, "1"])),
        ("min_p", json!([5, -0.01, false])),
        ("top_k", json!([-2, 1.5, "3", 1e30])),
        ("presence_penalty", json!([1e30, 2, 0.5, "0", true])),
        ("frequency_penalty", json!([-2.1, 1])),
        ("repeat_penalty", json!([0.0, 1.1])),
        ("repetition_penalty", json!([2])),
    ] {
        for value in bad.as_array().unwrap() {
            refused(json!({name: value}), name);
        }
    }
    let edge = with(json!({"top_p": 0, "min_p": 1, "temperature": 2, "top_k": -1}))
        .unwrap()
        .sampling;
    assert_eq!(
        (edge.top_p, edge.min_p, edge.temperature, edge.top_k),
        (0.0, 1.0, 2.0, 0)
    );
    assert_eq!(with(json!({"top_k": 40.0})).unwrap().sampling.top_k, 40);
    assert_eq!(
        with(json!({"top_k": i64::MAX})).unwrap().sampling.top_k,
        u32::MAX
    );
}

#[test]
fn b091_every_zero_temperature_is_the_same_zero() {
    for zero in ["0", "0.0", "-0.0", "1e-60", "-0"] {
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"temperature":{zero}}}"#);
        let temperature = parse_bytes(body.as_bytes()).unwrap().sampling.temperature;
        assert_eq!(temperature.to_bits(), 0.0_f32.to_bits(), "{zero}");
    }
    for tiny in [1e-12, 1e-45] {
        assert!(
            with(json!({"temperature": tiny}))
                .unwrap()
                .sampling
                .temperature
                > 0.0
        );
    }
}

#[test]
fn b017_b098_seeds() {
    let seed = |value: Value| with(json!({"seed": value})).map(|request| request.sampling.seed);
    for fixed in [0, -2, 4_294_967_295, i64::MAX, i64::MIN] {
        assert_eq!(seed(json!(fixed)), Ok(fixed as u64));
    }
    assert_eq!(seed(json!(7.0)), Ok(7));
    for random in [json!(-1), json!(-1.0), Value::Null] {
        assert_ne!(seed(random.clone()), seed(random));
    }
    for bad in [
        json!(1e30),
        json!(-1e30),
        json!(u64::MAX),
        json!(9_223_372_036_854_775_808.0),
        json!(1.5),
        json!("7"),
    ] {
        refused(json!({"seed": bad}), "seed");
    }
}

#[test]
fn b004_b014_b053_max_tokens() {
    let max_tokens = |extra: Value| with(extra).map(|request| request.max_tokens);
    assert_eq!(max_tokens(json!({"max_completion_tokens": 5})), Ok(5));
    assert_eq!(
        max_tokens(json!({"max_completion_tokens": 5, "max_tokens": 9})),
        Ok(5)
    );
    assert_eq!(
        max_tokens(json!({"max_completion_tokens": 9, "max_tokens": 5})),
        Ok(9)
    );
    assert_eq!(
        max_tokens(json!({"max_completion_tokens": null, "max_tokens": 5})),
        Ok(5)
    );
    assert_eq!(max_tokens(json!({"max_tokens": 8.0})), Ok(8));
    for huge in [
        json!(65),
        json!(100_000),
        json!(4_294_967_296_u64),
        json!(4_294_967_297_u64),
        json!(i64::MAX),
    ] {
        assert_eq!(max_tokens(json!({"max_tokens": huge})), Ok(64));
    }
    for name in ["max_tokens", "max_completion_tokens"] {
        for bad in [
            json!(0),
            json!(-1),
            json!(-2),
            json!(i64::MIN),
            json!(8.5),
            json!("8"),
            json!(1e30),
            json!(-0.0),
        ] {
            refused(json!({name: bad}), name);
        }
    }
    let mut limits = limits();
    limits.default_max_tokens = 1000;
    let body = br#"{"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(parse_chat(body, &|_| None, &limits).unwrap().max_tokens, 64);
}

#[test]
fn b005_b007_stop() {
    let stop = |value: Value| with(json!({"stop": value})).map(|request| request.stop);
    assert_eq!(stop(json!("STOP")), stop(json!(["STOP"])));
    assert_eq!(stop(json!(["", "ZZZ"])), Ok(vec!["ZZZ".to_owned()]));
    assert_eq!(stop(json!("")), Ok(vec![]));
    assert_eq!(stop(json!([])), Ok(vec![]));
    assert_eq!(
        stop(json!(["a", "b", "c", "d"])).map(|stop| stop.len()),
        Ok(4)
    );
    refused(json!({"stop": ["a", "b", "c", "d", "e"]}), "stop");
    refused(json!({"stop": 3}), "stop");
    refused(json!({"stop": ["a", null]}), "stop[1]");
    refused(json!({"stop": "x".repeat(257)}), "stop[0]");
}
