# shellcheck shell=bash
# To be sourced: finds a Python that can make virtual environments.

# find_python MINIMUM VERSION...: the path goes into $python, which the caller may make local.
# The versions are looked for by name, in this order, before `python3` itself. Some of pyenv's
# commands on the PATH only say that another version is meant, so every one is tried out.
find_python() {
    local minimum=$1 version candidate
    shift
    for version; do
        for candidate in "$(command -v "python$version" || true)" \
            "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version"*/bin/python; do
            if [[ -x $candidate ]] && python_fits "$candidate" "$minimum"; then
                python=$candidate
                return
            fi
        done
    done
    python=$(command -v python3 || true)
    [[ -n $python ]] && python_fits "$python" "$minimum"
}

python_fits() { # program, minimum
    "$1" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (${2/./, }))" >/dev/null 2>&1 </dev/null
}
