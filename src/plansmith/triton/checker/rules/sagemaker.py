"""SageMaker rules: what its Triton front end requires of a single-model or multi-model repository."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from plansmith.compilers.trt.plan_header import read_header
from plansmith.compilers.trt.versions import NEWEST_MAJOR, numbers_of
from plansmith.errors import EngineError
from plansmith.records.release import CONFIG_FILE
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder
from plansmith.triton.checker.reader import folders_of, is_plain
from plansmith.triton.checker.rules.backends import plan_file, tensorrt
from plansmith.triton.checker.rules.ensemble.rules import is_ensemble
from plansmith.triton.repository.ensembles import steps_of

_SERVE = "docker/sagemaker/serve of github.com/triton-inference-server/server"
_FRONT_END = "src/sagemaker_server.cc of github.com/triton-inference-server/server"
_AWS = "https://docs.aws.amazon.com/sagemaker/latest/dg/deploy-models-frameworks-triton.html"

LAYOUT = Rule(
    "sagemaker.layout",
    "error",
    "the root of the archive holds a folder for each model, and no configuration or folder around them",
    f"{_SERVE} ('Incorrect directory structure')",
)
STRAY = Rule(
    "sagemaker.stray-folder",
    "error",
    "every folder in the root of the archive, hidden ones too, is a model: the start script counts them",
    f"{_SERVE} (find -mindepth 1 -maxdepth 1 -type d)",
)
SEVERAL = Rule(
    "sagemaker.default-model",
    "warning",
    "where there are several models, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME names the one to load",
    f"{_SERVE}; {_AWS}",
)
ENSEMBLE = Rule(
    "sagemaker.ensemble",
    "warning",
    'in a multi-model endpoint, one of several models is an ensemble, whose configuration says platform: "ensemble"',
    f"{_FRONT_END} (SageMakerMMELoadModel looks for these very words)",
)
MANY = Rule(
    "sagemaker.many-models",
    "note",
    "an archive has at most five models: they are loaded and unloaded together",
    f"{_FRONT_END} ('smaller ensembles are recommended')",
)
NAME = Rule(
    "sagemaker.name",
    "error",
    "names of models are letters, digits, dots, dashes and underscores, as a shell script passes them on unquoted",
    _SERVE,
)
TENSORRT = Rule(
    "sagemaker.tensorrt",
    "error",
    "plans are of TensorRT 10 or earlier: no container of SageMaker has TensorRT 11 yet",
    "sagemaker-tritonserver.json of github.com/aws/sagemaker-python-sdk, whose newest version is 26.05",
)
DECOUPLED = Rule(
    "sagemaker.decoupled",
    "warning",
    "models answer every request once: the front end serves decoupled models by generate alone, and not at all with"
    " many models",
    f"{_FRONT_END}; SAGEMAKER_TRITON_INFERENCE_TYPE of {_SERVE}",
)

RULES: tuple[Rule, ...] = (LAYOUT, STRAY, SEVERAL, ENSEMBLE, MANY, NAME, TENSORRT, DECOUPLED)

_MOST_MODELS = 5
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_SEEN_AS_ENSEMBLE = re.compile(r'platform:(\s)*"ensemble"')


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of one model; nothing if the repository is not for SageMaker."""
    if not surroundings.is_for_sagemaker:
        return
    if not _PLAIN.fullmatch(model.name):
        remedy = "give it a name of letters, digits, dots, dashes and underscores"
        yield NAME.broken(
            f"the start script cannot pass on the name {model.name!r}",
            model=model.name,
            place=model.name,
            remedy=remedy,
        )
    if model.config is not None and model.config.model_transaction_policy.decoupled:
        yield DECOUPLED.broken(
            "the model is decoupled, and the front end answers a request once",
            model=model.name,
            place=model.place(),
            line=model.line_of("decoupled"),
            remedy="answer once; or set SAGEMAKER_TRITON_INFERENCE_TYPE=generate_stream in a single-model endpoint",
        )
    if model.backend == tensorrt.BACKEND or model.platform == tensorrt.PLATFORM:
        for number in model.loaded:
            for path in plan_file.plan_files(model, number):
                yield from _plan(model, path)


def check_whole(surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of the whole repository; nothing if it is not for SageMaker."""
    if not surroundings.is_for_sagemaker:
        return
    root = surroundings.root
    versions = [folder.name for folder in folders_of(root) if is_plain(folder.name) and not _is_model(folder)]
    if (root / CONFIG_FILE).is_file() or versions:
        place = CONFIG_FILE if (root / CONFIG_FILE).is_file() else versions[0]
        yield LAYOUT.broken(
            f"{place} lies in the root, and not in a folder with the model's name",
            model="",
            place=place,
            remedy="put all of it into a folder with the model's name, and make the archive of what is around that",
        )
        return
    strays = [folder.name for folder in folders_of(root) if not _is_model(folder)]
    for name in strays:
        yield _stray(root / name)
    models = {name: model for name, model in surroundings.models.items() if name not in strays}
    ensembles = [m for m in models.values() if m.config is not None and is_ensemble(m.config)]
    if len(models) > 1:
        yield SEVERAL.broken(
            f"there are {len(models)} models, and the start script loads one",
            model="",
            place=".",
            remedy=f"set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME={_default_model(models)} in the endpoint's environment",
        )
        yield from _of_many(models, ensembles)
    if len(models) > _MOST_MODELS:
        message = f"there are {len(models)} models, which are loaded and unloaded together"
        yield MANY.broken(
            message, model="", place=".", remedy="make smaller ensembles, each with an archive of its own"
        )


def _default_model(models: Mapping[str, ModelFolder]) -> str:
    """The default model, to which clients send requests: it calls others, and no other calls it."""
    steps = {name: steps_of(model.config) - {name} for name, model in models.items()}
    member_names = set().union(*steps.values())
    return min(models, key=lambda name: (name in member_names, not steps[name]))


def _of_many(models: dict[str, ModelFolder], ensembles: list[ModelFolder]) -> Iterator[Finding]:
    """Check which of several models a multi-model endpoint takes for the ensemble."""
    matches = [model for model in models.values() if _SEEN_AS_ENSEMBLE.search(model.text)]
    for model in ensembles:
        if model not in matches:
            yield ENSEMBLE.broken(
                'a multi-model endpoint looks for platform: "ensemble", which the configuration does not say so',
                model=model.name,
                place=model.place(),
                line=model.line_of("platform"),
                remedy='write platform: "ensemble", with a colon and these quotes',
            )
    if len(matches) > 1:
        names = ", ".join(model.name for model in matches)
        message = f"a multi-model endpoint takes one of the ensembles {names} by chance"
        yield ENSEMBLE.broken(message, model="", place=".", remedy="make an archive for each ensemble")
    if not ensembles:
        message = "none of the models is an ensemble, so that a multi-model endpoint takes one of them by chance"
        yield ENSEMBLE.broken(
            message, model="", place=".", remedy="make an archive for each model, or an ensemble of them"
        )


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() or any(inner.name.isdecimal() for inner in folders_of(folder))


def _stray(folder: Path) -> Finding:
    inner = [entry.name for entry in folders_of(folder) if _is_model(entry)]
    if inner:
        return LAYOUT.broken(
            f"{folder.name} is a folder around the models {', '.join(inner)}",
            model="",
            place=folder.name,
            remedy=f"make the archive of what is in it: tar -C {folder.name} -czf model.tar.gz .",
        )
    return STRAY.broken(
        f"{folder.name} is no model, and the start script takes it for one",
        model="",
        place=folder.name,
        remedy="leave it out of the archive; else name the model by SAGEMAKER_TRITON_DEFAULT_MODEL_NAME in the"
        " endpoint's environment, whose folder alone is looked at then",
    )


def _plan(model: ModelFolder, path: Path) -> Iterator[Finding]:
    try:
        built = read_header(path).tensorrt
    except EngineError:
        return  # `tensorrt.plan` says so
    if numbers_of(built)[0] >= NEWEST_MAJOR:
        yield TENSORRT.broken(
            f"{path.name} is of TensorRT {built}",
            model=model.name,
            place=model.place(path.relative_to(model.path).as_posix()),
            remedy="build it with TensorRT 10.16, for --target sagemaker-26.05",
        )
