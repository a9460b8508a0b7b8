"""Small repositories, and what a check says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plansmith.triton.checker.checker import check_repository

if TYPE_CHECKING:
    from plansmith.config.targets import Target
    from plansmith.triton.checker.findings import Finding


@dataclass(frozen=True)
class Written:
    """A repository in the making.

    Args:
        root: the folder that Triton reads.
    """

    root: Path

    def add(
        self, name: str, config: str | bytes | None, files: Mapping[str, bytes | str] | Sequence[str] = ("1/",)
    ) -> Path:
        """Write a model.

        Args:
            name: of its folder.
            config: the text of config.pbtxt; None for none.
            files: what else lies in the folder: content by path, or paths alone for empty files; "1/" is a folder, and
                content "-> place" a link.

        Returns:
            Its folder.
        """
        folder = self.root / name
        folder.mkdir(parents=True)
        if config is not None:
            (folder / "config.pbtxt").write_bytes(config.encode() if isinstance(config, str) else config)
        for path, content in (files if isinstance(files, Mapping) else dict.fromkeys(files, b"")).items():
            place = folder / path
            if path.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str) and content.startswith("-> "):
                place.symlink_to(content.removeprefix("-> "))
                continue
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    def findings(
        self,
        *,
        target: Target | None = None,
        sagemaker: bool = False,
        dynamo: bool = False,
        arguments: Sequence[str] = (),
    ) -> list[Finding]:
        """What a check finds."""
        return check_repository(self.root, target=target, sagemaker=sagemaker, dynamo=dynamo, arguments=arguments)

    def broken(
        self,
        *,
        target: Target | None = None,
        sagemaker: bool = False,
        dynamo: bool = False,
        arguments: Sequence[str] = (),
    ) -> set[tuple[str, str]]:
        """The models and the rules that a check finds broken in them."""
        results = self.findings(target=target, sagemaker=sagemaker, dynamo=dynamo, arguments=arguments)
        return {(finding.model, finding.rule) for finding in results}


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """An empty repository."""
    root = tmp_path / "repository"
    root.mkdir()
    return Written(root)
