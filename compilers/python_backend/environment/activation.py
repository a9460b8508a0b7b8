"""Activation script that Triton's Python backend runs before the process of a model with a packed environment.

For a model with EXECUTION_ENV_PATH the backend unpacks the archive and starts, in bash, `source <folder>/bin/activate
&& exec env LD_LIBRARY_PATH=<folder>/lib:… triton_python_backend_stub …` (src/stub_launcher.cc and src/pb_env.cc of
github.com/triton-inference-server/python_backend). The interpreter in that process was linked, and knows its own place
from the first `python3` on PATH: from `pyvenv.cfg` one folder above it, where there is one (PEP 405). So the script
makes the folder a virtual environment of the Python that is there, whose only packages are those of the archive.
"""

from __future__ import annotations

from plansmith.config.engine_options import OWNER_FILE, OWNER_VARIABLE, SITE_VARIABLE

ACTIVATE_FILE = "bin/activate"

_SCRIPT = """\
# Makes this folder a virtual environment of the Python @PYTHON@ of this machine; Triton's Python backend sources it.
# Several instances of a model may do so at once: files appear whole, and all write the same.
_environment="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
if [ ! -e "$_environment/pyvenv.cfg" ]; then
    for _candidate in python@PYTHON@ python3 /usr/bin/python@PYTHON@ /usr/local/bin/python@PYTHON@ /usr/bin/python3; do
        _base="$("$_candidate" -I -c 'import sys
sys.version_info[:2] == (@TUPLE@) or sys.exit(1)
print(sys._base_executable)' 2>/dev/null)" && break
        _base=""
    done
    if [ -z "$_base" ]; then
        # The process of the model has a Python of its own, which may know its place. Ending here would not help: the
        # server waits for that process for ever.
        echo "plansmith: there is no program python@PYTHON@ here, which this environment is for" >&2
        _base="$(command -v python3 || echo /usr/bin/python3)"
    fi
    ln -s "$_base" "$_environment/bin/.python3.$$"
    mv -fT "$_environment/bin/.python3.$$" "$_environment/bin/python3"
    printf 'home = %s\\ninclude-system-site-packages = false\\n' "$(dirname "$_base")" >"$_environment/.pyvenv.$$"
    mv -fT "$_environment/.pyvenv.$$" "$_environment/pyvenv.cfg"
fi
if [ -n "${@OWNER@:-}" ]; then # for whoever started the server, and cleans up after it
    printf '%s' "$@OWNER@" >"$_environment/.owner.$$"
    mv -fT "$_environment/.owner.$$" "$_environment/@OWNER_FILE@"
fi
unset PYTHONHOME PYTHONPATH @SITE@
export PYTHONNOUSERSITE=1 VIRTUAL_ENV="$_environment" PATH="$_environment/bin:$PATH"
"""


def activation_script(python: str) -> str:
    """Return the text of an environment's `bin/activate` for a Python version, such as "3.12"."""
    values = {"@PYTHON@": python, "@TUPLE@": python.replace(".", ", "), "@SITE@": SITE_VARIABLE}
    values |= {"@OWNER@": OWNER_VARIABLE, "@OWNER_FILE@": OWNER_FILE}
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(name, value)
    return text
