"""Stand-in for Triton's DALI backend on machines without the real one.

Triton's Python stub runs it, in an interpreter of its own, for every model whose configuration says `backend: "dali"`.
It runs the serialised pipeline of `model.dali` on the CPU, with the DALI of the folder `site` beside this file. In one
thing it is kinder than the real one: where requests that Triton put together fail, it runs them one by one, so that
only the guilty ones get the error; the real one answers all of them with it.

What the real one does is read from `src/dali_model.h`, `src/dali_model_instance.cc`, `src/dali_executor` and
`src/config_tools` of the repository triton-inference-server/dali_backend.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from nvidia import dali

Arrays = Mapping[str, np.ndarray[Any, Any]]


class UnservableModel(Exception):
    """The model cannot be served as it is configured."""


class TritonPythonModel:
    """One model instance, with the interface of Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the pipeline and check it against the configuration.

        Args:
            args: Triton's words about the instance; `model_config` is JSON.

        Raises:
            pb_utils.TritonModelException: the model cannot be served as it is configured.
        """
        self.config: dict[str, Any] = json.loads(args["model_config"])
        try:
            _check_served_here(self.config, args["model_instance_kind"])
            self.content = _content(args, self.config)
            self.pipeline = self._opened()
            _check_tensors(self.pipeline, self.config)
        except UnservableModel as reason:
            message = f"unable to load model '{args['model_name']}': {reason}"
            raise pb_utils.TritonModelException(message) from reason

    def execute(self, requests: list[Any]) -> list[Any]:
        """Execute requests: all as one batch, or one by one if that fails."""
        feeds = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        answers = self._answers(feeds)
        if len(feeds) > 1 and isinstance(answers[0], Exception):
            answers = [answer for feed in feeds for answer in self._answers([feed])]
        return [_response(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _answers(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Exception]:
        """The outputs of each request; the same error for all of them where the batch fails."""
        try:
            for name in feeds[0]:  # samples may differ in shape, between requests
                self.pipeline.feed_input(name, [np.ascontiguousarray(row) for feed in feeds for row in feed[name]])
            outputs = self.pipeline.run()
            names = [tensor["name"] for tensor in self.config["output"]]
            return list(_parted(dict(zip(names, outputs, strict=True)), feeds))
        except Exception as fault:  # noqa: BLE001 - whatever fails in a run is the answer to its requests
            self.pipeline = self._opened()  # one that failed runs no more
            return [fault] * len(feeds)

    def _opened(self) -> Any:
        threads = self.config.get("parameters", {}).get("num_threads", {}).get("string_value", "1")
        try:
            pipeline = dali.Pipeline.deserialize(
                serialized_pipeline=self.content,
                batch_size=self.config["max_batch_size"],
                num_threads=int(threads),
            )
            pipeline.build()
        except (RuntimeError, ValueError) as error:
            raise UnservableModel(f"DALI {dali.__version__} cannot open its pipeline: {_error_text(error)}") from error
        return pipeline


def _check_served_here(config: dict[str, Any], kind: str) -> None:
    if kind != "CPU":
        raise UnservableModel(f"KIND_{kind} instances: the stand-in for the DALI backend runs on the CPU only")
    if config["max_batch_size"] < 1:
        raise UnservableModel(
            "the stand-in for the DALI backend serves batches only: max_batch_size must be at least 1"
        )


def _content(args: dict[str, str], config: dict[str, Any]) -> bytes:
    path = Path(args["model_repository"], args["model_version"], config["default_model_filename"] or "model.dali")
    if path.suffix == ".py" or not path.is_file():
        raise UnservableModel(f"unable to find '{path}', a serialised pipeline; the stand-in serialises no programs")
    return path.read_bytes()


def _check_tensors(pipeline: Any, config: dict[str, Any]) -> None:
    for tensor in config["input"]:
        try:
            pipeline.input_feed_count(tensor["name"])
        except RuntimeError as error:
            raise UnservableModel(
                f"'{tensor['name']}' is configured, but such input is not present in the pipeline"
            ) from error
    if len(config["output"]) != pipeline.num_outputs:
        raise UnservableModel(
            f"the configuration has {len(config['output'])} outputs, the pipeline has {pipeline.num_outputs}"
        )


def _parted(outputs: Mapping[str, Any], feeds: Sequence[Arrays]) -> Any:
    """Split the outputs: yield each request's own rows."""
    begin = 0
    for feed in feeds:
        end = begin + len(next(iter(feed.values())))
        yield {
            name: np.stack([np.asarray(tensors.at(row)) for row in range(begin, end)])
            for name, tensors in outputs.items()
        }
        begin = end


def _response(request: Any, answer: Arrays | Exception) -> Any:
    """A response with an error of its own.

    Triton 2.51 crashes with a segmentation fault where two responses share one.
    """
    if isinstance(answer, Exception):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"DALI error: {_error_text(answer)}"))
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, answer[name]) for name in request.requested_output_names()]
    )


def _error_text(error: Exception) -> str:
    """DALI's error message without the lines on its own source code."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(dict.fromkeys(line for line in lines if line and not line.startswith(("[", "C++ context"))))
