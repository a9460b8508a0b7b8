"""NVIDIA Dynamo rules: what its Triton worker requires to serve `/v1/classify` or `/v1/embeddings`.

The worker registers every model that is no step of an ensemble, and does not start where one of them does not fit. Read
in github.com/ai-dynamo/dynamo, components/src/dynamo/triton, between its releases 1.6 and 1.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_WORKER = "components/src/dynamo/triton of github.com/ai-dynamo/dynamo"
_DOCUMENTATION = "docs/backends/triton/README.md of github.com/ai-dynamo/dynamo, 'Known limitations'"

INPUT = Rule(
    "dynamo.input",
    "error",
    "a model has one TYPE_STRING input, of dims [ 1 ] or [ -1 ], and no other one that requests have to have",
    f"{_WORKER}, pooling_handlers.py (_resolve_input_name)",
)
OUTPUT = Rule(
    "dynamo.output",
    "error",
    "a model has one TYPE_FP32 output",
    f"{_WORKER}, pooling_handlers.py (_resolve_output_name)",
)
LABELS = Rule(
    "dynamo.labels",
    "warning",
    "the output of a classifier has a label_filename: /v1/classify answers with no label otherwise",
    f"{_WORKER}, pooling_handlers.py (_generate_classify)",
)
VERSIONS = Rule(
    "dynamo.versions",
    "warning",
    "Triton serves one version of a model: Dynamo routes by the model's name alone",
    f"{_DOCUMENTATION}, 'Model version selection'",
)
HALF = Rule(
    "dynamo.half-precision",
    "error",
    "no input or output is TYPE_FP16 or TYPE_BF16, which Dynamo's tensors do not have",
    f"{_DOCUMENTATION}, 'FP16 / BFloat16 tensors'",
)

RULES: tuple[Rule, ...] = (INPUT, OUTPUT, LABELS, VERSIONS, HALF)

_LEAVE_OUT = "compile it with `frontend: dynamo` under `pipeline`; or serve it from another repository"


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of one model; nothing for a step of an ensemble, or if the repository is not for Dynamo."""
    if not surroundings.dynamo or model.config is None or model.name in _ensemble_steps(surroundings):
        return
    yield from _inputs(model, model.config)
    yield from _outputs(model, model.config)
    if len(model.loaded) > 1:
        versions = ", ".join(map(str, model.loaded))
        yield model.faulted(
            VERSIONS,
            f"Triton serves the versions {versions}, and Dynamo answers by the newest one",
            "version_policy",
            remedy="let it serve the newest one: version_policy { latest { num_versions: 1 } }",
        )


def _inputs(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    from plansmith.triton.messages import model_config_pb2 as pb

    texts = [entry for entry in config.input if entry.data_type == pb.TYPE_STRING]
    if len(texts) != 1:
        names = f": {', '.join(entry.name for entry in texts)}" if texts else ""
        yield model.faulted(
            INPUT, f"it has {len(texts)} TYPE_STRING inputs{names}, and has to have one", "input", remedy=_LEAVE_OUT
        )
    elif list(texts[0].dims) not in ([1], [-1]):
        dims = ", ".join(map(str, texts[0].dims))
        yield model.faulted(
            INPUT,
            f"{texts[0].name} has dims [ {dims} ], and a text of a request is [ 1 ]",
            "input",
            texts[0].name,
            remedy="give it dims: [ 1 ]",
        )
    for tensor in config.input:
        if len(texts) == 1 and tensor.data_type != pb.TYPE_STRING and not tensor.optional:
            yield model.faulted(
                INPUT,
                f"requests have to have {tensor.name}, and Dynamo sends {texts[0].name} alone",
                "input",
                tensor.name,
                remedy="make it optional, or leave it out",
            )
    yield from _halves(model, config)


def _outputs(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    from plansmith.triton.messages import model_config_pb2 as pb

    numbers = [entry for entry in config.output if entry.data_type == pb.TYPE_FP32]
    if len(numbers) != 1:
        names = f": {', '.join(entry.name for entry in numbers)}" if numbers else ""
        yield model.faulted(
            OUTPUT, f"it has {len(numbers)} TYPE_FP32 outputs{names}, and has to have one", "output", remedy=_LEAVE_OUT
        )
    elif not numbers[0].label_filename:
        yield model.faulted(
            LABELS,
            f"{numbers[0].name} has no label_filename",
            "output",
            numbers[0].name,
            remedy="name a file with a label in each line, beside the configuration; an embedding needs none",
        )


def _halves(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    from plansmith.triton.messages import model_config_pb2 as pb

    for tensor in (*config.input, *config.output):
        if tensor.data_type in {pb.TYPE_FP16, pb.TYPE_BF16}:
            yield model.faulted(
                HALF,
                f"{tensor.name} is {pb.DataType.Name(tensor.data_type)}",
                tensor.name,
                remedy="serve it as TYPE_FP32: only inside of the model the precision may be lower",
            )


def _ensemble_steps(surroundings: CheckContext) -> set[str]:
    configs = (model.config for model in surroundings.models.values() if model.config is not None)
    return {step.model_name for config in configs for step in config.ensemble_scheduling.step}
