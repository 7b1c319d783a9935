#!/usr/bin/env bash
# Goal: what a reader trips over stays out. Method: plain searches.
set -u
cd "${srcdir:-.}" || exit 1
n=0 bad=0
check() { # name, offending lines
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        bad=1
        echo "not ok $n - $1"
        printf '%s\n' "$2" | head -n 20 | sed 's/^/# /'
    fi
}
code=$(find src kernels tools tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
own=$(find src tools -name '*.c' | sort)
check "no file above 1000 lines" "$(wc -l $code | awk '$2 != "total" && $1 > 1000')"
check "no file of the project above 1 MiB but the demo model" "$(git ls-files -z |
    xargs -0 -r stat -c '%s %n' 2>&1 | awk '$1 > 1048576 && $2 !~ "^tools/demo-model/"')"
check "no line above 100 characters" \
    "$(awk 'length($0) > 100 {print FILENAME ":" FNR}' $code)"
check "no tabs, no space at a line's end" "$(grep -nP '\t|[ ]+$' $code)"
check "no FIXME, no TODO" "$(grep -nE 'FIXME|TODO|XXX' $code | grep -v XXXXXX)"
check "no unbounded or locale-bound string calls" \
    "$(grep -nwE '(strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|atof|gets|alloca)[ ]*\(' $own)"
check "memory comes from base/mem.c" \
    "$(grep -nwE '(malloc|calloc|realloc|free|strdup)[ ]*\(' $own | grep -v '^src/base/mem.c:' |
        grep -vE 'op->|ops->|->free\(|\.free\(')"
check "exit() in main.c alone, abort() in must.c alone" \
    "$(grep -nwE '(exit|abort)[ ]*\(' $own | grep -vE '^src/base/must.c:|/main.c:|^tools/')"
check "getenv() in log.c, fault.c, serve_folder.c and serve_hub.c alone" \
    "$(grep -nw 'getenv' $own | grep -vE '^(src/base/(log|fault)|tools/serve_(folder|hub))\.c:')"
check "kernels are launched through one macro" "$(grep -n '<<<' kernels/*.cu)"
check "every source is in Makefile.am" "$(for f in $(find src kernels tools -name '*.c' -o -name '*.cu'); do
    grep -qF "$f" Makefile.am || echo "$f"; done)"
check "no large file but the demo model's weights" \
    "$(find src kernels nginx systemd tools tests -type f -size +256k ! -name model.safetensors ! -name '*.pyc')"
echo "1..$n"
exit $bad
