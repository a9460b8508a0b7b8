"""Endpoints, and archives for their variants."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from plansmith.sagemaker.archives import Archive
from plansmith.sagemaker.endpoint.desired import DesiredState, desired_state
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.endpoint.spec import EndpointSpec

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/endpoint"


def write_endpoint(folder: Path, **changes: Any) -> Path:
    """The file of an endpoint with one variant; `variant` changes that one, and None leaves a key out."""
    variant = {"models": ["bert"], "instance_type": "ml.g5.xlarge", **changes.pop("variant", {})}
    values: dict[str, Any] = {
        "name": "bert",
        "region": "us-east-1",
        "role": ROLE,
        "bucket": "s3://models/endpoints",
        "variants": [variant],
        **changes,
    }
    path = folder / "endpoint.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return path


def endpoint_spec(folder: Path, **changes: Any) -> EndpointSpec:
    """The spec of such a file."""
    return read_endpoint(write_endpoint(folder, **changes))


def archive(folder: Path, name: str = "bert", content: str = "", **changes: Any) -> Archive:
    """An archive with a plan for the GPUs of ml.g5, and some content."""
    text = (content + name).encode()
    digest = hashlib.sha256(text).hexdigest()
    path = folder / f"{name}-3-{digest[:8]}.tar.gz"
    path.write_bytes(text)
    values: dict[str, Any] = {
        "file": str(path),
        "digest": digest,
        "bytes": len(text),
        "unpacked_bytes": 400 << 20,
        "models": (name,),
        "default_model": name,
        "releases": (f"{name}@3",),
        "target": "sagemaker-26.05",
        "device": "gpu",
        "compute_capabilities": ("8.6",),
        "tensorrt": "10.16.0.72",
    }
    return Archive(**{**values, **changes})


def cpu_archive(folder: Path, name: str = "bert", **changes: Any) -> Archive:
    """An archive without plans, for the CPU."""
    values = {"target": "sagemaker-26.05-cpu", "device": "cpu", "compute_capabilities": (), "tensorrt": None}
    return archive(folder, name, **{**values, **changes})


def desired(spec: EndpointSpec, *archives: Archive) -> DesiredState:
    """The desired state of an endpoint whose variants all serve the same archives."""
    return desired_state(spec, {variant.name: archives for variant in spec.all_variants})
