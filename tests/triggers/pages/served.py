"""`plansmith triggers serve` with its page, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...support.cli.command import environment
from ...support.prefect.programs import free_port
from .site import service


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A receiver that works in a folder, and its address."""
    whole = service(folder).model_dump(mode="json", exclude_defaults=True)
    (folder / "service.yaml").write_text(json.dumps(whole))
    port = free_port()
    command = [sys.executable, "-m", "plansmith", "triggers", "serve", "--service", str(folder / "service.yaml")]
    command += ["--no-worker", "--no-poll", "--port", str(port), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(A="a")
    )
    try:
        assert process.stdout is not None
        lines = ["takes deliveries at "] if "--no-page" in arguments else ["status page at ", "takes deliveries at "]
        for line in lines:
            assert process.stdout.readline().startswith(f"{line}http://")
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()
