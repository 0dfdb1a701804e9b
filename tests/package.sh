#!/usr/bin/env bash
# What a user gets: builds the sdist and, out of that, the wheel; checks that the wheel holds every file of the packages;
# installs it into an empty environment away from the checkout, and runs `tidings doctor` and the quickstart there. Puts
# both into dist/ if all of it went well. Run by `make package`; downloads packages and jars.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/home" "$work/elsewhere"
source "$root/tests/support/clean_environment.sh"
clean_environment "$work/home"
python=$root/.venv/bin/python

fail() {
    echo "package: $*" >&2
    exit 1
}

# From here on nothing is in the checkout but what is named so.
cd "$work/elsewhere"

echo "== build"
"$python" -m build --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; fail "the build failed"; }
wheel=$(echo "$work"/dist/*.whl)
sdist=$(echo "$work"/dist/*.tar.gz)
[[ -f $wheel && -f $sdist ]] || fail "the build made no wheel, or no sdist"

echo "== ${wheel##*/}: files"
{
    echo tidings/ivy.xml
    echo tidings/ivy.sha256
    for source in "$root"/core "$root"/connectors "$root"/plugins/*; do
        git -C "$source" ls-files
    done
} | sort >"$work/wanted"
"$python" -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep="\n")' "$wheel" | sort >"$work/held"
missing=$(comm -23 "$work/wanted" "$work/held")
[[ -z $missing ]] || fail "the wheel lacks" $missing
packages=$(grep -oE '^[a-z_]+/__init__\.py$' "$work/held" | cut -d / -f 1)
for package in $packages; do
    grep -qx "$package/py.typed" "$work/held" || fail "the wheel lacks $package/py.typed"
done

echo "== install"
"$python" -m venv "$work/venv"
env -i "${clean[@]}" PIP_CACHE_DIR="$("$python" -m pip cache dir)" \
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel" -c "$root/constraints.txt"
run() {
    echo "== $*"
    env -i "${clean[@]}" PATH="$work/venv/bin:$PATH" "$@"
}
for package in $packages; do
    place=$(run python -c "import $package; print($package.__file__)" | tail -1)
    [[ $place == "$work/venv/"* ]] || fail "$package was imported from $place"
done

version=$(run tidings --version | tail -1)
[[ ${wheel##*/} == "${version/ /-}-"* ]] || fail "${wheel##*/} calls itself '$version'"
run tidings jars
run tidings doctor
run tidings init shop
[ -f shop/service.py ] || fail "tidings init did not make a project"
cp "$root/examples/quickstart.py" .
run python quickstart.py | tee "$work/quickstart.log"
grep -qE '\|contacts/alice *\| *2\|' "$work/quickstart.log" || fail "the quickstart did not print alice's latest version"

mkdir -p "$root/dist"
cp "$wheel" "$sdist" "$root/dist"
echo "== done: dist/${wheel##*/}, dist/${sdist##*/}"
