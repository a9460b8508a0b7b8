"""Python models that take what people have, as a pipeline does: texts, bytes of files, and several of them."""

from __future__ import annotations

from pathlib import Path

from .served import write_python_model

# The text in capitals, and the parameters of the request as JSON; "refuse" is refused.
_SHOUT = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        if b"refuse" in texts:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("row 0 asks for a refusal"))
        said = np.array([t.decode().upper().encode() for t in texts.ravel()], dtype=object).reshape(texts.shape)
        told = np.array([(request.parameters() or "{}").encode()] * len(texts), dtype=object).reshape(texts.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", said), pb_utils.Tensor("told", told)])
"""

# Three labels with scores, the second with commas; the first is the number of bytes.
_CLASSES = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "image").as_numpy()) for r in requests]

    def answer(self, images):
        rows = [[f"{len(image)} bytes", "tabby, tabby cat", "Egyptian cat"] for image in images.ravel()]
        scores = np.tile(np.array([0.75, 0.2, 0.05], np.float32), (len(rows), 1))
        labels = np.array([[label.encode() for label in row] for row in rows], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("label", labels), pb_utils.Tensor("score", scores)])
"""

# Where the words of the question stand in the context, as JSON; bytes that are no text for a context of none.
_ANSWERS = """
import json

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(*(pb_utils.get_input_tensor_by_name(r, n).as_numpy() for n in ("question", "context")))
                for r in requests]

    def answer(self, questions, contexts):
        rows = []
        for question, context in zip(questions.ravel(), contexts.ravel()):
            words = [w for w in question.decode().split() if w in context.decode()]
            found = [{"word": w, "start": context.decode().index(w), "score": 0.5} for w in words]
            rows.append(json.dumps(found, ensure_ascii=False).encode() if context else b"\\xff\\xfe")
        return pb_utils.InferenceResponse([pb_utils.Tensor("entities", np.array(rows, dtype=object).reshape(-1, 1))])
"""

# Sixteen numbers for a text: its length and powers of a half, of norm known.
_VECTORS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "text").as_numpy()) for r in requests]

    def answer(self, texts):
        rows = np.zeros((len(texts), 16), np.float32)
        rows[:, 0] = [len(t) for t in texts.ravel()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", rows)])
"""

# How many bytes there are, of a row of numbers.
_PIXELS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "image").as_numpy()) for r in requests]

    def answer(self, rows):
        return pb_utils.InferenceResponse([pb_utils.Tensor("count", np.full((len(rows), 1), rows.shape[1]))])
"""

_ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "embedding" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling { step [
  { model_name: "shout" model_version: -1
    input_map { key: "text" value: "text" } output_map { key: "said" value: "loud" } },
  { model_name: "vectors" model_version: -1
    input_map { key: "text" value: "loud" } output_map { key: "embedding" value: "embedding" } } ] }
"""


def write_raw_models(repository: Path, site: Path) -> None:
    """`shout`, `classes`, `answers`, `vectors`, `pixels`, and `pipe`: an ensemble of the first and the fourth."""

    def write(name: str, code: str, tensors: str) -> None:
        text = f'backend: "python"\nmax_batch_size: 4\n{tensors}instance_group [ {{ kind: KIND_CPU }} ]\n'
        write_python_model(repository, name, text, code, site)

    def string(kind: str, name: str, size: int = 1) -> str:
        return f'{kind} {{ name: "{name}" data_type: TYPE_STRING dims: [ {size} ] }}\n'

    write("shout", _SHOUT, string("input", "text") + string("output", "said") + string("output", "told"))
    scores = 'output { name: "score" data_type: TYPE_FP32 dims: [ 3 ] }\n'
    write("classes", _CLASSES, string("input", "image") + string("output", "label", 3) + scores)
    write("answers", _ANSWERS, string("input", "question") + string("input", "context") + string("output", "entities"))
    write(
        "vectors",
        _VECTORS,
        string("input", "text") + 'output { name: "embedding" data_type: TYPE_FP32 dims: [ 16 ] }\n',
    )
    count = 'output { name: "count" data_type: TYPE_INT64 dims: [ 1 ] }\n'
    write("pixels", _PIXELS, 'input { name: "image" data_type: TYPE_UINT8 dims: [ -1 ] }\n' + count)
    (repository / "pipe" / "1").mkdir(parents=True)
    (repository / "pipe" / "config.pbtxt").write_text(_ENSEMBLE)
