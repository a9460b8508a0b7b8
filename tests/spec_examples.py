"""Spec files that are taken, and spec files that are refused with words that say why."""

from __future__ import annotations

from dataclasses import dataclass

    "a destination that is none": _no(
        "source: hf:bert\npublish: ftp://models\n",
        "model.yaml:2: 'publish.0.to': no destination: only folders and s3://",
    ),
    "an empty destination": _no("source: hf:bert\npublish: ''\n", "model.yaml:2:", "no destination: it is empty"),
    "a bucket that is none": _no("source: hf:bert\npublish: s3://_/x\n", "model.yaml:2:", "'_' is no name of a bucket"),
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
        "3 problem(s)",
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
        "2 problem(s)",
        "model.yaml:4: 'triton.max_batch_size' stands twice, first in line 3",
        "model.yaml:5 'nmae'",
    ),
    "an output twice": _no(
        "source: hf:bert\noutputs: [y, z, y]\n", "model.yaml:2: 'outputs': names 'y' more than once"
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
