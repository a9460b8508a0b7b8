"""`plansmith sagemaker`: releases on Amazon SageMaker."""

from __future__ import annotations

import click

from plansmith.cli.sagemaker.invoke import invoke_command
from plansmith.cli.sagemaker.package import package_command


@click.group("sagemaker", short_help="Releases on Amazon SageMaker: archives for its Triton containers, and endpoints.")
def sagemaker_group() -> None:
    """Releases on Amazon SageMaker, served by its Triton containers.

    \b
    plansmith sagemaker package minilm
    plansmith sagemaker package bert resnet50 --multi-model --output archives
    plansmith sagemaker invoke minilm-prod --model minilm --text "a cat"
    """


sagemaker_group.add_command(package_command)
sagemaker_group.add_command(invoke_command)
