"""What it costs a client to send and fetch a model: plansmith beside awscli, in turn, in one run.

    python -m benchmarks.stores [ROUNDS] [MIB]

Both send the same files to the same server over HTTP and fetch them again. plansmith hashes each file, compares what
arrives with its SHA-256, and goes on where it was interrupted; awscli computes the checksums that it does by default.
Two servers: one that checks checksums, as S3 does, and moto, which does not, so that plansmith reads back what it sent.
Then a release is published twice, and the bytes of the second time are counted. awscli is installed on first use, in an
environment of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Cost, compare, environment_with, run
from benchmarks.store_client import Job
from tests.support.stores.releases import make_release

from plansmith.records.destination import Location
from plansmith.stores.store import open_objects
from plansmith.system.digest import Digester

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
BUCKET = "benchmark"
MOST_MIB = 300
MOST_SENT_AGAIN = 0.01


def main(rounds: int, mib: int) -> None:
    os.environ |= ENVIRONMENT
    with tempfile.TemporaryDirectory() as place:
        # moto copies the whole object for each range of it, which takes minutes where it is large.
        for name, server, size in (("a server that checks", _plain_server, mib), ("moto", _moto, mib // 4)):
            folder = _model(Path(place, name), size)
            with server(Path(place)) as endpoint:
                _compare(name, endpoint, folder, Path(place), rounds)
            shutil.rmtree(folder)
        with _plain_server(Path(place)) as endpoint:
            _publish_twice(endpoint, Path(place), mib)


def _model(folder: Path, mib: int) -> Path:
    """A large file and a few small ones, of bytes that do not repeat."""
    folder.mkdir()
    for name, size in (("model.onnx", mib << 20), *((f"small-{number}.json", 40_000) for number in range(8))):
        with Path("/dev/urandom").open("rb") as source, (folder / name).open("wb") as out:
            for start in range(0, size, 1 << 20):
                out.write(source.read(min(1 << 20, size - start)))
    return folder


def _compare(name: str, endpoint: str, folder: Path, place: Path, rounds: int) -> None:
    aws = [str(environment_with("awscli").with_name("aws")), "--endpoint-url", endpoint, "s3"]
    subprocess.run([*aws, "mb", f"s3://{BUCKET}"], check=True, stdout=subprocess.DEVNULL)
    copy = [*aws, "cp", "--recursive", "--only-show-errors"]
    files = Digester(place / "digests.sqlite").entries(folder)
    abilities = open_objects(_store(endpoint, "probed"), Path()).probed()
    costs: dict[str, tuple[list[Cost], list[Cost]]] = {"sent": ([], []), "fetched": ([], [])}
    for number in range(rounds):
        location, back, theirs = _store(endpoint, f"ours-{number}"), place / "ours", place / "theirs"
        job = Job(place=location, folder=str(folder), files=files, abilities=abilities)
        costs["sent"][0].append(_run("send", job))
        costs["sent"][1].append(run([*copy, str(folder), f"s3://{BUCKET}/theirs-{number}"]))
        costs["fetched"][0].append(_run("fetch", job.model_copy(update={"folder": str(back)})))
        costs["fetched"][1].append(run([*copy, f"s3://{BUCKET}/theirs-{number}", str(theirs)]))
        for fetched in (back, theirs):
            assert Digester(place / "digests.sqlite").entries(fetched) == files
            shutil.rmtree(fetched)
    for title, (ours, of_aws) in costs.items():
        compare(ours, of_aws, f"{title}, {name}", "awscli")
        assert max(cost.peak_mib for cost in ours) < MOST_MIB


def _publish_twice(endpoint: str, place: Path, mib: int) -> None:
    """Publish a release, and again."""
    release = make_release(place / "repository", bulk_bytes=mib << 20)
    job = Job(place=_store(endpoint, "store"), folder=str(release.repository.root))
    sent = []
    for _ in range(2):
        before = _received(endpoint)
        cost = _run("publish", job)
        sent.append(_received(endpoint) - before)
        assert cost.peak_mib < MOST_MIB, f"{cost.peak_mib:.0f} MiB"
    assert sent[1] < MOST_SENT_AGAIN * sent[0], sent
    print(f"publishing a release twice   sent {sent[0]:,} bytes, and then {sent[1]:,}")


def _store(endpoint: str, prefix: str) -> Location:
    return Location(to=f"s3://{BUCKET}/{prefix}", endpoint_url=endpoint)


def _run(action: str, job: Job) -> Cost:
    return run([sys.executable, "-m", "benchmarks.store_client", action, job.model_dump_json()])


def _received(endpoint: str) -> int:
    with urllib.request.urlopen(f"{endpoint}/-/bytes") as answer:
        return int(answer.read())


@contextmanager
def _plain_server(place: Path) -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(dir=place) as folder,
        _running([sys.executable, "-m", "benchmarks.plain_s3", folder]) as process,
    ):
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def _moto(_place: Path) -> Iterator[str]:
    code = (
        "from moto.server import ThreadedMotoServer as S; import time; s = S('127.0.0.1', 0, verbose=False); s.start();"
        "print(s.get_host_and_port()[1], flush=True); time.sleep(1e6)"
    )
    with _running([sys.executable, "-c", code]) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, int(sys.argv[2]) if len(sys.argv) > 2 else 1024)
