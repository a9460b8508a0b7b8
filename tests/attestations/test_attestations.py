"""Provenance and bill of materials of a release: what they say, and that other tools read them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plansmith.attestations.materials import BuildRun, materials_of
from plansmith.attestations.slsa import LOCAL_BUILDER, attestations_of, builder_id
from plansmith.cli.inspection import explain
from plansmith.errors import UsageError
from plansmith.records.destination import Location
from plansmith.records.release import (
    BOM_FILE,
    MANIFEST_FILE,
    PROVENANCE_FILE,
    Manifest,
    PackedDistribution,
    PackedEnvironment,
    ReleasedModel,
)
from plansmith.stores.publication import publish_release
from plansmith.stores.store import Store, open_objects
from plansmith.stores.sync.mirror import Mirror, pull
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

from ..support.faults.packages import MODEL, draft_of, source_model, write_package
from ..support.report.attestations import check_release, names_in_bom, read_bom, read_provenance
from ..support.report.examples import int8_release

COMMIT = "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d"
BUILDER = "https://ci.example.com/builders/models"
RUN = BuildRun(BUILDER, datetime(2026, 11, 20, 13, 1, tzinfo=UTC), {"torch": "2.15.0"})
TEXTS = {"spec.yaml": "source: hf:org/x\n", "reproduce.sh": "#!/bin/sh\n", "build.log": "für alle\n"}


@pytest.fixture
def manifest() -> Manifest:
    """A release in INT8 of a model of the hub, with data and held-out samples."""
    release = int8_release()
    source = release.source.model_copy(update={"location": "org/x", "revision": COMMIT, "licence": "apache-2.0"})
    return release.model_copy(update={"source": source})


@pytest.fixture
def folder(manifest: Manifest, tmp_path: Path) -> Path:
    """A folder with the manifest and both files."""
    (tmp_path / MANIFEST_FILE).write_text(manifest.model_dump_json())
    for name, text in attestations_of(manifest, RUN, TEXTS).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def publish(repository: ModelRepository, package: Path) -> Path:
    """Publish a package with both files, as a compile does; return the release's folder."""
    draft = draft_of(write_package(package, str(package)))
    published = repository.publish(
        draft,
        {entry.path: package / entry.path for entry in draft.files},
        TEXTS,
        allow_interface_change=False,
        force=False,
        described=lambda numbered: attestations_of(numbered, RUN, TEXTS),
    )
    return Path(published.release)


def test_provenance_names_origin(manifest: Manifest) -> None:
    """The provenance names source and commit, data, parameters, tools, builder and times; other libraries read it."""
    statement = read_provenance(attestations_of(manifest, RUN, TEXTS)[PROVENANCE_FILE])
    definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    source, data = definition["resolvedDependencies"]
    assert source["uri"] == f"pkg:huggingface/org/x@{COMMIT}"
    assert source["digest"] == {"gitCommit": COMMIT}
    assert manifest.data is not None
    assert data["annotations"]["plansmith:digest"] == manifest.data.digest
    assert definition["externalParameters"]["spec"] == manifest.spec
    assert definition["internalParameters"]["target"] == "local-cpu"
    assert run["builder"] == {"id": BUILDER, "version": {"plansmith": "0.1.0", "torch": "2.15.0"}}
    assert run["metadata"]["startedOn"] == "2026-11-20T13:01:00Z"
    assert run["metadata"]["finishedOn"] == "2026-11-20T13:05:12.345Z"


def test_locations_left_out_of_provenance(manifest: Manifest) -> None:
    """Where things are on the machine, and where the release goes, is no parameter: nor what a location holds."""
    places = {"publish": [{"to": "s3://bucket/models"}], "load_into": ["triton:8001"], "shared_cache": "/mnt/cache"}
    elsewhere = manifest.model_copy(update={"spec": {**manifest.spec, **places, "artifacts": "/home/me"}})
    assert attestations_of(elsewhere, RUN, TEXTS) == attestations_of(manifest, RUN, TEXTS)


def test_paths_by_name_in_both_files(manifest: Manifest) -> None:
    """A model, data and files of one's own are named without the folder that they lie in on the building machine."""
    own = {
        "source": "onnx:/home/me/models/x.onnx",
        "data": {"path": "/home/me/texts.csv"},
        "pipeline": {"script": "../me/answer.py", "models": {"other": {"source": "hf:/home/me/bert"}}},
        "tensorrt": {"plugins": ["/home/me/plugin.so"]},
        "lowering": {"keep": ["/encoder/layer.0/MatMul"]},
    }
    source = source_model(scheme="onnx", location="/home/me/models/x.onnx", digest="7" * 64)
    made_here = manifest.model_copy(update={"spec": manifest.spec | own, "source": source})
    texts = attestations_of(made_here, RUN, TEXTS)
    assert "/me/" not in "".join(texts.values())
    definition = read_provenance(texts[PROVENANCE_FILE])["predicate"]["buildDefinition"]
    spec = definition["externalParameters"]["spec"]
    assert (spec["source"], spec["data"]["path"], spec["pipeline"]["script"]) == (
        "onnx:x.onnx",
        "texts.csv",
        "answer.py",
    )
    assert spec["lowering"] == own["lowering"], "a node's name is no path"
    assert definition["resolvedDependencies"][0]["name"] == "onnx:x.onnx"
    assert definition["resolvedDependencies"][0]["annotations"]["plansmith:digest"] == "7" * 64


SOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "a commit of the hub": (
        {"scheme": "timm", "location": "timm/x", "revision": COMMIT},
        f"pkg:huggingface/timm/x@{COMMIT}",
    ),
    "a version of MLflow": (
        {"scheme": "hf", "location": "/cache/3", "registered": "mlflow:models:/ranker", "revision": "3"},
        "mlflow:models:/ranker/3",
    ),
    "a bucket": (
        {"scheme": "onnx", "location": "/cache/b", "registered": "s3://models/a b", "revision": "5" * 64},
        f"s3://models/a%20b@{'5' * 64}",
    ),
    "a file": (
        {"scheme": "onnx", "location": "models/x.onnx", "digest": "7" * 64},
        f"urn:plansmith:digest:{'7' * 64}",
    ),
}


@pytest.mark.parametrize(("values", "uri"), SOURCES.values(), ids=SOURCES.keys())
def test_source_has_uri(values: dict[str, Any], uri: str, manifest: Manifest) -> None:
    """Every kind of source has a URI that names exactly one content."""
    (material, *_) = materials_of(manifest.model_copy(update={"source": source_model(**values)}))
    assert material.uri == uri


def test_companion_models_are_materials(manifest: Manifest) -> None:
    """Models beside the release's own are materials with their data, which may be a data set of the hub."""
    data = manifest.data
    assert data is not None
    companion = ReleasedModel.model_construct(
        source=source_model(scheme="hf", location="org/y", revision="v1"),
        data=data.model_copy(update={"revision": COMMIT}),
        engine=manifest.engine,
    )
    spec = {**manifest.spec, "pipeline": {"models": {"reader": {"data": {"dataset": "org/questions@main"}}}}}
    release = manifest.model_copy(update={"spec": spec, "beside": {"reader": companion}})
    statement = read_provenance(attestations_of(release, RUN, TEXTS)[PROVENANCE_FILE])
    model, questions = statement["predicate"]["buildDefinition"]["resolvedDependencies"][2:]
    assert (model["uri"], "digest" in model) == ("pkg:huggingface/org/y@v1", False)
    assert questions["uri"] == "https://huggingface.co/datasets/org/questions"
    assert questions["digest"] == {"gitCommit": COMMIT}
    assert {"source:reader", "data:reader"} <= {
        entry["bom-ref"] for entry in read_bom(attestations_of(release, RUN, TEXTS)[BOM_FILE])["components"]
    }


@pytest.mark.slow
def test_bom_lists_model_card_and_components(manifest: Manifest, folder: Path) -> None:
    """The bill of materials is valid and has the card, the source, the data, libraries and files; lib4sbom reads it."""
    wheel = PackedDistribution(name="numpy", version="2.4.0", wheel="numpy-2.4.0.whl", sha256="ab" * 32)
    packed = PackedEnvironment(
        file="env.tar.gz",
        python="3.12",
        machine="x86_64",
        glibc="2.34",
        bytes=1,
        unpacked_bytes=1,
        distributions=(wheel,),
    )
    package = manifest.package.model_copy(update={"environment": packed})
    (folder / BOM_FILE).write_text(
        attestations_of(manifest.model_copy(update={"package": package}), RUN, TEXTS)[BOM_FILE], encoding="utf-8"
    )
    bom = read_bom((folder / BOM_FILE).read_text(encoding="utf-8"))
    model = bom["metadata"]["component"]
    assert (model["type"], model["version"]) == ("machine-learning-model", manifest.release_digest)
    card = model["modelCard"]
    assert card["modelParameters"]["inputs"][0] == {"format": "input_ids: int64 [batch, sequence]"}
    metrics = {entry["type"]: entry for entry in card["quantitativeAnalysis"]["performanceMetrics"]}
    assert metrics["Spearman's rank correlation"]["value"] == "0.8648"
    components = {entry["bom-ref"]: entry for entry in bom["components"]}
    assert components["source"]["purl"] == f"pkg:huggingface/org/x@{COMMIT}"
    assert components["source"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert components["data"]["type"] == "data"
    assert components["tool:torch"]["scope"] == "excluded"
    assert components["packed:numpy-2.4.0.whl"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert components["file:model/model.onnx"]["hashes"] == [{"alg": "SHA-256", "content": "a7" * 32}]
    assert {entry["name"] for entry in components.values()} <= names_in_bom(folder / BOM_FILE)


def test_same_manifest_gives_same_files(manifest: Manifest) -> None:
    """The same manifest gives the same bytes, whatever its version number."""
    renumbered = manifest.model_copy(update={"version": 17})
    assert attestations_of(renumbered, RUN, TEXTS) == attestations_of(manifest, RUN, TEXTS)


@pytest.mark.slow
def test_release_and_its_pulled_copy_carry_both(tmp_path: Path) -> None:
    """A release's provenance covers its files, and still does after a store gave the release another number."""
    store = Store(open_objects(Location(to=str(tmp_path / "store")), Path()))
    digester = Digester(tmp_path / "digests", read_only=True)
    repositories = [ModelRepository(tmp_path / name) for name in ("first", "second")]
    for number, repository in enumerate(repositories, 1):
        folder = publish(repository, tmp_path / repository.root.name / "package")
        check_release(folder)
        assert publish_release(store, folder, repository.manifest(MODEL, 1), digester).version == number
    mirror = Mirror(tmp_path / "mirror")
    with mirror.lock(store, alone=False):
        pulled = pull(store, mirror, *store.find(f"{MODEL}@2"))
    check_release(Path(pulled.release))
    assert (Path(pulled.release) / PROVENANCE_FILE).read_bytes() == (folder / PROVENANCE_FILE).read_bytes()


def test_inspect_shows_attestations(folder: Path) -> None:
    """`inspect` tells of both in a line each, and of each file in full."""
    release = explain(folder)
    assert f"pkg:huggingface/org/x@{COMMIT}; by {BUILDER}, finished 2026-11-20T13:05:12.345Z" in release["provenance"]
    assert release["bill of materials"] == (
        "CycloneDX 1.6, 5 components: 1 data, 2 file, 1 library, 1 machine-learning-model"
    )
    provenance = explain(folder / PROVENANCE_FILE)
    assert (provenance["builder"], provenance["tools"]["torch"]) == (BUILDER, "2.15.0")
    assert len(provenance["files"]) == 3 + len(TEXTS) + 1
    assert explain(folder / BOM_FILE)["licences"] == {"hf:org/x": "Apache-2.0"}


def test_inspect_shows_release_without_attestations(folder: Path) -> None:
    """A release of an earlier plansmith has neither; one that is damaged is told, and refused by itself."""
    (folder / PROVENANCE_FILE).write_text("{}")
    (folder / BOM_FILE).unlink()
    release = explain(folder)
    assert release["bill of materials"] == "none: compiled before plansmith wrote it"
    assert "no provenance that can be read" in release["provenance"]
    with pytest.raises(UsageError, match="no in-toto statement"):
        explain(folder / PROVENANCE_FILE)


def test_builder_set_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the builder; what is no URI, or holds a password, is refused and not shown."""
    monkeypatch.delenv("PLANSMITH_BUILDER_ID", raising=False)
    assert builder_id() == LOCAL_BUILDER
    monkeypatch.setenv("PLANSMITH_BUILDER_ID", BUILDER)
    assert builder_id() == BUILDER
    for wrong in ("the CI", "https://user:hunter2@ci.example.com", "https://ci.example.com/?token=hunter2"):
        monkeypatch.setenv("PLANSMITH_BUILDER_ID", wrong)
        with pytest.raises(UsageError) as refused:
            builder_id()
        assert "hunter2" not in str(refused.value)
