"""What the rules of programs and ensembles call an error, a real Triton refuses; what they pass, it loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from plansmith.triton.server.process import refused_models
from plansmith.triton.server.server import TritonServer

from ...support.checker.backend_rules import findings
from ...support.checker.written import Written
from .rules import test_ensemble_rules as ensembles
from .rules import test_python_rules as programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plansmith.triton.server.installation import Installation

# A server with a process or two for every program.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("checked-backends")]

LOAD_AND_FAIL = {"no execute", "an execute of nothing", "an execute that wants more"}
"""Programs that load, and answer no request."""

BY_ITSELF = {"fields", "platform", "step", "written-once", "unused", "unwritten"}
"""Mistakes for which Triton refuses an ensemble before it looks at its members, so that they need no own ones."""

INPUT = 'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }\n'

HERE = ("all as it is", "any arguments", "a completion on the class", "an execute that is given later")
"""Sound programs that are tried: each costs a process, and others take something from modules that are not here."""


@dataclass(frozen=True)
class Served(Written):
    """A repository with a model for each case; `cases`: the case of each model that is one; `members`: the others."""

    cases: dict[str, str] = field(default_factory=dict)
    members: dict[tuple[str, str], str] = field(default_factory=dict)

    def program(
        self, case: str, text: str, config: str = programs.CONFIG, files: Mapping[str, bytes] | None = None
    ) -> None:
        name = f"program{len(self.cases)}"
        self.cases[name] = case
        self.add(name, config + INPUT, {"1/model.py": text, **(files or {})})

    def member(self, name: str, config: str) -> str:
        """A model with such a configuration, which ensembles share; returns its name."""
        member_name = self.members.setdefault((name, config), f"{name}{len(self.members)}")
        if not (self.root / member_name).exists():
            self.add(member_name, config, {"1/model.py": ensembles.MODEL})
        return member_name

    def ensemble(self, case: str, *changes: Mapping[str, str]) -> None:
        name, (own, first, second) = f"ensemble{len(self.cases)}", changes
        self.cases[name] = case
        text = ensembles.changed(ensembles.ENSEMBLE, own)
        for member, config, change in (("first", ensembles.FIRST, first), ("second", ensembles.SECOND, second)):
            text = text.replace(f'"{member}"', f'"{self.member(member, ensembles.changed(config, change))}"')
        self.add(name, text, ensembles.EMPTY)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    root = tmp_path_factory.mktemp("checked") / "repository"
    root.mkdir()
    instance = Served(root)
    for case, (program, _, _) in programs.MISTAKES.items():
        instance.program(case, program)
    for case in HERE:
        instance.program(case, programs.SOUND[case])
    for case, (path, files, rules) in programs.ENVIRONMENTS.items():
        if rules == {"environment"}:
            contents = dict.fromkeys(files, b"")
            instance.program(f"an environment: {case}", programs.MODEL, programs.environment(path), contents)
    beside = programs.environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    for case, (content, rules) in programs.ARCHIVES.items():
        if rules == {"environment"}:
            instance.program(f"an archive {case}", programs.MODEL, beside, {"env.tar.gz": content})
    for case, (rule, own, *others) in ensembles.MISTAKES.items():
        instance.ensemble(case, own, *(({}, {}) if BY_ITSELF & {*rule.split()} else others))
    for case, sound in ensembles.SOUND.items():
        instance.ensemble(case, *sound)
    single = instance.member("one", ensembles.ONE)
    for name, of in {"inner": single, "outer": "inner", "itself": "itself", "ring": "chain", "chain": "ring"}.items():
        instance.add(name, ensembles.ensemble_of(of, single), ensembles.EMPTY)
        instance.cases[name] = name
    many, more = (instance.member(name, ensembles.DECOUPLED) for name in ("many", "more"))
    join = instance.member("join", ensembles.JOIN)
    for name, (left, right) in {"two": (many, more), "mixed": (many, single), "none": (single, single)}.items():
        instance.add(name, ensembles.joined(left, right).replace('"join"', f'"{join}"'), ensembles.EMPTY)
        instance.cases[name] = name
    return instance


@pytest.fixture(scope="module")
def server(
    served: Served, installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    models = [*served.cases, *served.members.values()]
    log = tmp_path_factory.mktemp("log") / "log"
    with TritonServer(
        served.root, installation, log, models=models, exit_on_error=False, deadline_seconds=300
    ) as running:
        yield running


def test_checker_and_server_agree(served: Served, server: TritonServer) -> None:
    """Checker and server agree on every model."""
    results = findings(served.root)
    errors = {finding.model: finding.rule for finding in results if finding.severity == "error"}
    reasons = refused_models(server.log)
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        assert all(map(connection.is_model_ready, served.members.values()))
        refused = {name: reasons.get(name, "") for name in served.cases if not connection.is_model_ready(name)}
    loads = {name for name, case in served.cases.items() if case in LOAD_AND_FAIL}
    passed = {served.cases[name]: why for name, why in refused.items() if name not in errors}
    assert not passed, "the server refuses what the checker passes"
    loaded = {served.cases[name]: rule for name, rule in errors.items() if name not in refused and name not in loads}
    assert not loaded, "the server loads what the checker calls an error"
    assert not loads & refused.keys()
    assert len(errors) > 30
    assert len(served.cases.keys() - errors.keys()) > 15


@pytest.mark.parametrize("case", sorted(LOAD_AND_FAIL))
def test_unanswering_program_is_error(case: str, served: Served, server: TritonServer) -> None:
    """A program that loads and answers nothing is an error too."""
    (name,) = (name for name, entry in served.cases.items() if entry == case)
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        assert connection.is_model_ready(name)
        array = tritonclient.http.InferInput("x", [1, 1], "FP32")
        array.set_data_from_numpy(np.ones((1, 1), np.float32))
        with pytest.raises(InferenceServerException, match=r"execute|argument"):
            connection.infer(name, [array])
