"""The openai package against a running server, with nothing but its base URL changed.

Usage: openai_stream.py http://HOST:PORT
"""

import asyncio
import sys

import openai
from openai import AsyncOpenAI, OpenAI

BASE_URL = sys.argv[1] + "/v1"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

client = OpenAI(base_url=BASE_URL, api_key="x", max_retries=0)
MODEL = client.models.list().data[0].id
ARGUMENTS = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 64}


def models() -> None:
    listed = client.models.list().data
    assert [model.object for model in listed] == ["model"], listed


def whole() -> str:
    reply = client.chat.completions.create(**ARGUMENTS)
    assert reply.object == "chat.completion" and reply.model == MODEL, reply
    assert len(reply.choices) == 1, reply
    choice = reply.choices[0]
    assert choice.finish_reason == "stop" and choice.message.role == "assistant", reply
    assert "Paris" in choice.message.content, reply
    usage = reply.usage
    assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens, reply
    return choice.message.content


def collect(chunks: list) -> str:
    """The text of a stream; its form is checked on the way."""
    assert len({chunk.id for chunk in chunks}) == 1, chunks
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [delta.role for delta in deltas].count("assistant") == 1, chunks
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}, chunks
    return "".join(delta.content or "" for delta in deltas)


def streamed(expected: str) -> None:
    chunks = list(client.chat.completions.create(**ARGUMENTS, stream=True))
    assert collect(chunks) == expected, chunks
    assert all(chunk.choices for chunk in chunks), chunks
    assert all(chunk.usage is None for chunk in chunks), chunks


def streamed_with_usage(expected: str) -> None:
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**ARGUMENTS, stream=True, stream_options=options))
    assert collect(chunks) == expected, chunks
    assert [chunk.usage is not None for chunk in chunks].index(True) == len(chunks) - 1, chunks
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0, chunks


def accumulated(expected: str) -> None:
    """The package's own accumulator of streams."""
    with client.chat.completions.stream(**ARGUMENTS) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == expected, final
    assert final.choices[0].finish_reason == "stop", final


async def asynchronous(expected: str) -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key="x", max_retries=0) as a:

        async def one() -> str:
            stream = await a.chat.completions.create(**ARGUMENTS, stream=True)
            return collect([chunk async for chunk in stream])

        assert await asyncio.gather(one(), one(), one()) == [expected] * 3
        reply = await a.chat.completions.create(**ARGUMENTS)
        assert reply.choices[0].message.content == expected, reply

        endless = {**ARGUMENTS, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
        async for _ in (stream := await a.chat.completions.create(**endless, stream=True)):
            break
        await stream.close()


def refused(error: type, param: str, code: str, **changes: object) -> None:
    """The same typed error with and without a stream."""
    for stream in (False, True):
        try:
            client.chat.completions.create(**{**ARGUMENTS, **changes}, stream=stream)
        except error as e:
            assert isinstance(e, openai.APIStatusError), e
            assert e.param == param and e.code == code and e.message, (e.param, e.code, e)
        else:
            raise AssertionError(f"{changes} was not refused")


def errors() -> None:
    refused(openai.NotFoundError, "model", "model_not_found", model="gpt-4")
    refused(openai.BadRequestError, "temperature", "invalid_value", temperature=99)
    refused(openai.BadRequestError, "messages", "invalid_value", messages=[])
    long = [{"role": "user", "content": "long " * 9000}]
    refused(openai.BadRequestError, "messages", "context_length_exceeded", messages=long)


def left_early() -> None:
    """Whoever leaves the loop leaves the server; the test looks there for the seat."""
    endless = {**ARGUMENTS, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(**endless, stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break


models()
text = whole()
streamed(text)
streamed_with_usage(text)
accumulated(text)
asyncio.run(asynchronous(text))
errors()
left_early()
