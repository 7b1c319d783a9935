#!/usr/bin/env bash
# Goal: no mutable globals but those listed here with their reason. Method: the symbols of .data
# and .bss in the libraries.
set -u
cd "${builddir:-.}" || exit 1
command -v objdump >/dev/null || { echo "1..0 # SKIP objdump is not installed"; exit 0; }
# log level; fault table; the choice of kernels; the seal of memory; a digest context per thread; the watchdog's period
listed='log_level_max kernels_portable fault_armed fault_points mem_sealed mem_exempt hash_ctx hash_md period_us last_us'
wrong=$(for lib in libbase libipc libtext libgrammar libfront libkv libengine libmodel libdevice libkernels; do
    [ -f $lib.a ] || continue
    objdump -t $lib.a 2>/dev/null | awk -v lib=$lib \
        '$0 ~ / O \.(data|bss|tdata|tbss)(\.[a-zA-Z_0-9.]+)?\t/ && $0 !~ /\.data\.rel\.ro/ {print lib, $NF}'
done | sed -E 's/\.[0-9]+$//' | grep -vE "__asan|__ubsan|__odr|__nv|fatbin|cuda|\.str|^[a-z]+ (\.L|_Z|DW)" |
    while read -r lib name; do
        case " $listed " in *" $name "*) ;; *) echo "$lib: $name" ;; esac
    done | sort -u)
echo "1..1"
if [ -z "$wrong" ]; then
    echo "ok 1 - mutable globals: $listed"
else
    echo "not ok 1 - mutable globals that are not listed in tests/lint/globals.sh"
    printf '%s\n' "$wrong" | sed 's/^/# /'
    exit 1
fi
