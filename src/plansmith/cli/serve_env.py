"""`plansmith serve-env`: the private folder with a Triton server and ONNX Runtime for the served check."""

from __future__ import annotations

import click


@click.group("serve-env")
def serve_env_group() -> None:
    """The Triton server that this environment checks releases with."""


@serve_env_group.command("add")
@click.argument("target", default="local-cpu")
def add_command(target: str) -> None:
    """Install Triton and the ONNX Runtime of TARGET [local-cpu] beside this Python environment.

    Some 300 MB from the package index, in the environment's own share/plansmith; nothing else is touched.
    """
    from plansmith.targets import load_target
    from plansmith.triton.serve_env import install_runtime, install_server

    version = load_target(target).onnxruntime
    install_server(click.echo)
    install_runtime(version, click.echo)
    click.echo(f"ready to check releases for {target}")
