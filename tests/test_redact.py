"""Redaction: what counts as a secret, what is left alone, and the three outputs that are never confused."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anthropic
import pytest

import convmodel
from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    BrowserState,
    CitationCharLocation,
    ContainerUpload,
    ContentBlockSource,
    Document,
    FileImageSource,
    Image,
    Interrupted,
    InvalidReply,
    JsonObject,
    OpaqueBlock,
    Origin,
    PlainTextSource,
    RedactedThinking,
    Reply,
    SearchResult,
    ServerToolUse,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    UnsignedThinking,
    ValidationError,
    WebFetchToolResult,
    start,
)
from convmodel.anthropic import Target, check, from_message, stale_thinking, to_body, to_request
from convmodel.cli import main
from convmodel.redact import DETECTORS, KEYS, Redacted, Redaction, Redactor, masked
from convmodel.storage import dumps, loads
from convmodel.testing import MessagesServer
from convmodel.view import view, view_messages

REDACTOR = Redactor()
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2dF4hJ6"
ANTHROPIC_KEY = "sk-" + "ant-api03-" + MIXED
BOUND = Target(model="claude-opus-5-5", thinking={"type": "adaptive"})
FREE = Target(model="claude-opus-5", thinking={"type": "adaptive"})
LOGIN = Tool("login", {"type": "object"})


def refused(act: Callable[[], object]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(each.rule.id, each.path) for each in caught.value.violations]


# ---------------------------------------------------------------- what is found

# Made up, each in the format of a real one, and put together here so that no scanner takes this file for a leak.
CREDENTIALS = [
    ("aws-key", "", "AKIA" + "IOSFODNN7EXAMPLE", ""),
    ("aws-key", "id=", "ASIA" + "Y34FZKBOKMUTVV7A", ";"),
    ("github-token", "git clone https://x:", "ghp_" + MIXED, "@github.com/a/b"),
    ("github-token", "", "ghs_" + MIXED, "\n"),
    ("github-token", "", "github_pat_" + "11ABCDEFG0" + MIXED, "."),
    ("gitlab-token", "PRIVATE-TOKEN: ", "glpat-" + "aBcDeFgHiJkLmNoPqRsT", ""),
    ("gitlab-token", "", "glpat-" + "aBcDeFgHiJkLmNoPqRsT" + ".01.0w1abcdef", ""),
    ("slack-token", "", "xoxb-" + "123456789012-123456789012-" + MIXED, ""),
    ("slack-token", "https://hooks.slack.com/services/", "T00000000/B00000000/" + MIXED, ""),
    ("anthropic-key", "x-api-key: ", ANTHROPIC_KEY, ""),
    ("openai-key", "", "sk-" + "proj-" + MIXED + "_x-y", ""),
    ("openai-key", "", "sk-" + MIXED, "'"),
    ("openai-key", "", "sk-" + "or-v1-" + MIXED, ""),
    ("package-token", "//registry.npmjs.org/:_authToken=", "npm_" + MIXED, "\n"),
    ("package-token", "", "pypi-" + "AgEIcHlwaS5vcmc" + MIXED, ""),
    ("huggingface-token", "", "hf_" + MIXED, ""),
    ("sendgrid-key", "", "SG." + "aB3dE5gH7jK9mN1pQ3sT5v." + MIXED + "_x-yz123", ""),
    ("stripe-key", "", "sk_" + "live_" + MIXED, ""),
    ("stripe-key", "", "rk_" + "test_" + MIXED, ""),
    ("stripe-key", "", "whsec_" + MIXED, ""),
    ("google-key", "?key=", "AIza" + "SyA-1234567890_bcdefghijklmnopqrstuv", "&x=1"),
    ("google-key", "", "ya29." + "a0AfH6SMBx" + MIXED, ""),
    ("google-key", "", "GOCSPX-" + MIXED, ""),
    ("jwt", "", "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".abc_DEF-123", ""),
    (
        "private-key",
        "key:\n",
        "-----BEGIN RSA " + "PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\nMIIE+/=\n"
        "-----END RSA PRIVATE KEY-----",
        "\n",
    ),
    (
        "private-key",
        '"',
        "-----BEGIN " + "PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEF\\nAASCBKcwggSjAgEAAoIBAQ",
        "\\n",
    ),
    ("bearer-token", 'curl -H "Authorization: Bearer ', "tok-demo-1", '" https://example.test'),
    ("url-password", "postgres://me:", "hunter2", "@db.test/main"),
    ("url-password", "redis://:", "p4ss:w0rd", "@cache:6379"),
    ("secret", "Authorization: Basic ", "dXNlcjpwYXNz", ""),
    ("secret", "PGPASSWORD='", "s3cr3t-demo", "' psql -c 'select 1'"),
    ("secret", '{"api_key": "', "k-12345678", '"}'),
    ("secret", '{\\"password\\": \\"', "hunter22", '\\"}'),
    ("secret", "export DB_PASSWORD=", "hunter2", "\n"),
    ("secret", "https://x.test/?a=1&access_token=", "abc123def", "&b=1"),
    ("secret", "mysql --password ", "hunter2", " -u me"),
    ("secret", "curl -u me:", "hunter2", " https://a.test"),
    ("secret", "curl --user 'me@a.test:", "hunter22", "' https://a.test"),
    ("secret", "login --api-key '", "hunter22", "' -v"),
    ("secret", "user: me\npassword: ", "hunter2", "\nport: 1"),
    ("secret", 'clientSecret = "', "9f8e7d6c", '"'),
    ("secret", "[default]\naws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1", "\n"),
    ("secret", "password = ", "hunter2hunter2", "\n"),
    ("secret", "curl -H 'X-Api-Key: ", "abc123def456ghi", "' http://x.test"),
    ("secret", "API_KEY:", "abc123def", ""),
    ("secret", "Cookie: ", "session=abc123def456", "; a=b"),
    ("secret", "token: ", "abc123def456", ", other: 1"),
    ("url-password", "postgres://me:", "p@ss1", "@db/x"),
    ("url-password", "https://x-access-token:", MIXED * 10, "@host/x"),
    ("secret", "aws_secret_access_key = '", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1", "'"),
]


@pytest.mark.parametrize(("kind", "before", "secret", "behind"), CREDENTIALS)
def test_credentials_are_found_and_nothing_around_them_is_touched(
    kind: str, before: str, secret: str, behind: str
) -> None:
    clean = f"{before}[redacted:{kind}]{behind}"
    assert REDACTOR.text(before + secret + behind) == clean
    assert REDACTOR.text(f"Say: {before}{secret}{behind}") == f"Say: {clean}"
    assert REDACTOR.text(clean) is clean


INNOCENT = [
    "api_key = config.key1",
    'password = pw1 + "x"',
    "secret = value2",
    "token: 128000, cost: 3",
    "http://a.test:80/x?mail=me@b.test",
    "docker run -u 100000:100000 img",
    "npm_config_registry, pypi-server, hf_hub_download",
    "def login(user, password=None): ...",
    "connect(password=password)",
    "connect(user=u, password=pw1)",
    'token = request.headers["x"]',
    'api_key=os.environ["KEY2"]',
    "password: str",
    "token: Optional[int32]",
    '{"password": {"type": "string"}}',
    '"password": "required"',
    "max_tokens=128000",
    '"max_tokens": "4096"',
    'tokenizer="gpt2"',
    "for token in tokens2: yield token",
    'if token == "abc1234": pass',
    'nextPageToken: "CAUQAA12"',
    '"token": "https://example.com/token1"',
    "const password1 = getPassword1()",
    "secret = secrets.token_hex(16)",
    "export TOKEN=$(cat f1)",
    'password="${DB_PASSWORD1}"',
    "PASSWORD=$PW1",
    "PASSWORD=********",
    'print("Enter your password: ")',
    "Reset your password at https://x.test/reset2",
    '<input type="password" id="p1">',
    "passwords: see chapter 12",
    "The bearer of this letter is 42 years old.",
    "Authorization: Bearer $TOKEN",
    "Authorization: Bearer YOUR_API_KEY",
    "Authorization: Bearer <token>",
    "postgres://user:password@localhost/db",
    "postgres://user:${PW}@localhost/db",
    "git@github.com:me/repo.git",
    "ssh://git@host:22/x",
    "see http://host:8080/x and mail a@b.c",
    "sk-loading-spinner-container-box-shadow",
    "task-abcdefghijklmnopqrstuvwxyzabcdefghijkl",
    "npm install secret-santa@1.2.3",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "550e8400-e29b-41d4-a716-446655440000",
    "sha256:" + "ab12" * 16,
    "toolu_01A09q90qw90lq917835lq9 msg_013Zva2CMHLNnXjNJJKqJ2EF file_011CNha8iCJcU1wXNR6q4V8w",
    "-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg==",
    "A key is a key, a secret is a secret: tell no one.",
]


@pytest.mark.parametrize("text", INNOCENT)
def test_code_and_prose_are_left_alone(text: str) -> None:
    assert REDACTOR.text(text) is text


def test_a_whole_package_is_left_alone() -> None:
    for path in Path(convmodel.__file__).parent.rglob("*.py"):
        for line in path.read_text("utf-8").splitlines():
            assert REDACTOR.text(line) == line or ">>>" in line  # which shows what redaction does


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "A",
            "-",
            " ",
            ":",
            "=",
            "eyJ",
            "eyJaaaaaaaaaaa.",
            "://",
            "://a:",
            "a:",
            "password",
            "password=",
        ),
        *(
            "password='",
            "token='1",
            "password: a1aaaa \n",
            "bearer ",
            "authorization: basic ",
            "sk-",
            "gh_",
            "AKIA",
        ),
        *(
            "xoxb-",
            "[redacted:x]",
            "[redacted:",
            "-----BEGIN PRIVATE KEY-----",
            "\n ",
            "-a",
            "--a-",
            "glpat-",
        ),
        *("--password ", "--password 1aaaaa ", "password=1aaaaa,", ANTHROPIC_KEY + " "),
    ],
)
def test_a_long_hostile_text_is_looked_at_a_few_times(piece: str) -> None:
    """Passes are counted. A pattern that is not linear would not come to an end here."""
    seen = 0

    def count(text: str) -> list[tuple[int, int]]:
        nonlocal seen
        seen += len(text)
        return []

    text = piece * (200_000 // len(piece))
    redactor = Redactor({**DETECTORS, "counted": count})
    once = redactor.text(text)
    assert seen <= 3 * len(text)
    assert redactor.text(once) is once


# ---------------------------------------------------------------- the redactor


def test_a_redactor_is_a_value() -> None:
    mine = Redactor({**DETECTORS, "badge": re.compile(r"E-[0-9]{6}")}, inputs={"unlock": ["code"]})
    again = Redactor({**DETECTORS, "badge": r"E-[0-9]{6}"}, inputs={"unlock": {"code"}})
    assert mine == again
    assert hash(mine) == hash(again)
    assert mine != REDACTOR == Redactor()
    assert pickle.loads(pickle.dumps(mine)) == mine
    with pytest.raises(AttributeError):
        cast("Any", mine).keys = ()


@pytest.mark.parametrize(
    ("make", "rule", "path"),
    [
        (lambda: Redactor(cast("Any", ["x"])), "field-type", "detectors"),
        (lambda: Redactor({"Not a kind": "x"}), "field-value", "detectors"),
        (lambda: Redactor({cast("Any", 3): "x"}), "field-type", "detectors"),
        (lambda: Redactor({"x": "("}), "field-value", "detectors.x"),
        (lambda: Redactor({"x": cast("Any", re.compile(b"x"))}), "field-type", "detectors.x"),
        (lambda: Redactor({"x": cast("Any", 3)}), "field-type", "detectors.x"),
        (lambda: Redactor(keys="password"), "field-type", "keys"),
        (lambda: Redactor(keys=cast("Any", [3])), "field-type", "keys"),
        (lambda: Redactor(inputs=cast("Any", [])), "field-type", "inputs"),
        (lambda: Redactor(inputs={"f": "key"}), "field-type", "inputs"),
        (lambda: Redactor(report=cast("Any", 3)), "field-type", "report"),
        (lambda: REDACTOR.text(cast("Any", b"x")), "field-type", "text"),
        (lambda: REDACTOR.blocks([cast("Any", "x")]), "field-type", "blocks[0]"),
        (lambda: start("x").redact(cast("Any", "x")), "field-type", "redactor"),
        (lambda: start("x").user("x", redactor=cast("Any", "x")), "field-type", "redactor"),
        (lambda: start("x").receive(AssistantTurn("x"), redactor=cast("Any", "x")), "field-type", "redactor"),
    ],
)
def test_what_is_no_redactor_is_refused(make: Callable[[], object], rule: str, path: str) -> None:
    assert refused(make) == [(rule, path)]


def test_a_pattern_gives_its_groups_or_all_of_its_match() -> None:
    redactor = Redactor({"pin": "pin ([0-9]+)|code [0-9]+|pair ([a-z]+) and ([a-z]*)"})
    assert redactor.text("pin 12, code 34") == "pin [redacted:pin], [redacted:pin]"
    assert redactor.text("pair ab and cd") == "pair [redacted:pin] and [redacted:pin]"
    assert redactor.text("pair ab and ") == "pair [redacted:pin] and "
    assert Redactor({"key": r"key=\w+()"}).text("key=hunter2;") == "[redacted:key];"


def test_a_function_is_a_detector_and_counts_as_far_as_there_is_text() -> None:
    def find(text: str) -> list[tuple[int, int]]:
        return {"abcdef": [(0, 2), (1, 3), (3, 3)], "abc": [(1, 99)], "ab": [(-9, 1), (7, 9)]}.get(text, [])

    redactor = Redactor({"odd": find})
    assert redactor.text("abcdef") == "[redacted:odd]def"
    assert redactor.text("abc") == "a[redacted:odd]"
    assert redactor.text("ab") == "[redacted:odd]b"


@pytest.mark.parametrize("given", [None, 3, [3], [(0,)], [(0.0, 1.0)], [(True, 3)], ["01"], [(0, 1, 2)]])
def test_what_a_function_gives_beside_places_is_refused(given: Any) -> None:
    assert refused(lambda: Redactor({"odd": lambda _: given}).text("secret")) == [
        ("field-type", "detectors.odd")
    ]


def test_what_overlaps_is_one_secret_of_the_first_kind() -> None:
    redactor = Redactor({"short": "bc", "long": "abcd", "late": "de"})
    assert redactor.text("xabcdey") == "x[redacted:long]y"


def test_a_placeholder_says_the_kind_and_nothing_of_the_secret() -> None:
    one, other = "postgres://me:hunter2@db", "postgres://me:hunter3@db"
    assert REDACTOR.text(one) == REDACTOR.text(other) == "postgres://me:[redacted:url-password]@db"


def test_a_detector_never_sees_a_placeholder() -> None:
    greedy = Redactor({"word": "[a-z]+"})
    once = greedy.text("one TWO three")
    assert once == "[redacted:word] TWO [redacted:word]"
    assert greedy.text(once) is once
    assert REDACTOR.text("password=[redacted:secret]") == "password=[redacted:secret]"


def test_what_a_replacement_uncovers_is_found_too() -> None:
    redactor = Redactor({"a": "(?<!b)a", "b": "b"})
    assert redactor.text("ba") == "[redacted:b][redacted:a]"


# ---------------------------------------------------------------- what it acts on


def test_a_secret_is_taken_out_of_everything_that_is_said() -> None:
    secret, clean = f"the key {ANTHROPIC_KEY}.", "the key [redacted:anthropic-key]."
    cited = CitationCharLocation(secret, 0, secret, 0, 1)
    blocks = [
        (Text(secret), Text(clean)),
        (Text("x", citations=[cited]), Text("x", citations=[CitationCharLocation(clean, 0, clean, 0, 1)])),
        (Document(PlainTextSource(secret)), Document(PlainTextSource(clean))),
        (Document(ContentBlockSource(secret)), Document(ContentBlockSource(clean))),
        (
            Document(ContentBlockSource([secret]), title=secret, context=secret),
            Document(ContentBlockSource([clean]), title=clean, context=clean),
        ),
        (SearchResult(secret, secret, [secret]), SearchResult(clean, clean, [clean])),
        (ToolResult("a", secret), ToolResult("a", clean)),
        (
            ToolResult("a", [Document(PlainTextSource(secret))]),
            ToolResult("a", [Document(PlainTextSource(clean))]),
        ),
        (ToolUse("a", "f", {"x": [{"y": secret}]}), ToolUse("a", "f", {"x": [{"y": clean}]})),
        (
            ServerToolUse("srvtoolu_1", "bash_code_execution", {"command": secret}),
            ServerToolUse("srvtoolu_1", "bash_code_execution", {"command": clean}),
        ),
        (
            ToolResult("a", [BrowserState([{"tab_id": "1", "title": secret, "url": "https://a.b"}])]),
            ToolResult("a", [BrowserState([{"tab_id": "1", "title": clean, "url": "https://a.b"}])]),
        ),
    ]
    made = REDACTOR.blocks([cast("Any", before) for before, _ in blocks])
    assert made.blocks == tuple(after for _, after in blocks)
    counts = [1, 2, 1, 1, 3, 3, 1, 1, 1, 1, 1]
    assert made.found == tuple(
        Redaction(f"blocks[{at}]", "anthropic-key", count) for at, count in enumerate(counts)
    )


def test_thinking_ids_names_and_what_the_service_wrote_are_never_touched() -> None:
    greedy = Redactor({"all": "(?s).+"})
    blocks: list[Any] = [
        Thinking(ANTHROPIC_KEY, ANTHROPIC_KEY),
        RedactedThinking(ANTHROPIC_KEY),
        UnsignedThinking(ANTHROPIC_KEY),
        ToolUse(ANTHROPIC_KEY, ANTHROPIC_KEY, {"n": 1}, toolset_name=ANTHROPIC_KEY),
        ToolResult(ANTHROPIC_KEY, [Image(FileImageSource(ANTHROPIC_KEY))]),
        ContainerUpload(ANTHROPIC_KEY),
        OpaqueBlock({"type": "new", "text": ANTHROPIC_KEY}),
        WebFetchToolResult(
            "srvtoolu_1", {"type": "web_fetch_tool_result_error", "error_code": ANTHROPIC_KEY}
        ),
    ]
    made = greedy.blocks(blocks)
    assert all(new is old for new, old in zip(made.blocks, blocks, strict=True))
    assert made.found == ()


def test_names_of_keys_tell_a_secret_whatever_it_looks_like() -> None:
    given = {
        "user": "me",
        "password": "correct horse",
        "dbPassword": "x",
        "OPENAI_API_KEY": "y",
        "headers": {"Authorization": "Token z", "Cookie": "sid=1", "Accept": "*/*"},
        "credentials": [{"user": "me", "pin": 1234, "ok": True, "none": None}],
        "max_tokens": "many",
        "next_page_token": "CAUQAA",
        "token": "$TOKEN",
        "secret": "",
        "passwd": "<your password>",
        "api-key": f"{ANTHROPIC_KEY}",
    }
    mask = "[redacted:secret]"
    expected = {
        **given,
        "password": mask,
        "dbPassword": mask,
        "OPENAI_API_KEY": mask,
        "headers": {"Authorization": mask, "Cookie": mask, "Accept": "*/*"},
        "credentials": [{"user": mask, "pin": 1234, "ok": True, "none": None}],
        "api-key": mask,
    }
    made = REDACTOR.blocks([ToolUse("a", "f", given)])
    assert made.blocks[0].input == expected
    assert list(made.blocks[0].input) == list(given)  # the order of keys stays
    assert made.found == (Redaction("blocks[0]", "secret", 7),)
    assert REDACTOR.blocks(made.blocks).blocks[0] is made.blocks[0]


def test_keys_of_one_tool_are_secret_in_its_inputs_alone() -> None:
    redactor = Redactor(inputs={"set_api_key": ["key"]})
    given = JsonObject({"provider": "p", "key": "sk-demo-0000"})
    made = redactor.blocks([ToolUse("a", "set_api_key", given), ToolUse("b", "read", given)])
    assert made.blocks[0].input == {"provider": "p", "key": "[redacted:secret]"}
    assert made.blocks[1].input is given


def test_numbers_under_keys_that_the_caller_names_are_secret_too() -> None:
    given = {"code": 123456, "more": {"code": [1.5, True, None, "x"]}, "password": 7}
    made = Redactor(inputs={"unlock": ["code"]}).blocks([ToolUse("a", "unlock", given)])
    mask = "[redacted:secret]"
    assert made.blocks[0].input == {"code": mask, "more": {"code": [mask, True, None, mask]}, "password": 7}


@pytest.mark.parametrize(
    "name", ["access_tokens", "api_keys", "cookies", "db-pass", "otp", "signing_key", "connectionString"]
)
def test_many_names_tell_a_secret(name: str) -> None:
    made = REDACTOR.blocks([ToolUse("a", "f", {name: "correct horse", "other": "$ecret1"})])
    assert made.blocks[0].input == {name: "[redacted:secret]", "other": "$ecret1"}
    assert REDACTOR.blocks([ToolUse("a", "f", {name: "$ecret123"})]).found
    assert not REDACTOR.blocks([ToolUse("a", "f", {name: "$SECRET_123"})]).found


def test_names_and_keys_are_masked_where_they_are_shown() -> None:
    call = ToolUse("toolu_1", "f", {"ghp_" + MIXED: 1, "env": 2})
    shown = view(start("x").assistant(call), REDACTOR)
    assert "tool_use toolu_1 f ([redacted:github-token], env)" in shown
    mine = Redactor({"pin": "SEKRET"})
    assert "SEKRET" not in view(start("x").assistant(ToolUse("a", "SEKRET", {"SEKRET": 1})), mine)
    wire = {"role": "SEKRET", "content": [{"type": "SEKRET", "id": "SEKRET", "name": "SEKRET"}]}
    assert "SEKRET" not in view_messages([wire], mine)
    (fault,) = check([{"role": "user", "content": [{"type": "text", "text": "x", ANTHROPIC_KEY: 1}]}])
    assert fault.path == "messages[0].content[0].…"


def test_keys_can_be_given() -> None:
    made = Redactor(keys=[*KEYS, "pin-code"]).blocks([ToolUse("a", "f", {"PinCode": "x", "token": "y"})])
    assert set(made.blocks[0].input.values()) == {"[redacted:secret]"}
    assert Redactor(keys=()).blocks([ToolUse("a", "f", {"token": "y"})]).found == ()


def test_a_title_that_a_placeholder_would_make_too_long_is_cut() -> None:
    title = "a" * 480 + " postgres://me:p4@db"
    document = Document(PlainTextSource("x"), title=title)
    for convo in (start(document).redact(REDACTOR).conversation, start(document, redactor=REDACTOR)):
        (made,) = convo.turns[0].blocks
        assert isinstance(made, Document)
        assert made.title == "a" * 480 + " postgres://me:[reda"
        assert REDACTOR.blocks([made]).blocks[0] is made


# ---------------------------------------------------------------- at entry


def log_in(*blocks: Any, model: str = "claude-opus-5-5", **more: Any) -> Reply:
    return Reply(blocks, Origin(model=model, stop_reason="tool_use"), **more)


CALL = ToolUse("toolu_1", "login", {"user": "me", "password": "correct horse"})


def test_store_and_wire_see_the_same_bytes_and_neither_sees_the_secret() -> None:
    convo = start("Log me in.", f"Not with {ANTHROPIC_KEY}.", tools=[LOGIN], redactor=REDACTOR)
    reply = log_in(Text("I log in."), CALL)
    called = convo.receive(reply, redactor=REDACTOR)
    assert isinstance(called, AwaitingTools)
    assert called.open_calls[0].input == {"user": "me", "password": "[redacted:secret]"}
    assert reply.calls[0].input["password"] == "correct horse"  # which the tool is run with
    answered = called.answer(
        reply.calls[0].result(f"You are in, with {ANTHROPIC_KEY}."),
        [f"Keep {ANTHROPIC_KEY}."],
        redactor=REDACTOR,
    )
    for text in (dumps(answered), to_body(answered, BOUND, max_tokens=9).decode(), repr(answered)):
        assert "correct horse" not in text
        assert ANTHROPIC_KEY not in text
    again = loads(dumps(answered))
    assert isinstance(again, AwaitingModel)
    assert to_body(again, BOUND) == to_body(answered, BOUND)
    one = called.answer_one(reply.calls[0].result(ANTHROPIC_KEY), redactor=REDACTOR)
    assert one.turns[-1].blocks == (ToolResult("toolu_1", "[redacted:anthropic-key]"),)


def test_what_enters_without_a_secret_is_the_same_object() -> None:
    told: list[object] = []
    redactor = Redactor(report=told.append)
    block, call, answer = (
        Text("Hello."),
        ToolUse("toolu_1", "f", {"a": [1.0, 2]}),
        ToolResult("toolu_1", "ok"),
    )
    convo = start("x", tools=[LOGIN]).user(block, redactor=redactor)
    called = convo.receive(log_in(call), redactor=redactor)
    assert isinstance(called, AwaitingTools)
    answered = called.answer([answer], redactor=redactor)
    assert convo.turns[-1].blocks[0] is block
    assert called.open_calls[0] is call
    assert answered.turns[-1].blocks[0] is answer
    assert told == []


def test_what_enters_is_reported() -> None:
    told: list[Redacted[Any]] = []
    redactor = Redactor(report=told.append)
    convo = start("x", tools=[LOGIN]).user("Hello.", f"It is {ANTHROPIC_KEY}.", redactor=redactor)
    assert told[0].found == (Redaction("blocks[1]", "anthropic-key", 1),)
    assert told[0].blocks == convo.turns[-1].blocks
    convo.receive(
        log_in(Thinking("t", "c2ln"), CALL, Thinking("u", "c2ln"), Text("Done.")), redactor=redactor
    )
    assert told[1].found == (Redaction("blocks[1]", "secret", 1),)
    assert told[1].voided == ("blocks[2]",)
    assert [block.type for block in told[1].blocks] == ["thinking", "tool_use", "text"]
    greeted = convo.receive(AssistantTurn(["Hi."]))
    assert isinstance(greeted, AwaitingUser)
    greeted.user(ANTHROPIC_KEY, redactor=redactor)
    assert len(told) == 3


FIRST, SECOND, THIRD = Thinking("one", "c2lnMQ=="), Thinking("two", "c2lnMg=="), RedactedThinking("cmVk")
CALLS = (FIRST, CALL, SECOND, ToolUse("toolu_2", "look", {"at": "it"}), THIRD, Text("Done."))


def test_signed_thinking_behind_a_secret_goes_where_the_model_binds_it() -> None:
    after = start("x", tools=[LOGIN]).receive(log_in(*CALLS), redactor=REDACTOR)
    assert isinstance(after, AwaitingTools)
    kinds = [block.type for block in after.turns[-1].blocks]
    assert kinds == ["thinking", "tool_use", "tool_use", "text"]
    assert after.turns[-1].blocks[0] is FIRST
    answered = after.answer([call.result("ok") for call in after.open_calls])
    assert stale_thinking(answered, BOUND) == ()


def test_signed_thinking_behind_a_secret_stays_where_it_is_not_bound() -> None:
    reply = log_in(*CALLS, model="claude-opus-5", bound=False)
    after = start("x", tools=[LOGIN]).receive(reply, redactor=REDACTOR)
    assert isinstance(after, AwaitingTools)
    assert [type(block) for block in after.turns[-1].blocks] == [type(block) for block in CALLS]
    assert [block for block in after.turns[-1].blocks if block in (FIRST, SECOND, THIRD)] == [
        FIRST,
        SECOND,
        THIRD,
    ]
    answered = after.answer([call.result("ok") for call in after.open_calls])
    assert to_request(answered, FREE)
    # A model that checks would refuse it, and that is known.
    assert refused(lambda: to_request(answered, BOUND)) == [("thinking-prefix-bound", "turns[1].blocks[2]")]
    assert loads(dumps(answered)) == answered


def test_thinking_before_a_secret_stays_good_everywhere() -> None:
    reply = log_in(FIRST, CALL, model="claude-opus-5", bound=False)
    after = start("x", tools=[LOGIN]).receive(reply, redactor=REDACTOR)
    assert isinstance(after, AwaitingTools)
    assert to_request(after.close("not_run"), BOUND)


@pytest.mark.parametrize(
    ("model", "platform", "bound"),
    [
        ("claude-opus-5-5", "anthropic", True),
        ("claude-opus-5", "anthropic", False),
        ("claude-opus-5-5", "openrouter", False),
        ("a-model-to-come", "anthropic", True),
        ("deepseek-chat", "deepseek", False),
        (None, "anthropic", True),
    ],
)
def test_whether_thinking_is_bound_comes_with_the_reply(
    model: str | None, platform: str, bound: bool
) -> None:
    message = {"content": [{"type": "text", "text": "Hi."}], "model": model, "stop_reason": "end_turn"}
    target = None if model is None else Target(model=model, platform=platform)
    assert from_message(message, target).bound is bound


def test_a_turn_by_hand_is_taken_for_one_of_a_model_that_binds() -> None:
    after = start("x", tools=[LOGIN]).receive(AssistantTurn(CALLS), redactor=REDACTOR)
    assert isinstance(after, AwaitingTools)
    assert [block.type for block in after.turns[-1].blocks] == ["thinking", "tool_use", "tool_use", "text"]


def test_what_is_kept_of_a_cut_reply_is_masked_too() -> None:
    reply = Reply([f"It is {ANTHROPIC_KEY}.", CALL], Origin(stop_reason="max_tokens"))
    outcome = start("x").receive(reply, redactor=REDACTOR)
    assert isinstance(outcome, Interrupted)
    assert outcome.resume(ANTHROPIC_KEY, redactor=REDACTOR).turns[-1].blocks == (
        Text("[redacted:anthropic-key]"),
    )
    assert outcome.keep().last_text == "It is [redacted:anthropic-key]."
    assert "correct horse" not in repr(outcome) + dumps(outcome.keep())
    assert cast("ToolUse", outcome.lost[0]).input["password"] == "[redacted:secret]"


def test_what_stands_behind_a_hole_is_not_kept_where_thinking_before_it_goes() -> None:
    blocks = (Text(ANTHROPIC_KEY), SECOND, Text("Before the hole."), Text("Behind it."))
    reply = Reply(blocks, Origin(model="claude-opus-5-5"), complete=False, unbroken=3)
    outcome = start("x").receive(reply, redactor=REDACTOR)
    assert isinstance(outcome, Interrupted)
    assert outcome.kept is not None
    assert outcome.kept.blocks == (Text("[redacted:anthropic-key]"), Text("Before the hole."))
    assert outcome.lost == (Text("Behind it."),)


def test_a_reply_that_is_refused_is_not_lost() -> None:
    reply = Reply([CALL, CALL], Origin(stop_reason="tool_use"))
    with pytest.raises(InvalidReply) as caught:
        start("x").receive(reply, redactor=REDACTOR)
    assert caught.value.reply is reply
    assert "correct horse" not in f"{caught.value} {caught.value!r} {caught.value.reply!r}"


def test_a_call_with_a_placeholder_is_known() -> None:
    called = start("x").receive(log_in(CALL), redactor=REDACTOR)
    assert isinstance(called, AwaitingTools)
    assert masked(called.open_calls[0].input)
    assert not masked(CALL.input)
    assert masked(loads(dumps(called)).open_calls[0].input)


def test_open_calls_stand_in_the_order_of_the_reply_even_where_ids_are_new() -> None:
    foreign = Origin(vendor="kimi", stop_reason="tool_use")
    convo = start("x").receive(Reply([CALL], foreign), redactor=REDACTOR)
    assert isinstance(convo, AwaitingTools)
    again = convo.close("not_run").receive(Reply([CALL], foreign), redactor=REDACTOR)
    assert isinstance(again, AwaitingTools)
    real = log_in(CALL).calls
    assert [call.id for call in again.open_calls] == ["toolu_1_2"]
    assert again.answer([call.result(real[at].input["user"]) for at, call in enumerate(again.open_calls)])


# ---------------------------------------------------------------- as an edit


def session() -> AwaitingUser:
    called = start(f"Use {ANTHROPIC_KEY}.", system=f"The key is {ANTHROPIC_KEY}.", tools=[LOGIN]).receive(
        log_in(FIRST, CALL)
    )
    assert isinstance(called, AwaitingTools)
    done = called.answer(CALL.result("You are in.")).receive(
        Reply([SECOND, "Done."], Origin(model="claude-opus-5-5", stop_reason="end_turn"))
    )
    assert isinstance(done, AwaitingUser)
    return done


def test_a_history_is_redacted_with_its_consequences_named() -> None:
    convo = session()
    paths = [("thinking-prefix-bound", "turns[1].blocks[0]"), ("thinking-prefix-bound", "turns[3].blocks[0]")]
    assert refused(lambda: convo.redact(REDACTOR)) == paths
    edit = convo.redact(REDACTOR, on_thinking="strip_after")
    assert edit.voided == tuple(path for _, path in paths)
    assert edit.found == (
        Redaction("preamble.system[0]", "anthropic-key", 1),
        Redaction("turns[0].blocks[0]", "anthropic-key", 1),
        Redaction("turns[1].blocks[1]", "secret", 1),
    )
    text = dumps(edit.conversation)
    assert ANTHROPIC_KEY not in text
    assert "correct horse" not in text
    assert edit.conversation.preamble.tools == convo.preamble.tools
    again = edit.conversation.redact(REDACTOR)
    assert (again.conversation, again.found, again.voided) == (edit.conversation, (), ())
    kept = convo.redact(REDACTOR, on_thinking="keep").conversation
    assert [block for turn in kept.turns for block in turn.blocks if isinstance(block, Thinking)] == [
        FIRST,
        SECOND,
    ]


def test_a_clean_history_is_itself() -> None:
    convo = start(
        "Hello.", tools=[Tool("set", {"type": "object", "properties": {"password": {"type": "string"}}})]
    )
    edit = convo.redact(REDACTOR)
    assert edit.conversation == convo
    assert edit.conversation.turns[0] is convo.turns[0]
    assert (edit.found, edit.voided) == ((), ())


def test_other_edits_have_found_nothing() -> None:
    assert start("x").map_text(str.upper).found == ()


# ---------------------------------------------------------------- what is shown


def test_reprs_are_short_and_masked() -> None:
    shown = [
        Text(f"It is {ANTHROPIC_KEY}."),
        Image.from_url("https://me:hunter2@a.test/x.png"),
        SearchResult(ANTHROPIC_KEY, ANTHROPIC_KEY, [ANTHROPIC_KEY]),
        CALL,
        ToolResult("toolu_1", ANTHROPIC_KEY),
        Document(PlainTextSource(ANTHROPIC_KEY), title=ANTHROPIC_KEY),
        session(),
        session().turns[0],
        start(ANTHROPIC_KEY, system=ANTHROPIC_KEY).preamble,
        start("x").receive(Reply([ANTHROPIC_KEY], Origin(stop_reason="max_tokens"))),
        REDACTOR.blocks([CALL]),
    ]
    for value in shown:
        assert len(repr(value)) < 400
        for secret in (MIXED[:8], "hunter2", "correct horse"):
            assert secret not in repr(value)


def test_a_secret_that_the_cut_would_go_through_does_not_show() -> None:
    for before in range(60):
        assert MIXED[:4] not in repr(Text("." * before + " " + ANTHROPIC_KEY))


def test_a_view_is_masked_and_no_history() -> None:
    convo = session()
    text = view(convo)
    assert MIXED[:8] not in text
    assert "[redacted:anthropic-key]" in text
    mine = Redactor({"user": "You are in"})
    assert "[redacted:user]" in view(start("You are in."), mine)
    assert "[redacted:user]" in view_messages([{"role": "user", "content": "You are in."}], mine)
    assert refused(lambda: loads(text)) == [("json-value", "")]


def test_the_command_shows_no_secret(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.json"
    path.write_text(dumps(session()), encoding="utf-8")
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "[redacted:anthropic-key]" in shown
    assert MIXED[:8] not in shown
    assert "correct horse" not in shown


# ---------------------------------------------------------------- through the client


@pytest.mark.parametrize("target", [BOUND, FREE])
def test_a_session_with_secrets_runs_without_a_fault(target: Target) -> None:
    thinks = {"type": "thinking", "thinking": "", "signature": ""}
    call = {"type": "tool_use", "id": "toolu_1", "name": "login", "input": {"password": "correct horse"}}
    more = {"type": "tool_use", "id": "toolu_2", "name": "login", "input": {"again": "yes"}}
    script: Any = [
        [thinks, call, thinks, more],
        [thinks, {"type": "text", "text": f"Your key is {ANTHROPIC_KEY}."}],
    ]
    script.append([{"type": "text", "text": "Goodbye."}])
    told: list[Redacted[Any]] = []
    redactor = Redactor(report=told.append)
    with (
        MessagesServer(script, preserved_thinking=True) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        convo: Any = start("Log in.", tools=[LOGIN])
        ran: list[str] = []
        for question in (None, None, "Bye."):
            if question is not None:
                convo = convo.user(question, redactor=redactor)
            assert isinstance(convo, AwaitingModel)
            message = client.messages.create(max_tokens=64, **to_request(convo, target))
            reply = from_message(message, target)
            convo = convo.receive(reply, redactor=redactor)
            if isinstance(convo, AwaitingTools):
                results: list[ToolResult] = []
                for open_call, real in zip(convo.open_calls, reply.calls, strict=True):
                    ran.append(str(real.input.get("password")))
                    results.append(open_call.result(f"In, by {ANTHROPIC_KEY}."))
                convo = convo.answer(results, redactor=redactor)
        assert ran == ["correct horse", "None"]
        sent = b"".join(server.bodies)
    assert convo.last_text == "Goodbye."
    assert b"correct horse" not in sent
    assert ANTHROPIC_KEY.encode() not in sent
    assert told[0].voided == (("blocks[2]",) if target is BOUND else ())
