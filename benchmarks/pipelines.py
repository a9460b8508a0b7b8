"""Pipelines beside other ways to the same answers: who makes the tokens, who decodes the images, and how many at once.

    python -m benchmarks.pipelines [--quick]

Triton serves ensembles that plansmith compiles, to the clients of `benchmarks.serving`, round by round in turn:

- a sentence a request, as text to the ensemble, or as tokens that the client makes to the ensemble's model alone;
- JPEG photographs, one or several a request, decoded and resized by Pillow or by DALI; the model behind is tiny.

Then the part that makes tokens answers 32 requests in one call, and in one call each, in this process. Every answer is
compared with PyTorch's behind the source's own preprocessing: a wrong one ends the run. CPU seconds are those of the
clients and the server together, which share the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from benchmarks import serving
from benchmarks.compile_cost import MINILM
from benchmarks.load_client import question
from benchmarks.serving import CLIENTS, EXACT, LENGTH, OUTPUT, QUESTIONS, REPOSITORY, WORKPLACE, Row
from PIL import Image
from tests.support.pipelines.images import encoded, photographs
from tests.support.real_sentences import real_sentences

from plansmith.compilers.precision import benchmark
from plansmith.config.targets import load_target
from plansmith.pipelines.served.requests import SETTINGS_FILE, Arrays
from plansmith.pipelines.served.text import TextStep
from plansmith.records.release import CONFIG_FILE
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.server.installation import dali_site, find_installation, stand_in_site
from plansmith.triton.server.server import TritonServer

REQUESTS, QUICK_REQUESTS = 96, 16
SECONDS, QUICK_SECONDS = 75.0, 0.0
SEVERAL = 8
AT_ONCE, REPEATS = 32, 100
JPEG_QUALITY = 90

# Half a level of an image's 256, everywhere in it, moves the tiny model's answer by a hundredth of its length; the next
# photograph's answer is nine hundredths away.
HALF_A_LEVEL = 0.01

PICTURES = "test_resnet"
LOGITS = "logits"
PICTURES_SHAPES = "1x3x160x160:8x3x160x160:32x3x160x160"

ENSEMBLE = "ensemble, text in"
TOKENS = "tokens from the client"
PADDED = f"the same, padded to {LENGTH}"
TEXT_CONTRASTS = (("ensemble : tokens from the client", ENSEMBLE, TOKENS), (f"ensemble : {PADDED}", ENSEMBLE, PADDED))

PILLOW, DALI = "Pillow", "DALI"
IMAGE_CONTRASTS = (("DALI : Pillow", DALI, PILLOW),)

ONE_CALL, CALL_EACH = "one call for all", "one call each"
CALL_CONTRASTS = (("one call for all : one each", ONE_CALL, CALL_EACH),)


def main(options: argparse.Namespace) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    requests, budget = (QUICK_REQUESTS, QUICK_SECONDS) if options.quick else (REQUESTS, SECONDS)
    WORKPLACE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="pipelines-", dir=WORKPLACE)))
        sentences = serving.compiled("sentences", sentences_spec())
        pictures = {PILLOW: "pictures-python", DALI: "pictures-dali"}
        network = write_pictures(WORKPLACE / PICTURES)
        for name in pictures.values():
            serving.compiled(name, pictures_spec(name))
        installation, target = find_installation(), load_target("local-cpu")
        server = undo.enter_context(
            TritonServer(
                REPOSITORY,
                installation,
                folder / "triton.log",
                site=stand_in_site(installation, target),
                dali_site=dali_site(installation, target),
                models=["sentences", *pictures.values()],
                deadline_seconds=serving.READY_SECONDS,
            )
        )
        print(f"{CLIENTS} clients; Triton {server.version}; {benchmark.machine()}")
        ask = partial(compare, budget=budget)

        texts, model = write_texts(folder / "texts"), members(sentences)[-1]
        client_side = partial(Row, server.http_url, model, EXACT, tokenizer=MINILM)
        rows = {ENSEMBLE: Row(server.http_url, "sentences", EXACT), TOKENS: client_side()}
        rows[PADDED] = client_side(padded_to=LENGTH)
        ask("a sentence a request", texts, rows, TEXT_CONTRASTS, requests=requests)

        for count in (1, SEVERAL):
            files, images = write_images(folder / f"images-{count}", network, count)
            limits = {PILLOW: EXACT, DALI: HALF_A_LEVEL}
            shown = {way: Row(server.http_url, name, limits[way], questions=images) for way, name in pictures.items()}
            fewer = max(requests // count, 2 * CLIENTS)
            ask(f"{count} of {images} photographs a request", files, shown, IMAGE_CONTRASTS, requests=fewer)
    compare_calls(REPOSITORY / members(sentences)[0], budget)


def compare(
    title: str,
    folder: Path,
    rows: Mapping[str, Row],
    contrasts: Sequence[tuple[str, str, str]],
    *,
    requests: int,
    budget: float,
) -> None:
    """Load all in turn with the questions of a folder, and print what came of it."""
    with serving.start_clients(folder) as clients:
        result = serving.race(rows, contrasts[0][2], clients, requests, budget)
    print(f"\n{title}, {requests} requests a round, {result.rounds} rounds")
    serving.print_rows(rows, result.rounds)
    print_contrasts(result, {name: row.cpu_seconds for name, row in rows.items()}, contrasts)


def print_contrasts(
    result: benchmark.Race, cpu_seconds: Mapping[str, Sequence[float]], contrasts: Sequence[tuple[str, str, str]]
) -> None:
    serving.print_contrasts("times as many requests a second", serving.rates_of(result), contrasts)
    last = {name: seconds[-result.rounds :] for name, seconds in cpu_seconds.items()}  # those before warmed up
    serving.print_contrasts("times the CPU seconds of a request", last, contrasts)


def compare_calls(part: Path, budget: float) -> None:
    """What the part that makes tokens gains from answering all requests of an execution in one call."""
    (settings,) = part.glob(f"*/{SETTINGS_FILE}")
    step = TextStep(json.loads(settings.read_text()), settings.parent)
    feeds = [{"text": np.array([[text.encode()]], object)} for text in real_sentences()[:AT_ONCE]]
    ways: dict[str, Callable[[], Sequence[Any]]] = {
        ONE_CALL: lambda: step.answer(feeds),
        CALL_EACH: lambda: [step.answer([feed])[0] for feed in feeds],
    }
    expected = ways[CALL_EACH]()
    spent = 0.0
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}

    def run(name: str) -> None:
        nonlocal spent
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(REPEATS):
            answers = ways[name]()
        cpu_seconds[name].append(time.process_time() - cpu)
        spent += time.perf_counter() - wall
        if not all(map(is_same, answers, expected)):
            sys.exit(f"{name}: other tokens than in one call each")

    result = benchmark.race(
        {name: partial(run, name) for name in ways},
        CALL_EACH,
        setting=benchmark.machine(),
        clock=lambda: spent,
        budget_seconds=budget,
    )
    print(f"\ntokens of {AT_ONCE} requests of a sentence, {result.rounds} rounds")
    print_contrasts(result, cpu_seconds, CALL_CONTRASTS)


def is_same(answer: Arrays, alone: Arrays) -> bool:
    """Whether a request's tokens are what they are by themselves, but for padding."""
    length = alone["input_ids"].shape[1]
    begins = all(np.array_equal(answer[name][:, :length], alone[name]) for name in alone)
    return begins and not answer["attention_mask"][:, length:].any()


def members(view: Path) -> list[str]:
    """The models that an ensemble is made of, in their order."""
    return [step.model_name for step in parse_config((view / CONFIG_FILE).read_text()).ensemble_scheduling.step]


def sentences_spec() -> str:
    return spec("sentences", source=f"hf:{MINILM}", shapes={"input_ids": serving.SHAPES.partition("=")[2]}, pipeline={})


def pictures_spec(name: str) -> str:
    """The source's own outputs, so that an answer tells of the whole image."""
    pipeline = {"input": "image", "output": "tensors", "preprocessing": name.partition("-")[2]}
    source = f"timm:{(WORKPLACE / PICTURES).absolute()}"
    return spec(name, source=source, shapes={"pixel_values": PICTURES_SHAPES}, pipeline=pipeline)


def spec(name: str, **keys: object) -> str:
    """The file of a spec."""
    file = WORKPLACE / f"{name}.yaml"
    file.write_text(yaml.safe_dump(keys))
    return str(file)


def write_pictures(folder: Path) -> Any:
    """A tiny image model, with the same weights each time, so that it is compiled once."""
    import timm
    import torch
    from timm.models import save_for_hf

    torch.manual_seed(0)
    network = timm.create_model(PICTURES, pretrained=False).eval()
    save_for_hf(network, str(folder), safe_serialization=True)
    return network


def write_texts(folder: Path) -> Path:
    """Questions of one sentence each, of mixed lengths, and PyTorch's answers."""
    from benchmarks.plain_server import Embedder

    folder.mkdir()
    texts = real_sentences()
    feed = serving.tokens(texts)
    whole = np.flatnonzero(feed["attention_mask"][:, -1] == 0)[-QUESTIONS:]  # nothing of them is cut off
    np.save(folder / "expected.npy", Embedder().embed({name: array[whole] for name, array in feed.items()}))
    bodies = [question({"text": [texts[place]]}, "BYTES", OUTPUT) for place in whole]
    (folder / "bodies.json").write_text(json.dumps(bodies))
    return folder


def write_images(folder: Path, network: Any, count: int) -> tuple[Path, int]:
    """As many questions as there are photographs, of so many each; and PyTorch's answers behind timm's transform."""
    import timm
    import torch

    folder.mkdir()
    files = [encoded(image, "JPEG", quality=JPEG_QUALITY) for image in photographs().values()]
    transform: Any = timm.data.create_transform(**timm.data.resolve_data_config(model=network))
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.open(BytesIO(file)).convert("RGB")) for file in files])
        answers = network(pixels).numpy()
    batches = [[(first + place) % len(files) for place in range(count)] for first in range(len(files))]
    np.save(folder / "expected.npy", np.stack([answers[places].ravel() for places in batches]))
    bodies = [binary_question([files[place] for place in places]) for places in batches]
    (folder / "bodies.json").write_text(json.dumps(bodies))
    return folder, len(files)


def binary_question(files: Sequence[bytes]) -> str:
    """A request in the binary form of KServe's protocol, a letter a byte: JSON has no form for these bytes."""
    content = b"".join(struct.pack("<I", len(file)) + file for file in files)
    size = {"binary_data_size": len(content)}
    image = {"name": "image", "datatype": "BYTES", "shape": [len(files), 1], "parameters": size}
    return json.dumps({"inputs": [image], "outputs": [{"name": LOGITS}]}) + content.decode("latin-1")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines")
    parser.add_argument("--quick", action="store_true", help="few requests: shows that it works, and no figures")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_options())
