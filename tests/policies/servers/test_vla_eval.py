"""The client of vla-evaluation-harness's model servers against a strict one."""

from __future__ import annotations

import numpy as np
import pytest

from peers import VLA_EVAL_REQUEST, demand, vla_eval, websockets
from policies.servers.test_openpi import TASK, seen
from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.policies import policy


def client(url: str, **arguments: str):
    return policy(f"vla-eval:{url}", {"connect_timeout_s": "0.5", "timeout_s": "5", **arguments})


def acts(payload: dict, number: int) -> dict:
    demand(payload, VLA_EVAL_REQUEST)
    return {"payload": {"actions": np.array([0.1, 0, 0, 0, 0, 0, -0.3 if number else 0.0])}}


def test_an_episode_is_greeted_announced_played_and_ended():
    log: list[dict] = []
    with websockets(vla_eval(acts, log)) as peer:
        made = client(peer.url)
        made.reset(TASK, 0)
        first, second = made.act(seen()), made.act(seen())
        made.reset(TASK, 0)
        made.close()
    kinds = ["hello", "episode_start", "observation", "observation"]
    assert [(message["type"], message["seq"]) for message in log[:4]] == list(zip(kinds, [1, 2, 3, 4], strict=True))
    assert log[1]["payload"]["task"] == {"name": "put it there", "suite": "libero-spatial", "task_id": 0}
    later = [(message["type"], message["seq"]) for message in log[4:]]  # of two connections, a thread each
    assert ("episode_end", 5) in later
    assert [one for one in later if one[1] < 3] == [("hello", 1), ("episode_start", 2)]
    assert first[6] == 1.0, "its gripper closes at zero"
    assert second[6] == -1.0


def test_an_error_of_the_server_is_told():
    failing = vla_eval(lambda payload, number: {"type": "error", "payload": {"error": "observation_failed: X"}}, [])
    with websockets(failing) as peer:
        made = client(peer.url)
        made.reset(TASK, 0)
        with pytest.raises(PolicyError, match="failed: observation_failed: X"):
            made.act(seen())
        made.close()


@pytest.mark.parametrize("changed", [{"seq": 99}, {"type": "hello"}])
def test_an_answer_to_something_else_is_no_answer(changed):
    with websockets(vla_eval(lambda payload, number: {**acts(payload, number), **changed}, [])) as peer:
        made = client(peer.url)
        made.reset(TASK, 0)
        with pytest.raises(ServerLostError, match="was to come"):
            made.act(seen())
        made.close()


@pytest.mark.parametrize("frame", ["text", b"\x90", b"\x81\xa4type\xa1x"])
def test_what_is_no_message_of_the_harness_is_refused(frame):
    def handle(connection):
        connection.recv()
        connection.send(frame)

    with websockets(handle) as peer, pytest.raises(PolicyError, match="no message of vla-evaluation-harness"):
        client(peer.url).reset(TASK, 0)
