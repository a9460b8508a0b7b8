"""Spec files that are taken, and spec files that are refused with words that say why."""

from __future__ import annotations

from dataclasses import dataclass

TWO = "models:\n  - source: hf:bert\n    name: one\n  - source: hf:bert\n    name: two\n"


@dataclass(frozen=True)
class RefusedSpec:
    """A spec file that must be refused.

    Args:
        text: of the file, which is called model.yaml and lies beside a directory `bert`.
        says: what the message or its remedy must hold.
        by_schema: whether the JSON Schema refuses it too; the rest only reading it can know.
    """

    text: str
    says: tuple[str, ...]
    by_schema: bool = True


def _no(text: str, *says: str, by_schema: bool = True) -> RefusedSpec:
    return RefusedSpec(text, says, by_schema)


ACCEPTED = {
    "a source": "source: hf:bert\n",
    "every key": "source: hf:bert\nname: a\nengine: tensorrt\nprecision: fp16\ntarget: a-toaster\nrepository: ../r\n"
    "artifacts: a\nrandom_weights: true\ntrust_remote_code: false\nallow_pickle: no\ncheck_served: on\n"
    "device: cuda\n"
    "allow_interface_change: false\nload_into: [grpc://gpu-7:8001]\nload_seconds: 90.5\n"
    "force: false\ntritonserver: t\nshapes: {input_ids: '1x1:8x64:32x256', mask: 4x8}\n"
    "tolerances:\n  logits: {max_relative: 1.0e-3, quantile_relative: 0, min_cosine: 0.9}\n"
    "python: {torch_compile: true}\n"
    "triton: {dynamic_batching: {max_queue_delay_microseconds: 0}, instance_group: [{count: 4}], model_warmup: off}\n",
    "a model that brings its environment": "source: hf:bert\nengine: python\npython: {environment: packed}\n",
    "a mode of torch.compile": "source: hf:bert\nengine: python\npython: {torch_compile: reduce-overhead}\n",
    "DALI with threads and memory": "source: timm:resnet18\npipeline:\n  preprocessing: dali\n"
    "  dali: {num_threads: 8, device_memory_padding: 32M, host_memory_padding: 16777216,\n"
    "    preallocate_width_hint: 4000, preallocate_height_hint: 3000}\n",
    "data of its own": "source: hf:bert\nprecision: auto\ndata:\n  path: ../reviews.csv\n"
    "  columns: {text: body, label: stars}\n  calibration: 64\n  evaluation: 500\n  seed: 1\n  metric: accuracy\n"
    "  max_metric_drop: 1e-2\nlowering: {keep: [attention], budget: 0}\n",
    "data of the hub": "source: hf:bert\ndata: {dataset: org/set@main, subset: small, split: test}\n",
    "data of one's own code": "source: hf:bert\ndata: {entry_point: package.module:function}\n",
    "data in the defaults": "defaults:\n  data: {path: a.csv, evaluation: 500}\nmodels:\n  - source: hf:bert\n"
    "    data: {metric: none}\n  - {source: hf:bert, name: b, data: {dataset: org/set, split: test}}\n",
    "a destination": "source: hf:bert\npublish: s3://models/prod\n",
    "a folder as a destination": "source: hf:bert\npublish: ../store\n",
    "a destination with more to say": "source: hf:bert\npublish:\n  to: s3://models/prod\n  endpoint_url: https://s3.lan\n"
    "  region: eu-1\n  profile: ci\n  ca_bundle: lan.pem\n  path_style: true\n  encryption: aws:kms\n  kms_key: k\n"
    "  aliases: [champion, current]\n  view: true\n",
    "several destinations": "source: hf:bert\npublish: [a, {to: b, aliases: []}, s3://models]\n",
    "no destination of the defaults": "defaults: {publish: a}\nmodels:\n  - {source: hf:bert, publish: []}\n",
    "a shared cache": "source: hf:bert\nshared_cache: s3://models/shared\n",
    "a shared cache with more to say": "source: hf:bert\nshared_cache:\n  to: s3://models/shared\n  profile: ci\n"
    "  endpoint_url: https://s3.lan\n",
    "no shared cache": "source: hf:bert\nshared_cache: null\n",
    "empty text": "source: hf:bert\nname: ''\nrepository: ''\n",
    "several targets": "source: hf:bert\ntarget: [triton-26.03, sagemaker-26.05, ours.yaml]\n",
    "one target in a list": "source: hf:bert\ntarget: [triton-26.03]\n",
    "several targets in the defaults": "defaults: {target: [a, b]}\n" + TWO,
    "one name for several targets": "models:\n  - {source: hf:bert, target: [a, b]}\n"
    "  - {source: hf:bert, target: [c]}\n",
    "models": TWO,
    "one of several": "models: [source: hf:bert]\n",
    "defaults": "defaults:\n  precision: fp32\n  shapes: {input_ids: 1x8}\n" + TWO,
    "a source in the defaults": "defaults: {source: hf:bert}\nmodels:\n  - name: a\n  - {name: b, precision: fp16}\n",
    "a tolerance in part": "source: hf:bert\ntolerances: {y: {max_relative: 1}}\n",
    "a tolerance in two parts": "defaults:\n  tolerances: {logits: {max_relative: 0.1, quantile_relative: 0.1}}\n"
    "models:\n  - source: hf:bert\n    tolerances: {logits: {min_cosine: 0.9}}\n",
    "one name in two repositories": "models:\n  - {source: hf:bert, repository: a}\n"
    "  - {source: hf:bert, repository: b}\n",
    "aliases": "defaults: &common\n  engine: onnxruntime\nmodels:\n  - <<: *common\n    source: hf:bert\n    name: a\n"
    "  - <<: *common\n    source: hf:bert\n",
    "waves that are no home": "source: hf:./~bert~\nname: a\nrepository: ./~\nartifacts: a~\ntask: ~x\n"
    "data: {path: ./~, columns: {text: ~a}}\n",
    "dollar signs": "source: hf:a$$HOME\nname: a\nrepository: $$$${x}/5$/$1\n",
}

SEVERAL = {
    "one name twice for one of several targets": _no(
        "models:\n  - {source: hf:bert, target: [a, b]}\n  - {source: hf:bert, target: [b]}\n",
        "model.yaml:3: the model in line 2 is called 'bert' too, in the same repository",
        by_schema=False,
    ),
    "a repository around those of several targets": _no(
        "models:\n  - {source: hf:bert, target: [a, b]}\n  - {source: hf:bert, name: c, target: a}\n",
        "model.yaml:3: its repository is the folder in which the model in line 2 has one per target",
        "write `target: [NAME]` for it too",
        by_schema=False,
    ),
    "a list of targets in the defaults": _no(
        "defaults: {target: [local-cpu, 5]}\n" + TWO, "1 problem", "model.yaml:1: 'target': must be text (got 5)"
    ),
    "wrong keys and values in all places": _no(
        "defaults:\n  precison: fp16\n  triton: {max_batch_size: -1}\nmodels:\n  - source: hf:bert\n    names: x\n"
        "    shapes:\n      input_ids: 4x8:2x8:8x8\n  - name: b\n    triton: {instancez: 1}\n  - just text\n"
        "  - source: bert\nmodel: 5\n",
        "9 problems",
        "unknown keys: model.yaml:2 'precison' (did you mean precision?), model.yaml:6 'names' (did you mean name?), "
        "model.yaml:10 'triton.instancez' (did you mean instance_group?), model.yaml:13 'model'\n",
        "model.yaml:3: 'triton.max_batch_size': must be 0 or more (got -1)",
        "model.yaml:8: 'shapes.input_ids': '4x8:2x8:8x8' is not min <= opt <= max",
        "model.yaml:9: 'source' is missing",
        "model.yaml:11: a model is a mapping with at least `source` (got 'just text')",
        "model.yaml:12: 'source': cannot tell what 'bert' is; write hf:",
    ),
    "an unknown target beside other problems": _no(
        "source: hf:bert\nengine: trt\ntarget: triton-99\n",
        "2 problems",
        "model.yaml:2: 'engine'",
        "model.yaml:3: 'target': there is no target 'triton-99'",
    ),
    "a mode that torch.compile does not have": _no(
        "source: hf:bert\nengine: python\npython: {torch_compile: fast}\n",
        "model.yaml:3: 'python.torch_compile': must be true, false or a mode of torch.compile: default, ",
        "(got 'fast')",
    ),
    "a word for a switch of torch.compile": _no(
        "source: hf:bert\npython: {torch_compile: 'true'}\n",
        "model.yaml:2: 'python.torch_compile': must be true, false",
    ),
    "no models": _no("defaults: {precision: fp32}\n", "model.yaml: 'models' is a list of models"),
    "an empty list": _no("models: []\n", "model.yaml:1: 'models' is a list of models", "(got [])"),
    "models that are no list": _no("models: {source: hf:bert}\n", "model.yaml:1: 'models' is a list of models"),
    "defaults that are no mapping": _no(f"defaults: [1]\n{TWO}", "model.yaml:1: 'defaults': a mapping", "(got a list)"),
    "one model beside several": _no(f"source: hf:bert\n{TWO}", "unknown key: model.yaml:1 'source'"),
    "one name twice": _no(
        f"{TWO}  - source: hf:bert\n    name: one\n",
        "model.yaml:6: the model in line 2 is called 'one' too, in the same repository",
        "give each a `name` of its own",
        by_schema=False,
    ),
    "a name that a source gives too": _no(
        "models:\n  - source: hf:bert\n  - source: hf:./bert/../bert\n  - source: timm:resnet18\n    name: bert\n"
        "    artifacts: a\n    repository: a/../a/repository\n  - {source: timm:bert, artifacts: a}\n",
        "2 problems",
        "model.yaml:3: the model in line 2 is called 'bert' too",
        "model.yaml:8: the model in line 4 is called 'bert' too",
        by_schema=False,
    ),
}

VARIABLES = {
    "a target of several": _no(
        "source: hf:bert\ntarget: [$TARGET, ~/ours.yaml]\n",
        "2 problems",
        "model.yaml:2: 'target.0' holds the environment variable $TARGET",
        "model.yaml:2: 'target.1' begins with ~",
        '--target "$TARGET"',
    ),
    "with braces": _no(
        "source: hf:bert\nrepository: ${REPO}/models\n",
        "1 problem",
        "model.yaml:2: 'repository' holds the environment variable ${REPO}",
        "a spec means the same everywhere",
        'or leave it out and type --repository "${REPO}/models"; $$ stands for a dollar sign',
    ),
    "without braces": _no(
        "source: hf:$HOME/bert\n", "model.yaml:1: 'source' holds the environment variable $HOME", '"hf:$HOME/bert"'
    ),
    "after a dollar sign": _no("source: hf:bert\ntarget: $$$X\n", "1 problem", "environment variable $X"),
    "with a default": _no("source: hf:bert\nname: ${NAME:-x}\n", "1 problem", '--name "${NAME:-x}"'),
    "a home folder": _no(
        "source: hf:bert\nrepository: ~/models\n",
        "1 problem",
        "model.yaml:2: 'repository' begins with ~, which is another folder for every user",
        'or leave it out and type --repository "$HOME/models"; ./~ stands for',
    ),
    "a home folder in the source": _no(
        "source: onnx:~/x.onnx\n", "model.yaml:1: 'source' begins with ~", 'plansmith compile "onnx:$HOME/x.onnx"'
    ),
    "a home folder in the defaults": _no(
        f"defaults: {{artifacts: ~/a, target: ~b.yaml}}\n{TWO}",
        "2 problems",
        "model.yaml:1: 'artifacts' begins with ~",
        "model.yaml:1: 'target' begins with ~",
    ),
    "a home folder of data": _no(
        "source: hf:bert\ndata:\n  path: ~/reviews.csv\n",
        "1 problem",
        "model.yaml:3: 'data.path' begins with ~",
        'or leave it out and type --data "$HOME/reviews.csv"',
    ),
    "for data": _no(
        "source: hf:bert\ndata: {path: $DATA/reviews.csv, dataset: $SET}\n",
        "model.yaml:2: 'data.path' holds the environment variable $DATA",
        "model.yaml:2: 'data.dataset' holds the environment variable $SET",
        'type --data "$DATA/reviews.csv"',
    ),
    "that never ends": _no("source: hf:bert\nname: ${NAME\n", "1 problem", "environment variable ${NAME"),
    "in a range": _no(
        "source: hf:bert\nshapes:\n  input_ids: 1x8:2x8:${MAX}x8\n",
        "1 problem",
        "model.yaml:3: 'shapes.input_ids' holds the environment variable ${MAX}",
        '--shapes "input_ids=1x8:2x8:${MAX}x8"',
    ),
    "for a switch": _no("source: hf:bert\nforce: $FORCE\n", "1 problem", "'force' holds", "type --force;"),
    "where no option helps": _no(
        "source: hf:bert\ntriton: {instance_group: [{count: $N}]}\n",
        "model.yaml:2: 'triton.instance_group.0.count' holds the environment variable $N",
        "so write the value itself; $$",
    ),
    "in lists, defaults and keys, beside other problems": _no(
        "defaults:\n  target: $TARGET\nmodels:\n  - source: [hf:bert, $A$B]\n    shapes: {$C: 1x8}\n    engine: trt\n",
        "5 problems",
        "model.yaml:2: 'target' holds the environment variable $TARGET",
        "model.yaml:4: 'source': must be text",
        "model.yaml:4: 'source.1' holds the environment variable $A, $B",
        "model.yaml:5: 'shapes.$C' holds the environment variable $C",
        "model.yaml:6: 'engine': must be",
        '--target "$TARGET"',
    ),
}

ONE = {
    "no target in the list": _no("source: hf:bert\ntarget: []\n", "model.yaml:2: 'target': a list names at least one"),
    "a target twice": _no("source: hf:bert\ntarget: [a, b, a]\n", "model.yaml:2: 'target' names 'a' more than once"),
    "a target that is no text": _no(
        "source: hf:bert\ntarget:\n  - local-cpu\n  - 26.03\n", "model.yaml:4: 'target': must be text (got 26.03)"
    ),
    "a destination that is none": _no(
        "source: hf:bert\npublish: ftp://models\n",
        "model.yaml:2: 'publish.0.to': no destination: only folders and s3://",
    ),
    "an empty destination": _no("source: hf:bert\npublish: ''\n", "model.yaml:2:", "no destination: it is empty"),
    "a bucket that is none": _no("source: hf:bert\npublish: s3://_/x\n", "model.yaml:2:", "is no name of a bucket"),
    "a prefix that leads out": _no(
        "source: hf:bert\npublish:\n  - a\n  - to: s3://models/../x\n",
        "model.yaml:4: 'publish.1.to': no destination: a prefix has no empty parts, no . or ..",
        by_schema=False,
    ),
    "a destination without a place": _no(
        "source: hf:bert\npublish:\n  aliases: [champion]\n", "model.yaml:2: 'publish.0.to' is missing"
    ),
    "an unknown key of a destination": _no(
        "source: hf:bert\npublish:\n  - to: a\n    alias: champion\n", "model.yaml:4 'publish.0.alias'"
    ),
    "an alias that is none": _no(
        "source: hf:bert\npublish: {to: a, aliases: [7up]}\n", "model.yaml:2: ", "'7up' is no alias", by_schema=False
    ),
    "credentials in an endpoint": _no(
        "source: hf:bert\npublish: {to: s3://models, endpoint_url: 'https://me:secret@s3.lan'}\n",
        "model.yaml:2: ",
        "an endpoint holds no credentials",
        by_schema=False,
    ),
    "a destination twice": _no(
        "source: hf:bert\npublish: [s3://models/a, {to: s3://models/a/}]\n",
        "model.yaml:2: 'publish': names 's3://models/a' more than once",
        by_schema=False,
    ),
    "a view of nothing": _no(
        "source: hf:bert\npublish: {to: a, aliases: [], view: true}\n",
        "model.yaml:2: ",
        "a view shows what an alias stands for",
        by_schema=False,
    ),
    "destinations of somebody": _no(
        "source: hf:bert\npublish: [~/store, {to: $STORE, ca_bundle: ~/lan.pem}]\n",
        "3 problems",
        "'publish.0' begins with ~",
        "'publish.1.to' holds the environment variable $STORE",
        "'publish.1.ca_bundle' begins with ~",
        '--publish "$HOME/store"',
    ),
    "a shared cache that is none": _no(
        "source: hf:bert\nshared_cache: ftp://models\n",
        "model.yaml:2: 'shared_cache.to': no destination: only folders and s3://",
    ),
    "an alias of a shared cache": _no(
        "source: hf:bert\nshared_cache:\n  to: a\n  aliases: [champion]\n", "model.yaml:4 'shared_cache.aliases'"
    ),
    "a shared cache of somebody": _no(
        "source: hf:bert\nshared_cache: $SHARED\n",
        "'shared_cache' holds the environment variable $SHARED",
        '--shared-cache "$SHARED"',
    ),
    "two files of targets with one name": _no(
        "source: hf:bert\ntarget: [x/ours.yaml, y/ours.yaml]\n",
        "model.yaml:2: 'target' names 'ours' more than once",
        by_schema=False,
    ),
    "no source": _no("name: a\n", "model.yaml: 'source' is missing"),
    "an unknown key": _no("source: hf:bert\nnmae: a\n", "model.yaml:2 'nmae'"),
    "an unknown key inside": _no("source: hf:bert\ntriton: {instancez: 1}\n", "model.yaml:2 'triton.instancez'"),
    "an unknown engine": _no("source: hf:bert\nengine: trt\n", "model.yaml:2: 'engine'"),
    "a name that is none": _no("source: hf:bert\nname: ../x\n", "model.yaml:2: 'name'"),
    "a range of zero": _no("source: hf:bert\nshapes: {a: 0x8}\n", "model.yaml:2: 'shapes.a'"),
    "a range of two shapes": _no("source: hf:bert\nshapes: {a: '1x8:2x8'}\n", "model.yaml:2: 'shapes.a'"),
    "a range of words": _no("source: hf:bert\nshapes: {a: small}\n", "model.yaml:2: 'shapes.a'"),
    "a range that is a number": _no("source: hf:bert\nshapes: {a: 1:8:32}\n", "write it as text in quotes"),
    "a range out of order": _no("source: hf:bert\nshapes: {a: '4:2:1'}\n", "min <= opt <= max", by_schema=False),
    "a negative delay": _no(
        "source: hf:bert\ntriton: {dynamic_batching: {max_queue_delay_microseconds: -1}}\n", "or more"
    ),
    "a cosine of two": _no(
        "source: hf:bert\ntolerances: {y: {max_relative: 1, quantile_relative: 1, min_cosine: 2}}\n",
        "or less",
    ),
    "a source of no known kind": _no("source: bert\n", "model.yaml:1: 'source': cannot tell"),
    "a key that stands twice": _no(
        "source: hf:bert\ntriton:\n  max_batch_size: 1\n  max_batch_size: 2\nnmae: x\n",
        "2 problems",
        "model.yaml:4: 'triton.max_batch_size' stands twice, first in line 3",
        "model.yaml:5 'nmae'",
    ),
    "an output twice": _no(
        "source: hf:bert\noutputs: [y, z, y]\n", "model.yaml:2: 'outputs': names 'y' more than once"
    ),
    "threads of DALI for Pillow": _no(
        "source: timm:resnet18\npipeline: {dali: {num_threads: 8}}\n",
        "model.yaml:2: 'pipeline': dali: {…} is for preprocessing: dali",
        by_schema=False,
    ),
    "no thread for DALI": _no(
        "source: timm:resnet18\npipeline: {preprocessing: dali, dali: {num_threads: 0}}\n",
        "model.yaml:2: 'pipeline.dali.num_threads': must be 1 or more",
    ),
    "half a size for DALI": _no(
        "source: timm:resnet18\npipeline: {preprocessing: dali, dali: {preallocate_width_hint: 4000}}\n",
        "model.yaml:2: 'pipeline.dali': preallocate_width_hint and preallocate_height_hint go together",
        by_schema=False,
    ),
    "data from nowhere": _no(
        "source: hf:bert\ndata: {seed: 1}\n", "give a path, a dataset or an entry_point", by_schema=False
    ),
    "data from two places": _no(
        "source: hf:bert\ndata: {path: a, dataset: b}\n", "give one of path, dataset and entry_point", by_schema=False
    ),
    "a split of a file": _no("source: hf:bert\ndata: {path: a, split: b}\n", "belong to a dataset", by_schema=False),
    "code that is no name": _no("source: hf:bert\ndata: {entry_point: a.py}\n", "write it as package.module:function"),
    "no calibration at all": _no("source: hf:bert\ndata: {path: a.csv, calibration: 0}\n", "must be 1 or more"),
    "an unknown metric": _no("source: hf:bert\ndata: {path: a.csv, metric: f1}\n", "model.yaml:2: 'data.metric'"),
    "a list": _no("- source: hf:bert\n", "a spec is a mapping with at least `source`"),
}

REFUSED = {
    f"{kind}: {name}": spec
    for kind, table in {"one": ONE, "several": SEVERAL, "variable": VARIABLES}.items()
    for name, spec in table.items()
}
