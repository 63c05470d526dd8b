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
    } | "$1" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())' # macOS: no sha256sum
}

# Shows, of pip's output, what takes long: downloads of 10 MB and more, unpacking, compiler calls.
progress() {
    local line file
    while IFS= read -r line; do
        file=
        case $line in
            *"Downloading "*\([0-9][0-9]*" MB)"* | *"Downloading "*" GB)"*) file=${line#*Downloading }; file="downloading ${file##*/}" ;;
            "Installing collected packages"*) file="unpacking packages" ;;
            *" -c attention_ext/"*) file=${line##* -c }; file="compiling ${file%% *}" ;;
        esac
        [ -z "$file" ] || printf '  %4d s  %s\n' "$SECONDS" "$file"
    done
}

python=${PYTHON:-$(command -v python3 || echo python)} # Windows has only python
command -v "$python" >/dev/null || fail "no $python: install Python 3.10 or later"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$("$python" --version) is too old: 3.10 or later is needed"

extra=$1
wanted=$(fingerprint "$python")
# The extra `test` includes `demo`.
if ! grep -qxE "$wanted ($extra|test)" .venv/installed 2>/dev/null; then
    echo "Setting up .venv: the first time downloads about 3 GB and compiles the kernels, four to twelve minutes …"
    [ -x .venv/bin/python ] || [ -x .venv/Scripts/python.exe ] || "$python" -m venv .venv || fail "python -m venv failed: apt-get install python3-venv?"
    log=.venv/install.log
    inside=.venv/bin/python
    [ -x "$inside" ] || inside=.venv/Scripts/python.exe # Windows
    {
        "$inside" -m pip install --upgrade -c constraints.txt pip setuptools ninja &&
        "$inside" -m pip install -c constraints.txt torch torchaudio &&
        "$inside" -m pip install --verbose -c constraints.txt --no-build-isolation -e ".[$extra]"
    } 2>&1 | tee "$log" | progress || { tail -n 30 "$log" >&2; fail "the installation failed; see $log for the complete output"; }
    echo "$wanted $extra" >.venv/installed
fi
PATH="$PWD/.venv/bin:$PWD/.venv/Scripts:$PATH" # Windows has Scripts
