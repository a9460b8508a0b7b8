"""Readers of documents that others wrote: YAML files, deliveries of registries, what lies in a store, signatures."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from plansmith.config.loader import read_specs
from plansmith.config.service_triggers import HookRegistry, HubRegistry, MlflowRegistry, SageMakerRegistry
from plansmith.config.targets import load_target
from plansmith.errors import PlansmithError
from plansmith.fleet.zoo.entries import read_list
from plansmith.loadtest.plan_file import read_plan
from plansmith.records.release import MANIFEST_FILE
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.prices import read_prices
from plansmith.signing.policy import read_policy
from plansmith.signing.verification import check_signature, claimed_signer
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.layout import MARKER_KEY, catalogue_key, fingerprint_key, live_key, release_key
from plansmith.stores.publication import publish_release
from plansmith.stores.reader import list_versions, look_over, read_fingerprint
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, pull
from plansmith.system.digest import Digester
from plansmith.triggers.configuration import read_triggered
from plansmith.triggers.registries import huggingface, mlflow, s3_messages, sagemaker, webhook
from plansmith.triggers.registries.delivery import RequestRejected
from plansmith.triggers.registries.parse import read_delivery

from ..certificates import KeyRing
from ..deliveries.recorded import DELIVERIES, SECRET, signed
from ..source import PACKAGE
from ..stores.releases import MODEL, make_release
from .files import deep, in_file
from .reader import Reader

_CONFIGS = PACKAGE / "configs"
_YAML = (b"&a ", b"*a", b"<<: *a", b"- ", b"? ", b"!!python/object:os.system ", b"!!set ", b"1e999", b"~", b"$X", b"\t")
_FILES = {MANIFEST_FILE: "ab" * 32, "model/model.onnx": "cd" * 32}
_JSON = (b"null", b"[", b"{}", b"1e999", b"-1", b'"\\ud800"', b"NaN", b"\xff")


def laughs(key: str = "x", levels: int = 30) -> bytes:
    """A YAML mapping whose value has two to the power of `levels` items, by aliases."""
    lists = "\n".join(f"- &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels))
    return f"{key}:\n- &a0 [lol, lol]\n{lists}\n".encode()


def merges(levels: int = 30) -> bytes:
    """The same by merge keys."""
    lines = [f"k{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}" for n in range(1, levels)]
    return "\n".join(["k0: &m0 {a: 1}", *lines]).encode()


def _yaml(read: Callable[[Path], object], key: str, *seeds: bytes | Path) -> Reader:
    """A reader of a YAML file.

    Args:
        read: the file.
        key: one that such a file has.
        seeds: real ones.
    """

    def inputs() -> Sequence[bytes]:
        return [seed if isinstance(seed, bytes) else seed.read_bytes() for seed in seeds]

    hostile = [laughs(key), merges(), b"a: &a [*a]", b"? [a]\n: b", b"[" * 600]
    hostile += [b"x: " + b"9" * 5000, b"x: 2026-06-31"]
    return Reader(in_file("x.yaml", read), inputs, _YAML, lambda: hostile, count=50)


def _delivery(read: Callable[[bytes], object], *seeds: object) -> Reader:
    """A reader of a request's body, which is signed rightly."""
    texts = [seed if isinstance(seed, bytes) else json.dumps(seed).encode() for seed in seeds]
    return Reader(lambda data, _: read(data), lambda: texts, _JSON, deep, (RequestRejected,))


def _mlflow(body: bytes) -> object:
    config = MlflowRegistry(type="mlflow", tracking_uri="http://x", secrets=("env:S",))
    sent = signed(mlflow.HEADERS, body)
    return read_delivery(config, sent.headers, body, registry="r", secrets=(SECRET,), now=1795165608)


def _hub(body: bytes) -> object:
    config = HubRegistry(type="hub", secrets=("env:S",))
    return read_delivery(config, {huggingface.HEADER: "s"}, body, registry="r", secrets=("s",), now=0)


def _hook(body: bytes) -> object:
    config, sent = HookRegistry(type="hook", secrets=("env:S",), sources=("hf:*",)), signed(webhook.HEADERS, body)
    return read_delivery(config, sent.headers, body, registry="r", secrets=(SECRET,), now=1795165608)


def _sagemaker(body: bytes) -> object:
    config = SageMakerRegistry(type="sagemaker", queue_url="https://q", sources=("s3://models/*",))
    return sagemaker.read_message(config, body, registry="r")


_PUSH = {
    "event": {"action": "update", "scope": "repo.content"},
    "repo": {"type": "model", "name": "some-user/some-repo", "id": "6366c000a2abcdf2fd69a080"},
    "updatedRefs": [{"ref": "refs/heads/main", "oldSha": None, "newSha": "5" * 40}],
}
_WRITTEN = {
    "Records": [
        {
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": "a/%5FREADY"}},
        }
    ]
}
_APPROVED = {
    "source": "aws.sagemaker",
    "detail-type": "SageMaker Model Package State Change",
    "account": "123456789012",
    "time": "2026-11-01T00:00:00Z",
    "detail": {
        "ModelPackageGroupName": "g",
        "ModelPackageArn": "arn:aws:sagemaker:us-east-1:123456789012:model-package/g/3",
        "ModelApprovalStatus": "Approved",
        "ModelPackageStatus": "Completed",
        "InferenceSpecification": {"Containers": [{"ModelDataUrl": "s3://models/a.tar.gz", "Image": "i"}]},
    },
}


@cache
def _published() -> tuple[tempfile.TemporaryDirectory[str], dict[str, bytes]]:
    """A store with a release, and its documents by key."""
    folder = tempfile.TemporaryDirectory(prefix="plansmith-fuzz-store-")
    place = Path(folder.name)
    store, release = Store(FolderObjects(place / "store")), make_release(place / "repository")
    digest = publish_release(store, release.folder, release.manifest, Digester(place / "memo", read_only=True)).digest
    keys = {"marker": MARKER_KEY, "catalogue": catalogue_key(MODEL), "list": release_key(MODEL, digest)}
    documents = {name: (place / "store" / key).read_bytes() for name, key in keys.items()}
    return folder, {**documents, **{f"{name} key": key.encode() for name, key in keys.items()}}


_OTHERS = {"report": live_key(MODEL, "loader"), "fingerprint": fingerprint_key(MODEL)}


def _stored(name: str) -> Reader:
    """A reader of a store in which one document is another's."""

    def read(data: bytes, folder: Path) -> object:
        source, documents = _published()
        shutil.copytree(Path(source.name, "store"), folder / "store", copy_function=_link)
        place = folder / "store" / (_OTHERS.get(name) or documents[f"{name} key"].decode())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(data)
        store, mirror = Store(FolderObjects(folder / "store")), Mirror(folder / "mirror")
        found = [_caught(lambda: look_over(store)), _caught(lambda: list_versions(store, MODEL))]
        found += [_caught(lambda: read_fingerprint(store, MODEL)), _caught(lambda: store.find(f"{MODEL}@1"))]
        if name in _OTHERS:
            return found
        with mirror.lock(store, alone=True):
            catalogue, version = store.find(f"{MODEL}@1")
            return found, pull(store, mirror, catalogue, version)

    def seeds() -> Sequence[bytes]:
        report = b'{"loader": "l", "model": "answers", "alias": "current", "wanted": 1, "serves": [1], "seen": "now"}'
        own = _published()[1].get(name, report)
        return [own, own.replace(b"answers", b"../../x")]

    return Reader(read, seeds, (*_JSON, b"../", b"9" * 400), deep, count=20)


def _caught(read: Callable[[], object]) -> object:
    try:
        return read()
    except PlansmithError as error:
        return error


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


@cache
def _ring() -> tuple[tempfile.TemporaryDirectory[str], KeyRing]:
    folder = tempfile.TemporaryDirectory(prefix="plansmith-fuzz-keys-")
    ring = KeyRing(Path(folder.name))
    ring.certificate("root", "root", is_authority=True)
    ring.certificate("release", "root")
    return folder, ring


def _policy(path: Path) -> object:
    (path.parent / "release.pub").write_bytes((_ring()[1].folder / "release.pub").read_bytes())
    return read_policy(path)


def _signature(data: bytes, _: Path) -> object:
    ring = _ring()[1]
    policies = ring.policy(), ring.policy(certificates=[{"roots": "root.crt"}])
    return claimed_signer(data), [check_signature(data, _FILES, policy) for policy in policies]


def _signatures() -> Sequence[bytes]:
    ring = _ring()[1]
    real = [ring.signer().sign(_FILES, "m"), ring.signer(certified=True).sign(_FILES, "m")]
    document = json.loads(real[0])
    odd = [
        document | {"verificationMaterial": {"publicKey": None}},
        document | {"verificationMaterial": {"publicKey": []}},
        document | {"verificationMaterial": {"certificate": {"rawBytes": "MAAA"}}},
    ]
    return [*real, *(json.dumps(value).encode() for value in odd)]


DOCUMENTS = {
    "spec": _yaml(
        lambda path: read_specs(path, {}),
        "triton",
        _CONFIGS / "models" / "all-MiniLM-L6-v2-int8.yaml",
        b"defaults: {target: [local-cpu], shapes: {x: 1x4}}\nmodels: [{source: hf:bert}, {source: 'onnx:m.onnx'}]\n",
    ),
    "service": _yaml(read_triggered, "flows", _CONFIGS / "service.yaml"),
    "endpoint": _yaml(read_endpoint, "variants", _CONFIGS / "endpoints" / "t5.yaml"),
    "load-plan": _yaml(
        read_plan, "stages", b"models: [{model: m, weight: 3, batches: [1, 4]}]\nstages: [{users: 1, seconds: 3}]\n"
    ),
    "prices": _yaml(read_prices, "usd_per_hour", b"region: x\nas_of: 2026-11-01\nusd_per_hour: {ml.g5.xlarge: 1.12}\n"),
    "zoo": _yaml(
        read_list,
        "models",
        b"parts: {a: &a {x: 32}}\nmodels: [{timm: resnet18}, {model_type: bert, task: fill-mask, config: *a}]\n",
    ),
    "target": _yaml(lambda path: load_target(str(path)), "images", _CONFIGS / "targets" / "triton-26.08.yaml"),
    "policy": _yaml(_policy, "keys", b"keys: [release.pub]\nrevoked: ['" + b"ab" * 32 + b"']\n"),
    "mlflow-delivery": _delivery(_mlflow, *(sent.body for sent in DELIVERIES)),
    "hub-delivery": _delivery(_hub, _PUSH),
    "hook-delivery": _delivery(_hook, {"model": "m", "version": "1", "source": "hf:a/b"}),
    "s3-message": _delivery(lambda body: s3_messages.written_keys(body, bucket="b"), _WRITTEN),
    "sagemaker-message": _delivery(_sagemaker, _APPROVED),
    **{f"store-{name}": _stored(name) for name in ("marker", "catalogue", "list", *_OTHERS)},
    "signature": Reader(_signature, _signatures, _JSON, deep, count=30),
}
