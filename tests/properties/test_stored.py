"""The stored form, pickle and copies keep every fact, also in a new process."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

from hypothesis import given

import convmodel
from convmodel import Conversation
from convmodel.storage import dumps, loads
from convmodel.testing.strategies import conversations

from .common import BRIEF, PROPERTY, wire_bytes

ELSEWHERE = """
import json, sys
from convmodel.anthropic import to_messages
from convmodel.storage import dumps, loads
for row in json.load(sys.stdin):
    convo = loads(row)
    print(json.dumps([convo.digest, convo.binding, json.dumps(to_messages(convo)), dumps(convo)]))
"""


def assert_same(again: Conversation, convo: Conversation) -> None:
    assert type(again) is type(convo)
    assert again == convo
    assert hash(again) == hash(convo)
    assert (again.digest, again.binding) == (convo.digest, convo.binding)
    assert again.first_difference(convo) is None
    assert wire_bytes(again) == wire_bytes(convo)


@PROPERTY
@given(conversations())
def test_the_stored_form_keeps_everything(convo: Conversation) -> None:
    stored = dumps(convo)
    assert_same(loads(stored), convo)
    assert_same(loads(stored.encode()), convo)
    assert dumps(loads(stored)) == stored


@BRIEF
@given(conversations())
def test_pickle_and_copies_keep_everything(convo: Conversation) -> None:
    wire_bytes(convo)  # what is kept of the bytes must not be needed, nor carried
    for again in (pickle.loads(pickle.dumps(convo)), copy.copy(convo), copy.deepcopy(convo)):
        assert_same(again, convo)
    for turn in convo.turns:
        assert pickle.loads(pickle.dumps(turn)) == turn == copy.deepcopy(turn)


def test_a_new_process_writes_the_same_bytes() -> None:
    convos: list[Conversation] = []

    @BRIEF
    @given(conversations())
    def collect(convo: Conversation) -> None:
        convos.append(convo)

    collect()
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=json.dumps([dumps(convo) for convo in convos]),
        cwd=Path(convmodel.__file__).parents[1],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == len(convos)
    for (digest, binding, messages, stored), convo in zip(rows, convos, strict=True):
        assert (digest, binding, stored) == (convo.digest, convo.binding, dumps(convo))
        assert messages == json.dumps(json.loads(wire_bytes(convo)))
