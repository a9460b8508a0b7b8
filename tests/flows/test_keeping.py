"""`verify` and `collect` as flow runs: tables tell what was found, and a run fails where something is wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store
from plansmith.triton.repository.repository import ModelRepository

from ..support.prefect.flow_calls import run_flows, tables_of
from ..support.prefect.prefect_server import PrefectServer
from ..support.stores.answering import publish_answering
from ..support.stores.filled import fill

pytestmark = pytest.mark.services


def test_damage_fails_the_run(prefect: PrefectServer, tmp_path: Path) -> None:
    """Damage fails the run, and its table tells of everything."""
    root = tmp_path / "artifacts" / "repository"
    publish_answering(root, "whole")
    harmed = publish_answering(root, "harmed")
    fill(Store(FolderObjects(tmp_path / "store")), tmp_path, 1)
    by_digest: dict[str, Any] = {"on_server": False, "stores": ["store"], "folder": str(tmp_path)}
    (well,) = run_flows(prefect, tmp_path, ("verify", by_digest))
    graph = ModelRepository(root).release("harmed", harmed.version) / "model" / "model.onnx"
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes()[::-1])
    (harm,) = run_flows(prefect, tmp_path, ("verify", {**by_digest, "model": "harmed"}))
    assert well[0] == "Completed"
    assert [place["place"] for place in well[1]["places"]] == [str(root), str(tmp_path / "store")]
    assert harm == ["Failed", "RepositoryError"]
    first, second = tables_of(prefect, "verify", tmp_path)
    assert first[:2] == ("verify: all models", "COMPLETED")
    assert first[3] == "2 places, 3 versions, 0 damaged"
    assert second[:2] == ("verify: harmed", "FAILED")
    assert second[3] == "1 place, 1 version, 1 damaged"
    assert second[2][0] == {
        "place": str(root),
        "version": "harmed@1",
        "looked at": "model/model.onnx",
        "found": "its content is not what was published",
    }


def test_findings_logged_before_removal(prefect: PrefectServer, tmp_path: Path) -> None:
    """What was found is logged before it is removed."""
    (tmp_path / "artifacts" / "repository").mkdir(parents=True)
    log = tmp_path / "artifacts" / "logs" / "old-worker.log"
    log.parent.mkdir()
    log.write_text("log")
    os.utime(log, (time.time() - 40 * 86400,) * 2)
    options: dict[str, Any] = {"older_than": "39d", "folder": str(tmp_path)}
    dry, done, wrong = run_flows(
        prefect,
        tmp_path,
        ("collect", {**options, "dry_run": True}),
        ("collect", options),
        ("collect", {**options, "stores": ["nowhere"]}),
    )
    assert (dry[0], done[0], wrong) == ("Completed", "Completed", ["Failed", "RepositoryError"])
    assert [item["name"] for item in dry[1]["found"] if item["kind"] == "log"] == [str(log)]
    assert dry[1]["gone"] == []
    assert str(log) in [item["name"] for item in done[1]["gone"]]
    assert not log.exists()
    looked, tidied, failed = tables_of(prefect, "collect", tmp_path)
    assert looked[:2] == ("collect: a look alone", "COMPLETED")
    assert tidied[:2] == ("collect: 39d", "COMPLETED")
    assert [row["state"] for row in tidied[2] if row["name"] == str(log)] == ["gone"]
    assert failed[1] == "FAILED"
    assert [row["why"] for row in failed[2] if row["state"] == "left alone"] == [f"{tmp_path / 'nowhere'} is no store"]


def test_places_read_from_specs(prefect: PrefectServer, tmp_path: Path) -> None:
    """The places are read from the specs, and a fresh service fails nothing."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "one.yaml").write_text("{source: hf:one, publish: ../store}")
    options: dict[str, Any] = {"specs": ["specs"], "folder": str(tmp_path)}
    fresh, nothing = run_flows(prefect, tmp_path, ("verify", {**options, "on_server": False}), ("collect", options))
    assert (fresh[0], nothing[0]) == ("Completed", "Completed")
    store = str(tmp_path / "store")
    assert fresh[1]["absent"] == [str(tmp_path / "artifacts" / "repository"), store]
    assert nothing[1]["absent"] == [store, str(tmp_path / "artifacts")]
    publish_answering(tmp_path / "elsewhere", "whole")
    moved = {**options, "on_server": False, "overrides": {"repository": str(tmp_path / "elsewhere"), "publish": []}}
    ((state, report),) = run_flows(prefect, tmp_path, ("verify", moved))
    assert state == "Completed"
    assert [place["place"] for place in report["places"]] == [str(tmp_path / "elsewhere")]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"older_than": "soon"}, "older_than"),
        ({"keep": 0}, "keep"),
        ({"stores": [{"to": "ftp://x"}]}, "stores"),
        ({"kept": 1}, "kept"),
    ],
)
def test_wrong_parameter_refused(wrong: dict[str, Any], says: str) -> None:
    """A parameter that is unknown or of a wrong kind is refused."""
    from prefect.exceptions import ParameterTypeError, SignatureMismatchError

    from plansmith.flows.collect import collect

    with pytest.raises((ParameterTypeError, SignatureMismatchError), match=says):
        collect.validate_parameters(wrong)
    assert collect.validate_parameters({"stores": ["s3://models/prod", {"to": "store"}]})
