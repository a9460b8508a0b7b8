"""A running Triton makes tensors of images and sounds that come at once, and a hostile file harms no other request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from plansmith.errors import EnvironmentFault
from plansmith.pipelines.audio.pipeline import AUDIO
from plansmith.pipelines.image.pipeline import IMAGE
from plansmith.pipelines.image.reference import bytes_array
from plansmith.triton.server.installation import find_installation, require_python
from plansmith.triton.server.server import TritonServer

from ...support.pipelines.images import encoded, files_of_all_kinds, photographs
from ...support.pipelines.texts import Served
from ...support.waiting import soon
from ..audio import test_sound
from ..text.test_text_on_triton import ServedPipeline, config
from .test_hostile_images import HOSTILE
from .test_plan_images import save_timm, serve

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("images-on-triton")]


def _lay_out(served: Served, repository: Path) -> None:
    """The parts before a model, as models of their own."""
    for part in served.draft.before:
        place = repository / part.name
        place.mkdir(parents=True)
        (place / "config.pbtxt").write_text(config(part))
        (served.folder / part.name).rename(place / "1")
        (served.folder / part.name).symlink_to(place / "1")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedPipeline, ServedPipeline]]:
    """A server, asked for images and for sounds."""
    folder = tmp_path_factory.mktemp("images-on-triton")
    try:
        installation = find_installation()
        require_python(installation)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    images = serve(save_timm(folder / "timm"), folder / "images", "timm")
    sounds = test_sound.serve("whisper", folder / "sounds")
    for served in (images, sounds):
        _lay_out(served, folder / "repository")
    with TritonServer(folder / "repository", installation, folder / "log", deadline_seconds=240) as server:
        yield ServedPipeline(server.http_url, images), ServedPipeline(server.http_url, sounds)


def test_images_over_wire_match_local(running: tuple[ServedPipeline, ServedPipeline]) -> None:
    """Images over the wire become the tensor that they become here."""
    server, _ = running
    request = {IMAGE: bytes_array([file for _, file in files_of_all_kinds()])}

    output = server.ask("images", request)

    assert isinstance(output, dict)
    (owed,) = server.served.step(server.served.draft.before[0]).answer([request])
    np.testing.assert_array_equal(output["pixel_values"], owed["pixel_values"])


def test_hostile_images_harm_no_others(running: tuple[ServedPipeline, ServedPipeline]) -> None:
    """Hostile images that come with good ones harm none of them."""
    server, _ = running
    good = [{IMAGE: bytes_array([encoded(image, "JPEG")])} for image in photographs().values()]
    bad = [{IMAGE: bytes_array([file])} for file, _ in HOSTILE.values()]
    before = server.executions("images")

    with ThreadPoolExecutor(len(good) + len(bad)) as clients:
        answers = list(clients.map(lambda request: server.ask("images", request), [*good, *bad]))

    assert soon(lambda: server.executions("images") > before, True)
    for request, answer in zip(good, answers, strict=False):
        assert isinstance(answer, dict)
        (owed,) = server.served.step(server.served.draft.before[0]).answer([request])
        np.testing.assert_array_equal(answer["pixel_values"], owed["pixel_values"])
    for (_, fragment), answer in zip(HOSTILE.values(), answers[len(good) :], strict=True):
        assert isinstance(answer, str)
        assert fragment in answer


def test_sounds_over_wire_match_local(running: tuple[ServedPipeline, ServedPipeline]) -> None:
    """Sounds over the wire become the spectra that they become here."""
    _, server = running
    for request in server.served.draft.questions.values():
        output = server.ask("sound", dict(request))
        assert isinstance(output, dict)
        (owed,) = server.served.step(server.served.draft.before[0]).answer([request])
        np.testing.assert_array_equal(output["input_features"], owed["input_features"])
    refusal = server.ask("sound", {AUDIO: bytes_array([b"no sound"])})
    assert isinstance(refusal, str)
    assert "audio: the sound in row 0 is refused: it is no WAV file" in refusal
