"""Served check: a running Triton loads the release and must answer real requests like the source model."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data.reference import StoredCase
from plansmith.errors import EnvironmentFault, ServedCheckError, UsageError
from plansmith.records.model import Device
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Package
from plansmith.records.validation import ServedCheck, ServedReport, Tolerance
from plansmith.system.files import link_or_copy
from plansmith.system.memory import usable_memory
from plansmith.triton.client import Client, Protocol
from plansmith.triton.config.model_config import completions, contradictions, parse_config, with_cpu_instances
from plansmith.triton.server.process import is_measurable
from plansmith.triton.server.runtime import ServingRuntime
from plansmith.triton.server.server import TritonServer
from plansmith.validation.comparison import Padding, compare_output

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


CONCURRENT_CLIENTS = 4
_PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
_REQUEST_SECONDS = 120
_MOST_WHOLE_BYTES = 32 << 20


@dataclass(frozen=True)
class RawQuestion:
    """One request of raw inputs, with the expected response from the source's own library."""

    name: str
    feed: Arrays
    expected: Arrays


@dataclass(frozen=True)
class RawQuestions:
    """Requests of raw inputs to an ensemble as a whole.

    Args:
        questions: requests, each of which is sent whole over both protocols, and row by row where that is the same.
        judge: the failures of an answer, in words: takes the request's name, the answer owed and the one given.
        by_row: whether a row gets the same answer whatever other ones are asked with it; of a script nobody knows.
    """

    questions: Sequence[RawQuestion]
    judge: Callable[[str, Arrays, Arrays], Sequence[str]]
    by_row: bool = True


@dataclass(frozen=True)
class Question:
    """One request to send, with the response of the reference."""

    name: str
    protocol: Protocol
    feed: Arrays
    expected: Arrays


def check_served(  # noqa: PLR0913 - what is served, what it is asked, and where: nothing of it follows from the rest
    package: Package,
    folder: Path,
    cases: Sequence[StoredCase],
    *,
    runtime: ServingRuntime,
    mask_input: str | None,
    tolerances: Mapping[str, Tolerance],
    takes: Callable[[Arrays], bool] = lambda _: True,
    scratch: Path,
    log: Path,
    progress: Callable[[str], None],
    raw: Sequence[RawQuestions] = (),
) -> ServedReport:
    """Served check: load the release into a server of its own, and compare its responses and configuration.

    Args:
        package: what is served; its files lie in `folder`; of an ensemble, the cases are of the member that is the
            model.
        folder: holds config.pbtxt and model/.
        cases: stored inputs and answers; each is sent whole, and sample by sample.
        runtime: the server and the backend that answers.
        mask_input: the input that marks padding.
        tolerances: by output.
        takes: whether the release answers such inputs at all; what it does not take is not sent.
        scratch: a folder for the server's repository, made and removed here; best where `folder` lies.
        log: takes the server's output.
        progress: told what is being done.
        raw: what an ensemble is asked besides, about each of its models.

    Raises:
        ServedCheckError: the model does not load, answers wrongly, or Triton understood another configuration.
        EnvironmentFault: this machine lacks the Python that the release's environment is for.
    """
    model = package.part(MODEL_PART).alone() if package.members else package
    questions = [question for question in _questions(cases, model) if takes(question.feed)]
    if not questions and not any(item.questions for item in raw):
        raise ServedCheckError(
            "no case of the reference can be sent to a server, so that nothing would be checked",
            remedy="have an optimization profile of the plan take the usual sizes of `shapes`; without profiles, please"
            " report this with the spec; --no-check-served publishes without the check",
        )
    staged = [(package, folder), *((member.alone(), folder / member.folder) for member in package.members)]
    configs = [(item, _stage(item, place, scratch, runtime.device)) for item, place in staged]
    try:
        progress("starting Triton")
        with _server(package, scratch, runtime, log) as server:
            completed = {item.model: _compare_config(item, config, server) for item, config in configs}[model.model]
            progress("asking Triton")
            checks = _ask_all(server, model, questions, Padding(model.interface.inputs, mask_input), tolerances)
            if raw:
                progress("asking Triton with raw inputs")
                checks += [check for item in raw for check in _ask_raw(server, package, item)]
            progress("stopping Triton")
            return _report(package, runtime, server.version, checks, completed)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _server(package: Package, repository: Path, runtime: ServingRuntime, log: Path) -> TritonServer:
    """A server that loads the package, with the environments of all its models."""
    environments = [package.environment, *(member.environment for member in package.members)]
    return TritonServer(
        repository,
        runtime.installation,
        log,
        site=runtime.site,
        dali_site=runtime.dali_site,
        models=[package.model],
        arguments=package.server_arguments,
        library_folders=runtime.library_folders,
        deadline_seconds=runtime.load_seconds,
        # Ended by us, it is told with the reason; the kernel might choose the compile instead.
        memory_bytes=usable_memory() if is_measurable() else None,
        pythons=[environment.python for environment in environments if environment is not None],
    )


def _report(
    package: Package,
    runtime: ServingRuntime,
    server_version: str,
    checks: Sequence[ServedCheck],
    completed: Mapping[str, Any],
) -> ServedReport:
    seconds = [check.seconds for check in checks]
    return ServedReport(
        server_version=server_version,
        device=runtime.device,
        backend="real" if runtime.site is None else "stand-in",
        backend_runtime=runtime.description,
        dali=("real" if runtime.dali_site is None else "stand-in") if package.has_dali else None,
        requests=len(checks),
        concurrent_clients=CONCURRENT_CLIENTS,
        median_seconds=statistics.median(seconds),
        worst_seconds=max(seconds),
        checks=tuple(checks),
        completed=dict(completed),
    )


def _stage(package: Package, folder: Path, repository: Path, device: Device) -> str:
    """Package one model in a repository; return the text of its configuration."""
    text = (folder / CONFIG_FILE).read_text()
    config = with_cpu_instances(text) if device == "cpu" else text
    (repository / package.model).mkdir(parents=True)
    (repository / package.model / CONFIG_FILE).write_text(config)
    chosen = parse_config(text).version_policy.specific.versions
    version = str(chosen[0] if chosen else 1)  # one that the configuration has Triton serve
    for file in package.support_files:
        link_or_copy(folder / file, repository / package.model / file)
    for file in package.model_files:
        link_or_copy(folder / MODEL_FOLDER / file, repository / package.model / version / file)
    return config


def _compare_config(package: Package, config: str, server: TritonServer) -> dict[str, Any]:
    with _client(server, package, "grpc") as client:
        try:
            theirs = client.config()
        except (ServedCheckError, EnvironmentFault) as error:
            raise _refusal(error.message, server) from error
    ours = parse_config(config)
    wrong = contradictions(ours, theirs)
    if wrong:
        raise ServedCheckError(
            "Triton understood another configuration than was written:\n  " + "\n  ".join(wrong),
            remedy="please report this with the log",
            log=server.log,
        )
    return completions(ours, theirs)


def _questions(cases: Sequence[StoredCase], package: Package) -> list[Question]:
    """The requests: every case whole over both protocols, and its samples one by one for the dynamic batcher."""
    questions: list[Question] = []
    protocols = _protocols(package)
    for case in cases:
        is_light = sum(a.nbytes for a in case.feed.values()) <= _MOST_WHOLE_BYTES
        if is_light and len(case.rows) == len(next(iter(case.feed.values()))):
            questions += [Question(case.name, p, case.feed, case.answer) for p in protocols]
        if package.max_batch_size > 1:
            for place, row in enumerate(case.rows):
                feed = {k: v[row : row + 1] for k, v in case.feed.items()}
                expected = {k: v[place : place + 1] for k, v in case.answer.items()}
                protocol = protocols[place % len(protocols)]
                questions.append(Question(f"{case.name}, sample {row}", protocol, feed, expected))
    return questions


def _ask_all(
    server: TritonServer,
    package: Package,
    questions: Sequence[Question],
    padding: Padding,
    tolerances: Mapping[str, Tolerance],
) -> list[ServedCheck]:
    """Send requests from several concurrent clients; the first wrong response ends the check."""

    def ask(question: Question) -> ServedCheck:
        started = time.monotonic()
        answer = _infer(server, package, question)
        seconds = time.monotonic() - started
        rows = [
            compare_output(
                question.name,
                tensor.name,
                question.expected[tensor.name],
                answer[tensor.name],
                tolerances[tensor.name],
                valid=padding.valid(tensor, question.feed),
            )
            for tensor in package.interface.outputs
        ]
        failures = [f"output {r.output!r}: {f}" for r in rows for f in r.failures]
        if failures:
            raise ServedCheckError(
                f"Triton's answer over {question.protocol} to {question.name} is wrong: {failures[0]}",
                remedy="nothing was published; read the log",
                log=server.log,
            )
        return ServedCheck(
            name=question.name,
            protocol=question.protocol,
            batch=len(next(iter(question.feed.values()))),
            max_relative=max(r.max_relative for r in rows),
            seconds=seconds,
        )

    with ThreadPoolExecutor(CONCURRENT_CLIENTS) as clients:
        return list(clients.map(ask, questions))


def _ask_raw(server: TritonServer, package: Package, raw: RawQuestions) -> list[ServedCheck]:
    """Send requests to the ensemble as its clients do; the first wrong response ends the check."""

    def ask(question: Question) -> ServedCheck:
        started = time.monotonic()
        answer = _infer(server, package, question)
        seconds = time.monotonic() - started
        failures = raw.judge(question.name, question.expected, answer)
        if failures:
            raise ServedCheckError(
                f"Triton's answer over {question.protocol} to {question.name} is wrong: {failures[0]}",
                remedy="nothing was published; read the log",
                log=server.log,
            )
        batch = len(next(iter(question.feed.values())))
        return ServedCheck(
            name=question.name, protocol=question.protocol, batch=batch, max_relative=0.0, seconds=seconds
        )

    # Rows that go through the tokenizer together have one length, so that the shape hangs on who else asks.
    moves = any(isinstance(dim, str) for tensor in package.interface.outputs for dim in tensor.dims[1:])
    questions = [
        Question(entry.name if whole else f"{entry.name}, sample {row}", protocol, feed, expected)
        for entry in raw.questions
        for whole, row, protocol, feed, expected in _as_sent(entry, package)
        if whole or (raw.by_row and not moves)
    ]
    with ThreadPoolExecutor(1 if moves else CONCURRENT_CLIENTS) as clients:
        return list(clients.map(ask, questions))


def _as_sent(question: RawQuestion, package: Package) -> Iterator[tuple[bool, int, Protocol, Arrays, Arrays]]:
    """Yield a request whole over both protocols, if it fits the largest batch, and row by row."""
    rows = len(next(iter(question.feed.values())))
    protocols = _protocols(package)
    if rows <= package.max_batch_size:
        for protocol in protocols:
            yield True, 0, protocol, question.feed, question.expected
    for row in range(rows if rows > 1 else 0):
        feed = {name: array[row : row + 1] for name, array in question.feed.items()}
        expected = {name: array[row : row + 1] for name, array in question.expected.items()}
        yield False, row, protocols[row % len(protocols)], feed, expected


def _protocols(package: Package) -> tuple[Protocol, ...]:
    """The protocols to check: a decoupled model can be called over HTTP only with `generate`."""
    return ("grpc",) if package.decoupled else _PROTOCOLS


def _infer(server: TritonServer, package: Package, question: Question) -> dict[str, NDArray[Any]]:
    """Send one request with a client of its own: clients must not be shared between threads.

    Raises:
        ServedCheckError: Triton refuses it, gives no answer in time, or it does not fit what the release says of
            itself. Where Triton has ended, its `TritonServer` says so instead.
    """
    with _client(server, package, question.protocol) as client:
        try:
            return client.infer(question.feed)
        except (ServedCheckError, UsageError, EnvironmentFault) as error:
            raise _refusal(f"{question.name} over {question.protocol}: {error.message}", server) from error


def _refusal(message: str, server: TritonServer) -> ServedCheckError:
    return ServedCheckError(message, remedy="correct what the log says; nothing was published", log=server.log)


def _client(server: TritonServer, package: Package, protocol: Protocol) -> Client:
    return Client(
        server.http_url if protocol == "http" else server.grpc_url,
        model=package.model,
        protocol=protocol,
        interface=package.interface,
        max_batch_size=package.max_batch_size,
        decoupled=package.decoupled,
        timeout_seconds=_REQUEST_SECONDS,
    )
