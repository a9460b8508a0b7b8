"""Answer kinds: what a model returns for a kind of raw input, and whether a spec may request it; from files alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import SourceScheme
from plansmith.records.pipeline import RawInput, RawOutput

_FRONTEND_OUTPUTS = {"labels", "embedding"}
TRANSFORMERS = "a model of transformers as the source (hf:<id or directory>)"


@dataclass(frozen=True)
class RawKind:
    """Kind of raw input.

    Attributes:
        name: as a spec has it.
        plural: in words.
        lacking: why sources of some schemes cannot have it as their input.
        fitting: the sources that can, in words.
        processor: what makes the model's inputs of it, in words.
        variable: what the one who saves that calls it.
        takes: whether a directory has it.
        output: what the model of a directory answers with, by the task or, where none is asked for, its configuration.
        untold: what else helps where no task is asked for.
    """

    name: RawInput
    plural: str
    lacking: Mapping[SourceScheme, str]
    fitting: str
    processor: str
    variable: str
    takes: Callable[[SourceScheme, Path], bool]
    output: Callable[[SourceScheme, Path, str], RawOutput]
    untold: str = ""

    def refuse(self, scheme: SourceScheme, folder: Path, options: PipelineOptions, *, task: str) -> RawOutput:
        """Refuse, before any heavy import, a source that cannot have this kind as its pipeline's input.

        Args:
            scheme: of the source.
            folder: its directory; of an ONNX file, the one that it lies in.
            options: what the spec says of the pipeline.
            task: that was asked for; empty: none.

        Returns:
            What the pipeline answers with.

        Raises:
            UsageError: the kind of source, or of model, does not fit what the spec asks for.
            SourceError: nothing makes the model's input, or a file is no JSON.
        """
        if scheme in self.lacking:
            raise UsageError(
                f"pipeline.input is {self.name}, and {self.lacking[scheme]}",
                remedy=f"name {self.fitting}, or leave `pipeline` out",
            )
        if not self.takes(scheme, folder):
            raise SourceError(
                f"pipeline.input is {self.name}, and {folder.name} has no {self.processor}",
                remedy=f"save it beside the model ({self.variable}.save_pretrained), or leave `pipeline` out",
            )
        default = self.output(scheme, folder, task)
        choice = options.output or default
        if choice not in {default, "tensors"}:
            raise UsageError(
                f"pipeline.output is {choice}, and the model's {'task' if task else 'configuration'} makes it"
                f" {default} of {self.plural}",
                remedy=f"write output: {default}, or tensors for the model's own outputs"
                + ("" if task else self.untold),
            )
        if options.frontend and (self.name != "text" or choice not in _FRONTEND_OUTPUTS):
            raise UsageError(
                f"pipeline.frontend is {options.frontend}, which asks for labels or embeddings of texts, and the model"
                f" makes {choice} of {self.plural}",
                remedy="leave `frontend` out of `pipeline`",
            )
        return choice
