"""Run a coverage-guided fuzzer on readers, each for some time: `python -m tests.support.fuzz --seconds 60 READER`.

An input that a reader answers with anything but a refusal, or on which it takes 5 s or more than 1 GiB, is written to
artifacts/fuzz/READER/ and named, and the search goes on. The fuzzer is atheris, libFuzzer for Python: it knows which
lines of plansmith an input reaches. Each reader has a process of its own.
"""

from __future__ import annotations

import hashlib
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import atheris
import click

with atheris.instrument_imports(include=["plansmith"]):
    from .reader import Reader
    from .readers import READERS

MOST_SECONDS = 5.0
"""Of this process's CPU time, for one input."""
MOST_BYTES = 2**30
RESULTS = Path("artifacts", "fuzz")


class _Hang(BaseException):
    """Raised where an input takes too long."""


def _stop(*_: object) -> NoReturn:
    raise _Hang


class _Findings:
    """Attempts at one reader, and what it answered wrongly: one input for each place."""

    def __init__(self, name: str, reader: Reader) -> None:
        self._name, self._reader = name, reader
        self._known: set[str] = set()

    def attempt(self, data: bytes) -> None:
        """Try an input, and keep it if it is a finding."""
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
            self._reader.attempt(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - that is what is searched for
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._keep(data, error)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _keep(self, data: bytes, error: BaseException) -> None:
        places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        own = [place for place in places if "/plansmith/" in place]
        finding = f"{type(error).__name__} at {(own or places)[-1]}"
        if finding not in self._known:
            self._known.add(finding)
            file = RESULTS / self._name / hashlib.sha256(data).hexdigest()[:12]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            print(f"FINDING {self._name}: {finding}: {str(error)[:200]} ({file})", flush=True)


def _search(name: str, seconds: int, seed: int) -> None:
    """Search for inputs that a reader answers wrongly; ends the process."""
    reader = READERS[name]
    findings = _Findings(name, reader)
    warnings.simplefilter("error", RuntimeWarning)  # of NumPy: a number that is none goes on
    signal.signal(signal.SIGVTALRM, _stop)
    with tempfile.TemporaryDirectory(prefix="plansmith-fuzz-corpus-") as corpus:
        for number, content in enumerate(reader.seeds()):
            Path(corpus, str(number)).write_bytes(content)
            findings.attempt(content)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, resource.RLIM_INFINITY))
        options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=65536", "-rss_limit_mb=0"]
        if reader.tokens:
            tokens = Path(corpus, "tokens")
            tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in reader.tokens))
            options.append(f"-dict={tokens}")
        atheris.Setup([sys.argv[0], *options, corpus], findings.attempt)
        atheris.Fuzz()


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


@click.command()
@click.argument("names", metavar="READER…", nargs=-1, type=click.Choice(sorted(READERS)))
@click.option("--seconds", default=60, show_default=True, help="For each.")
@click.option("--seed", default=1, show_default=True)
def main(names: Sequence[str], seconds: int, seed: int) -> None:
    """Search for inputs that READERs answer wrongly; all of them where none is named."""
    if len(names) == 1:
        _search(names[0], seconds, seed)
    command = [sys.executable, "-m", __package__, "--seconds", str(seconds), "--seed", str(seed)]
    for name in names or sorted(READERS):
        subprocess.run([*command, name], check=False)


main()
