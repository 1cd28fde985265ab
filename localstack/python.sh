# shellcheck shell=bash
#
# Source this file. It finds a Python that can create virtual environments.

# find_python MINIMUM VERSION...: stores the path in $python, which the caller may declare local.
# Looks for the versions by name, in this order, and then for `python3`. Every candidate is
# executed, because some pyenv shims on the PATH only print that another version must be selected.
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
