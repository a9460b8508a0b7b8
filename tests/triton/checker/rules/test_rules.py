"""A check finds what is broken in a model, and nothing in one that is sound."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.config.target.targets import load_target
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
    "config.unreadable": "test_a_configuration_that_may_not_be_read_is_told",
    "files.unreadable": "test_a_configuration_that_may_not_be_read_is_told",
    "config.required": "test_a_server_that_completes_nothing_wants_a_configuration",
    "config.newer-field": "test_a_field_is_held_against_the_age_of_the_target",
    "config.response-cache-off": "test_a_response_cache_wants_a_server_with_one",
    "config.non-linear-dims": "test_a_tensor_in_a_non_linear_format_has_three_dims",
    "config.instance-count": "test_the_number_of_instances_of_a_graph_on_a_cpu_is_better_written",
}
"""Rules that are broken by more than a model's folder, and the test of each."""

CPU_TARGET = load_target("local-cpu")
CACHE = ("--cache-config=local,size=1048576",)


@pytest.mark.parametrize("name", BROKEN_CASES)
def test_what_is_broken_is_found_and_nothing_else(name: str, written: Written) -> None:
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
def test_nothing_is_found_in_what_is_sound(name: str, written: Written) -> None:
    written.add(name, SOUND_CASES[name].config, SOUND_CASES[name].files)
    assert written.findings(target=CPU_TARGET, arguments=CACHE) == []


@pytest.mark.parametrize("name", COMPLETED)
def test_what_triton_completes_may_be_left_out(name: str, written: Written) -> None:
    case = COMPLETED[name]
    written.add(name, case.config, case.files)
    assert {finding.rule for finding in written.findings(target=CPU_TARGET)} == set(case.rules)


def test_every_rule_is_broken_by_a_case() -> None:
    broken = {rule for case in (*BROKEN_CASES.values(), *COMPLETED.values()) for rule in case.rules} | set(ELSEWHERE)
    assert {rule.id for module in OURS for rule in module.RULES} == broken
    assert all(test in globals() for test in ELSEWHERE.values())


def test_rules_have_ids_of_their_own_and_say_what_holds_and_who_says_so() -> None:
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


def test_a_configuration_that_may_not_be_read_is_told(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind those who run tests as root."""
    written.add("shut", SOUND, PROGRAM)
    written.add("graph", SOUND.replace("python", "onnxruntime"), {"1/model.onnx": "x"})
    shut = {written.root / "shut" / "config.pbtxt", written.root / "graph" / "1" / "model.onnx"}
    for name in ("read_bytes", "open"):
        monkeypatch.setattr(Path, name, _refusing(getattr(Path, name), shut))
    remedies = {(one.model, one.rule): one.remedy for one in written.findings()}
    assert remedies["shut", "config.unreadable"] == f"chmod a+r {written.root / 'shut' / 'config.pbtxt'}"
    assert remedies["graph", "files.unreadable"] == f"chmod a+r {written.root / 'graph' / '1' / 'model.onnx'}"


def test_a_folder_that_may_not_be_read_is_told_as_it_is_typed(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written.add("a b", SOUND, PROGRAM)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and allowed(path, mode))
    (found,) = [one for one in written.findings() if one.rule == "layout.unreadable"]
    assert found.remedy == f"chmod -R a+rX '{folder}'"


def _refusing(was: Callable[..., object], shut: set[Path]) -> Callable[..., object]:
    def opened(path: Path, *given: object, **named: object) -> object:
        if path in shut:
            raise PermissionError(13, "Permission denied", str(path))
        return was(path, *given, **named)

    return opened


def test_a_server_that_completes_nothing_wants_a_configuration(written: Written) -> None:
    written.add("bare", None, PROGRAM)
    assert written.findings() == []
    assert written.broken(arguments=["--disable-auto-complete-config"]) == {("bare", "config.required")}
    assert written.broken(arguments=["--strict-model-config=true"]) == {("bare", "config.required")}
    assert written.findings(arguments=["--disable-auto-complete-config=false"]) == []


def test_a_field_is_held_against_the_age_of_the_target(written: Written) -> None:
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


def test_a_platform_is_held_against_the_age_of_the_target(written: Written) -> None:
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


def test_a_runtime_of_its_own_opens_other_files_than_its_backend(written: Written) -> None:
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
def test_a_backend_that_may_well_be_another_is_no_error(backend: str, severity: str, written: Written) -> None:
    written.add("m", SOUND.replace("python", backend), PROGRAM)
    assert [finding.severity for finding in written.findings()] == [severity]


def test_labels_outside_of_the_folder_are_held_against_the_age_of_the_target(written: Written) -> None:
    case = BROKEN_CASES["labels-outside"]
    written.add("m", case.config, case.files)
    newer = load_target("triton-26.08")
    older = newer.model_copy(update={"triton": "2.51.0"})
    for target, severity in ((None, "error"), (newer, "error"), (older, "warning")):
        found = [one for one in written.findings(target=target) if one.rule == "files.labels-outside"]
        assert [one.severity for one in found] == [severity]


def test_a_response_cache_wants_a_server_with_one(written: Written) -> None:
    written.add("cached", f"{SOUND}response_cache {{ enable: true }}", PROGRAM)
    assert written.broken() == {("cached", "config.response-cache-off")}
    assert written.findings(arguments=CACHE) == []
    assert written.findings(arguments=["--cache-config", "local,size=1048576"]) == []


def test_the_number_of_instances_of_a_graph_on_a_cpu_is_better_written(written: Written) -> None:
    written.add("graph", f'backend: "onnxruntime"\n{tensors()}', {"1/model.onnx": "x"})
    assert ("graph", "config.instance-count") in written.broken(target=CPU_TARGET)
    assert ("graph", "config.instance-count") not in written.broken(target=load_target("triton-26.08"))


def test_a_tensor_in_a_non_linear_format_has_three_dims(written: Written) -> None:
    for name, dims in (("plane", "3"), ("image", "3, 8, 8")):
        given = tensors(f"dims: [ {dims} ] is_non_linear_format_io: true")
        written.add(name, f'backend: "tensorrt"\n{given}', {"1/model.plan": "x"})
    broken = written.broken()
    assert ("plane", "config.non-linear-dims") in broken
    assert ("image", "config.non-linear-dims") not in broken


def test_instances_on_gpus_are_for_targets_that_have_them(written: Written) -> None:
    written.add("fast", f"{HEAD}{tensors()}instance_group [ {{ kind: KIND_GPU }} ]", PROGRAM)
    assert written.findings() == []
    assert written.findings(target=load_target("triton-26.08")) == []
    assert written.broken(target=CPU_TARGET) == {("fast", "config.instance-without-gpu")}


def test_a_configuration_beside_the_models_is_passed_over(written: Written) -> None:
    written.add("sound", SOUND, PROGRAM)
    (written.root / "config.pbtxt").write_text(SOUND)
    assert [(f.model, f.rule, f.place) for f in written.findings()] == [("", "layout.config-name", "config.pbtxt")]


def test_the_folder_of_one_model_is_no_repository(written: Written) -> None:
    made = {"with-folders": {**PROGRAM, "code/1/x": ""}, "without-version": {"model.py": "x", "code/x.py": ""}}
    for name, files in made.items():
        with pytest.raises(RepositoryError, match="is the folder of one model"):
            check_repository(written.add(name, SOUND, files))


def test_a_folder_that_is_no_model_is_one_only_to_a_server_that_loads_it(written: Written) -> None:
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


def test_a_folder_that_is_no_model_is_told_once_of_an_archive_for_sagemaker(written: Written) -> None:
    written.add("good", SOUND, PROGRAM)
    written.add("code", None, {"inference.py": "x"})
    (found,) = written.findings(sagemaker=True)
    assert (found.rule, found.place) == ("sagemaker.stray-folder", "code")
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in found.remedy


def test_a_finding_names_the_line(written: Written) -> None:
    written.add("late", SOUND + "\n\n" + warm_up("data_type: TYPE_FP32 dims: [ 4 ] zero_data: true")[len(SOUND) :])
    found = [finding for finding in written.findings() if finding.rule == "warmup.dims"]
    assert [(finding.place, finding.line) for finding in found] == [("late/config.pbtxt", SOUND.count("\n") + 3)]


def test_the_other_configurations_of_a_model_are_checked_and_are_no_errors_until_they_are_chosen(
    written: Written,
) -> None:
    written.add("choice", SOUND, {**PROGRAM, "configs/large.pbtxt": SOUND.replace(": 8", ": -8")})
    found = written.findings()
    assert [(f.rule, f.severity, f.place) for f in found] == [
        ("config.max-batch-size", "warning", "choice/configs/large.pbtxt")
    ]
    chosen = written.findings(arguments=["--model-config-name=large"])
    assert [(f.rule, f.severity, f.place) for f in chosen] == [
        ("config.max-batch-size", "error", "choice/configs/large.pbtxt")
    ]


def test_a_link_that_leads_nowhere_is_found_in_the_repository_itself(written: Written) -> None:
    written.add("sound", SOUND, PROGRAM)
    (written.root / "gone").symlink_to("nowhere")
    assert [(f.model, f.rule, f.place) for f in written.findings()] == [("", "layout.dangling-link", "gone")]


def test_some_models_may_be_chosen(written: Written) -> None:
    written.add("sound", SOUND, PROGRAM)
    written.add("broken", SOUND.replace(": 8", ": -8"), PROGRAM)
    assert check_repository(written.root, models=["sound"]) == []
    assert [finding.model for finding in check_repository(written.root, models=["broken"])] == ["broken"]


def test_no_text_makes_a_check_fail(written: Written) -> None:
    """Configurations with pieces of sound and broken ones cut out, doubled and exchanged."""
    chance = random.Random(0)
    texts = [case.config for case in (*SOUND_CASES.values(), *BROKEN_CASES.values()) if isinstance(case.config, str)]
    words = " ".join(texts).split()
    folder = written.add("odd", "", PROGRAM)
    for _ in range(150):
        text = list(chance.choice(texts))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(text) + 1)
            text[place : place + chance.randrange(12)] = chance.choice(["", "99", " ", *words])
        (folder / "config.pbtxt").write_text("".join(text))
        written.findings(target=CPU_TARGET)


def test_a_sign_that_stands_apart_is_read_and_strings_are_left_alone() -> None:
    text = 'name: "a - 1" x: [ - 1, -\t2 ] # - 3\n'
    assert as_python_reads(text) == 'name: "a - 1" x: [  -1, \t-2 ] # - 3\n'


def test_a_pipe_in_place_of_a_configuration_is_not_waited_for(written: Written) -> None:
    folder = written.add("pipe", None, PROGRAM)
    os.mkfifo(folder / "config.pbtxt")
    assert written.broken() == {("pipe", "config.not-a-file")}


def test_numbers_for_names_of_values_make_no_check_fail(written: Written) -> None:
    case = Case(SOUND.replace("TYPE_FP32", "99").replace("KIND_CPU", "77"))
    written.add("odd", case.config, case.files)
    assert not any(finding.severity == "error" for finding in written.findings())
