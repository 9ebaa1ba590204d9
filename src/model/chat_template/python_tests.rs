use super::*;

fn value(json: &str) -> Value {
    super::super::to_value(&serde_json::from_str(json).unwrap())
}

fn options(pairs: &[(&str, Value)]) -> Kwargs {
    pairs
        .iter()
        .map(|(key, value)| (*key, value.clone()))
        .collect()
}

/// The expected texts are CPython's.
#[test]
fn json_is_that_of_json_dumps() {
    let tree = value(
        r#"{"b":[1,2.0,1e-5,1e16,12345678901234567890,true,null],"a":{"é\"\n\u0001<":"😀"},"e":[],"f":{}}"#,
    );
    let json = |pairs: &[(&str, Value)]| {
        to_json(&tree, Rest(vec![]), options(pairs))
            .unwrap()
            .to_string()
    };
    assert_eq!(
        json(&[]),
        r#"{"b": [1, 2.0, 1e-05, 1e+16, 12345678901234567890, true, null], "a": {"é\"\n\u0001<": "😀"}, "e": [], "f": {}}"#
    );
    assert_eq!(
        json(&[
            ("indent", Value::from(2)),
            ("sort_keys", Value::from(true)),
            ("ensure_ascii", Value::from(true))
        ]),
        "{\n  \"a\": {\n    \"\\u00e9\\\"\\n\\u0001<\": \"\\ud83d\\ude00\"\n  },\n  \"b\": [\n    1,\n    2.0,\n    1e-05,\n    1e+16,\n    12345678901234567890,\n    true,\n    null\n  ],\n  \"e\": [],\n  \"f\": {}\n}"
    );
    let separators = Value::from(vec![Value::from(","), Value::from(":")]);
    assert!(json(&[("separators", separators)]).starts_with(r#"{"b":[1,2.0,"#));
    assert!(to_json(&Value::UNDEFINED, Rest(vec![]), options(&[])).is_err());
    assert!(to_json(&tree, Rest(vec![]), options(&[("colour", Value::from(1))])).is_err());
}

#[test]
fn dates_print_as_in_python() {
    let at = OffsetDateTime::from_unix_timestamp(1_772_539_509).unwrap();
    assert_eq!(strftime(at, "%d %b %Y").unwrap(), "03 Mar 2026");
    assert_eq!(
        strftime(at, "%A, %B %-d, %Y %H:%M:%S %%").unwrap(),
        "Tuesday, March 3, 2026 12:05:09 %"
    );
    assert!(strftime(at, "%!").is_err());
}

#[test]
fn string_methods_split_as_in_python() {
    let call = |text, method, args: &[&str]| {
        let args: Vec<Value> = args.iter().map(|arg| Value::from(*arg)).collect();
        string_method(text, method, &args).map(|value| value.to_string())
    };
    assert_eq!(
        call("a-b-c", "partition", &["-"]).unwrap(),
        "['a', '-', 'b-c']"
    );
    assert_eq!(
        call("a-b-c", "rpartition", &["-"]).unwrap(),
        "['a-b', '-', 'c']"
    );
    assert_eq!(
        call("abc", "rpartition", &["-"]).unwrap(),
        "['', '', 'abc']"
    );
    assert_eq!(call("a-b-c", "rsplit", &["-"]).unwrap(), "['a', 'b', 'c']");
    assert_eq!(call("abc", "removeprefix", &["a"]).unwrap(), "bc");
    assert_eq!(call("abc", "removesuffix", &["x"]).unwrap(), "abc");
    assert_eq!(call("abc", "swapcase", &[]), None);
    assert_eq!(
        string_method("a-b-c", "rsplit", &[Value::from("-"), Value::from(1)])
            .unwrap()
            .to_string(),
        "['a-b', 'c']"
    );
}
