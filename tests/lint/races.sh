#!/usr/bin/env bash
# Goal: the tree builds with ThreadSanitizer, and what several threads or processes share has no
# race: the lane, the tables beside it, the host tier's file, the links of a front. Method: a build of
# the tests of these alone, in a folder of its own. The whole suite takes hours so (tests/README.md).
set -u
src=$(cd "${srcdir:-.}" && pwd)
tests="tests/unit/ipc/test_lane tests/unit/ipc/test_adapters tests/unit/ipc/test_seats
tests/unit/kv/test_host tests/unit/front/test_link tests/unit/front/test_engines"

skip_all() { echo "1..0 # SKIP $1"; exit 0; }
[ -x "$src/configure" ] || skip_all "there is no configure"
[ ! -f "$src/config.status" ] || skip_all "the source folder is a build folder"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
echo 'int main(void) { return 0; }' >"$dir/one.c"
"${CC:-gcc}" -fsanitize=thread -o "$dir/one" "$dir/one.c" 2>/dev/null && "$dir/one" ||
    skip_all "no ThreadSanitizer here"
cd "$dir" || exit 1
# The flags of a make around this one would change its build.
unset MAKEFLAGS MFLAGS MAKELEVEL
if "$src/configure" -q --without-cuda --enable-sanitize=thread >log 2>&1 &&
    make -s -j2 $tests >>log 2>&1; then
    echo "ok 1 - it builds"
else
    echo "not ok 1 - it builds"
    tail -n 20 log | sed 's/^/# /'
    echo "1..1"
    exit 1
fi
n=1 bad=0
for t in $tests; do
    n=$((n + 1))
    if srcdir=$src TSAN_OPTIONS=halt_on_error=1 $t >log 2>&1; then
        echo "ok $n - ${t##*/}"
    else
        bad=1
        echo "not ok $n - ${t##*/}"
        grep -A12 -E '^not ok|WARNING: ThreadSanitizer' log | head -n 40 | sed 's/^/# /'
    fi
done
echo "1..$n"
exit $bad
