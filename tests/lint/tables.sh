#!/usr/bin/env bash
# Goal: what is said twice is said alike. Method: the programs' own output against the files.
set -u
src=${srcdir:-.} build=${builddir:-.}
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
check "systemd/quire.conf is what make-conf makes of settings.def" \
    "$(diff "$src/systemd/quire.conf" <("$src/systemd/make-conf" "$src/src/base/settings.def"))"
names() { sed -n 's/^#\{0,1\}\([a-z_0-9]*\) = .*/\1/p'; }
check "the programs know exactly the sample's settings" \
    "$(diff <(names <"$src/systemd/quire.conf" | sort -u) \
        <({ "$build/quire-engine" --print-settings; "$build/quire-front" --print-settings; } |
            names | grep -vx config | sort -u))"
printed=$("$build/quire-front" --config "$src/systemd/quire.conf" --print-settings 2>&1)
check "the sample is accepted" "$(grep -qx 'model = /srv/models/CHANGE-ME' <<<"$printed" || echo "$printed")"
check "no two errors share a number" \
    "$(sed -n 's/^ERR([A-Z_]*, \(-\{0,1\}[0-9]*\),.*/\1/p' "$src/src/base/err.def" | sort | uniq -d)"
check "every error has a status and type that OpenAI's clients know" \
    "$(grep '^ERR(' "$src/src/base/err.def" | grep -v '^ERR(OK,' |
        grep -vE ', (400|401|403|404|405|408|409|413|415|422|429|499|500|503|504), "(invalid_request_error|rate_limit_error|server_error)"')"
unused=$(sed -n 's/^CONF([A-Z]*, \([a-z_0-9]*\),.*/\1/p' "$src/src/base/settings.def" | while read -r s; do
    grep -rqE "[.>]$s\b" "$src/src" --include='*.c' || [ "$s" = config ] || echo "$s"
done)
check "every setting is used" "$unused"
unused=$(sed -n 's/^FAULT(\([a-z_]*\),.*/\1/p' "$src/src/base/fault.def" | while read -r s; do
    grep -rqF "FAULT_HIT($s)" "$src/src" || echo "$s"
done)
check "every fault point is passed" "$unused"
unused=$(sed -nE 's/^(COUNTER|GAUGE)\(([a-z_]*),.*/METRIC_\2/p; s/^HISTOGRAM\(([a-z_]*),.*/HISTOGRAM_\1/p' \
    "$src/src/ipc/metric.def" | while read -r s; do
    grep -rqw "$s" "$src/src/engine" || echo "$s"
done)
check "every metric is counted" "$unused"
texts=$(sed -n '/^WIRE_TEXTS =/,/[^\\]$/p' "$src/Makefile.am" | grep -oE '(src|kernels)/[a-z_/]+\.(h|def)')
missing=$({
    (cd "$src" && ls src/ipc/wire*.h | grep -v wire_digest)
    (cd "$src" && grep -hE '^#include "' $texts) | sed -E 's|.*"([^"]*)".*|\1|; s|^ipc/|src/ipc/|; s|^base/|src/base/|'
} | sort -u | grep -vxF "$texts")
check "WIRE_TEXTS has every header of the wire, and what these include" "$missing"
echo "1..$n"
exit $bad
