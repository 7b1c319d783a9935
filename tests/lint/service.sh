#!/usr/bin/env bash
# Goal: systemd and nginx accept what is installed. Method: their own checkers; and the lines of
# nginx's files whose loss would not be noticed at once.
set -u
src=$(cd "${srcdir:-.}" && pwd)
n=0 bad=0
dir=$(mktemp -d) || exit 1
dir_units=$dir # dir changes below
trap 'rm -rf "$dir_units"' EXIT
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

# What the units, tmpfiles, sysusers and the settings' presets say of one another.
unit() { sed -n "s/^$2=//p" "$src/systemd/$1" | tail -n 1; }
setting() { sed -n "s/^#\{0,1\}$1 = //p" "$src/systemd/quire.conf"; }
made() { awk -v p="$1" '$1 == "d" && $2 == p { print $3, $4, $5 }' "$src/systemd/quire.tmpfiles"; }
want() { [ "$1" = "$2" ] || echo "$3: \"$1\", not \"$2\""; }
engine=quire-engine.service.in front=quire-front@.service.in socket=quire-front@.socket
user=$(unit $engine User)
host=$(setting kv_host_file)
case $host in
/dev/shm/*)
    check "what is to outlive the engine is not removed at its stop" \
        "$(want "$(unit $engine RemoveIPC)" no RemoveIPC
            grep -n '^DynamicUser=yes' "$src/systemd/$engine")"
    check "host memory has a folder of its own, which the engine's user alone opens" \
        "$(want "$(made "$(dirname "$host")")" "0700 $user $user" "tmpfiles, $(dirname "$host")"
            want "$(dirname "$(dirname "$host")")" /dev/shm "the folder above")" ;;
*) check "host memory is on tmpfs" "$host" ;;
esac
dir=$(setting kv_store_dir)
check "the store's folder is the unit's, and its user alone opens it" \
    "$(grep -qw "${dir#/var/lib/}" <<<"$(unit $engine StateDirectory)" || echo "$dir"
        want "$(unit $engine StateDirectoryMode)" 0700 StateDirectoryMode
        want "$(made "$dir" | cut -d' ' -f1,2)" "0700 $user" "tmpfiles, $dir")"
check "the engine's socket has a group of its own: engine and fronts, no operators" \
    "$(want "$(dirname "$(setting engine_socket)")" "/run/$(unit $engine RuntimeDirectory)" folder
        want "$(unit $engine RuntimeDirectoryMode)" 0710 RuntimeDirectoryMode
        want "$(unit $engine Group)" quire-socket Group
        grep -qw quire-socket <<<"$(unit $front SupplementaryGroups)" || echo "the fronts lack it"
        grep -n '^m .* quire-socket' "$src/systemd/quire.sysusers")"
unit_of() { sed -n "s/^$2=//p" "${builddir:-.}/systemd/$1" 2>/dev/null | tail -n 1; }
if [ -f "${builddir:-.}/systemd/quire-engine@.service" ]; then
    each=quire-engine@.service
    check "an engine of several has folders and a number of its own, and the fronts look there" \
        "$(want "$(unit_of $each RuntimeDirectory)" "$(unit $engine RuntimeDirectory)/%i" folder
            want "$(unit_of $each StateDirectory)" "$(unit $engine StateDirectory)-%i" "the store's"
            grep -q -- '--data-parallel-rank %i$' <<<"$(unit_of $each ExecStart)" || echo "no number"
            want "$(unit_of $each RuntimeDirectoryMode)" 0710 RuntimeDirectoryMode
            want "$(unit_of $each RemoveIPC)" no RemoveIPC)"
    if command -v systemd-analyze >/dev/null; then
        check "systemd-analyze verify, an engine of several" "$(
            sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "${builddir:-.}/systemd/$each" \
                >"$dir_units/quire-engine@1.service"
            systemd-analyze verify --man=no "$dir_units/quire-engine@1.service" 2>&1 |
                grep -iE 'quire|error')"
    fi
fi
model=quire-model@.socket
if [ -f "${builddir:-.}/systemd/quire-model@.service" ]; then
    each=quire-model@.service
    run=$(dirname "$(unit $model ListenSequentialPacket)")
    check "the engine of one of several models has its socket, its settings and folders of its own" \
        "$(for word in "--engine-socket $(unit $model ListenSequentialPacket)" "--models-run $run" \
            '/models/%i.conf' '/pages-%i' '/%i/prefix'; do
            grep -qF -- "$word" <<<"$(unit_of $each ExecStart)" || echo "$word"
        done
            want "$(unit_of $each ReadWritePaths)" "$run" ReadWritePaths
            want "$(unit_of $each RuntimeDirectory)" "" RuntimeDirectory
            want "$(unit_of $each Restart)" on-failure Restart
            want "$(unit_of $each Requires)" quire-model@%i.socket Requires
            grep -q 'quire-models/%i/prefix' <<<"$(unit_of $each StateDirectory)" || echo "no store"
            want "$(made "$run")" "0710 $user $(unit $engine Group)" "tmpfiles, $run"
            want "$(unit $model SocketGroup)" "$(unit $engine Group)" SocketGroup
            want "$(unit $model SocketMode)" 0660 SocketMode)"
    if command -v systemd-analyze >/dev/null; then
        check "systemd-analyze verify, the engine of a model" "$(
            sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "${builddir:-.}/systemd/$each" \
                >"$dir_units/quire-model@a.service"
            cp "$src/systemd/$model" "$dir_units/quire-model@a.socket"
            systemd-analyze verify --man=no "$dir_units/quire-model@a.service" \
                "$dir_units/quire-model@a.socket" 2>&1 | grep -iE 'quire|error')"
    fi
fi
check "the fronts' cache is the unit's" \
    "$(want "$(setting tokenizer_cache_dir)" "/var/cache/$(unit $front CacheDirectory)" folder)"
check "the fronts' kept responses are in the unit's folder, which its user alone opens" \
    "$(want "$(setting responses_dir)" "/var/lib/$(unit $front StateDirectory)" folder
        want "$(unit $front StateDirectoryMode)" 0700 StateDirectoryMode)"
listen=$(unit $socket ListenStream)
check "nginx asks the sockets that the units make" \
    "$(for i in 1 2; do grep -qF "unix:${listen/\%i/$i} " "$src/nginx/quire-http.conf" || echo "$i"; done)"
check "the fronts' sockets are for quire's nginx: what else runs as www-data has no key to show" \
    "$(want "$(unit $socket SocketUser)" quire-nginx SocketUser
        want "$(unit $socket SocketMode)" 0600 SocketMode
        want "$(made "$(dirname "$listen")")" "0710 root quire-nginx" "tmpfiles, $(dirname "$listen")"
        grep -n '^m .* quire-nginx' "$src/systemd/quire.sysusers"
        grep -rnE '^[^#]*www-data' "$src/systemd" "$src/nginx")"
check "users that are named are made" \
    "$({ sed -nE 's/^(User|Group|SupplementaryGroups|SocketUser|SocketGroup)=//p' "$src"/systemd/*.in \
            "$src"/systemd/*.socket | tr ' ' '\n'; awk '$1 == "d" { print $4; print $5 }' \
            "$src/systemd/quire.tmpfiles"; } | sort -u | grep -vxE 'root|quire-front' | while read -r name; do
        grep -qE "^[ug] +$name " "$src/systemd/quire.sysusers" || echo "$name"
    done)"
f=$src/nginx/quire-fastcgi.conf
check "no keep-alive towards the fronts: idle connections would own their threads" \
    "$(grep -q '^fastcgi_keep_conn off;' "$f" || echo "fastcgi_keep_conn")"
check "a time-out does not run a prompt twice" \
    "$(grep -E '^fastcgi_next_upstream .*timeout' "$f"; grep -q '^fastcgi_next_upstream error' "$f" || echo missing)"
check "a client that leaves is noticed" "$(grep -q '^fastcgi_ignore_client_abort off;' "$f" || echo missing)"
check "streams are not buffered" "$(grep -q '^fastcgi_buffering off;' "$f" || echo missing)"
echo "1..$n"
exit $bad
