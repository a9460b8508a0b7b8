"""Targets: serving runtimes and their versions, read from configs/targets or from a file of the user."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from plansmith.config.messages import KnownKeys, validation_message, yaml_message
from plansmith.config.target_names import runtime_names, shipped_file, target_names
from plansmith.config.yaml_loading import load_yaml
from plansmith.errors import EngineError
from plansmith.formatting import count
from plansmith.records.fields import HIDDEN, Confidential
from plansmith.records.model import Device, Record

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


DEFAULT_TARGET = "local-cpu"
_FILE_SUFFIXES = (".yaml", ".yml")


def _require_text(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError("write the version in quotes, as YAML makes a number of it")  # noqa: TRY004 - for pydantic
    return value


Version = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$"), BeforeValidator(_require_text)]


class OnnxRuntime(Record):
    """ONNX Runtime version, with the newest opset and IR version that it loads and runs."""

    version: Version
    max_opset: int = Field(ge=1)
    max_ir_version: int = Field(ge=1)


class Runtime(Record):
    """Serving runtime as described by a target file.

    `devices`: what its models can run on; the first is meant where nothing else is said.
    `images`: the container image for each device.
    `triton`, `cuda`, `driver`, `python`, `tensorrt`, `onnxruntime`, `dali`: what the container has (the driver: what
    it was made for); None where that is not known.
    `min_compute_capability`: of the GPU, such as "7.5".
    `sources`: where the values come from.
    `inferred`: fields that nothing states and that must be verified in the image. An inferred `dali` is the newest that
    the container has at least: DALI opens what an older one of the same major version serialised (2.4.0 was tried with
    pipelines of 2.0.0, 2.1.0 and 2.2.0; of 1.0, https://github.com/NVIDIA/DALI_extra/pull/57), and DALI 2 and 1 do not
    open each other's arithmetic.
    """

    description: str
    flavour: Literal["triton", "sagemaker"]
    devices: tuple[Device, ...]
    images: Annotated[dict[Device, str], Confidential()] = Field(default_factory=dict)
    triton: Version | None = None
    cuda: Version | None = None
    driver: Version | None = None
    python: Version | None = None
    tensorrt: Version | None = None
    min_compute_capability: Version | None = None
    onnxruntime: OnnxRuntime | None = None
    dali: Version | None = None
    sources: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.devices:
            raise ValueError("devices names none; write [gpu, cpu], [gpu] or [cpu]")
        absent = [name for name in self.inferred if getattr(self, name, None) is None]
        if absent:
            raise ValueError(f"inferred names {', '.join(absent)}, which the target does not have")
        return self


class Target(Runtime):
    """Target: a serving runtime, and the device that a repository's models run on there.

    `name`: what `load_target` takes; the whole path for a file of the user's own.
    """

    name: str
    device: Device


def load_target(name: str) -> Target:
    """Load a target by its name, such as triton-26.08 or triton-26.08-cpu, or from a .yaml file.

    Raises:
        EngineError: there is no such target, or its file has problems; names every one of them.
    """
    if is_target_file(name):
        runtime = _read_runtime(Path(name).absolute())
        return Target(name=name_of(name), device=runtime.devices[0], **_fields(runtime))
    if name not in target_names():
        raise _unknown(name)
    on_cpu = name not in runtime_names()
    runtime = _read_runtime(shipped_file(name))
    return Target(name=name, device="cpu" if on_cpu else runtime.devices[0], **_fields(runtime))


def require_onnxruntime(target: Target) -> OnnxRuntime:
    """Return the target's ONNX Runtime, or raise an error.

    Raises:
        EngineError: nothing says which one it has.
    """
    if target.onnxruntime is None:
        raise EngineError(
            f"nothing says which ONNX Runtime {target.name} has, so that its models cannot be made and checked for it",
            remedy=f"take another --target; or {_to_find(target, 'onnxruntime')}",
        )
    return target.onnxruntime


def require_dali(target: Target) -> str:
    """Return the version of the target's DALI, or raise an error.

    Raises:
        EngineError: nothing says which one it has, or that it has one.
    """
    if target.dali is None:
        raise EngineError(
            f"nothing says which DALI {target.name} has, so that no pipeline can be made and checked for it",
            remedy="write preprocessing: python into the spec; or take another --target; or"
            f" {_to_find(target, 'dali')}",
        )
    return target.dali


def _to_find(target: Target, field: str) -> str:
    """Return the remedy for required information that a target file lacks."""
    place = (
        f"{target.name}, as `{field}:`"
        if is_target_file(target.name)
        else f"a copy of `plansmith targets {target.name} --yaml`, and pass --target COPY.yaml"
    )
    image = target.images.get(target.device, "its image").format(account="ACCOUNT", region="REGION")
    return f"find the version in {image} and write it into {place}"


def is_target_file(name: str) -> bool:
    """Whether a target is given as a file of the user."""
    return name.endswith(_FILE_SUFFIXES)


def name_of(name: str) -> str:
    """Return the full name of a target: its name, or the absolute path of its file."""
    return str(Path(name).absolute()) if is_target_file(name) else name


def _fields(runtime: Runtime) -> dict[str, Any]:
    return {name: getattr(runtime, name) for name in Runtime.model_fields}


def _read_runtime(file: Traversable) -> Runtime:
    import yaml

    try:
        values = load_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(
            f"cannot read the target file {file}: {error.strerror}",
            remedy="put it back, as what was compiled for it needs it too, or name another",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise EngineError(f"{file} is not YAML: {yaml_message(error)}", remedy="mend the file") from error
    try:
        return Runtime.model_validate(values)
    except ValidationError as invalid:
        known = KnownKeys(Runtime.model_json_schema())
        problems = [_problem(error, known) for error in invalid.errors()]
    raise EngineError(
        "\n  ".join([f"{count(len(problems), 'problem')} in the target file {file}:", *problems]),
        remedy=f"mend the file; `plansmith targets {DEFAULT_TARGET} --yaml` prints one to start from",
    )


def _problem(error: Mapping[str, Any], known: KnownKeys) -> str:
    keys = [str(key) for key in error["loc"]]
    place = ".".join(keys)
    message = validation_message(error)
    if error["type"] == "extra_forbidden":
        text = f"is unknown{known.suggestion(keys)}"
    elif error["type"] == "missing":
        text = "is missing"
    else:
        value = error["input"]
        text = (
            message if not place or value is HIDDEN or isinstance(value, dict | list) else f"{message} (got {value!r})"
        )
    return f"{place}: {text}" if place else text


def _unknown(name: str) -> EngineError:
    known = [target for target in target_names() if "gpu" not in name or not target.endswith("-cpu")]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.7 if "gpu" in name else 0.6)
    remedy = f"did you mean {' or '.join(near)}? `plansmith targets` lists all" if near else ""
    return EngineError(
        f"there is no target {name!r}",
        remedy=remedy or f"`plansmith targets` lists all; {DEFAULT_TARGET} is the one for this machine",
    )
