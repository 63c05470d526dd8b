# Sourced by the other scripts as `source environment.sh demo|test`: creates or updates .venv with that extra.
#
# Packages come from PyPI in the versions of constraints.txt. An up-to-date .venv needs no network.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "$0: $*" >&2
    exit 1
}

# Hash of the files that the installation depends on, including the sources of the compiled extension.
fingerprint() {
    { cat pyproject.toml setup.py constraints.txt
      find attention_ext -name '*.cpp' -o -name '*.cu' -o -name '*.h' | LC_ALL=C sort | xargs -r cat
      "$1" --version
    } | sha256sum | cut -d' ' -f1
}

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "no $python: install Python 3.10 or later"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$("$python" --version) is too old: 3.10 or later is needed"

extra=$1
wanted=$(fingerprint "$python")
# The extra `test` includes `demo`.
if ! grep -qxE "$wanted ($extra|test)" .venv/installed 2>/dev/null; then
    echo "Setting up .venv (the first time downloads about 3 GB) …"
    [ -x .venv/bin/python ] || "$python" -m venv .venv || fail "python -m venv failed: apt-get install python3-venv?"
    log=.venv/install.log
    {
        .venv/bin/python -m pip install --upgrade -c constraints.txt pip setuptools ninja &&
        .venv/bin/python -m pip install -c constraints.txt torch torchaudio &&
        .venv/bin/python -m pip install -c constraints.txt --no-build-isolation -e ".[$extra]"
    } >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "the installation failed; see $log for the complete output"; }
    echo "$wanted $extra" >.venv/installed
fi
PATH="$PWD/.venv/bin:$PATH"
