"""`plansmith sign`, and the options of signatures that other commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_model, repository_option

if TYPE_CHECKING:
    from plansmith.signing.policy import SignaturePolicy
    from plansmith.signing.signer import Signer

_KEY_VARIABLE = "PLANSMITH_SIGN_KEY"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SIGNING = (
    click.option(
        "--key",
        type=_FILE,
        metavar="FILE",
        shell_complete=complete_file,
        help=f"Private EC key, PEM [{_KEY_VARIABLE}]; its password: PLANSMITH_SIGN_PASSWORD.",
    ),
    click.option(
        "--certificate", type=_FILE, metavar="FILE", shell_complete=complete_file, help="Issued for the key, PEM."
    ),
    click.option(
        "--certificate-chain",
        "chain",
        type=_FILE,
        metavar="FILE",
        multiple=True,
        shell_complete=complete_file,
        help="Certificates between it and the root, PEM; repeatable.",
    ),
    click.option("--pkcs11", metavar="URI", default="", help="Key on a token: pkcs11:token=…;object=…"),
    click.option("--sigstore", is_flag=True, help="Sign with an identity, by Sigstore."),
    click.option(
        "--identity-token",
        metavar="TOKEN",
        default="",
        envvar="PLANSMITH_IDENTITY_TOKEN",
        help="OpenID Connect token for Sigstore [PLANSMITH_IDENTITY_TOKEN, else that of the CI job].",
    ),
    click.option(
        "--trust-config",
        type=_FILE,
        metavar="FILE",
        shell_complete=complete_file,
        help="A private Sigstore instance, JSON.",
    ),
)
_NAMES = ("key", "certificate", "chain", "pkcs11", "sigstore", "identity_token", "trust_config")


def signing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say with what to sign; the command gets their values, as `signing`."""

    @wraps(command)
    def signing(*arguments: Any, **options: Any) -> Any:
        return command(*arguments, signing={name: options.pop(name) for name in _NAMES}, **options)

    return reduce(lambda decorated, option: option(decorated), reversed(_SIGNING), signing)


def signer_from(signing: dict[str, Any]) -> Signer:
    """Return the signer of the values of `signing_options`.

    Raises:
        UsageError: they do not go together.
    """
    from plansmith.signing.signer import PASSWORD_VARIABLE, Signer

    key = signing["key"]
    if key is None and not (signing["pkcs11"] or signing["sigstore"]) and os.environ.get(_KEY_VARIABLE):
        key = Path(os.environ[_KEY_VARIABLE])
    if not signing["sigstore"]:  # a CI job may have a token for other commands
        signing = signing | {"identity_token": ""}
    return Signer(**(signing | {"key": key, "password": os.environ.get(PASSWORD_VARIABLE, "")}))


def signature_policy_option(
    description: str, *, envvar: str | None = "PLANSMITH_SIGNATURE_POLICY"
) -> Callable[[Any], Any]:
    """Add `--require-signature`; the command gets the policy, or None.

    Args:
        description: what the command does with it.
        envvar: names the policy file where the option is not typed.
    """
    option = click.option(
        "--require-signature",
        metavar="POLICY",
        type=click.Path(path_type=Path),
        envvar=envvar,
        shell_complete=complete_file,
        help=f"{description.removesuffix('.')} [{envvar}]." if envvar else description,
    )

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def required(*arguments: Any, require_signature: Path | None, **options: Any) -> Any:
            return command(*arguments, require_signature=_policy(require_signature), **options)

        return option(required)

    return decorated


def _policy(path: Path | None) -> SignaturePolicy | None:
    if path is None:
        return None
    from plansmith.signing.policy import read_policy

    return read_policy(path)


@click.command("sign", short_help="Sign a release, so that others can see who made it.")
@click.argument("release", metavar="MODEL[@VERSION]", shell_complete=complete_model)
@repository_option("Where the release is.")
@signing_options
@click.option("--dry-run", is_flag=True, help="Check that the release can be signed, and sign nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def sign_command(release: str, *, repository: Path, signing: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Sign every file of a release with a key, a certificate, a token or Sigstore: VERSION, or the newest.

    The signature is model.sig in the release, in the format of OpenSSF model-signing, whose tools can read it. It goes
    with the release into stores and out of them; signing again replaces it. A store that has the release gets the
    signature when it is published again, and no new version.

    \b
    plansmith sign minilm --key release.pem
    plansmith sign minilm@3 --key release.pem --certificate release.crt --certificate-chain ca.crt
    plansmith sign minilm --sigstore
    """
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.repository.signature import read_signature, require_signable, sign_release, signature_file

    signer, opened = signer_from(signing), ModelRepository(repository)
    model, number = opened.find(release)
    folder = opened.release(model, number)
    replaced = read_signature(folder) is not None
    by = None
    if dry_run:
        require_signable(opened, model, number)
    else:
        by = sign_release(opened, model, number, signer)
    path = signature_file(folder)
    if as_json:
        document = {"model": model, "version": number, "signature": str(path), "signer": by, "replaced": replaced}
        click.echo(json.dumps(document | {"dry_run": dry_run}))
    elif dry_run:
        click.echo(f"{model} version {number} would be signed{', again' if replaced else ''}")
    else:
        click.echo(f"{model} version {number} is signed by {by}{', in place of another signature' if replaced else ''}")
        click.echo(f"  signature  {path}")
