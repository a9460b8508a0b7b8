"""How much of an archive the models of an instance load into memory, by the instance's GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.records.release import CONFIG_FILE
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.renamed import Content

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_ENVIRONMENT = "EXECUTION_ENV_PATH"


def loaded_bytes(entries: Mapping[str, Content], capabilities: Iterable[str]) -> dict[str, int]:
    """The bytes of the files that are loaded at most, by compute capability; under "" on instances without a GPU.

    Plans for other GPUs stay on the disk. So do packed Python environments, whose size says nothing of their memory.

    Args:
        entries: the files of the archive by their paths.
        capabilities: compute capabilities, such as "8.6".
    """
    configs = {path.partition("/")[0]: _config(content) for path, content in entries.items() if _is_config(path)}
    environments = {f"{model}/{_environment(config)}" for model, config in configs.items()}
    sizes = {path: content.size for path, content in entries.items() if path not in environments}
    plans: dict[str, int] = {}
    for model, config in configs.items():
        for capability, file in config.cc_model_filenames.items():
            size = sum(size for path, size in sizes.items() if path.split("/", 2)[::2] == [model, file])
            plans[capability] = plans.get(capability, 0) + size
    shared = sum(sizes.values()) - sum(plans.values())
    return {"": sum(sizes.values()), **{name: shared + plans.get(name, 0) for name in capabilities}}


def _is_config(path: str) -> bool:
    return path.partition("/")[2] == CONFIG_FILE


def _config(content: Content) -> pb.ModelConfig:
    source = content.source
    return parse_config(source.read_text(encoding="utf-8") if isinstance(source, Path) else source.decode())


def _environment(config: pb.ModelConfig) -> str:
    """The file beside a configuration that it names as its environment; empty for none."""
    return str(config.parameters[_ENVIRONMENT].string_value).rpartition("/")[2] if config.parameters else ""
