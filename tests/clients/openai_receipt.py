"""What admission adds to replies, as the openai package sees it: receipts harm no loop, refusals are typed errors."""

import sys

import openai
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0)
MODEL = client.models.list().data[0].id


def ask(max_tokens: int, e2e_ms: int, **more: object) -> dict:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": max_tokens,
        "extra_body": {"slo": {"e2e_ms": e2e_ms}},
        **more,
    }


def naive_loop() -> str:
    """The loop of every tutorial, which looks into the first choice of every chunk."""
    text, receipts = "", []
    for chunk in client.chat.completions.create(**ask(20, 600_000), stream=True):
        text += chunk.choices[0].delta.content or ""
        receipts += [getattr(chunk, "cadenced", None)]
    receipts = [r for r in receipts if r is not None]
    assert len(receipts) == 1, receipts
    receipt = receipts[0]["receipt"]
    assert receipt["verdict"] == "promised" and receipt["kept"] is True, receipt
    return text


def accumulated(text: str) -> None:
    """The package's own accumulator, with and without usage. It wants replies that end by themselves."""
    word = text.split()[10]
    for more in ({}, {"stream_options": {"include_usage": True}}):
        with client.chat.completions.stream(**ask(20, 600_000), stop=[word], **more) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == text[: text.index(word)], final
        assert final.choices[0].finish_reason == "stop", final
        assert bool(final.usage) == bool(more), final


def usage_is_last() -> None:
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**ask(20, 600_000), stream=True, stream_options=options))
    assert chunks[-1].usage.completion_tokens == 20 and chunks[-1].choices == [], chunks


def headers() -> None:
    raw = client.chat.completions.with_raw_response.create(**ask(20, 600_000))
    assert raw.headers["x-cadenced-verdict"] == "promised", raw.headers
    assert int(raw.headers["x-cadenced-actual-ms"]) <= int(raw.headers["x-cadenced-promised-ms"]), raw.headers


def refused() -> None:
    for stream in (False, True):
        try:
            client.chat.completions.create(**ask(400, 5), stream=stream)
        except openai.UnprocessableEntityError as e:
            assert e.code == "slo_infeasible" and e.param == "slo.e2e_ms", e
            assert e.body["counter_offer"]["e2e_ms"] > 5, e.body
        else:
            raise AssertionError("what can't be promised was not refused")


def cut_at_the_deadline() -> None:
    """A finish reason that is none of OpenAI's, and text that can be used: in both forms, and in the accumulator."""
    gently = {**ask(4000, 300), "extra_body": {"slo": {"mode": "best_effort", "e2e_ms": 300}}}
    whole = client.chat.completions.create(**gently).choices[0]
    assert whole.finish_reason == "slo" and whole.message.content, whole
    chunks = [c.choices[0] for c in client.chat.completions.create(**gently, stream=True)]
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["slo"], chunks
    with client.chat.completions.stream(**gently) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "slo" and final.message.content, final


accumulated(naive_loop())
cut_at_the_deadline()
usage_is_last()
headers()
refused()
