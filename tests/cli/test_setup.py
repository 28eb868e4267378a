"""``streamglot setup --write``: settings merged into a file that is already there."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from hypothesis import given
from hypothesis import strategies as st

from cli.shell import Shell
from streamglot.cli.options import SETTINGS_BYTES
from streamglot.cli.setup.merge import NotMerged, merged
from streamglot.cli.setup.recipes import RECIPES, recipe

ADDRESS = "http://10.0.0.1:1234"
KEY = "key-of-the-gateway"
OLD_KEY = "sk-of-somebody-else"

CODEX = """\
# mine
model = "gpt-5"  # the best
approval_policy = "on-request"

[model_providers.other]
name = "other"
base_url = "https://other.example/v1"

[model_providers.streamglot]
base_url = "http://old"
request_max_retries = 7

[mcp_servers.files]
command = "npx"
args = [
  "a",
  "b",
]
"""
CLAUDE = f"""\
{{
    "permissions": {{"allow": ["Bash(ls:*)"]}},
    "env": {{"ANTHROPIC_AUTH_TOKEN": "{OLD_KEY}", "DISABLE_TELEMETRY": "1"}},
    "größe": 1
}}
"""
OPENCODE = '{"$schema":"https://opencode.ai/config.json","provider":{"x":{"npm":"y"}},"theme":"dark"}'
AIDER = f"""\
---
## aider
model: gpt-4o   # for now
openai-api-key: '{OLD_KEY}'
read:
  - CONVENTIONS.md
lint-cmd:
- "python: ruff"

auto-commits: false
"""
CONTINUE = """\
name: My assistant
version: 1.2.3
schema: v1
models:
  # the big one
  - name: Claude
    provider: anthropic
    model: claude-sonnet-4-5
    roles: [chat]
  - name: streamglot
    provider: openai
    model: old
    roles:
      - chat

rules:
  - Be short.
"""
ENV = f"# the project\nexport OPENAI_API_KEY='{OLD_KEY}'\nANTHROPIC_API_KEY={OLD_KEY}\nDATABASE_URL=\"postgres://x y\"  # kept\n"
CRUSH = '{"providers": {"other": {"type": "openai"}}, "models": {"small": {"provider": "other", "model": "x"}}, "lsp": {}}'
GOOSE = """\
# mine
GOOSE_PROVIDER: anthropic
GOOSE_MODE: auto
extensions:
  developer:
    enabled: true
"""
ZED = '{"theme": "One", "language_models": {"ollama": {"api_url": "http://x"}}, "agent": {"button": true}}'


def _env(text: str) -> dict[str, str]:
    pairs = (line.removeprefix("export ").partition("=") for line in text.splitlines() if "=" in line)
    return {name: value for name, _, value in pairs}


FILES: dict[str, tuple[str, str, Any]] = {
    "codex": (".codex/config.toml", CODEX, tomllib.loads),
    "claude-code": (".claude/settings.json", CLAUDE, json.loads),
    "openai": (".env", ENV, _env),
    "anthropic": (".env", ENV, _env),
    "opencode": ("opencode.json", OPENCODE, json.loads),
    "aider": (".aider.conf.yml", AIDER, yaml.safe_load),
    "continue": (".continue/config.yaml", CONTINUE, yaml.safe_load),
    "open-webui": (".env", ENV, _env),
    "gemini-cli": (".gemini/.env", ENV, _env),
    "qwen-code": (".qwen/.env", ENV, _env),
    "crush": (".config/crush/crush.json", CRUSH, json.loads),
    "goose": (".config/goose/config.yaml", GOOSE, yaml.safe_load),
    "zed": (".config/zed/settings.json", ZED, json.loads),
}
PASTED = ("vercel", "langchain", "curl", "copilot", "cline")


def merged_tree(there: Any, ours: Any) -> Any:
    """The expected result of a merge, for decoded values."""
    if isinstance(there, dict) and isinstance(ours, dict):
        return {**there, **{name: merged_tree(there.get(name), value) for name, value in ours.items()}}
    return ours


def write(shell: Shell, client: str, model: str = "some-model") -> tuple[int, str]:
    done = shell.run("setup", client, "--write", "--address", ADDRESS, "-m", model, "--key", KEY)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_every_client_has_a_file_or_a_text_to_paste() -> None:
    assert set(FILES) | set(PASTED) == set(RECIPES)
    assert {client for client, known in RECIPES.items() if known.file} == set(FILES)


@pytest.mark.parametrize("client", FILES)
def test_a_file_that_is_not_there_is_written(shell: Shell, client: str) -> None:
    name, _, read = FILES[client]
    path = shell.home / name
    status, words = write(shell, client)
    assert (status, path.stat().st_mode & 0o777) == (0, 0o600), words
    assert read(path.read_text()) == read(recipe(client, ADDRESS, "some-model", KEY).text)
    assert KEY not in words
    assert "backup of the old file" not in words


@pytest.mark.parametrize("client", FILES)
def test_the_rest_of_a_file_stays(shell: Shell, client: str) -> None:
    name, before, read = FILES[client]
    path = shell.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before)
    path.chmod(0o640)
    status, words = write(shell, client)
    assert status == 0, words
    after = path.read_text()
    ours = read(recipe(client, ADDRESS, "some-model", KEY).text)
    if client == "continue":
        assert read(after) == {**read(before), "models": [read(before)["models"][0], {**ours["models"][0], "roles": ["chat"]}]}
        assert "# the big one" in after
    else:
        assert read(after) == merged_tree(read(before), ours)
    for comment in (line for line in before.splitlines() if line.startswith("#")):
        assert comment in after.splitlines()
    backup = path.with_name(f"{path.name}.before-streamglot-1")
    assert (backup.read_text(), path.stat().st_mode & 0o777) == (before, 0o640)
    assert f"backup of the old file: {backup}" in words
    assert ADDRESS in words
    assert KEY not in words
    assert OLD_KEY not in words


@pytest.mark.parametrize("client", FILES)
def test_a_second_time_changes_nothing(shell: Shell, client: str) -> None:
    name, before, _ = FILES[client]
    path = shell.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before)
    assert write(shell, client)[0] == 0
    after = path.read_text()
    status, words = write(shell, client)
    assert status == 0
    assert " has these settings already\n" in words
    assert path.read_text() == after
    assert len(list(path.parent.glob("*before-streamglot*"))) == 1
    if client in ("codex", "claude-code", "opencode", "aider", "continue"):
        assert write(shell, client, "another")[0] == 0
        assert "another" in path.read_text()
        assert len(list(path.parent.glob("*before-streamglot*"))) == 2


@pytest.mark.parametrize(
    ("client", "broken", "why"),
    [
        ("codex", "model = \n", "not valid TOML"),
        ("codex", 'model_providers = { a = { name = "x" } }\n', "no place where a setting can be added"),
        ("codex", 'model_providers = "none"\n', "`model_providers` is not a table"),
        ("claude-code", "mine", "not plain JSON"),
        ("claude-code", '{\n  // mine\n  "a": 1\n}', "line 2"),
        ("claude-code", "[1]", "does not contain a JSON object"),
        ("claude-code", '{"env": "none"}', "`env` is not a table"),
        ("opencode", '{"provider": {"streamglot": []}}', "`provider.streamglot` is not a table"),
        ("aider", "{model: x}\n", "line 1"),
        ("aider", "a: 1\n---\nb: 2\n", "line 2"),
        ("aider", "model: x\nmodel: y\n", "twice"),
        ("aider", "model: >\n  x\n", "plain value on the same line"),
        ("aider", "model: &anchor x\nweak-model: *anchor\n", "plain value on the same line"),
        ("continue", "models: [{name: x}]\n", "not a list of items"),
        ("continue", "models:\n  name: x\n", "not a list of items"),
        ("openai", "what is this\n", "line 1 is not NAME=value"),
        ("anthropic", 'KEY="one\ntwo"\n', "line 1 is not NAME=value"),
        ("open-webui", "A=1\n= 2\n", "line 2 is not NAME=value"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_not_changed(shell: Shell, client: str, broken: str, why: str) -> None:
    path = shell.home / FILES[client][0]
    path.parent.mkdir(exist_ok=True)
    path.write_text(broken)
    status, words = write(shell, client)
    assert (status, path.read_text()) == (2, broken)
    assert why in words
    assert f"add by hand the settings that `streamglot setup {client}` shows" in words
    assert not list(path.parent.glob("*before-streamglot*"))


@pytest.mark.parametrize("client", PASTED)
def test_a_program_without_a_settings_file_gets_text_to_paste(shell: Shell, client: str) -> None:
    status, words = write(shell, client)
    assert status == 2
    assert f"paste what `streamglot setup {client}` shows" in words


def test_links_line_ends_and_bytes_that_are_not_text(shell: Shell) -> None:
    elsewhere = shell.home / "dotfiles"
    elsewhere.mkdir()
    (elsewhere / "aider").write_bytes(b"dark-mode: true\r\nmodel: x\r\n")
    path = shell.home / ".aider.conf.yml"
    path.symlink_to(elsewhere / "aider")
    assert write(shell, "aider")[0] == 0
    assert path.is_symlink()
    assert path.read_bytes().startswith(b'dark-mode: true\r\nmodel: "openai/some-model"\r\n')
    assert (elsewhere / "aider.before-streamglot-1").read_bytes() == b"dark-mode: true\r\nmodel: x\r\n"
    path.write_bytes(b"model: \xff\n")
    assert "not in UTF-8" in write(shell, "aider")[1]


def test_a_directory_is_refused(shell: Shell) -> None:
    (shell.home / ".codex" / "config.toml").mkdir(parents=True)
    status, words = write(shell, "codex")
    assert status == 2
    assert "cannot be written: Is a directory" in words


def test_terminal_output_has_no_control_sequences(shell: Shell) -> None:
    (shell.home / ".aider.conf.yml").write_text("model: \x1b[31mred\n")
    status, words = write(shell, "aider")
    assert status == 0
    assert "\x1b" not in words
    assert "red → openai/some-model" in words


@pytest.mark.parametrize("value", ["a;reboot", "a b", 'a"b', "a$b", "a|b", "a\nb"])
def test_values_with_special_characters_are_refused(shell: Shell, value: str) -> None:
    assert shell.run("setup", "openai", "--key", value).returncode == 2


@pytest.mark.parametrize("client", ["codex", "goose", "zed", "qwen-code", "gemini-cli"])
def test_the_next_step_is_printed_without_the_key(shell: Shell, client: str) -> None:
    for _ in range(2):
        status, words = write(shell, client)
        assert status == 0
        assert f"then: {RECIPES[client].then}" in words
    assert KEY not in words


def test_the_name_of_a_variable_is_not_a_secret(shell: Shell) -> None:
    assert "model_providers.streamglot.env_key: STREAMGLOT_KEY" in write(shell, "codex")[1]


@pytest.mark.parametrize(
    ("client", "model", "context", "warned"),
    [
        ("claude-code", "local", "", "STREAMGLOT_LOCAL=path/to/model.gguf and STREAMGLOT_LOCAL_CONTEXT=65536"),
        ("qwen-code", "local", "", "16,000 tokens, but the model 'local' has a context of 8,192"),
        ("claude-code", "local", "32768", "the model 'local' has a context of 8,192"),
        ("claude-code", "gpt-5.5", "", ""),
        ("aider", "local", "", ""),
    ],
)
def test_a_small_context_window_causes_a_warning(shell: Shell, client: str, model: str, context: str, warned: str) -> None:
    environment = {"STREAMGLOT_LOCAL_CONTEXT": context}
    errors = shell.run("setup", client, "-m", model, environment=environment).stderr.decode()
    assert ("warning:" in errors) == bool(warned)
    assert warned in errors


def test_other_weights_have_the_context_that_they_are_given(shell: Shell, tmp_path: Path) -> None:
    weights = tmp_path / "large.gguf"
    weights.touch()
    for context, warned in (("32768", False), ("16384", True)):
        environment = {"STREAMGLOT_LOCAL": str(weights), "STREAMGLOT_LOCAL_CONTEXT": context}
        errors = shell.run("setup", "claude-code", "-m", "local", environment=environment).stderr.decode()
        assert ("choose another model, or set STREAMGLOT_LOCAL_CONTEXT=65536" in errors) is warned


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("port = 9191", "http://127.0.0.1:9191"),
        ('host = "0.0.0.0"', "http://127.0.0.1:8484"),
        ('host = "::"\nport = 9192', "http://[::1]:9192"),
        ('host = "10.0.0.7"', "http://10.0.0.7:8484"),
    ],
)
def test_the_address_is_that_of_the_configuration(shell: Shell, tmp_path: Path, server: str, address: str) -> None:
    config = tmp_path / "other.toml"
    config.write_text(f"[server]\n{server}\n")
    environment = {"STREAMGLOT_CONFIG": str(config)}
    assert f"ANTHROPIC_BASE_URL={address}\n" in shell.run("setup", "anthropic", environment=environment).stdout.decode()
    given = shell.run("setup", "anthropic", "--address", "https://gateway.example", environment=environment).stdout.decode()
    assert "ANTHROPIC_BASE_URL=https://gateway.example\n" in given


# --- single forms


def test_an_item_goes_where_the_list_is() -> None:
    ours = recipe("continue", ADDRESS, "m", KEY).text
    for there in (
        "models: []\n",
        "models:\n",
        "models:\n- name: a\n\n# end\nrules: []\n",
        "models:\n    - name: a\n      model: b\n",
    ):
        text, changes = merged("yaml", there, ours)
        items = yaml.safe_load(text)["models"]
        assert items[-1] == yaml.safe_load(ours)["models"][0]
        assert len(items) == len(yaml.safe_load(there)["models"] or ()) + 1
        assert changes
        assert merged("yaml", text, ours) == (text, [])


def test_brackets_in_arrays_are_not_tables() -> None:
    ours = recipe("codex", ADDRESS, "m", KEY).text
    there = 'matrix = [\n  ["a"],\n  ["b"]\n]\n'
    assert tomllib.loads(merged("toml", there, ours)[0]) == {**tomllib.loads(there), **tomllib.loads(ours)}
    with pytest.raises(NotMerged, match="no place where a setting can be added"):
        merged("toml", there.replace("  ", ""), ours)


# --- what JSON files may hold


OURS = {"env": {"URL": "http://x", "KEY": "k"}, "model": "m", "deep": {"er": {"a.b": True}}}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(st.sampled_from(("URL", "er", "x")), json_values.filter(lambda value: not isinstance(value, dict)))
files = st.dictionaries(st.text() | st.sampled_from(("model", "x")), json_values, max_size=4)


@given(files, st.dictionaries(st.sampled_from(("env",)), tables), st.sampled_from((None, 1, 2, "\t")), st.booleans())
def test_merging_json_means_what_it_should(file: Any, known: Any, indent: Any, ascii: bool) -> None:
    there = {**file, **known}
    text = json.dumps(there, indent=indent, ensure_ascii=ascii)
    try:
        result, changes = merged("json", text, json.dumps(OURS))
    except NotMerged:
        assert any(not isinstance(there.get(name, {}), dict) for name in ("env", "deep"))
        return
    assert json.loads(result) == merged_tree(there, OURS)
    assert merged("json", result, json.dumps(OURS)) == (result, [])
    assert bool(changes) == (result != text)


@pytest.mark.parametrize(
    "kept",
    [
        '"limit": 1e999',
        '"limit": -1E+400, "small": 1.10',
        '"half": "\\ud800", "escaped": "\\u00e9\\/"',
        '"twice": 1, "twice": {"a": [1, 2]}',
        '"big": 123456789012345678901234567890.000',
        '"not": NaN',
    ],
)
def test_json_that_is_not_ours_stays_as_it_is_written(kept: str) -> None:
    for text in (f"{{{kept}}}", f'{{\n  {kept},\n  "env": {{}}\n}}\n', f'{{"env": {{"URL": "old"}}, {kept}}}'):
        result, changes = merged("json", text, json.dumps({"env": {"URL": "new"}}))
        assert kept in result
        assert [change.name for change in changes] == ["env.URL"]
        assert json.loads(result)["env"] == {"URL": "new"}


def test_an_integer_that_python_does_not_convert_stays_in_json_and_refuses_toml() -> None:
    digits = "9" * 5000
    new = json.dumps({"env": {"URL": "new"}})
    assert merged("json", f'{{"a": {digits}, "b": -{digits}}}', new)[0].startswith(f'{{"a": {digits}, "b": -{digits}, "env": ')
    changed, (change,) = merged("json", f'{{"env": {{"URL": {digits}}}}}', new)
    assert (json.loads(changed), change.old) == ({"env": {"URL": "new"}}, digits)
    with pytest.raises(NotMerged, match="not valid TOML"):
        merged("toml", f"a = {digits}\n", 'url = "new"\n')


def test_a_file_with_a_repeated_setting_is_not_changed(shell: Shell) -> None:
    for text in ('{"env": {}, "env": {"x": 1}}', '{"env": {"ANTHROPIC_MODEL": "a", "ANTHROPIC_MODEL": "b"}}'):
        place = shell.home / ".claude" / "settings.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        status, words = write(shell, "claude-code")
        assert (status, "occurs there twice" in words, place.read_text()) == (2, True, text)


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("claude-code", '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        ("claude-code", '{"x": ' * 100_000 + "1" + "}" * 100_000),
        ("codex", "x = " + "[" * 100_000 + "]" * 100_000 + "\n"),
        ("codex", "x = " + "{x = " * 100_000 + "1" + "}" * 100_000 + "\n"),
    ],
    ids=["json lists", "json objects", "toml lists", "toml tables"],
)
def test_a_deeply_nested_file_is_not_changed(shell: Shell, client: str, text: str) -> None:
    place = shell.home / FILES[client][0]
    place.parent.mkdir()
    place.write_text(text)
    status, words = write(shell, client)
    assert (status, "Traceback" in words, "nested too deeply" in words) == (2, False, True)
    assert place.read_text() == text


def test_a_half_of_a_surrogate_pair_stays(shell: Shell) -> None:
    place = shell.home / ".claude" / "settings.json"
    place.parent.mkdir()
    place.write_text('{"env": {"ANTHROPIC_MODEL": "\\ud800"}, "x": "\\udfff"}')
    status, words = write(shell, "claude-code")
    assert status == 0, words
    assert '"x": "\\udfff"' in place.read_text()
    assert "\\ud800 →" in words


@pytest.mark.parametrize("client", ["codex", "claude-code", "aider", "openai"])
def test_a_device_is_refused_as_a_settings_file(shell: Shell, client: str) -> None:
    place = shell.home / FILES[client][0]
    place.parent.mkdir(exist_ok=True)
    place.symlink_to("/dev/zero")
    status, words = write(shell, client)
    assert (status, "not a regular file" in words) == (2, True)
    place.unlink()
    place.write_bytes(b"#" * (SETTINGS_BYTES + 1))
    status, words = write(shell, client)
    assert (status, "larger than" in words) == (2, True)


@pytest.mark.parametrize(("form", "line"), [("yaml", "a:{}x"), ("env", "A={}x"), ("env", "A=b{}x #"), ("toml", "[{}x]")])
def test_long_runs_of_spaces_are_read_in_linear_time(form: Any, line: str) -> None:
    """A pattern with quadratic backtracking would take hours."""
    text = f"{line.format(' ' * 1_000_000)}\n"
    new = {"yaml": "b: 1\n", "env": "B=1\n", "toml": "b = 1\n"}[form]
    assert merged(form, text, new)[0] != text
