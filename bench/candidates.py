"""The candidates: the upstream itself, nginx, the gateway with three client dialects, and other gateways on request."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from .programs import BUILD, GATEWAY_CORE, LOAD_CORE, Missing, Program, find, free_port

MODEL = "mock-model"


@dataclass
class Candidate:
    """Something to send load to. ``load`` has the options of the load generator for it."""

    name: str
    program: Program
    port: int
    load: list[str] = field(default_factory=list)
    peer: bool = False
    idle_bytes: int = 0


def mock(port: int) -> Program:
    return Program("mock-upstream", [str(BUILD / "mock"), str(port)], LOAD_CORE)


def nginx(upstream_port: int) -> Candidate:
    program, port = find("nginx", "nginx-light"), free_port()
    place = BUILD / "nginx"
    place.mkdir(exist_ok=True)
    temporary = "".join(f"  {kind}_temp_path {place}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (place / "nginx.conf").write_text(
        f"""daemon off;
worker_processes 1;
pid {place}/pid;
error_log {place}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
{temporary}  upstream mock {{ server 127.0.0.1:{upstream_port}; keepalive 2048; }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 1000000000;
    location / {{ proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""
    )
    return Candidate("nginx", Program("nginx", [program, "-p", str(place), "-c", str(place / "nginx.conf")], GATEWAY_CORE), port)


def gateway_config(upstream_port: int, store: str = "none") -> str:
    """Nothing is stored except in the named store, so that figures from before the store existed can be compared."""
    path = BUILD / f"bench-{'off' if store == 'none' else f'on-{zlib.crc32(store.encode()):x}'}.toml"
    path.write_text(
        f'[server]\ndiscover = false\n[store]\nurl = "{store}"\ncontent = true\n'
        f'[upstreams.mock]\ndialect = "openai_chat"\nbase_url = "http://127.0.0.1:{upstream_port}/v1"\n'
    )
    return str(path)


def gateway_command() -> str:
    return shutil.which("streamglot", path=str(sys.exec_prefix) + "/bin") or "streamglot"


def streamglot(upstream_port: int, dialect: str, store: str = "none") -> Candidate:
    """One gateway for each client dialect, so that the memory of one does not count for another."""
    port = free_port()
    command = [gateway_command(), "serve", "--port", str(port), "--config", gateway_config(upstream_port, store)]
    name = f"streamglot, {dialect} client"
    return Candidate(name, Program(f"streamglot-{dialect}", command, GATEWAY_CORE), port, ["-F", dialect])


# --- peers, each in a separate environment that `make clean` removes


def _environment(name: str, *packages: str) -> str:
    place = BUILD / name
    if not (place / ".ready").exists():
        print(f"installing {name} into {place} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        installed = subprocess.run(
            [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
            capture_output=True,
            text=True,
            check=False,
        )
        if installed.returncode:
            raise Missing(f"{name} cannot be installed: {installed.stderr.strip()[-300:]}")
        (place / ".ready").touch()
    return str(place / "bin")


def litellm(upstream_port: int) -> Candidate:
    programs, port = _environment("litellm", "litellm[proxy]"), free_port()
    config = BUILD / "litellm.yaml"
    config.write_text(
        f"""model_list:
  - model_name: {MODEL}
    litellm_params: {{model: openai/{MODEL}, api_base: "http://127.0.0.1:{upstream_port}/v1", api_key: sk-mock}}
litellm_settings: {{telemetry: false}}
"""
    )
    command = [f"{programs}/litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # as the others: no keys on this machine
    return Candidate("LiteLLM", Program("litellm", command, GATEWAY_CORE, quiet), port, ["-M", MODEL], peer=True)


_TENSORZERO = """
import sys, time
from openai import OpenAI
from tensorzero import patch_openai_client

client = patch_openai_client(OpenAI(api_key="unused"), config_file=sys.argv[1], async_setup=False)
print(client.base_url, flush=True)
time.sleep(1e6)
"""


def tensorzero(upstream_port: int) -> Candidate:
    """The gateway that its package embeds into a program that uses the openai client; it chooses its port itself."""
    programs = _environment("tensorzero", "tensorzero", "openai")
    config, script = BUILD / "tensorzero.toml", BUILD / "tensorzero_embedded.py"
    config.write_text(
        f"""[gateway]
observability.enabled = false

[models.{MODEL}]
routing = ["mock"]

[models.{MODEL}.providers.mock]
type = "openai"
model_name = "{MODEL}"
api_base = "http://127.0.0.1:{upstream_port}/v1/"
api_key_location = "none"
"""
    )
    script.write_text(_TENSORZERO)
    program = Program("tensorzero", [f"{programs}/python", str(script), str(config)], GATEWAY_CORE)
    port = program.announced_port()
    load = ["-M", f"tensorzero::model_name::{MODEL}", "-u", "/openai/v1/chat/completions"]
    return Candidate("TensorZero", program, port, load, peer=True)


OWN: list[tuple[str, Callable[[int], Candidate]]] = [
    ("nginx", nginx),
    ("streamglot", lambda port: streamglot(port, "chat")),
    ("streamglot", lambda port: streamglot(port, "anthropic")),
    ("streamglot", lambda port: streamglot(port, "responses")),
]
PEERS: list[tuple[str, Callable[[int], Candidate]]] = [("LiteLLM", litellm), ("TensorZero", tensorzero)]
