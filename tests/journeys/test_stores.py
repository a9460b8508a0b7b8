"""Releases go into stores and come back from them."""

from __future__ import annotations

from pathlib import Path

from ..support.cli.command import CommandLine
from ..support.servers.aws_server import SECRET
from ..support.stores.releases import MODEL, make_release
from ..support.stores.s3 import S3


def store_options(s3: S3) -> tuple[str, ...]:
    """What names a store in the bucket."""
    return ("--store", f"s3://{s3.bucket}/models", "--endpoint-url", s3.endpoint)


def publish_words(s3: S3) -> tuple[str, ...]:
    """What publishes the newest release of a repository there."""
    return ("publish", MODEL, f"s3://{s3.bucket}/models", "--endpoint-url", s3.endpoint)


def test_release_travels_through_s3(s3: S3, tmp_path: Path) -> None:
    """What one machine publishes to S3, another pulls, serves and gets its answers from."""
    sender, receiver = CommandLine(tmp_path / "here"), CommandLine(tmp_path / "there")
    make_release(sender.folder / "artifacts" / "repository", 42)
    receiver.folder.mkdir()
    published = sender.document(*publish_words(s3), "--alias", "champion")
    assert (published["version"], published["aliases"], published["unchanged"]) == (1, ["champion"], False)
    pulled = receiver.text("pull", f"{MODEL}@champion", *store_options(s3), "--into", "mirror")
    assert pulled.startswith(f"{MODEL} version 1: ")
    answer = receiver.document("infer", MODEL, "--input", "x=1", "--repository", "mirror", "--serve")
    assert answer["outputs"]["whole"]["data"] == [[42]]
    assert SECRET not in str(published) + pulled


def test_verify_finds_and_resend_mends(terminal: CommandLine) -> None:
    """A flipped byte in a store is found and named, and what the message says to type mends it."""
    make_release(terminal.folder / "artifacts" / "repository", 1)
    terminal.text("publish", MODEL, "store")
    contents = [path for path in (terminal.folder / "store" / "objects").rglob("*") if path.is_file()]
    place = max(contents, key=lambda path: path.stat().st_size)
    content = place.read_bytes()
    place.unlink()
    place.write_bytes(content[::-1])
    damaged = terminal("verify", "--store", "store", "--json")
    assert damaged.status == 7
    assert "--resend --no-alias" in damaged.message
    assert place.name in damaged.document["damages"][0]["key"]
    terminal.text("publish", f"{MODEL}@1", "store", "--resend", "--no-alias")
    assert terminal.text("verify", "--store", "store").endswith("  all as it was published\n")
