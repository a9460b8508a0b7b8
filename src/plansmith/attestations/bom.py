"""Bill of materials of a release: a CycloneDX ML-BOM with the model's card, materials, libraries and files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from plansmith.attestations.materials import DIGEST, BuildRun, Material, materials_of, tools_of
from plansmith.records.model import Tensor
from plansmith.records.release import Manifest
from plansmith.records.validation import ValidationReport

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import DisjunctiveLicense

_NOT_STATED = "not stated"


def bom_of(manifest: Manifest, run: BuildRun) -> str:
    """Return a release's bill of materials, as CycloneDX 1.6 JSON.

    It holds no version number, so that it stays true in a store that gives the release another one: the version of the
    model is the release's digest.

    Args:
        manifest: of the release.
        run: made it.
    """
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    materials = materials_of(manifest)
    model = Component(
        name=manifest.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="release",
        version=manifest.release_digest,
        properties=_properties(
            target=manifest.target,
            engine=str(manifest.engine.kind),
            precision=str(manifest.engine.precision),
            exporter=manifest.onnx.exporter,
            gate=manifest.validation.verdict,
        ),
    )
    components = [
        *map(_material_component, materials),
        *_libraries(manifest, run),
        *_packed_libraries(manifest),
        *_files(manifest),
    ]
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"urn:plansmith:bom:{manifest.release_digest}:{manifest.created}"),
        components=components,
        metadata=BomMetaData(component=model, timestamp=datetime.fromisoformat(manifest.created)),
    )
    bom.metadata.tools.components.add(
        Component(name="plansmith", type=ComponentType.APPLICATION, version=manifest.plansmith)
    )
    bom.register_dependency(model, components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    document["metadata"]["component"]["modelCard"] = _model_card(manifest, materials)  # the library has no class for it
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def describe_bom(text: str) -> dict[str, Any]:
    """Return the facts of a CycloneDX bill of materials in JSON, as nested JSON values.

    Raises:
        ValueError: it is none.
    """
    try:
        document = json.loads(text)
        if document["bomFormat"] != "CycloneDX":
            raise ValueError("its format is not CycloneDX")
        subject, components = document["metadata"]["component"], document.get("components", [])
        counts = Counter(component["type"] for component in components)
        return {
            "format": f"CycloneDX {document['specVersion']}",
            "of": f"{subject['name']} ({subject['type']})",
            "components": dict(sorted(counts.items())),
            "licences": _licences(components),
            "listed": [
                " ".join(filter(None, (component["type"], component["name"], component.get("version", ""))))
                for component in components
            ],
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("it is no bill of materials of CycloneDX") from error


def _licences(components: list[dict[str, Any]]) -> dict[str, str]:
    """Return the licences that are stated, by component."""
    stated = {}
    for component in components:
        entries = [
            entry.get("license") or {"name": entry.get("expression", "")} for entry in component.get("licenses", [])
        ]
        if entries:
            stated[component["name"]] = ", ".join(entry.get("id") or entry.get("name", "") for entry in entries)
    return stated


def _material_component(material: Material) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    is_model = material.kind == "model"
    return Component(
        name=material.name,
        type=ComponentType.MACHINE_LEARNING_MODEL if is_model else ComponentType.DATA,
        bom_ref=material.ref,
        version=material.revision or None,
        description=material.note or None,
        licenses=[_license(material.licence)] if material.licence else [],
        purl=PackageURL.from_string(material.uri) if material.uri.startswith("pkg:") else None,
        properties=_properties(digest=material.digest, uri=material.uri),
    )


def _libraries(manifest: Manifest, run: BuildRun) -> Iterator[Component]:
    """Yield the tools that made the release; it does not need them to be served."""
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from packageurl import PackageURL

    for name, version in tools_of(manifest, run).items():
        yield Component(
            name=name,
            type=ComponentType.LIBRARY,
            bom_ref=f"tool:{name}",
            version=version,
            scope=ComponentScope.EXCLUDED,
            purl=PackageURL("pypi", name=name, version=version),
        )


def _packed_libraries(manifest: Manifest) -> Iterator[Component]:
    """Yield what packed environments in the release hold; each distribution once."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from packageurl import PackageURL

    environments = (manifest.package.environment, *(member.environment for member in manifest.package.members))
    packed = {entry.wheel: entry for packed in environments if packed for entry in packed.distributions}
    for wheel, entry in sorted(packed.items()):
        yield Component(
            name=entry.name,
            type=ComponentType.LIBRARY,
            bom_ref=f"packed:{wheel}",
            version=entry.version,
            scope=ComponentScope.REQUIRED,
            purl=PackageURL("pypi", name=entry.name, version=entry.version),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=entry.sha256)],
        )


def _files(manifest: Manifest) -> Iterator[Component]:
    """Yield the files that Triton reads."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    served = set(manifest.package.files)
    for file in manifest.files:
        if file.path in served:
            hashes = [HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)]
            yield Component(name=file.path, type=ComponentType.FILE, bom_ref=f"file:{file.path}", hashes=hashes)


def _properties(**values: str) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=f"plansmith:{name}", value=value) for name, value in values.items()]


def _license(name: str) -> DisjunctiveLicense:
    """Return a licence by its SPDX identifier if it is one, and by its own name otherwise."""
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.spdx import fixup_id

    identifier = fixup_id(name)
    return DisjunctiveLicense(id=identifier) if identifier else DisjunctiveLicense(name=name)


def _model_card(manifest: Manifest, materials: tuple[Material, ...]) -> dict[str, Any]:
    """Return the model card as far as it is known: task, interface, data, and what the gate measured."""
    interface = manifest.package.interface
    parameters: dict[str, Any] = {"task": manifest.source.task} if manifest.source.task else {}
    datasets = [_dataset(material) for material in materials if material.kind == "data"]
    if datasets:
        parameters["datasets"] = datasets
    parameters["inputs"] = [{"format": _format(tensor)} for tensor in interface.inputs]
    parameters["outputs"] = [{"format": _format(tensor)} for tensor in interface.outputs]
    metrics = list(_metrics(manifest.validation))
    return {
        "modelParameters": parameters,
        **({"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}),
    }


def _dataset(material: Material) -> dict[str, Any]:
    """Return a data set of the card."""
    return {
        "type": "dataset",
        "name": material.name,
        "contents": {"url": material.uri, "properties": [{"name": DIGEST, "value": material.digest}]},
        "classification": _NOT_STATED,  # readers expect one
        "description": material.note,
    }


def _format(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype} [{', '.join(map(str, tensor.dims))}]"


def _metrics(validation: ValidationReport) -> Iterator[dict[str, Any]]:
    """Yield what the gate measured: on held-out samples, and the worst error at every shape."""
    evaluation = validation.evaluation
    if evaluation is not None:
        slice_of = "{} held-out samples".format
        for metric in evaluation.metrics:
            yield {"type": metric.name, "value": f"{metric.candidate:.6g}", "slice": slice_of(metric.samples)}
            yield {
                "type": f"change of {metric.name} against the source model",
                "value": f"{metric.change.value:.6g}",
                "slice": slice_of(metric.samples),
                "confidenceInterval": {
                    "lowerBound": f"{metric.change.low:.6g}",
                    "upperBound": f"{metric.change.high:.6g}",
                },
            }
        for agreement in evaluation.agreements:
            yield {
                "type": f"mean cosine of {agreement.output} with the source model's",
                "value": f"{agreement.mean_cosine:.6g}",
                "slice": slice_of(agreement.samples),
            }
    for output, worst in validation.worst().items():
        yield {
            "type": f"largest error of {output}, relative to its magnitude",
            "value": f"{worst['max_relative']:.6g}",
            "slice": "all shapes that were compared",
        }
