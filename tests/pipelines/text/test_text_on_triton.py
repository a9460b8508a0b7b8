"""A running Triton makes tokens and entities of texts that come at once, and a bad text harms no other request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.errors import EnvironmentFault
from plansmith.pipelines.draft import DraftPart
from plansmith.triton.dtypes import CONFIG_TYPES
from plansmith.triton.server.installation import find_installation, require_python
from plansmith.triton.server.server import TritonServer

from ...support.pipelines.columns import column
from ...support.pipelines.texts import SENTENCES, TAG_NAMES, Served, bert, serve
from ...support.waiting import soon

BATCH = 64
LONG_ENOUGH = 500_000
"""Requests that are sent at once often end up in one execution."""
ROWS_TOGETHER = 10
"""Those of the requests of which all must; they wait for each other for as long as a busy machine may take."""
LONGEST = 10_000_000

HARD = ["", "👩‍🚀 naïve 東京", " ".join(SENTENCES), "a\x00b"]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("text-on-triton")]


def config(part: DraftPart, rows: int = 0) -> str:
    """A part as a model of its own, which waits for so many rows."""
    lines = [f'name: "{part.name}"', 'backend: "python"', f"max_batch_size: {BATCH}"]
    for kind, tensors in (("input", part.inputs), ("output", part.outputs)):
        for tensor in tensors:
            dims = ", ".join(str(dim) if isinstance(dim, int) else "-1" for dim in tensor.dims[1:])
            lines.append(f'{kind} {{ name: "{tensor.name}" data_type: {CONFIG_TYPES[tensor.dtype]} dims: [ {dims} ] }}')
    lines += ["instance_group { count: 1 kind: KIND_CPU }"]
    batching = f"preferred_batch_size: [ {rows} ] max_queue_delay_microseconds: {LONGEST}" if rows else ""
    lines += [f"dynamic_batching {{ {batching or f'max_queue_delay_microseconds: {LONG_ENOUGH}'} }}"]
    return "\n".join(lines)


@dataclass(frozen=True)
class ServedPipeline:
    """A server with the parts of a pipeline, and the pipeline in this process."""

    url: str
    served: Served

    def ask(self, model: str, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | str:
        """The answer, or the reason of the refusal."""
        from tritonclient import http
        from tritonclient.utils import InferenceServerException, np_to_triton_dtype

        inputs = []
        for name, array in feed.items():
            inputs.append(http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        with http.InferenceServerClient(self.url) as client:
            try:
                answer = client.infer(model, inputs)
            except InferenceServerException as refused:
                return str(refused)
        return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}

    def executions(self, model: str) -> int:
        """How often the model ran."""
        from tritonclient import http

        with http.InferenceServerClient(self.url) as client:
            statistics: Any = client.get_inference_statistics(model)
        return int(statistics["model_stats"][0]["execution_count"])


@pytest.fixture(scope="module")
def served_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPipeline]:
    folder = tmp_path_factory.mktemp("text-on-triton")
    try:
        installation = find_installation()
        require_python(installation)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    names = dict(enumerate(TAG_NAMES))
    model = bert(folder / "model", "ForTokenClassification", id2label=names, num_labels=len(names))
    served = serve(model, folder / "parts")
    for part in (*served.draft.before, *served.draft.after):
        place = folder / "repository" / part.name
        place.mkdir(parents=True)
        (place / "config.pbtxt").write_text(config(part, ROWS_TOGETHER if part.name == "text" else 0))
        (folder / "parts" / part.name).rename(place / "1")
        (folder / "parts" / part.name).symlink_to(place / "1")
    with TritonServer(folder / "repository", installation, folder / "log", deadline_seconds=240) as server:
        yield ServedPipeline(server.http_url, served)


def test_wire_texts_match_local_answers(served_pipeline: ServedPipeline) -> None:
    """Texts over the wire become the tokens and entities that they become here."""
    texts = column(*SENTENCES[:20], *HARD)
    outputs = served_pipeline.ask("text", {"text": texts})
    assert isinstance(outputs, dict)
    (owed,) = served_pipeline.served.step(served_pipeline.served.draft.before[0]).answer([{"text": texts}])
    assert outputs.keys() == owed.keys()
    for name, array in owed.items():
        np.testing.assert_array_equal(outputs[name], array)
    logits = served_pipeline.served.live.ask(
        {t.name: outputs[t.name] for t in served_pipeline.served.live.inputs.tensors}
    )
    feed = {"text": texts, "input_ids": outputs["input_ids"], "spans": outputs["spans"]} | logits
    entities = served_pipeline.ask("tags", feed)
    assert isinstance(entities, dict)
    expected = served_pipeline.served.answer({"text": texts})["entities"]
    assert entities["entities"].tolist() == expected.tolist()
    assert max(len(json.loads(text)) for text in entities["entities"].reshape(-1)) > 5


def test_simultaneous_requests_share_call(served_pipeline: ServedPipeline) -> None:
    """Requests that come at once are one call with one length, and a bad one harms none."""
    good = [column("short"), column(*SENTENCES[:5]), column("", " ".join(SENTENCES))]
    bad = column("fine", b"\xc3\x28")
    assert sum(map(len, [*good, bad])) == ROWS_TOGETHER
    before = served_pipeline.executions("text")
    with ThreadPoolExecutor(4) as clients:
        *answers, refusal = clients.map(lambda texts: served_pipeline.ask("text", {"text": texts}), [*good, bad])
    assert soon(lambda: served_pipeline.executions("text"), before + 1) == before + 1
    assert isinstance(refusal, str)
    assert "text, row 1: byte 0 is no UTF-8 (invalid continuation byte)" in refusal
    for texts, answer in zip(good, answers, strict=True):
        assert isinstance(answer, dict)
        assert answer["input_ids"].shape == (len(texts), 128)
        (alone,) = served_pipeline.served.step(served_pipeline.served.draft.before[0]).answer([{"text": texts}])
        count = alone["input_ids"].shape[1]
        np.testing.assert_array_equal(answer["input_ids"][:, :count], alone["input_ids"])
        assert not answer["attention_mask"][:, count:].any()
