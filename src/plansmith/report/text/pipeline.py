"""What stands around a model, in lines for a person."""

from __future__ import annotations

from collections.abc import Iterator

from plansmith.records.pipeline import MODEL_PART, Pipeline, Script


def describe_route(pipeline: Pipeline) -> str:
    """The parts in the order in which a request goes through them."""
    parts = [part.name for part in pipeline.before] + [MODEL_PART] + [part.name for part in pipeline.after]
    return f"{pipeline.input} in, {pipeline.output} out: {' → '.join(parts)}"


def describe_agreement(pipeline: Pipeline) -> str:
    """How its answers compare with those of the source's own library, on this machine and before any server."""
    rows = sum(case.rows for case in pipeline.cases)
    asked = f"{rows} raw samples in {len(pipeline.cases)} requests"
    if not pipeline.agreements:
        return f"{asked}; not compared with {pipeline.source} here"
    others = [one for one in pipeline.agreements if not one.same]
    less = f"; not quite the same in {len(others)} of them" if others else ""
    return f"{asked} answered as by {pipeline.source}{less}"


def script_lines(script: Script | None) -> Iterator[str]:
    """What a script answers with, and how that compares; nothing where there is none."""
    if script is None:
        return
    yield f"a script asks them, and answers with {', '.join(tensor.name for tensor in script.outputs)}"
    rows = sum(case.rows for case in script.cases)
    others = [one for one in script.agreements if not one.same]
    less = f"; not quite the same in {len(others)} of them" if others else ""
    left = f"; it refuses {', '.join(script.refused)}" if script.refused else ""
    yield f"{rows} raw samples in {len(script.cases)} requests answered as with the sources' own libraries{less}{left}"


def pipeline_lines(pipeline: Pipeline | None) -> Iterator[str]:
    """Both; nothing where nothing stands around the model."""
    if pipeline is not None:
        yield describe_route(pipeline)
        yield describe_agreement(pipeline)
