"""Two compiles of one model at once share the work."""

from __future__ import annotations

from pathlib import Path

from plansmith.digest import Digester

from .compiles import NAME, cached_steps, finish, start_compile
from .wholeness import release_numbers, repository_problems, staging_problems


def test_of_two_compiles_of_one_model_one_builds_and_the_other_takes_what_it_built(
    tiny_bert: Path, tmp_path: Path
) -> None:
    artifacts = tmp_path / "artifacts"
    # A look at the source is work too, which both would do: here it is known from an earlier run.
    Digester(artifacts / "cache" / "digests.sqlite").file(tiny_bert / "config.json")
    running = [start_compile(tiny_bert, artifacts) for _ in range(2)]
    documents = [finish(process) for process in running]
    first, second = (cached_steps(document) for document in documents)
    assert {step: (first[step], second[step]).count(False) for step in first} == dict.fromkeys(first, 1)
    assert [document["version"] for document in documents] == [1, 1]
    assert release_numbers(artifacts / "repository", NAME) == (1,)
    assert repository_problems(artifacts / "repository") + staging_problems(artifacts / "cache" / "staging") == []
