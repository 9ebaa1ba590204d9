use super::*;

fn prepared(source: &str) -> String {
    let special = ["<|end|>", "<|user|>", "<|end|>x", "</s>"].map(str::to_owned);
    Marker::new(&special)
        .unwrap()
        .prepare(source)
        .replace(OPEN, "⟦")
        .replace(CLOSE, "⟧")
}

#[test]
fn marks_what_is_written() {
    for (source, expected) in [
        ("a<|end|>b{{ x }}</s>", "a⟦<|end|>⟧b{{ x }}⟦</s>⟧"),
        ("{{ '<|end|>\\n' + x }}", "{{ '⟦<|end|>⟧\\n' + x }}"),
        (
            "{{ \"it's </s>\" ~ {'a': {'b': '</s>'}} }}</s>",
            "{{ \"it's ⟦</s>⟧\" ~ {'a': {'b': '⟦</s>⟧'}} }}⟦</s>⟧",
        ),
        ("{{ 'it\\'s </s>' }}", "{{ 'it\\'s ⟦</s>⟧' }}"),
        ("{% set x = '<|end|>x' %}", "{% set x = '⟦<|end|>x⟧' %}"),
        ("{% for t in ['</s>'] %}", "{% for t in ['⟦</s>⟧'] %}"),
        (
            "{{ f('</s>') if '</s>' in x else '</s>' }}",
            "{{ f('⟦</s>⟧') if '</s>' in x else '⟦</s>⟧' }}",
        ),
        (
            "{{ '<|' + role + '|>' + '<|x|>' }}",
            "{{ '⟦<|⟧' + role + '⟦|>⟧' + '<|x|>' }}",
        ),
        ("<|{{ role }}|>\n", "⟦<|⟧{{ role }}⟦|>⟧\n"),
        (
            "{{ x | replace('</s>', '</s>') }}",
            "{{ x | replace('</s>', '⟦</s>⟧') }}",
        ),
        ("{{ x.get('k', '</s>') }}", "{{ x.get('k', '⟦</s>⟧') }}"),
        (
            "{% raw %}{{ '</s>' }}{% endraw %}",
            "{% raw %}{{ '⟦</s>⟧' }}{% endraw %}",
        ),
    ] {
        assert_eq!(prepared(source), expected, "{source}");
    }
}

#[test]
fn leaves_alone_what_is_looked_for() {
    for source in [
        "{% if '</s>' in x %}",
        "{% if '</s>' not in x and x != '</s>' and '</s>' == x %}",
        "{% if x in ['</s>', '<|end|>'] %}",
        "{% for p in x.split('</s>') if p not in ('</s>',) %}",
        "{{ x.replace('</s>', '') | trim('</s>') }}",
        "{{ x['</s>'] }}",
        "{# '</s>' #}",
        "{{ '</s",
        "{% raw %}",
        "{{",
    ] {
        assert_eq!(prepared(source), source);
    }
}

#[test]
fn generation_tags_become_blocks() {
    let source = "{%- generation -%}\n{{ generation }}{% endgeneration %}";
    assert_eq!(
        prepared(source),
        "{%- with -%}\n{{ generation }}{% endwith %}"
    );
}
