"""The file of a service: what it says, and every way in which it can be wrong, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.config.service import FlowDeployment, ServiceConfig, read_service
from plansmith.errors import UsageError
from plansmith.flows.deploy.deployments import cron_problem, deployments_of, load_service

SHIPPED = Path(__file__).parents[2] / "configs" / "service.yaml"

TEAM = """
directory: work
specs: [specs]
pools:
  builders: {type: process, create: true, env: {HF_HUB_OFFLINE: "1"}}
  gpu-l4:
    type: docker
    targets: [triton-26.08]
    directory: /work
    job_variables: {image: "plansmith-worker:26.08"}
flows:
  refresh:
    pool: builders
    parameters: {longest_seconds: 600}
    schedules:
      nightly: {cron: "0 3 * * *", timezone: Europe/Berlin}
      noon: {cron: "0 12 * * 1-5", parameters: {force: true}}
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _deployments(folder: Path, text: str, *, served: bool = False) -> dict[str, FlowDeployment]:
    config = load_service(_written(folder, text)).config
    return {deployment.label: deployment for deployment in deployments_of(config, served=served)}


def test_pools_build_and_flows_run(tmp_path: Path) -> None:
    """Every pool builds models, and the flows run in the first pool or in their own."""
    assert list(_deployments(tmp_path, TEAM)) == [
        "compile-model/builders",
        "compile-model/gpu-l4",
        "compile-fleet/builders",
        "refresh/builders",
        "verify/builders",
        "collect/builders",
    ]


def test_deployment_stores_no_code(tmp_path: Path) -> None:
    """A deployment names its flow by module path and stores no code."""
    deployments = _deployments(tmp_path, TEAM)
    assert deployments["compile-fleet/builders"].entrypoint == "plansmith.flows.compile_fleet.compile_fleet"
    assert deployments["compile-model/builders"].pull_steps == ()


def test_working_directories_are_right(tmp_path: Path) -> None:
    """A process works in the directory of the service and a container in its own."""
    deployments = _deployments(tmp_path, TEAM)
    assert deployments["compile-model/builders"].job_variables == {
        "working_dir": str(tmp_path / "work"),
        "env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "HF_HUB_OFFLINE": "1"},
    }
    container = deployments["compile-model/gpu-l4"]
    assert container.job_variables == {
        "env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"},
        "image": "plansmith-worker:26.08",
    }
    assert container.pull_steps == ({"prefect.deployments.steps.set_working_directory": {"directory": "/work"}},)


HOSTS = {
    "plansmith.example.org": "",
    "build_box": "",
    "https://plansmith.example.org": "must be a name such as plansmith.example.org",
    "plansmith.example.org:8420": "must be a name such as plansmith.example.org",
    "*.example.org": "must be a name such as plansmith.example.org",
}


@pytest.mark.parametrize("host", HOSTS)
def test_status_page_names_are_literal(host: str, tmp_path: Path) -> None:
    """The status page is served under names and no patterns."""
    registries = "{here: {type: folder, path: models}}"
    rules = "[{registry: here, model: '*', when: ready, spec: specs/a.yaml}]"
    triggers = f"triggers: {{registries: {registries}, rules: {rules}, hosts: ['{host}']}}"
    path = _written(tmp_path, f"specs: [specs]\npools: {{a: {{}}}}\n{triggers}\n")
    if HOSTS[host]:
        with pytest.raises(UsageError, match=HOSTS[host]):
            load_service(path)
        return
    config = load_service(path).config
    assert config.triggers is not None
    assert config.triggers.hosts == (host,)


def test_pool_overrides_mlflow_server(tmp_path: Path) -> None:
    """Runs fetch from the MLflow server of the triggers unless a pool says otherwise."""
    triggers = """\
triggers:
  registries: {ours: {type: mlflow, tracking_uri: "http://mlflow:5000"}}
  rules: [{registry: ours, model: a, when: alias, spec: a.yaml}]
"""
    for more, server in (("", "http://mlflow:5000"), ("env: {MLFLOW_TRACKING_URI: http://near}", "http://near")):
        text = f"specs: [specs]\npools: {{a: {{{more}}}}}\n{triggers}"
        (deployment, *_) = deployments_of(load_service(_written(tmp_path, text)).config)
        assert deployment.job_variables["env"]["MLFLOW_TRACKING_URI"] == server


def test_pool_overrides_s3_server(tmp_path: Path) -> None:
    """Runs fetch from the S3 server of the triggers unless a pool says otherwise."""
    triggers = """\
triggers:
  registries: {ours: {type: s3, prefix: "s3://models/team", endpoint_url: "http://minio:9000"}}
  rules: [{registry: ours, model: a, when: ready, spec: a.yaml}]
"""
    for more, server in (("", "http://minio:9000"), ("env: {AWS_ENDPOINT_URL_S3: http://near}", "http://near")):
        text = f"specs: [specs]\npools: {{a: {{{more}}}}}\n{triggers}"
        (deployment, *_) = deployments_of(load_service(_written(tmp_path, text)).config)
        assert deployment.job_variables["env"]["AWS_ENDPOINT_URL_S3"] == server


@pytest.mark.parametrize(
    ("registries", "words"),
    [
        ("ours: {type: s3, prefix: /srv/models}", "must be s3://bucket/prefix"),
        ("ours: {type: s3, prefix: 's3://models//team'}", "a prefix has no empty parts"),
        ("ours: {type: s3, prefix: 's3://models', queue_endpoint_url: 'http://jo:pw@host'}", "holds no credentials"),
        ("ours: {type: sagemaker, queue_url: x, sagemaker_endpoint_url: minio}", "an endpoint is http://host:port"),
        (
            "ours: {type: s3, prefix: 's3://models'}, theirs: {type: s3, prefix: 's3://a-b', endpoint_url: 'http://m:9'}",
            "registries of type s3 are on 2 servers",
        ),
    ],
)
def test_wrong_aws_registries_refused(registries: str, words: str, tmp_path: Path) -> None:
    """Wrong registries of AWS are refused."""
    rules = "rules: [{registry: ours, model: a, when: ready, spec: a.yaml}]"
    text = f"specs: [specs]\npools: {{a: {{}}}}\ntriggers:\n  registries: {{{registries}}}\n  {rules}\n"
    with pytest.raises(UsageError) as refused:
        load_service(_written(tmp_path, text))
    assert words in str(refused.value)
    assert "jo:pw" not in str(refused.value)


def test_fleet_knows_specs_and_pools(tmp_path: Path) -> None:
    """A fleet knows its specs and which pool builds for which target."""
    refresh = _deployments(tmp_path, TEAM)["refresh/builders"]
    assert refresh.parameters == {
        "specs": ["specs"],
        "pools": {"triton-26.08": "gpu-l4", "": "builders"},
        "longest_seconds": 600,
    }
    assert [(schedule.name, schedule.timezone, schedule.parameters) for schedule in refresh.schedules] == [
        ("nightly", "Europe/Berlin", {}),
        ("noon", "UTC", {"force": True}),
    ]


@pytest.mark.slow
def test_verify_and_collect_follow_fleet(tmp_path: Path) -> None:
    """Verify and collect look after what the fleet makes."""
    deployments = _deployments(tmp_path, TEAM)
    assert (
        deployments["verify/builders"].parameters == deployments["collect/builders"].parameters == {"specs": ["specs"]}
    )
    elsewhere = TEAM.replace("{longest_seconds: 600}", "{overrides: {repository: /srv/models}}")
    collect = _deployments(tmp_path, elsewhere + "  collect: {parameters: {keep: 9}}\n")["collect/builders"]
    assert collect.parameters == {"specs": ["specs"], "overrides": {"repository": "/srv/models"}, "keep": 9}


def test_target_named_like_in_plans(tmp_path: Path) -> None:
    """A target of a file is called as plans call it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "ours.yaml").write_text("description: ours\nflavour: triton\ndevices: [gpu]\n")
    text = TEAM.replace("targets: [triton-26.08]", "targets: [ours.yaml]")
    assert _deployments(tmp_path, text)["refresh/builders"].parameters["pools"] == {"ours": "gpu-l4", "": "builders"}


def test_served_service_has_no_pools(tmp_path: Path) -> None:
    """What is served has no pools and builds by itself."""
    deployments = _deployments(tmp_path, TEAM, served=True)
    assert len(deployments) == 5
    assert {(deployment.name, deployment.pool) for deployment in deployments.values()} == {("served", "")}
    assert "pools" not in deployments["refresh/served"].parameters
    assert deployments["refresh/served"].schedules


def test_shipped_service_works_in_checkout() -> None:
    """The shipped service is a valid one and works in the checkout."""
    config = load_service(SHIPPED).config
    assert config.directory == str(SHIPPED.parents[1])
    assert all((SHIPPED.parents[1] / place).exists() for place in config.specs)


def test_a_service_survives_json(tmp_path: Path) -> None:
    config = read_service(_written(tmp_path, TEAM), cron=cron_problem).config
    read = ServiceConfig.model_validate_json(config.model_dump_json(), context={"cron": cron_problem})
    assert read == config


WRONG = {
    "an unknown key": ("pools:\n  a: {kind: process}", ["service.yaml:3 'pools.a.kind'"]),
    "a misspelt key": ("pools: {a: {}}\nendpoint: [a]", ["service.yaml:3 'endpoint' (did you mean endpoints?)"]),
    "a schedule that is no cron": (
        'pools: {a: {}}\nflows:\n  refresh:\n    schedules:\n      nightly:\n        cron: "0 25 * * *"',
        ["service.yaml:7: 'flows.refresh.schedules.nightly.cron'", "is no cron schedule", "such as 0 3 * * 1-5"],
    ),
    "a random cron": (
        'pools: {a: {}}\nflows: {refresh: {schedules: {n: {cron: "R 3 * * *"}}}}',
        ["service.yaml:3", "is no cron schedule"],
    ),
    "a time zone": (
        'pools: {a: {}}\nflows: {refresh: {schedules: {n: {cron: "0 3 * * *", timezone: Berlin}}}}',
        ["service.yaml:3", "no time zone", "Europe/Berlin"],
    ),
    "an unknown flow": ("pools: {a: {}}\nflows: {rebuild: {}}", ["service.yaml:3", "rebuild"]),
    "a flow in no pool": ("pools: {a: {}, b: {}}\nflows: {verify: {pool: c}}", ["service.yaml:3", "but a, b"]),
    "a parameter that the flow does not have": (
        "pools: {a: {}}\nflows:\n  verify:\n    parameters: {quickly: true}",
        ["service.yaml:5", "'quickly' is no parameter of this flow", "quick,"],
    ),
    "a parameter of another kind": (
        "pools: {a: {}}\nflows:\n  verify:\n    parameters:\n      quick: [1]",
        ["service.yaml:6", "quick", "boolean"],
    ),
    "a parameter of a schedule": (
        'pools: {a: {}}\nflows:\n  refresh:\n    schedules:\n      n: {cron: "0 3 * * *", parameters: {speed: 1}}',
        ["service.yaml:6", "'speed' is no parameter"],
    ),
    "one target in two pools": (
        "pools:\n  a: {targets: [local-cpu]}\n  b: {targets: [local-cpu]}",
        ["service.yaml:4", "local-cpu is built in the pool a already"],
    ),
    "a target that there is not": (
        "pools:\n  a: {}\n  b:\n    targets:\n    - local-cpu\n    - triton-2608",
        ["service.yaml:7", "'pools.b.targets': there is no target 'triton-2608'", "did you mean triton-26.08"],
    ),
    "the file of a target that is not there": (
        "pools:\n  a: {targets: [ours.yaml]}",
        ["service.yaml:3", "'pools.a.targets': ", "ours.yaml"],
    ),
    "no pool": ("pools: {}", ["service.yaml:2", "'pools'", "at least 1"]),
    "a pool that stands for serving": ("pools: {served: {}}", ["service.yaml:2", "plansmith flows serve"]),
    "a name with a slash": ("pools: {a/b: {}}", ["service.yaml:2", "starts with a letter or digit"]),
    "patience that is too short": ("pools: {a: {}}\ncrashed_after_seconds: 40", ["service.yaml:3", "60 or more"]),
    "heartbeats that Prefect refuses": ("pools: {a: {}}\nheartbeat_seconds: 5", ["service.yaml:3", "30 or more"]),
    "no block": ("pools: {a: {}}\nnotifications: {failure: [me@example.org]}", ["service.yaml:3", "TYPE/NAME"]),
    "a rule of a registry that there is not": (
        "pools: {a: {}}\ntriggers: {registries: {a: {type: folder, path: a}}, rules: [RULE]}".replace(
            "RULE", "{registry: b, model: a, when: ready, spec: a.yaml}"
        ),
        ["service.yaml:3: 'triggers.rules.0.registry': there is no registry 'b' here, but a"],
    ),
    "a registry of no known kind": (
        "pools: {a: {}}\ntriggers:\n  registries:\n    ours: {type: ftp}\n  rules: []",
        ["service.yaml:5", "triggers.registries.ours", "triggers.rules"],
    ),
    "two servers of MLflow": (
        """pools: {a: {}}
triggers:
  registries: {a: {type: mlflow, tracking_uri: "http://a"}, b: {type: mlflow, tracking_uri: "http://b"}}
  rules: [{registry: a, model: m, when: alias, spec: m.yaml}]""",
        ["service.yaml:3", "registries name 2 MLflow servers"],
    ),
    "a key of a registry": (
        "pools: {a: {}}\ntriggers:\n  registries:\n    ours: {type: mlflow, tracking_uri: 5}\n  rules: []",
        ["service.yaml:5", "'triggers.registries.ours.tracking_uri'"],
    ),
    "a home folder": ("pools: {a: {}}\ndirectory: ~/work", ["service.yaml:3", "another folder for every user"]),
    "a folder of a pool's machines beside this file": (
        "pools: {a: {directory: work}}",
        ["service.yaml:2", "must begin with /"],
    ),
    "a variable": ("pools: {a: {}}\ndirectory: $WORK", ["service.yaml:3", "environment variable $WORK"]),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_said_with_line(text: str, says: list[str], tmp_path: Path) -> None:
    """What is wrong is said with its line."""
    with pytest.raises(UsageError) as refused:
        load_service(_written(tmp_path, f"specs: [specs]\n{text}\n"))
    assert refused.value.remedy
    assert not [word for word in says if word not in refused.value.message], refused.value.message


def test_problems_said_at_once(tmp_path: Path) -> None:
    """All problems are said at once."""
    text = 'pools: {a: {typ: process}}\nflows: {refresh: {schedules: {n: {cron: "nightly"}}}}\n'
    with pytest.raises(UsageError, match=r"(?s)3 problems in the file of the service.*typ.*specs.*cron"):
        load_service(_written(tmp_path, text))


@pytest.mark.parametrize(("text", "says"), [("- a", "mapping with `specs` and `pools`"), ("a: [", "is not YAML")])
def test_invalid_file_refused(text: str, says: str, tmp_path: Path) -> None:
    """A file that is none is refused."""
    with pytest.raises(UsageError, match=says) as refused:
        load_service(_written(tmp_path, text))
    assert refused.value.remedy


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(UsageError, match=r"there is no file .*absent\.yaml"):
        load_service(tmp_path / "absent.yaml")
