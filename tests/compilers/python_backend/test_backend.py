"""A running Triton serves PyTorch models: as the reference answers, batched, and no request harms another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.data.reference import StoredCase, read_case
from plansmith.errors import EnvironmentFault
from plansmith.records.model import Precision
from plansmith.triton.server.installation import find_installation, require_python
from plansmith.triton.server.server import TritonServer

from ...support.models.python_backend import ODD_INPUTS, ODD_SHAPES, Laid, lay_out, put_into, write_odd
from ...support.waiting import soon

Arrays = Mapping[str, NDArray[Any]]

MINILM_SHAPES = {"input_ids": {"min": [1, 1], "opt": [2, 8], "max": [8, 24]}}
LONG_ENOUGH, TOGETHER = 2_000_000, 4
"""So many requests of one row that are sent at once end up in one execution, also on a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("python-backend")]


class Served:
    """A server with models, and what they were made of."""

    def __init__(self, server: TritonServer, models: dict[str, Laid]) -> None:
        self.server, self.models = server, models

    def case(self, model: str, name: str) -> StoredCase:
        """A case of a model's reference."""
        laid = self.models[model]
        return read_case(next(c for c in laid.onnx.reference.cases if c.name == name), laid.reference)

    def ask(self, model: str, feed: Arrays) -> dict[str, NDArray[Any]] | str:
        """The answer, or the reason of the refusal."""
        from tritonclient import http
        from tritonclient.utils import InferenceServerException, np_to_triton_dtype

        inputs = []
        for name, array in feed.items():
            inputs.append(http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        with http.InferenceServerClient(self.server.http_url) as client:
            try:
                answer = client.infer(model, inputs)
            except InferenceServerException as refused:
                return str(refused)
        return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}

    def executions(self, model: str) -> int:
        """How often the model ran."""
        from tritonclient import http

        with http.InferenceServerClient(self.server.http_url) as client:
            statistics: Any = client.get_inference_statistics(model)
        return int(statistics["model_stats"][0]["execution_count"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    try:
        installation = find_installation()
        require_python(installation)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    odd = write_odd(folder / "source")
    models = {
        "minilm": lay_out(minilm_folder, folder / "minilm", shapes=MINILM_SHAPES, precision=Precision.FP16),
        "odd": lay_out(odd, folder / "odd", shapes=ODD_SHAPES, described=ODD_INPUTS, trust_remote_code=True),
    }
    for name, laid in models.items():
        put_into(folder / "repository", name, laid, delay_microseconds=LONG_ENOUGH, together=TOGETHER)
    with TritonServer(folder / "repository", installation, folder / "log", deadline_seconds=240) as server:
        yield Served(server, models)


def test_fp16_answers_match_reference(served: Served) -> None:
    """Real weights in FP16 answer like the reference in FP32 over the wire."""
    case = served.case("minilm", "untraced")
    answer = served.ask("minilm", case.feed)
    assert isinstance(answer, dict)
    output, expected = answer["sentence_embedding"], np.asarray(case.answer["sentence_embedding"], np.float32)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, expected, atol=1e-3)
    assert not np.array_equal(output, expected)  # it does run in FP16


def test_unexportable_model_served_unchanged(served: Served) -> None:
    """A model that no exporter can follow is served as it is."""
    case = served.case("odd", "opt")
    answer = served.ask("odd", case.feed)
    assert isinstance(answer, dict)
    np.testing.assert_array_equal(answer["last_hidden_state"], case.answer["last_hidden_state"])


def test_simultaneous_requests_make_one_batch(served: Served) -> None:
    """Requests that come at once run as one batch and a bad one harms none of the others."""
    case = served.case("odd", "max")
    good = [{name: rows[n : n + 1] for name, rows in case.feed.items()} for n in range(3)]
    bad = {"input_ids": np.full((1, 16), 50, np.int64)}  # one id more than the model knows
    before = served.executions("odd")
    with ThreadPoolExecutor(TOGETHER) as clients:
        *answers, refusal = clients.map(lambda feed: served.ask("odd", feed), [*good, bad])
    assert soon(lambda: served.executions("odd"), before + 1) == before + 1
    assert isinstance(refusal, str)
    assert "PyTorch: IndexError: index out of range" in refusal
    for number, answer in enumerate(answers):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(
            answer["last_hidden_state"], case.answer["last_hidden_state"][number : number + 1]
        )


def test_other_shapes_run_apart(served: Served) -> None:
    """Requests of other shapes run apart in the same execution."""
    rows = {length: np.arange(length, dtype=np.int64)[None] for length in (3, 5)}
    alone = {length: served.ask("odd", {"input_ids": row}) for length, row in rows.items()}
    with ThreadPoolExecutor(2) as clients:
        together = list(clients.map(lambda row: served.ask("odd", {"input_ids": row}), rows.values()))
    for length, answer in zip(rows, together, strict=True):
        expected = alone[length]
        assert isinstance(answer, dict)
        assert isinstance(expected, dict)
        np.testing.assert_array_equal(answer["last_hidden_state"], expected["last_hidden_state"])
