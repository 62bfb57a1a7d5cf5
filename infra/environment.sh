# Sourced by the scripts beside it: finds interpreters and makes their virtual environments from the locks.

# find_python 3.11: prints an interpreter of that version that really runs and can make environments, or fails.
# A pyenv shim stands on PATH for versions that are not selected, so being found proves nothing.
find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"*/bin/python"$1" "/usr/bin/python$1"; do
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

# make_environment LOCK PYTHON: prints the folder of an environment holding the lock's releases and this checkout.
# It is kept under .venv/ by the hash of what it is made from, so a second run starts at once.
make_environment() {
    local lock=infra/requirements/$1.txt python=$2 version digest folder
    version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
    # The tools' configuration at the end of pyproject.toml changes nothing in an environment.
    digest=$( { echo "$python $version $PWD"; cat "$lock"; sed '/^\[tool\.pytest/,$d' pyproject.toml; } | sha256sum | cut -c1-12)
    folder=$PWD/.venv/$1-${version%.*}-$digest
    mkdir -p .venv
    (
        flock 9
        [ -e "$folder/complete" ] && exit 0
        echo "making ${folder#"$PWD"/}" >&2
        rm -rf "$folder"
        # Those of earlier locks go too, but not while a run that began before the change may still use them.
        find "$PWD/.venv" -maxdepth 1 -name "$1-${version%.*}-*" -mmin +180 -exec rm -rf {} +
        pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@" >&2; }
        "$python" -m venv "$folder" &&
            pip install -qq --no-input --require-hashes --only-binary :all: --no-deps -r "$lock" &&
            pip install -qq --no-input --no-deps --no-build-isolation --no-index --editable . &&
            { pip check -q || pip check; } &&
            touch "$folder/complete"
    ) 9>".venv/$1-${version%.*}.lock" || return 1
    echo "$folder"
}
