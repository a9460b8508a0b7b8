"""What was looked at in a repository or a store, and what there is not as it was published."""

from __future__ import annotations

from typing import Literal

from plansmith.records.model import Record

Kind = Literal["repository", "store"]


class Damage(Record):
    """Something that is not as it was published.

    `version`: None for what is of all of a model's; `path`: of a file in the release, or in the view of it that Triton
    reads, empty for what is none of its files; `key`: the object's, or the file's whole path; `hidden`: of a version
    that Triton is not shown, and that a collection takes away for it.
    """

    model: str
    version: int | None
    path: str
    key: str
    problem: str
    hidden: bool = False


class Verification(Record):
    """What was looked at, and what is wrong with it.

    `typed`: what a person types for the place; `kind`: of it; `quick`: no content was read; `files` and `bytes`: each
    once, however many releases share it; `others`: contents that no release has, with their bytes; 0 where only one
    model was looked at.
    """

    place: str
    typed: str
    kind: Kind
    quick: bool
    models: int
    versions: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    others: int = 0
    other_bytes: int = 0

    def remedy(self) -> str:
        """What to do about the damages; empty where there are none."""
        if not self.damages:
            return ""
        if self.kind == "store":
            first = self.damages[0]
            broken = first.model if first.version is None else f"{first.model}@{first.version}"
            again = f"plansmith publish {broken} {self.typed} --resend --no-alias"
            return f"publish it again from a repository that has it: {again}"
        hidden = f"plansmith gc --repository {self.typed} takes away damaged versions that Triton is not shown"
        shown = "compile the model again: a damaged release is replaced by a new version"
        if all(one.hidden for one in self.damages):
            return hidden
        return f"{shown}; {hidden}" if any(one.hidden for one in self.damages) else shown
