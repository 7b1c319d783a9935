#!/usr/bin/env bash
# Goal: systemd and nginx accept what is installed. Method: their own checkers; and the lines of
# nginx's files whose loss nobody would notice at once.
set -u
src=$(cd "${srcdir:-.}" && pwd)
n=0 bad=0
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
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
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
PATH=$PATH:/usr/sbin:/sbin

if command -v systemd-analyze >/dev/null; then
    for f in "$src"/systemd/*.in "$src"/systemd/*.socket "$src"/systemd/*.target; do
        name=$(basename "${f%.in}")
        # The programs are not installed here; true stands for them.
        sed -e 's|@bindir@/quire-[a-z]*|/bin/true|; s|@sysconfdir@|/etc|; s|@docdir@|/usr/share/doc/quire|' \
            "$f" >"$dir/$name"
        cp "$dir/$name" "$dir/${name/@/@1}" 2>/dev/null
    done
    check "systemd-analyze verify" "$(systemd-analyze verify --man=no "$dir/quire-engine.service" \
        "$dir/quire-front@1.service" "$dir/quire-front@1.socket" "$dir/quire.target" 2>&1 |
        grep -iE 'quire|error')"
    for u in quire-engine quire-front@1; do
        level=$(systemd-analyze security --offline=true "$dir/$u.service" 2>/dev/null |
            sed -n 's/.*exposure level for [^:]*: \([0-9.]*\).*/\1/p')
        check "systemd-analyze security: exposure of $u is ${level:-unknown}, at most 1.5" \
            "$(awk -v l="${level:-9}" 'BEGIN { if (l > 1.5) print l }')"
    done
else
    skip "systemd-analyze verify" "systemd-analyze is not installed"
fi

if command -v nginx >/dev/null && command -v openssl >/dev/null; then
    mkdir -p "$dir/nginx" "$dir/logs"
    cp "$src"/nginx/*.conf "$src"/nginx/*.map "$dir/nginx/"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=x \
        -keyout "$dir/key.pem" -out "$dir/cert.pem" 2>/dev/null
    sed -i -e "s|/etc/ssl/certs/.*pem|$dir/cert.pem|; s|/etc/ssl/private/.*key|$dir/key.pem|; s|/var/log/nginx|$dir/logs|" \
        "$dir/nginx/quire-site.conf"
    sed -i "s|/etc/quire/\([a-z]*\).map|$dir/nginx/\1.map|" "$dir/nginx/quire-http.conf"
    printf 'pid %s/pid; error_log %s/logs/e; events {} http { access_log off; include quire-site.conf; }\n' \
        "$dir" "$dir" >"$dir/nginx/nginx.conf"
    check "nginx -t takes the site" \
        "$(nginx -t -p "$dir" -c "$dir/nginx/nginx.conf" 2>&1 | grep -E 'emerg|alert|crit|failed|warn' |
            grep -v 'the "user" directive')"
else
    skip "nginx -t" "nginx or openssl is not installed"
fi
f=$src/nginx/quire-fastcgi.conf
check "no keep-alive towards the fronts: idle connections would own their threads" \
    "$(grep -q '^fastcgi_keep_conn off;' "$f" || echo "fastcgi_keep_conn")"
check "a time-out does not run a prompt twice" \
    "$(grep -E '^fastcgi_next_upstream .*timeout' "$f"; grep -q '^fastcgi_next_upstream error' "$f" || echo missing)"
check "a client that leaves is noticed" "$(grep -q '^fastcgi_ignore_client_abort off;' "$f" || echo missing)"
check "streams are not buffered" "$(grep -q '^fastcgi_buffering off;' "$f" || echo missing)"
echo "1..$n"
exit $bad
