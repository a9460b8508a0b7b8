"""A check finds what is broken in a model, and nothing in one that is sound."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import RepositoryError
from plansmith.triton.checker.checker import all_rules, check_repository
from plansmith.triton.checker.reader import as_python_reads
from plansmith.triton.checker.rules.core import batching, core, instance, layout, sequence, tensor, warmup
from plansmith.triton.checker.rules.core import file as file_rules
from plansmith.triton.checker.rules.core import text as text_rules

from ....support.checker.cases import (
    BROKEN_CASES,
    COMPLETED,
    CPU,
    HEAD,
    PROGRAM,
    SOUND,
    SOUND_CASES,
    Case,
    tensors,
    warm_up,
)
from ....support.checker.written import Written

OURS = (
    layout,
    text_rules,
    core,
    batching,
    tensor,
    instance,
    sequence,
    file_rules,
    warmup,
)
ELSEWHERE = {
    "layout.no-model": "test_an_empty_repository_is_told",
    "config.unreadable": "test_unreadable_configuration_told",
    "files.unreadable": "test_unreadable_configuration_told",
    "config.required": "test_uncompleting_server_needs_configuration",
    "config.newer-field": "test_field_held_against_target_age",
    "config.response-cache-off": "test_response_cache_needs_caching_server",
    "config.non-linear-dims": "test_non_linear_tensor_has_three_dims",
    "config.instance-count": "test_cpu_instance_count_better_written",
}
"""Rules that are broken by more than a model's folder, and the test of each."""

CPU_TARGET = load_target("local-cpu")
CACHE = ("--cache-config=local,size=1048576",)


@pytest.mark.parametrize("name", BROKEN_CASES)
def test_breakage_found_alone(name: str, written: Written) -> None:
    """What is broken is found, and nothing else."""
    case = BROKEN_CASES[name]
    written.add(name, case.config, case.files)
    findings = written.findings(target=CPU_TARGET, arguments=CACHE)
    assert {finding.rule for finding in findings} == set(case.rules), findings
    assert {finding.model for finding in findings} == {name}
    for finding in findings:
        assert finding.message
        assert finding.remedy
        assert (written.root / finding.place).exists() or "file" in finding.rule or "link" in finding.rule, finding


@pytest.mark.parametrize("name", SOUND_CASES)
def test_sound_repository_has_no_findings(name: str, written: Written) -> None:
    """Nothing is found in what is sound."""
    written.add(name, SOUND_CASES[name].config, SOUND_CASES[name].files)
    assert written.findings(target=CPU_TARGET, arguments=CACHE) == []


@pytest.mark.parametrize("name", COMPLETED)
def test_completed_fields_may_be_omitted(name: str, written: Written) -> None:
    """What Triton completes may be left out."""
    case = COMPLETED[name]
    written.add(name, case.config, case.files)
    assert {finding.rule for finding in written.findings(target=CPU_TARGET)} == set(case.rules)


def test_every_rule_has_breaking_case() -> None:
    """Every rule is broken by a case."""
    broken = {rule for case in (*BROKEN_CASES.values(), *COMPLETED.values()) for rule in case.rules} | set(ELSEWHERE)
    assert {rule.id for module in OURS for rule in module.RULES} == broken
    assert all(test in globals() for test in ELSEWHERE.values())


def test_rules_have_unique_ids_and_sources() -> None:
    """Rules have IDs of their own, and say what holds and who says so."""
    rules = all_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        area, dot, name = rule.id.partition(".")
        assert dot, rule
        assert area.isalnum(), rule
        assert name.replace("-", "").isalnum(), rule
        assert rule.summary, rule
        assert rule.source, rule


def test_an_empty_repository_is_told(written: Written) -> None:
    assert [finding.rule for finding in written.findings()] == ["layout.no-model"]


def test_endless_configuration_gets_little_memory(written: Written) -> None:
    """Of a configuration of gigabytes, no more is read than any has; what follows is no text."""
    folder = written.add("m", 'backend: "python"')
    os.truncate(folder / "config.pbtxt", 10 * 2**30)
    assert written.broken() == {("m", "config.encoding")}


def test_unreadable_configuration_told(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind those who run tests as root."""
    written.add("shut", SOUND, PROGRAM)
    written.add("graph", SOUND.replace("python", "onnxruntime"), {"1/model.onnx": "x"})
    shut = {written.root / "shut" / "config.pbtxt", written.root / "graph" / "1" / "model.onnx"}
    for name in ("read_bytes", "open"):
        monkeypatch.setattr(Path, name, _refusing(getattr(Path, name), shut))
    remedies = {(finding.model, finding.rule): finding.remedy for finding in written.findings()}
    assert remedies["shut", "config.unreadable"] == f"chmod a+r {written.root / 'shut' / 'config.pbtxt'}"
    assert remedies["graph", "files.unreadable"] == f"chmod a+r {written.root / 'graph' / '1' / 'model.onnx'}"


def test_unreadable_folder_told_as_typed(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be read is told as it was typed."""
    folder = written.add("a b", SOUND, PROGRAM)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and allowed(path, mode))
    (finding,) = [item for item in written.findings() if item.rule == "layout.unreadable"]
    assert finding.remedy == f"chmod -R a+rX '{folder}'"


def _refusing(was: Callable[..., object], shut: set[Path]) -> Callable[..., object]:
    def opened(path: Path, *args: object, **named: object) -> object:
        if path in shut:
            raise PermissionError(13, "Permission denied", str(path))
        return was(path, *args, **named)

    return opened


def test_uncompleting_server_needs_configuration(written: Written) -> None:
    """A server that completes nothing wants a configuration."""
    written.add("bare", None, PROGRAM)
    assert written.findings() == []
    assert written.broken(arguments=["--disable-auto-complete-config"]) == {("bare", "config.required")}
    assert written.broken(arguments=["--strict-model-config=true"]) == {("bare", "config.required")}
    assert written.findings(arguments=["--disable-auto-complete-config=false"]) == []


def test_field_held_against_target_age(written: Written) -> None:
    """A field is held against the age of the target."""
    written.add(
        "metered",
        f'{SOUND}model_metrics {{ metric_control [ {{ metric_identifier {{ family: "f" }}'
        " histogram_options { buckets: [ 1 ] } } ] }",
        PROGRAM,
    )
    newer = load_target("triton-26.08-cpu")
    assert written.findings(target=newer) == []
    older = newer.model_copy(update={"triton": "2.51.0"})
    assert written.broken(target=older) == {("metered", "config.newer-field")}


def test_platform_held_against_target_age(written: Written) -> None:
    """A platform is held against the age of the target."""
    for platform, file in (("torch_aoti", "model.pt2"), ("libtorch", "model.pt"), ("pytorch_libtorch", "model.pt")):
        text = f'platform: "{platform}"\n{tensors()}{CPU}'
        written.add(platform, text, {f"1/{file}": "x"})
        written.add(f"{platform}-named", f'backend: "pytorch"\n{text}', {f"1/{file}": "x"})
    written.add("by-file", f"{tensors()}{CPU}", {"1/model.pt2": "x"})
    newer = load_target("triton-26.08-cpu")
    assert written.findings() == []
    assert written.findings(target=newer) == []
    older = newer.model_copy(update={"triton": "2.62.0"})
    names = {f"{platform}{suffix}" for platform in ("torch_aoti", "libtorch") for suffix in ("", "-named")}
    assert written.broken(target=older) == {(name, "config.newer-field") for name in names}


def test_custom_runtime_opens_other_files(written: Written) -> None:
    """A runtime of its own opens other files than its backend."""
    text = f'backend: "pytorch"\nruntime: "model.py"\n{tensors()}{CPU}'
    written.add("torch2", text, PROGRAM)
    assert written.findings() == []


@pytest.mark.parametrize(
    ("backend", "severity"),
    [
        ("pyhton", "error"),
        ("onxruntime", "error"),
        ("tensorflow2", "warning"),
        ("my_python", "warning"),
        ("pythons3x", "warning"),
        ("acme", "note"),
    ],
)
def test_possible_other_backend_no_error(backend: str, severity: str, written: Written) -> None:
    """A backend that may well be another is no error."""
    written.add("m", SOUND.replace("python", backend), PROGRAM)
    assert [finding.severity for finding in written.findings()] == [severity]


def test_outside_labels_held_against_age(written: Written) -> None:
    """Labels outside of the folder are held against the age of the target."""
    case = BROKEN_CASES["labels-outside"]
    written.add("m", case.config, case.files)
    newer = load_target("triton-26.08")
    older = newer.model_copy(update={"triton": "2.51.0"})
    for target, severity in ((None, "error"), (newer, "error"), (older, "warning")):
        results = [finding for finding in written.findings(target=target) if finding.rule == "files.labels-outside"]
        assert [finding.severity for finding in results] == [severity]


def test_response_cache_needs_caching_server(written: Written) -> None:
    """A response cache wants a server with one."""
    written.add("cached", f"{SOUND}response_cache {{ enable: true }}", PROGRAM)
    assert written.broken() == {("cached", "config.response-cache-off")}
    assert written.findings(arguments=CACHE) == []
    assert written.findings(arguments=["--cache-config", "local,size=1048576"]) == []


def test_cpu_instance_count_better_written(written: Written) -> None:
    """The number of instances of a graph on a CPU is better written."""
    written.add("graph", f'backend: "onnxruntime"\n{tensors()}', {"1/model.onnx": "x"})
    assert ("graph", "config.instance-count") in written.broken(target=CPU_TARGET)
    assert ("graph", "config.instance-count") not in written.broken(target=load_target("triton-26.08"))


def test_non_linear_tensor_has_three_dims(written: Written) -> None:
    """A tensor in a non linear format has three dims."""
    for name, dims in (("plane", "3"), ("image", "3, 8, 8")):
        fields = tensors(f"dims: [ {dims} ] is_non_linear_format_io: true")
        written.add(name, f'backend: "tensorrt"\n{fields}', {"1/model.plan": "x"})
    broken = written.broken()
    assert ("plane", "config.non-linear-dims") in broken
    assert ("image", "config.non-linear-dims") not in broken


def test_gpu_instances_need_gpu_target(written: Written) -> None:
    """Instances on GPUs are for targets that have them."""
    written.add("fast", f"{HEAD}{tensors()}instance_group [ {{ kind: KIND_GPU }} ]", PROGRAM)
    assert written.findings() == []
    assert written.findings(target=load_target("triton-26.08")) == []
    assert written.broken(target=CPU_TARGET) == {("fast", "config.instance-without-gpu")}


def test_configuration_beside_models_passed_over(written: Written) -> None:
    """A configuration beside the models is passed over."""
    written.add("sound", SOUND, PROGRAM)
    (written.root / "config.pbtxt").write_text(SOUND)
    assert [(f.model, f.rule, f.place) for f in written.findings()] == [("", "layout.config-name", "config.pbtxt")]


def test_model_folder_is_no_repository(written: Written) -> None:
    """The folder of one model is no repository."""
    models = {"with-folders": {**PROGRAM, "code/1/x": ""}, "without-version": {"model.py": "x", "code/x.py": ""}}
    for name, files in models.items():
        with pytest.raises(RepositoryError, match="is the folder of one model"):
            check_repository(written.add(name, SOUND, files))


def test_non_model_matters_to_loading_server(written: Written) -> None:
    """A folder that is no model is one only to a server that loads it."""
    written.add("good", SOUND, PROGRAM)
    written.add("code", None, {"inference.py": "x"})
    explicit = "--model-control-mode=explicit"
    foreign = {("code", "layout.not-a-model")}
    assert written.broken() == foreign
    assert written.broken(arguments=["--model-control-mode=poll"]) == foreign
    assert written.broken(arguments=[explicit, "--load-model=good"]) == set()
    assert written.broken(arguments=["--model-control-mode", "explicit", "--load-model", "good"]) == set()
    assert written.broken(arguments=[explicit]) == set()
    assert written.broken(arguments=[explicit, "--load-model=*"]) == foreign
    assert written.broken(arguments=[explicit, "--load-model=good", "--load-model=code"]) == foreign


def test_archived_non_model_told_once(written: Written) -> None:
    """A folder that is no model is told once of an archive for SageMaker."""
    written.add("good", SOUND, PROGRAM)
    written.add("code", None, {"inference.py": "x"})
    (finding,) = written.findings(sagemaker=True)
    assert (finding.rule, finding.place) == ("sagemaker.stray-folder", "code")
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in finding.remedy


def test_a_finding_names_the_line(written: Written) -> None:
    written.add("late", SOUND + "\n\n" + warm_up("data_type: TYPE_FP32 dims: [ 4 ] zero_data: true")[len(SOUND) :])
    results = [finding for finding in written.findings() if finding.rule == "warmup.dims"]
    assert [(finding.place, finding.line) for finding in results] == [("late/config.pbtxt", SOUND.count("\n") + 3)]


def test_unchosen_configurations_give_no_errors(
    written: Written,
) -> None:
    """The other configurations of a model are checked, and are no errors until they are chosen."""
    written.add("choice", SOUND, {**PROGRAM, "configs/large.pbtxt": SOUND.replace(": 8", ": -8")})
    results = written.findings()
    assert [(f.rule, f.severity, f.place) for f in results] == [
        ("config.max-batch-size", "warning", "choice/configs/large.pbtxt")
    ]
    chosen = written.findings(arguments=["--model-config-name=large"])
    assert [(f.rule, f.severity, f.place) for f in chosen] == [
        ("config.max-batch-size", "error", "choice/configs/large.pbtxt")
    ]


def test_dangling_link_found(written: Written) -> None:
    """A link that leads nowhere is found in the repository itself."""
    written.add("sound", SOUND, PROGRAM)
    (written.root / "gone").symlink_to("nowhere")
    assert [(f.model, f.rule, f.place) for f in written.findings()] == [("", "layout.dangling-link", "gone")]


def test_some_models_may_be_chosen(written: Written) -> None:
    written.add("sound", SOUND, PROGRAM)
    written.add("broken", SOUND.replace(": 8", ": -8"), PROGRAM)
    assert check_repository(written.root, models=["sound"]) == []
    assert [finding.model for finding in check_repository(written.root, models=["broken"])] == ["broken"]


def test_check_never_fails_on_text(written: Written) -> None:
    """Configurations with pieces of sound and broken ones cut out, doubled and exchanged."""
    chance = random.Random(0)
    texts = [case.config for case in (*SOUND_CASES.values(), *BROKEN_CASES.values()) if isinstance(case.config, str)]
    tokens = " ".join(texts).split()
    folder = written.add("odd", "", PROGRAM)
    for _ in range(150):
        text = list(chance.choice(texts))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(text) + 1)
            text[place : place + chance.randrange(12)] = chance.choice(["", "99", " ", *tokens])
        (folder / "config.pbtxt").write_text("".join(text))
        written.findings(target=CPU_TARGET)


def test_separate_sign_read_outside_strings() -> None:
    """A sign that stands apart is read, and strings are left alone."""
    text = 'name: "a - 1" x: [ - 1, -\t2 ] # - 3\n'
    assert as_python_reads(text) == 'name: "a - 1" x: [  -1, \t-2 ] # - 3\n'


def test_pipe_configuration_not_waited_for(written: Written) -> None:
    """A pipe in place of a configuration is not waited for."""
    folder = written.add("pipe", None, PROGRAM)
    os.mkfifo(folder / "config.pbtxt")
    assert written.broken() == {("pipe", "config.not-a-file")}


def test_numeric_value_names_never_fail(written: Written) -> None:
    """Numbers for names of values make no check fail."""
    case = Case(SOUND.replace("TYPE_FP32", "99").replace("KIND_CPU", "77"))
    written.add("odd", case.config, case.files)
    assert not any(finding.severity == "error" for finding in written.findings())
