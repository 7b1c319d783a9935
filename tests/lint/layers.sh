#!/usr/bin/env bash
# Goal: a folder includes what src/README.md allows, and a foreign header stands in one file.
# Method: every #include line of src, kernels and tools against two tables.
set -u
cd "${srcdir:-.}" || exit 1
n=0 bad=0
ok() { n=$((n + 1)); echo "ok $n - $1"; }
not_ok() { n=$((n + 1)); bad=1; echo "not ok $n - $1"; printf '%s\n' "$2" | sed 's/^/# /'; }

# folder, or one noun of a folder: what it may include besides its own folder, likewise. A folder
# stands for the rooms inside it too; a room does not stand for the folder around it.
table='base:
ipc: base kernels/sampling
text: base
text/tokenizer: base text/file text/regex text/spans text/unicode
text/output: base text/tokenizer
text/template: base text/file text/spans text/unicode text/output
grammar: base
front: base ipc text grammar front
front/served: base ipc text front/link front/request front/served front/structured
front/front: base front/http front/kept front/request front/served front/trace
front/http: base ipc
front/structured: base ipc text grammar
front/kept: base
front/trace: base
front/link: base ipc front/structured
front/request: base ipc text kernels/sampling front/http front/structured front/kept
front/answer: base text front/request front/kept
front/api: base ipc text front/front front/kept front/request front/answer
front/stream: base front/front front/trace front/answer front/api/cache front/api/health
device: base kernels
kv: base
model: base device kernels
engine: base ipc kv device model grammar'

while IFS=: read -r folder allowed; do
    [ -d "src/$folder" ] && files=$(ls src/$folder/*.[ch]) || files=$(ls src/$folder.[ch] 2>/dev/null)
    wrong=$(grep -nHE '^#include "' $files | while IFS= read -r line; do
        target=$(sed -E 's/.*#include "([^"]*)".*/\1/' <<<"$line")
        [ "$target" = config.h ] || [ "${target%/*}" = "$folder" ] && continue
        for word in $allowed; do
            case "$target" in "$word"/* | "$word".[a-z]*) continue 2 ;; esac
        done
        echo "$line"
    done)
    [ -n "$files" ] || wrong="no such folder or file"
    [ -z "$wrong" ] && ok "src/$folder includes only:$allowed" || not_ok "src/$folder" "$wrong"
done <<<"$table"

wrong=$(for d in $(find src -mindepth 1 -type d ! -name '.*'); do
    grep -q "^${d#src/}:" <<<"$table" || echo "$d"
done)
[ -z "$wrong" ] && ok "every folder of src has its row" || not_ok "folders without a row" "$wrong"

wrong=$(grep -nE '^#include "' kernels/* | grep -vE '"(kernels/)?[a-z0-9_]+\.(h|cuh|def)"')
[ -z "$wrong" ] && ok "kernels include nothing of src" || not_ok "kernels" "$wrong"

# header pattern: files that may include it
headers='fcgiapp\.h;src/front/http/fcgi.c
lmdb\.h;src/kv/store_db.c src/front/kept/kept_db.c tests/unit/front/test_kept.c
cJSON\.h;src/base/json.c
pcre2\.h;src/text/regex.c
systemd/;src/base/service.c
openssl/;src/base/hash.c
xxhash\.h;src/base/hash.c
cublasLt\.h;src/device/gemm_cuda.c
nccl\.h;src/device/nccl_cuda.c
cuda(_runtime|_bf16|_fp16|_fp8)?(_api)?\.h;src/device/[a-z]+_cuda.[ch] kernels/[a-z_0-9]+.cuh? tests/(kernel|bench)/[a-z_]+.(c|h|cu)'
while IFS=';' read -r header files; do
    pattern=$(sed 's/ /|/g' <<<"$files")
    wrong=$(grep -rnE "^#include <$header" src kernels tools tests --include='*.[ch]' --include='*.cu*' |
        grep -vE "^($pattern):")
    [ -z "$wrong" ] && ok "<$header> only in $files" || not_ok "<$header>" "$wrong"
done <<<"$headers"
wrong=$(grep -ln '"front/' -r src/engine src/kv src/model src/device; grep -ln '"engine/' -r src/front)
[ -z "$wrong" ] && ok "front and engine meet in src/ipc alone" || not_ok "front and engine" "$wrong"
echo "1..$n"
exit $bad
