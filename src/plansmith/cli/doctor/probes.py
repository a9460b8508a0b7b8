"""Probes: a child process of `plansmith doctor` imports one library or queries one service, and reports JSON.

    python -m plansmith.cli.doctor.probes NAME PARENT [--offline]

A library that crashes or hangs takes this process along and not the doctor. Standard output carries one document:
`{"facts": {…}}`, `{"broken": "why"}`, or `{}` for a library that is not installed. Secrets stay in this process: the
Prefect API's credentials go to the Prefect API alone, and addresses are reported without the user and password in them.
"""

from __future__ import annotations

import base64
import http.client
import importlib
import importlib.metadata
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault
from plansmith.system.process import dying_with
from plansmith.system.urls import without_secrets

ANSWER_SECONDS = 3

Facts = dict[str, Any]


def torch(*, online: bool) -> Facts:
    """Probe PyTorch, and whether it can use a GPU."""
    del online
    import torch as library

    return {
        "version": library.__version__,
        "cuda_build": library.version.cuda or "",
        "cuda_usable": bool(library.version.cuda) and library.cuda.is_available(),
    }


def timm(*, online: bool) -> Facts:
    """Probe the timm package, which imports torchvision."""
    del online
    import timm as library

    return {"version": library.__version__}


def transformers(*, online: bool) -> Facts:
    """Probe the transformers package, which disables a PyTorch that is too old for it."""
    del online
    import transformers as library
    from transformers.utils.import_utils import is_torch_available

    return {"version": library.__version__, "takes_torch": is_torch_available()}


def onnxruntime(*, online: bool) -> Facts:
    """Probe ONNX Runtime and its execution providers."""
    del online
    import onnxruntime as library

    return {"version": library.__version__, "providers": library.get_available_providers()}


def tritonclient(*, online: bool) -> Facts:
    """Probe Triton's client, both protocols."""
    del online
    for protocol in ("grpc", "http"):
        importlib.import_module(f"tritonclient.{protocol}")
    return {"version": importlib.metadata.version("tritonclient")}


def huggingface_hub(*, online: bool) -> Facts:
    """Probe the Hugging Face Hub client: its endpoint, offline mode, token, and whether the Hub responds."""
    import huggingface_hub as library
    from huggingface_hub import constants

    facts = {
        "version": library.__version__,
        "endpoint": without_secrets(constants.ENDPOINT),
        "held_offline": bool(constants.HF_HUB_OFFLINE),
        "token": library.get_token() is not None,
    }
    if online and not facts["held_offline"]:
        facts["answer"] = ask(constants.ENDPOINT, method="HEAD")
    return facts


def gpus(*, online: bool) -> Facts:
    """Probe the GPUs that CUDA may use, or why the driver does not report them."""
    del online
    from plansmith.system.gpus import visible_gpus

    facts: Facts = {"gpus": [], "problem": "", "remedy": "", "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
    try:
        return facts | {"gpus": [gpu.model_dump(mode="json") for gpu in visible_gpus()]}
    except EnvironmentFault as fault:
        return facts | {"problem": fault.message, "remedy": fault.remedy}


def tensorrt(*, online: bool) -> Facts:
    """Probe TensorRT; importing it loads its libraries."""
    del online
    library = importlib.import_module("tensorrt")
    return {"version": library.__version__}


def tensorrt_rtx_bindings(*, online: bool) -> Facts:
    """Probe TensorRT-RTX; importing it loads its libraries."""
    del online
    from plansmith.compilers.trt.rtx import BINDINGS

    library = importlib.import_module(BINDINGS)
    return {"version": library.__version__}


def prefect(*, online: bool) -> Facts:
    """Probe Prefect and its API, set by environment or profile; checks health first, then credentials.

    The health route answers anyone, so only the second answer tells whether the credentials are right.
    """
    import prefect as library
    from prefect.settings import get_current_settings

    api = get_current_settings().api
    facts: Facts = {"version": library.__version__, "url": without_secrets(api.url or "")}
    if online and api.url:
        facts["health"] = ask(f"{api.url}/health")
        if facts["health"].get("status") == http.client.OK:
            secret = api.auth_string or api.key
            scheme = "Basic" if api.auth_string else "Bearer"
            value = secret.get_secret_value() if secret else ""
            token = base64.b64encode(value.encode()).decode() if api.auth_string else value
            facts["access"] = ask(f"{api.url}/admin/version", {"Authorization": f"{scheme} {token}"} if token else {})
    return facts


def prefect_server(*, online: bool) -> Facts:
    """Probe Prefect's own server, which some versions of FastAPI break."""
    del online
    importlib.import_module("prefect.server.api.server")
    return {}


def boto3(*, online: bool) -> Facts:
    """Probe the AWS SDK and its local configuration: no metadata service, no container, no external program."""
    import boto3 as library
    import botocore.session
    from botocore.exceptions import BotoCoreError

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    facts: Facts = {"version": library.__version__, "region": "", "credentials": "", "unreadable": ""}
    facts["endpoint"] = without_secrets(endpoint)
    try:
        session = botocore.session.get_session()
        providers = session.get_component("credential_provider")
        for asks_others in ("custom-process", "container-role", "iam-role"):
            providers.remove(asks_others)
        credentials = providers.load_credentials()
        facts |= {
            "region": session.get_config_variable("region") or "",
            "credentials": credentials.method if credentials else "",
        }
    except BotoCoreError as error:
        facts["unreadable"] = str(error)
    return facts | ({"answer": ask(endpoint)} if online and endpoint else {})


def mlflow(*, online: bool) -> Facts:
    """Probe the MLflow server of MLFLOW_TRACKING_URI; needs no MLflow package."""
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    facts: Facts = {"uri": without_secrets(address)}
    if online and urlsplit(address).scheme in {"http", "https"}:
        facts["answer"] = ask(f"{address.rstrip('/')}/health")
    return facts


def ask(address: str, headers: dict[str, str] | None = None, *, method: str = "GET") -> Facts:
    """Request a URL and return `{"status": 200}`, or `{"error": "why not"}`. Does not follow redirects."""
    request = urllib.request.Request(without_secrets(address), headers=headers or {}, method=method)  # noqa: S310
    try:
        with urllib.request.build_opener(_NoRedirection).open(request, timeout=ANSWER_SECONDS) as answer:
            return {"status": answer.status}
    except urllib.error.HTTPError as refusal:
        with refusal:
            return {"status": refusal.code}
    except TimeoutError:
        return {"error": f"no answer in {ANSWER_SECONDS} s"}
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return {"error": f"no answer in {ANSWER_SECONDS} s"}
        return {"error": str(getattr(error.reason, "strerror", None) or error.reason)}
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {"error": str(error) or type(error).__name__}


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows no redirects, so that credentials only go to the configured address."""

    def redirect_request(self, *arguments: Any) -> None:
        """Return the redirect itself as the response."""


PROBES: dict[str, Callable[..., Facts]] = {
    "torch": torch,
    "timm": timm,
    "transformers": transformers,
    "onnxruntime": onnxruntime,
    "tritonclient": tritonclient,
    "huggingface_hub": huggingface_hub,
    "gpus": gpus,
    "tensorrt": tensorrt,
    "tensorrt_rtx_bindings": tensorrt_rtx_bindings,
    "prefect": prefect,
    "prefect_server": prefect_server,
    "boto3": boto3,
    "mlflow": mlflow,
}


def import_plainly(name: str) -> Facts:
    """Import a library without further checks."""
    library = importlib.import_module(name)
    return {"version": getattr(library, "__version__", "")}


def probe(name: str, *, online: bool) -> dict[str, Any]:
    """Return the result document: facts, why it is broken, or nothing for what is not installed."""
    try:
        return {"facts": PROBES[name](online=online) if name in PROBES else import_plainly(name)}
    except ModuleNotFoundError as missing:
        return {} if missing.name in {name, name.partition("_server")[0]} else {"broken": _error_line(missing)}
    except Exception as error:  # noqa: BLE001 - whatever a library raises is what the doctor wants to know
        return {"broken": _error_line(error)}


def _error_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def main(name: str, parent: str, *options: str) -> None:
    """Print the result on standard output; redirects the library's own output to standard error."""
    if not dying_with(int(parent))():
        return
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump(probe(name, online="--offline" not in options), answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
