"""The openai package against a server that has room for one request and fails when it is asked to.

Usage: openai_failures.py http://HOST:PORT
"""

import json
import sys
import time
import urllib.request
from collections.abc import Callable

import openai
from openai import OpenAI

SERVER = sys.argv[1]
PATIENCE_S = 60

sleep = time.sleep
attempts: list[tuple[int, str | None]] = []
slept: list[float] = []
during_sleep: list[Callable[[], None]] = []


def recorded_sleep(seconds: float) -> None:
    """The package waits as long as it is told to; the test only writes that down."""
    slept.append(seconds)
    if during_sleep:
        during_sleep.pop()()


def note(response: object) -> None:
    attempts.append((response.status_code, response.headers.get("retry-after")))


def wait_until_free() -> None:
    for _ in range(PATIENCE_S * 100):
        with urllib.request.urlopen(SERVER + "/stats") as stats:
            if json.load(stats)["held"]["requests"] == 0:
                return
        sleep(0.01)
    raise AssertionError("the seat never came back")


def ask(content: str, **more: object) -> dict:
    return {"model": "fake", "messages": [{"role": "user", "content": content}], **more}


# Retries are the package's default: two, after the first attempt.
client = OpenAI(
    base_url=SERVER + "/v1",
    api_key="x",
    http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]}),
)
time.sleep = recorded_sleep


def take_the_seat() -> openai.Stream:
    stream = client.chat.completions.create(**ask("hold", max_tokens=4000, stream=True))
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    attempts.clear()
    slept.clear()
    return stream


def a_full_server_is_asked_three_times_as_late_as_it_says() -> None:
    for stream in (False, True):
        holder = take_the_seat()
        try:
            client.chat.completions.create(**ask("late", max_tokens=4, stream=stream))
        except openai.InternalServerError as e:
            assert e.status_code == 503 and e.code == "queue_full", e
        else:
            raise AssertionError("the server was not full")
        assert [status for status, _ in attempts] == [503] * 3, attempts
        said = [float(retry_after) for _, retry_after in attempts]
        assert all(1 <= seconds <= 60 for seconds in said), attempts
        assert slept == said[:2], (slept, attempts)
        holder.close()
        wait_until_free()


def a_retry_gets_the_seat_that_has_become_free() -> None:
    holder = take_the_seat()

    def free() -> None:
        holder.close()
        wait_until_free()

    during_sleep.append(free)
    reply = client.chat.completions.create(**ask("late", max_tokens=4))
    assert reply.choices[0].message.content and reply.usage.completion_tokens == 4, reply
    assert [status for status, _ in attempts] == [503, 200], attempts
    assert len(slept) == 1, slept


def a_failed_decode_is_an_error_in_mid_stream() -> None:
    pieces = []
    try:
        for chunk in client.chat.completions.create(**ask("FAULT", max_tokens=50, stream=True)):
            assert chunk.choices[0].finish_reason is None, chunk
            pieces.append(chunk.choices[0].delta.content or "")
    except openai.APIError as e:
        assert e.code == "engine_error" and "engine" in e.message, (e.code, e.message)
    else:
        raise AssertionError("a fragment was taken for a reply")
    assert "".join(pieces).startswith(" w"), pieces
    wait_until_free()


def a_failed_decode_of_a_whole_reply_is_a_500() -> None:
    try:
        client.with_options(max_retries=0).chat.completions.create(**ask("FAULT", max_tokens=50))
    except openai.InternalServerError as e:
        assert e.status_code == 500 and e.code == "engine_error", e
    else:
        raise AssertionError("nothing failed")
    wait_until_free()


def a_loop_that_is_left_frees_the_seat() -> None:
    for _ in range(5):
        with take_the_seat() as stream:
            for _ in stream:
                break
        wait_until_free()
    reply = client.chat.completions.create(**ask("next", max_tokens=3))
    assert reply.usage.completion_tokens == 3, reply
    assert [status for status, _ in attempts] == [200], attempts


a_full_server_is_asked_three_times_as_late_as_it_says()
a_retry_gets_the_seat_that_has_become_free()
a_failed_decode_is_an_error_in_mid_stream()
a_failed_decode_of_a_whole_reply_is_a_500()
a_loop_that_is_left_frees_the_seat()
