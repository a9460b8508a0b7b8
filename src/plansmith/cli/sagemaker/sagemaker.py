"""`plansmith sagemaker`: releases on Amazon SageMaker."""

from __future__ import annotations

import click

from plansmith.cli.sagemaker.alarms import alarms_command
from plansmith.cli.sagemaker.invoke import invoke_command
from plansmith.cli.sagemaker.metrics import metrics_command
from plansmith.cli.sagemaker.package import package_command


@click.group("sagemaker", short_help="Releases on Amazon SageMaker: archives for its Triton containers, and endpoints.")
def sagemaker_group() -> None:
    """Releases on Amazon SageMaker, served by its Triton containers.

    \b
    plansmith sagemaker package minilm
    plansmith sagemaker package bert resnet50 --multi-model --output archives
    plansmith sagemaker invoke minilm-prod --model minilm --text "a cat"
    plansmith sagemaker metrics minilm-prod --since 1d --plot minilm.html
    plansmith sagemaker alarms minilm-prod --limit p99-ms=200
    """


sagemaker_group.add_command(package_command)
sagemaker_group.add_command(invoke_command)
sagemaker_group.add_command(metrics_command)
sagemaker_group.add_command(alarms_command)
