"""Mistakes: a command line for each command with one thing wrong, and what the command says of it."""

from __future__ import annotations

from typing import NamedTuple

FOLDER = "/srv"
"""The working directory, as messages name it."""

_NO_REPOSITORY = "there is no model repository /srv/artifacts/repository"
_NO_STORE = "/srv/models is no store"
_NO_ENDPOINT = "cannot read endpoint.yaml: No such file or directory"
_NO_SPECS = "specs: there is no spec and no folder /srv/specs; next: name a .yaml file, or a folder that holds some"
_NO_SERVICE = "there is no file team.yaml"
_PRECISIONS = "'auto', 'fp32', 'fp16', 'bf16', 'fp8', 'int8'"


class Mistake(NamedTuple):
    """A mistake.

    Attributes:
        arguments: what is typed after the command.
        status: the exit code.
        message: the first line of the error.
    """

    arguments: str
    status: int
    message: str


MISTAKES = {
    "demo": Mistake("--text", 2, "Option '--text' requires an argument."),
    "doctor": Mistake("--dep", 2, "No such option '--dep'. (Did you mean one of: '--deep', '--help'?)"),
    "serve-env add": Mistake("triton-26.8", 6, "there is no target 'triton-26.8'"),
    "serve-env list": Mistake("--jsn", 2, "No such option '--jsn'. Did you mean '--json'?"),
    "serve-env remove": Mistake("triton26.08", 6, "there is no target 'triton26.08'"),
    "init": Mistake("hf:./bert", 3, "fetch: there is no directory /srv/bert"),
    "compile": Mistake("minilm", 2, "cannot tell what 'minilm' is"),
    "serve": Mistake("minilm", 7, "artifacts/repository does not exist"),
    "infer": Mistake("minilm --text", 2, "Option '--text' requires an argument."),
    "show": Mistake("minilm", 7, _NO_REPOSITORY),
    "inspect": Mistake(
        "model.onnx",
        2,
        "model.onnx is no release, repository, lowered graph, ONNX file, plan, provenance or bill of materials",
    ),
    "report": Mistake("minilm", 7, _NO_REPOSITORY),
    "diff": Mistake("minilm@1", 2, "Missing argument 'NEW'."),
    "explain": Mistake("config.dim", 2, "there is no exit code, rule or key 'config.dim'"),
    "history": Mistake("--limit none", 2, "Invalid value for '--limit': 'none' is not a valid integer range."),
    "targets": Mistake("triton-26.8", 6, "there is no target 'triton-26.8'"),
    "schema": Mistake("--output keys/spec.json", 2, "cannot write keys/spec.json: No such file or directory"),
    "lower": Mistake(
        "hf:./bert --output low --precision fp4",
        2,
        f"Invalid value for '--precision': 'fp4' is not one of {_PRECISIONS}.",
    ),
    "validate": Mistake("minilm", 7, _NO_REPOSITORY),
    "check": Mistake("artifacts/repository", 7, "artifacts/repository does not exist"),
    "loadtest": Mistake("minilm --ramp fast", 2, "--ramp 'fast' is not FIRST:LAST:STEPxTIME"),
    "compare": Mistake("minilm", 7, _NO_REPOSITORY),
    "tune": Mistake(
        "minilm --objective speed",
        2,
        "Invalid value for '--objective': 'speed' is not one of 'throughput', 'latency', 'cost'.",
    ),
    "capacity": Mistake("minilm --memory lots", 2, "--memory 'lots' is no size"),
    "zoo": Mistake("models.yaml", 2, "cannot read models.yaml: No such file or directory"),
    "publish": Mistake(
        "minilm s3:models", 2, "DESTINATION: no destination: s3: is no folder; an S3 prefix is s3://bucket/prefix"
    ),
    "sign": Mistake("minilm", 2, "it is not said with what to sign"),
    "pull": Mistake("minilm", 2, "it is not said which store is meant"),
    "sync": Mistake(
        "--store models --interval soon", 2, "Invalid value for '--interval': 'soon' is not a valid float range."
    ),
    "versions": Mistake("minilm --store models", 7, _NO_STORE),
    "promote": Mistake("minilm@1 champion", 2, "it is not said which store is meant"),
    "pin": Mistake("minilm@1 --store models", 2, "a pin has a reason, or is taken off"),
    "rollback": Mistake("minilm --store models", 7, _NO_STORE),
    "store": Mistake(
        "--store s3:models", 2, "--store: no destination: s3: is no folder; an S3 prefix is s3://bucket/prefix"
    ),
    "sagemaker package": Mistake("minilm", 7, _NO_REPOSITORY),
    "sagemaker register": Mistake("minilm --group models --upload models", 2, "--upload models is a folder"),
    "sagemaker deploy": Mistake("endpoint.yaml", 2, _NO_ENDPOINT),
    "sagemaker status": Mistake("endpoint.yaml", 2, _NO_ENDPOINT),
    "sagemaker delete": Mistake("endpoint.yaml", 2, _NO_ENDPOINT),
    "sagemaker policy": Mistake("endpoint.yaml", 2, _NO_ENDPOINT),
    "sagemaker recommend": Mistake("endpoint.yaml", 2, _NO_ENDPOINT),
    "sagemaker invoke": Mistake(
        "minilm-prod --text hello",
        2,
        "it is not known what the model behind minilm-prod takes, and SageMaker does not tell",
    ),
    "sagemaker metrics": Mistake("minilm-prod --region eu", 2, "'eu' is no region of AWS"),
    "sagemaker alarms": Mistake("minilm-prod --limit p99", 2, "--limit 'p99' names no limit"),
    "sagemaker verify": Mistake("minilm-prod --max-error-rate much", 2, "--max-error-rate: 'much' is no rate"),
    "fleet plan": Mistake("specs", 2, _NO_SPECS),
    "fleet run": Mistake("specs", 2, _NO_SPECS),
    "status": Mistake("specs", 2, _NO_SPECS),
    "flows serve": Mistake("--dryrun", 2, "No such option '--dryrun'. Did you mean '--dry-run'?"),
    "flows deploy": Mistake("--pool", 2, "Option '--pool' requires an argument."),
    "submit": Mistake(
        "hf:./bert --precision fp4", 2, f"Invalid value for '--precision': 'fp4' is not one of {_PRECISIONS}."
    ),
    "triggers inbox list": Mistake(
        "--state open",
        2,
        "Invalid value for '--state': 'open' is not one of 'waiting', 'in-work', 'done', 'set-aside'.",
    ),
    "triggers inbox retry": Mistake("", 2, "name entries, or all that were set aside"),
    "triggers inbox write-back": Mistake(
        "first", 2, "Invalid value for 'ID...': 'first' is not a valid integer range."
    ),
    "triggers inbox drop": Mistake("", 2, "Missing argument 'ID...'."),
    "triggers inbox prune": Mistake(
        "--days never", 2, "Invalid value for '--days': 'never' is not a valid integer range."
    ),
    "triggers serve": Mistake("--port http", 2, "Invalid value for '--port': 'http' is not a valid integer range."),
    "triggers watch": Mistake("--service team.yaml", 2, _NO_SERVICE),
    "verify": Mistake("minilm --store models", 7, _NO_STORE),
    "prune": Mistake("--keep 0", 2, "Invalid value for '--keep': 0 is not in the range x>=1."),
    "gc": Mistake("--older-than yesterday", 2, "'yesterday' is no age"),
}
"""By the command, without `plansmith`."""
