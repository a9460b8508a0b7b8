"""What somebody else wrote into a store leads nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.destination import Publication
from plansmith.records.model import FileEntry
from plansmith.records.release import MANIFEST_FILE
from plansmith.stores.backend.documents import content_of
from plansmith.stores.layout import catalogue_key, release_key
from plansmith.stores.publication import publish_release
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, pull
from plansmith.system.digest import Digester, digest_of_files

from ..support.stores.releases import MODEL, make_release


def publish(store: Store, folder: Path) -> Publication:
    """Publish a release of a repository of its own."""
    release = make_release(folder / "repository")
    return publish_release(store, release.folder, release.manifest, Digester(folder / "no-memo", read_only=True))


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "model/../../outside", "a\\b", "model//x", ""])
def test_list_with_outside_files_refused(in_folder: Store, tmp_path: Path, path: str) -> None:
    """A list that names files outside is refused."""
    publication = publish(in_folder, tmp_path)
    files = (FileEntry(path=path, bytes=1, sha256="0" * 64),)
    document = {**_list(in_folder, publication), "files": [files[0].model_dump()], "digest": digest_of_files(files)}
    forged = in_folder.find(MODEL)[1].model_copy(update={"digest": digest_of_files(files)})
    in_folder.objects.put(release_key(MODEL, forged.digest), json.dumps(document).encode())
    with pytest.raises(RepositoryError, match="would lie outside of its release") as caught:
        in_folder.release(MODEL, forged)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["../models", "a/b", "", ".hidden", "x" * 200, "a\n"])
def test_names_lead_nowhere_else(in_folder: Store, name: str) -> None:
    with pytest.raises(RepositoryError, match="is no name") as caught:
        in_folder.catalogue(name)
    assert caught.value.remedy


def test_invalid_digest_refused(in_folder: Store, tmp_path: Path) -> None:
    """A digest that is no digest is refused."""
    publish(in_folder, tmp_path)
    forged = in_folder.find(MODEL)[1].model_copy(update={"digest": "../../marker"})
    with pytest.raises(RepositoryError, match="where a SHA-256 should") as caught:
        in_folder.release(MODEL, forged)
    assert caught.value.remedy


@pytest.mark.parametrize("field", ["model", "digest"])
def test_list_of_other_release_refused(in_folder: Store, tmp_path: Path, field: str) -> None:
    """A list that says to be of another release is refused."""
    publication = publish(in_folder, tmp_path)
    document = {**_list(in_folder, publication), field: "../../outside"}
    in_folder.objects.put(release_key(MODEL, publication.digest), json.dumps(document).encode())
    with pytest.raises(RepositoryError, match="is damaged: it lists other files") as caught:
        in_folder.release(MODEL, in_folder.find(MODEL)[1])
    assert caught.value.remedy


def test_catalogue_of_other_model_refused(in_folder: Store, tmp_path: Path) -> None:
    """A catalogue that says to be of another model is refused."""
    publish(in_folder, tmp_path)
    forged = in_folder.catalogue(MODEL).model_copy(update={"model": "../../outside"})
    in_folder.objects.put(catalogue_key(MODEL), content_of(forged))
    for attempt in (in_folder.catalogue, in_folder.roll_back):
        with pytest.raises(RepositoryError, match=r"is damaged: it is that of '\.\./\.\./outside'") as caught:
            attempt(MODEL)
        assert caught.value.remedy


@pytest.mark.parametrize(
    "forged",
    [
        {"model_files": ("model.onnx", "../../../../../secret")},
        {"support_files": ("../../../../secret",)},
        {"support_files": ("config.pbtxt", "labels.txt")},
    ],
)
def test_manifest_with_other_view_refused(in_folder: Store, tmp_path: Path, forged: dict[str, tuple[str, ...]]) -> None:
    """A manifest that has a view made of other files is refused."""
    release = make_release(tmp_path / "repository")
    (tmp_path / "secret").write_text("not ours")
    manifest = release.manifest.model_copy(update={"package": release.manifest.package.model_copy(update=forged)})
    (release.folder / MANIFEST_FILE).unlink()
    (release.folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    publish_release(in_folder, release.folder, manifest, Digester(tmp_path / "no-memo", read_only=True))
    mirror = Mirror(tmp_path / "mirror")
    catalogue, version = in_folder.find(MODEL)
    with (
        mirror.lock(in_folder, alone=True),
        pytest.raises(RepositoryError, match="holds other files than its manifest says") as caught,
    ):
        pull(in_folder, mirror, catalogue, version)
    assert caught.value.remedy
    assert mirror.repository.versions(MODEL) == []


def _list(in_folder: Store, told: Publication) -> dict[str, object]:
    item = in_folder.objects.read(release_key(MODEL, told.digest))
    assert item is not None
    document: dict[str, object] = json.loads(item.content)
    return document
