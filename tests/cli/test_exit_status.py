"""Commands end with one sentence and a status if standard output, standard error or a package is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell import PROGRAM, Shell, chunk, text_answer
from waiting import WAIT_SECONDS
from warm import default_signals

CORPUS = Path(__file__).parents[1] / "corpus"
RECORDING = str(CORPUS / "anthropic" / "thinking.sse")
COMMANDS = [
    ["--help"],
    ["--version"],
    ["--show-completion", "bash"],
    ["logs", "--help"],
    ["query", "-m", "replay", "hi"],
    ["query", "-m", "replay", "--json", "hi"],
    ["query", "-m", "replay", "--markdown", "always", "hi"],
    ["reply", "hi"],
    ["models"],
    ["formats"],
    ["doctor", "--offline"],
    ["setup"],
    ["config", "show"],
    ["translate", RECORDING],
    ["replay", "--speed", "0", RECORDING],
    ["logs", "list"],
    ["logs", "show", "--json"],
    ["logs", "export"],
    ["sessions", "list"],
    ["keys", "list"],
]


def run(shell: Shell, arguments: list[str], redirections: str) -> subprocess.CompletedProcess[bytes]:
    """By a real shell, because only it can close a stream of a program that it starts."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirections}', "bash", PROGRAM, *arguments],
        env=shell.environment,
        cwd=shell.home,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=2 * WAIT_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """One store for all: the command lists exist, and no test counts them."""
    shell = Shell(tmp_path_factory.mktemp("home"))
    shell.run("query", "-m", "replay", "first")
    shell.run("keys", "add", "somebody")
    return shell


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_an_output_that_cannot_be_written_is_an_error(kept: Shell, arguments: list[str]) -> None:
    for redirection, reason in ((">/dev/full", b"No space left on device"), (">&-", b"Bad file descriptor")):
        done = run(kept, arguments, redirection)
        assert done.returncode == 1
        *_, last = done.stderr.splitlines()
        assert last == b"streamglot: standard output: " + reason


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_closed_pipe_gives_no_error_message(kept: Shell, arguments: list[str]) -> None:
    done = kept.run_into_closed_pipe(*arguments)
    assert done.returncode == 128 + signal.SIGPIPE
    assert b"rror" not in done.stderr
    assert b"streamglot:" not in done.stderr


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_streams_that_are_not_needed_may_be_closed(kept: Shell, redirections: str) -> None:
    done = run(kept, ["query", "-m", "replay", "hi"], redirections)
    assert (done.returncode, done.stdout) == (0, b"You said: hi\n")
    assert run(kept, ["nosuch"], redirections).returncode == 2


def test_a_file_does_not_become_standard_output(shell: Shell) -> None:
    """The database is the first file that is opened. It must not get the number of the closed stream."""
    for redirections in (">&-", ">&- 2>&-", ">&- 2>&- <&-"):
        assert run(shell, ["query", "-m", "replay", "hi"], redirections).returncode == 1
    done = shell.run("logs", "list", "--json")
    assert (done.returncode, done.stdout.count(b"\n"), done.stderr) == (0, 3, b"")


def test_a_status_is_kept_when_the_output_cannot_be_flushed(shell: Shell) -> None:
    """If the command did not flush, the interpreter would make the status 120."""
    shell.add_recording("cut", [chunk(content="half an ans")])
    assert run(shell, ["query", "-m", "cut", "--json", "x"], ">/dev/full").returncode == 1
    assert run(shell, ["query", "--nosuch"], ">/dev/full").returncode == 2
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    script = "\n".join(
        (
            "import os, sys",
            "from streamglot.cli.exit_status import Ended, exit_status",
            "def command():",
            "    print('x' * 100)",
            "    os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
            "    raise Ended(129)",
            "sys.exit(exit_status(command))",
        )
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (129, b"")


def test_signals_that_come_while_the_program_ends_change_nothing() -> None:
    script = "\n".join(
        (
            "import os, signal, sys",
            "from streamglot.cli.exit_status import exit_status, stoppable",
            "def command():",
            "    try:",
            "        with stoppable():",
            "            os.kill(os.getpid(), signal.SIGHUP)",
            "    finally:",
            "        os.kill(os.getpid(), signal.SIGHUP)",
            "        os.kill(os.getpid(), signal.SIGTERM)",
            "sys.exit(exit_status(command))",
        )
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, preexec_fn=default_signals)
    assert (done.returncode, done.stderr) == (129, b"")


def test_characters_that_the_output_lacks_are_escaped(shell: Shell) -> None:
    shell.add_recording("song", text_answer("caf\u00e9 \u2192 \U0001f600"))
    done = shell.run("query", "-m", "song", "x", environment={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\\xe9 \\u2192 \\U0001f600\n", b"")


# --- packages that are not installed


def without(packages: str, code: str, home: Path) -> subprocess.CompletedProcess[str]:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in packages.split())
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "STREAMGLOT_SERVER__DISCOVER": "false"}
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {blocked}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=home,
        timeout=2 * WAIT_SECONDS,
    )


CORE = "aiohttp httptools click typer rich prompt_toolkit uvicorn prometheus_client genai_prices pydantic"
MAIN = "from streamglot.cli import main; sys.argv = ['streamglot', {!r}]; main()"


def test_the_core_alone_says_what_to_install(tmp_path: Path) -> None:
    done = without(CORE, MAIN.format("query"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'streamglot[cli]'" in done.stderr
    done = without(CORE, MAIN.format("--version"), tmp_path)
    assert (done.returncode, done.stdout[:11], done.stderr) == (0, "streamglot ", "")


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("wsproto", ["serve", "--port", "0"], "server"),
        ("prometheus_client", ["serve", "--port", "0"], "server"),
        ("httptools", ["query", "-m", "replay", "hi"], "client"),
        ("rich", ["formats", "--help", "query"], ""),
    ],
)
def test_a_command_names_the_package_that_it_lacks(tmp_path: Path, missing: str, command: list[str], extra: str) -> None:
    done = without(missing, f"from streamglot.cli import main; sys.argv[1:] = {command}; main()", tmp_path)
    assert "Traceback" not in done.stderr
    if not extra:
        assert done.returncode == 0
        return
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"the package {missing!r} is not installed" in done.stderr
    assert f"pip install 'streamglot[{extra}]'" in done.stderr


def test_the_client_names_the_package_that_it_lacks(tmp_path: Path) -> None:
    code = "import streamglot\ntry:\n    streamglot.Client()\nexcept streamglot.ConfigError as error:\n    print(error)"
    done = without("httptools aiohttp", code, tmp_path)
    assert done.stdout == "the package 'httptools' is not installed; install it with: pip install 'streamglot[client]'\n"
    code = "import streamglot\nprint([*streamglot.run_in_thread(model='replay', messages='hi')][-1].message)"
    assert "pip install 'streamglot[client]'" in without("httptools", code, tmp_path).stdout


def test_a_module_of_our_own_that_is_missing_is_a_defect(tmp_path: Path) -> None:
    done = without("streamglot.cli.commands.models", MAIN.format("formats"), tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
