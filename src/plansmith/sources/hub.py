"""Hugging Face Hub downloads of models and data sets: resolved to a commit, downloaded once, resumable."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources.directory import CARD_FILE, CODE_PATTERNS, FILE_PATTERNS, PICKLE_PATTERNS

_SECONDS_TO_ANSWER = 20
_COMMIT = re.compile(r"[0-9a-f]{40}")
_USE_A_DIRECTORY = "download it elsewhere and pass hf:<directory> (timm:<directory>)"


@dataclass(frozen=True)
class Snapshot:
    """Downloaded model snapshot: its folder and its commit."""

    folder: Path
    commit: str


def fetch_snapshot(
    repo: str,
    revision: str | None,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
    with_weights: bool,
    offline: bool,
    progress: Callable[[str], None],
) -> Snapshot:
    """Resolve a Hub id to a commit and download what a compile needs of it.

    Raises:
        SourceError: no such model or revision, no access to it, or no weights that may be read.
        EnvironmentFault: the hub cannot be reached and the local cache does not hold the model.
    """
    patterns = [p for p in FILE_PATTERNS if with_weights or p != "*.safetensors"]
    patterns += [CARD_FILE]
    patterns += [*CODE_PATTERNS] if trust_remote_code else []
    patterns += [*PICKLE_PATTERNS] if allow_pickle else []
    with hub_errors("model", repo, revision, _USE_A_DIRECTORY, offline=offline):
        from huggingface_hub import snapshot_download

        progress(f"asking the hub for {repo}")
        folder = Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["onnx/*", "openvino/*"],
                local_files_only=offline,
                tqdm_class=reporting_bar(progress),
            )
        )
    return Snapshot(folder, folder.name)


def known_commit(repo: str, revision: str | None, *, of: str = "model") -> str:
    """Return the commit of a revision in the local Hub cache; empty if unknown.

    The cache notes the commit of every branch and tag that was asked for, `refs/<revision>` below the folder of the
    repository (huggingface.co/docs/huggingface_hub/guides/manage-cache).

    Args:
        repo: its id.
        revision: a branch, tag or commit; main when None.
        of: "model" or "dataset".
    """
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.file_download import repo_folder_name
    except ImportError:
        return ""
    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type=of)
    try:
        return (folder / "refs" / (revision or "main")).read_text().strip()
    except OSError:
        return ""


def newest_commit(repo: str, revision: str | None, *, of: str = "model") -> str:
    """Return the current commit of a revision on the Hub; arguments as for `known_commit`.

    Raises:
        SourceError: no such thing or revision, or no access to it.
        EnvironmentFault: the hub cannot be reached, or must not be asked.
    """
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    with _asking("data set" if of == "dataset" else of, repo, revision):
        from huggingface_hub import HfApi

        return str(HfApi().repo_info(repo, revision=revision, repo_type=of, timeout=_SECONDS_TO_ANSWER).sha)


def newest_refs(repo: str) -> dict[str, str]:
    """Return the current commits of a model's branches and Git tags, by full names such as refs/heads/main.

    Raises:
        SourceError: no such model, or no access to it.
        EnvironmentFault: the hub cannot be reached, or must not be asked.
    """
    with _asking("model", repo, None):
        from huggingface_hub import HfApi, utils

        client: Any = utils  # whose functions mypy takes for its own
        client.validate_repo_id(repo)
        # As HfApi.list_repo_refs asks, which would wait for an answer without end.
        url = f"{HfApi().endpoint}/api/models/{repo}/refs"
        answer = client.get_session().get(url, headers=client.build_hf_headers(), timeout=_SECONDS_TO_ANSWER)
        client.hf_raise_for_status(answer)
    try:
        document = answer.json()
        refs = {str(entry["ref"]): str(entry["targetCommit"]) for entry in (*document["branches"], *document["tags"])}
    except (ValueError, TypeError, LookupError) as error:
        raise EnvironmentFault(f"what answers at {url} is no hub", remedy="see what HF_ENDPOINT names") from error
    return {ref: commit for ref, commit in refs.items() if _COMMIT.fullmatch(commit)}


@contextmanager
def _asking(kind: str, repo: str, revision: str | None) -> Iterator[None]:
    """Like `hub_errors`, for a query about commits that only the hub itself can answer."""
    with hub_errors(kind, repo, revision, "leave it as it is", offline=False):
        from huggingface_hub import is_offline_mode

        if is_offline_mode():
            raise EnvironmentFault(
                f"the hub was not asked for {repo}: HF_HUB_OFFLINE is set", remedy="unset HF_HUB_OFFLINE"
            )
        try:
            yield
        except (OSError, ValueError):  # answers of the hub, which have their own words
            raise
        except Exception as error:  # the client has no common class for lines that are down
            raise EnvironmentFault(
                f"the hub did not say which commit {repo} is at: {error}", remedy="try again", transient=True
            ) from error


@contextmanager
def hub_errors(kind: str, repo: str, revision: str | None, instead: str, *, offline: bool) -> Iterator[None]:
    """Convert Hub errors within the block to plansmith errors.

    Args:
        kind: "model" or "data set".
        repo: its id.
        revision: as it was asked for.
        instead: what to do without the hub.
        offline: the hub is not asked, by the caller's will.

    Raises:
        SourceError: no such thing or revision, or no access to it.
        EnvironmentFault: the hub cannot be reached and the local cache does not hold it.
    """
    try:
        from huggingface_hub import is_offline_mode
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise EnvironmentFault("huggingface_hub is not installed", remedy="pip install 'plansmith[compile]'") from error
    try:
        yield
    except GatedRepoError as error:
        raise SourceError(f"{repo} is gated", remedy="accept its terms on the hub, then: hf auth login") from error
    except RevisionNotFoundError as error:
        raise SourceError(
            f"{repo} has no revision {revision!r}", remedy="name a branch, tag or commit that exists"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise SourceError(
            f"the hub has no {kind} {repo!r} that you may read", remedy=f"check the id, or {instead}"
        ) from error
    except LocalEntryNotFoundError as error:
        if is_offline_mode():
            raise EnvironmentFault(
                f"the local cache does not hold {repo}, and the hub was not asked: HF_HUB_OFFLINE is set",
                remedy=f"unset HF_HUB_OFFLINE, or {instead}",
            ) from error
        raise EnvironmentFault(
            f"the hub cannot be reached, and the local cache does not hold {repo}",
            remedy=instead,
            transient=not offline,
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise EnvironmentFault(
            f"the hub did not deliver {repo}: {error}", remedy=f"try again, or {instead}", transient=True
        ) from error


def reporting_bar(progress: Callable[[str], None]) -> Any:
    """Return a progress bar class for huggingface_hub that reports bytes to `progress` instead of drawing."""
    from tqdm.auto import tqdm

    class Reporting(tqdm):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"file": io.StringIO(), "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            del msg, pos
            if self.unit == "B" and self.total:
                done, total = (self.format_sizeof(n, divisor=1000) for n in (self.n, self.total))
                progress(f"downloading, {done}B of {total}B")

    return Reporting
