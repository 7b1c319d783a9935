#!/usr/bin/env bash
# Goal: the units as installed work under a real systemd: what is private stays so, host memory
# outlives restarts and kill -9 of the engine, a stop leaves nothing. Method: systemd as process 1 of
# namespaces of its own, over an overlay of this machine's files, with everything installed there.
# Wants root, an overlay file system and systemd's own cgroup hierarchy; else it skips.
set -u
src=$(cd "${srcdir:-.}" && pwd) build=$(cd "${builddir:-.}" && pwd)
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
PATH=$PATH:/usr/sbin:/sbin
systemd=/lib/systemd/systemd
skip_all() { echo "1..0 # SKIP $*"; exit 0; }

# --- the outer part: make the namespaces -------------------------------------------------------
if [ "${1:-}" = "" ]; then
    [ "$(id -u)" -eq 0 ] || skip_all "this is not root"
    [ -x $systemd ] || skip_all "systemd is not installed"
    command -v nginx >/dev/null || skip_all "there is no nginx"
    [ -d /sys/fs/cgroup/systemd ] || skip_all "systemd has no cgroup hierarchy of its own here"
    group=/sys/fs/cgroup/systemd/quire-t-$$
    dir=$(mktemp -d /tmp/quire-t-systemd-XXXXXX) || exit 1
    trap 'find "$group" -depth -type d -exec rmdir {} + 2>/dev/null; [ -n "${KEEP:-}" ] || rm -rf "$dir"' EXIT
    mkdir "$group" 2>/dev/null || skip_all "no cgroup can be made"
    touch "$dir/result"
    (
        echo $BASHPID >"$group/cgroup.procs"
        srcdir=$src builddir=$build exec unshare -m -p -f -C -i -u -n --kill-child \
            bash "$self" boot "$dir"
    ) >"$dir/boot.log" 2>&1 &
    for _ in $(seq 1000); do
        grep -q '^1\.\.' "$dir/result" || ! kill -0 $! 2>/dev/null || { sleep 0.2; continue; }
        break
    done
    kill -KILL $! 2>/dev/null # and with it process 1 of its namespace, and all in it
    wait $! 2>/dev/null
    sleep 0.5 # the others die a moment later
    cat "$dir/result"
    if ! grep -q '^1\.\.' "$dir/result"; then
        grep -q '^boots' "$dir/boot.log" || skip_all "systemd does not start here: $(tail -n 1 "$dir/boot.log")"
        echo "not ok $(($(grep -c '^\(not \)\{0,1\}ok' "$dir/result") + 1)) - it comes to its end"
        tail -n 20 "$dir/boot.log" | sed 's/^/# /'
        exit 1
    fi
    ! grep -q '^not ok' "$dir/result"
    exit
fi

# --- process 1 before it is systemd --------------------------------------------------------------
if [ "$1" = boot ]; then
    set -e
    dir=$2
    mount --make-rprivate /
    mkdir -p "$dir/t"
    mount -t tmpfs none "$dir/t"
    mkdir "$dir/t/up" "$dir/t/work" "$dir/t/root"
    mount -t overlay -o "lowerdir=/,upperdir=$dir/t/up,workdir=$dir/t/work" overlay "$dir/t/root"
    cd "$dir/t/root"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    for d in run tmp dev; do mount -t tmpfs -o mode=755 none $d; done
    mkdir dev/shm dev/pts dev/mqueue
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    mount -t tmpfs -o mode=1777 none dev/shm
    for d in null zero full random urandom tty; do touch dev/$d && mount --bind /dev/$d dev/$d; done
    ln -s /proc/self/fd dev/fd
    touch dev/console "$dir/console" && mount --bind "$dir/console" dev/console
    mount -t tmpfs none sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    rm -rf etc/systemd/system/* var/lib/quire
    mkdir -p etc/quire srv/models/demo etc/systemd/system usr/lib/systemd/system
    for p in quire-engine quire-front lmdb-dump; do install -m 755 "$build/$p" usr/bin/$p; done
    cp -r "$src/tools/demo-model/model/." srv/models/demo/
    chmod -R a+rX srv/models
    for f in quire-engine.service quire-front@.service; do
        sed -e 's|@bindir@|/usr/bin|; s|@sysconfdir@|/etc|; s|@docdir@|/usr/share/doc/quire|' \
            "$src/systemd/$f.in" >etc/systemd/system/$f
        mkdir -p etc/systemd/system/$f.d
        printf '[Service]\nStandardOutput=append:/run/%s.log\nStandardError=append:/run/%s.log\n' $f $f \
            >etc/systemd/system/$f.d/log.conf
    done
    cp "$src/systemd/quire-front@.socket" "$src/systemd/quire-model@.socket" \
        "$src/systemd/quire.target" etc/systemd/system/
    sed -E 's|^ExecStart=[^ ]*|ExecStart=/usr/bin/quire-engine|; s|--config [^ ]*/quire/|--config /etc/quire/|g' \
        "$build/systemd/quire-model@.service" >etc/systemd/system/quire-model@.service
    mkdir -p etc/systemd/system/quire-model@.service.d
    printf '[Service]\nStandardOutput=append:/run/quire-model.log\nStandardError=append:/run/quire-model.log\n' \
        >etc/systemd/system/quire-model@.service.d/log.conf
    sed -e 's|^model = .*|model = /srv/models/demo|' "$src/systemd/quire.conf" >etc/quire/quire.conf
    printf 'served_model_name = demo\ndevice = cpu\nkv_host_bytes = 64M\nresponses_dir = /var/lib/quire-front\n' >>etc/quire/quire.conf
    mkdir -p etc/nginx-quire
    cp "$src"/nginx/*.conf etc/nginx-quire/
    sed -i "s#/etc/quire/\\([a-z]*\\).map#/etc/nginx-quire/\\1.map#" etc/nginx-quire/quire-http.conf
    : >etc/nginx-quire/origins.map
    echo '"Bearer sk-test" alice;' >etc/nginx-quire/keys.map
    cat >etc/nginx-quire/nginx.conf <<'E'
user quire-nginx;
daemon off;
pid /run/nginx.pid;
error_log /run/nginx.log;
events {}
http {
    access_log off;
    client_body_temp_path /run/nginx-body;
    fastcgi_temp_path /run/nginx-fastcgi;
    include quire-http.conf;
    server { listen unix:/run/nginx.sock; include quire-locations.conf; }
}
E
    cp "$self" usr/bin/quire-check
    cat >etc/systemd/system/quire-check.service <<E
[Unit]
Description=the checks
[Service]
Type=oneshot
Environment=srcdir=/ builddir=/
ExecStart=/bin/bash /usr/bin/quire-check inside
StandardOutput=append:/run/result
StandardError=append:/run/result
E
    touch run/result && mount --bind "$dir/result" run/result
    mkdir -p old
    pivot_root . old
    cd /
    systemd-sysusers "$src/systemd/quire.sysusers"
    systemd-tmpfiles --create "$src/systemd/quire.tmpfiles"
    umount -l old
    echo boots
    exec env -i container=quire PATH=/usr/sbin:/usr/bin:/sbin:/bin $systemd --system \
        --unit=quire-check.service --log-target=console --show-status=0
fi

# --- inside ---------------------------------------------------------------------------------------
n=0
check() { # name, got, wanted
    n=$((n + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        printf 'got    %s\nwanted %s\n' "$2" "$3" | head -n 20 | sed 's/^/# /'
        tail -n 3 /run/quire-*.log /run/nginx.log 2>/dev/null | sed 's/^/# /'
    fi
}
until_is() { # seconds, wanted, command: its last output
    local end=$((SECONDS + $1)) got
    while got=$("${@:3}" 2>&1); [ "$got" != "$2" ] && [ $SECONDS -lt $end ]; do sleep 0.1; done
    echo "$got"
}
as() { local u=$1; shift; setpriv --reuid="$u" --regid="$u" --init-groups "$@" 2>/dev/null; }
health() { curl -s -m 5 -o /dev/null -w '%{http_code}' --unix-socket /run/nginx.sock http://x/health; }
ask() { # what part of the answer
    curl -s -m 60 --unix-socket /run/nginx.sock -H 'Authorization: Bearer sk-test' http://x/v1/completions \
        -d '{"model":"demo","max_tokens":4,"temperature":0,"prompt":"'"$(printf 'The clever fox carried lantern %d. ' 1 2 3 4 5 6 7 8 9)"'"}' |
        python3 -c 'import json,sys
a = json.load(sys.stdin)
print(eval(sys.argv[1], {"a": a}))' "$1" 2>&1
}
connect() { # type, path, as user [and groups]
    python3 -c 'import os, socket, sys
os.setgroups([int(g) for g in sys.argv[4:]]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
s = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[1]))
try:
    s.connect(sys.argv[2]); print("connected")
except OSError as e:
    print(e.strerror)' "$@"
}
modes() { stat -c '%a %U %n' "$@" 2>&1; }
gid() { getent group "$1" | cut -d: -f3; }

systemctl start quire-front@1.socket quire-front@2.socket quire-engine quire-front@1 quire-front@2
check "engine and fronts say that they are ready" \
    "$(systemctl is-active quire-engine quire-front@1 quire-front@2 | sort -u)" active
[ "$(systemctl is-active quire-front@1)" = active ] || { systemctl --no-pager status quire-front@1 2>&1 | sed 's/^/# /'; echo "1..$n"; exit; }
nginx -c /etc/nginx-quire/nginx.conf -p /etc/nginx-quire &
check "nginx as quire-nginx reaches the fronts, and they the engine" "$(until_is 60 200 health)" 200
text=$(ask 'a["choices"][0]["text"]')
check "a request is answered" "$(ask 'a["choices"][0]["text"] != "" and a["usage"]["completion_tokens"] > 0')" True
check "host memory is the engine's user's alone" "$(modes /dev/shm/quire /dev/shm/quire/pages)" \
    $'700 quire-engine /dev/shm/quire\n600 quire-engine /dev/shm/quire/pages'
check "so is the store" "$(modes /var/lib/quire/prefix /var/lib/quire/prefix/{data.mdb,lock.mdb,pages.kv})" \
    "$(printf '700 quire-engine /var/lib/quire/prefix'
        printf '\n600 quire-engine /var/lib/quire/prefix/%s' data.mdb lock.mdb pages.kv)"
respond() { # previous_response_id, what part of the answer
    curl -s -m 60 --unix-socket /run/nginx.sock -H 'Authorization: Bearer sk-test' http://x/v1/responses \
        -d '{"model":"demo","max_output_tokens":4,"input":"Hello","previous_response_id":'"$1"'}' |
        python3 -c 'import json,sys
print(eval(sys.argv[1], {"a": json.load(sys.stdin)}))' "$2" 2>&1
}
first=$(respond null 'a["id"]')
check "a response is kept" "$(respond "\"$first\"" 'a["store"]')" True
systemctl kill -s KILL quire-front@1 quire-front@2
check "and there after kill -9 of the fronts" \
    "$(until_is 20 "$first" respond "\"$first\"" 'a["previous_response_id"]')" "$first"
check "its file is the fronts' user's alone" \
    "$(modes /var/lib/quire-front/ /var/lib/quire-front/responses/{data,lock}.mdb | cut -d' ' -f1,2)" \
    "$(printf '700 quire-front\n600 quire-front\n600 quire-front')"
www=$(id -u www-data)
check "www-data cannot ask a front" "$(connect SOCK_STREAM /run/quire-front/1.sock "$www")" "Permission denied"
check "nor can it ask the engine" "$(connect SOCK_SEQPACKET /run/quire/engine.sock "$www")" "Permission denied"
check "nor can an operator of the group quire" \
    "$(connect SOCK_SEQPACKET /run/quire/engine.sock "$www" "$(gid quire)")" "Permission denied"
check "a user of the socket's group can" \
    "$(connect SOCK_SEQPACKET /run/quire/engine.sock "$www" "$(gid quire-socket)")" connected
check "a front's process cannot open what the engine keeps" \
    "$(nsenter -t "$(systemctl show -P MainPID quire-front@1)" -m -S 65534 -G "$(gid quire-socket)" \
        cat /dev/shm/quire/pages 2>&1 | grep -o 'Permission denied')" "Permission denied"
systemctl restart quire-engine
check "restarted, it is ready" "$(until_is 60 200 health)" 200
check "with its pages in host memory" "$(ask 'a["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32')" True
check "and the same answer" "$(ask 'a["choices"][0]["text"]')" "$text"
before=$(systemctl show -P MainPID quire-engine)
systemctl kill -s KILL quire-engine
again() { [ "$(systemctl show -P MainPID quire-engine)" != "$before" ] && health; }
check "killed, it is started again" "$(until_is 60 200 again)" 200
check "and finds them, too" "$(ask 'a["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32')" True
check "the engine's user looks at the cache" \
    "$(as quire-engine lmdb-dump --host /dev/shm/quire/pages --summary >/dev/null; echo $?)" 0
systemctl stop quire-engine
check "a stop is one" "$(systemctl show -P Result,ActiveState quire-engine | sort | tr '\n' ' ')" "inactive success "
check "it leaves no socket" "$(ls /run/quire 2>&1 | grep -c engine.sock)" 0
check "and host memory" "$(modes /dev/shm/quire/pages)" "600 quire-engine /dev/shm/quire/pages"
systemctl start quire-engine
check "which the next start finds" "$(until_is 60 200 health; ask 'a["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32')" \
    $'200\nTrue'
# Several models: an engine each, started by its socket.
systemctl stop quire-front@1 quire-front@2 quire-engine 2>/dev/null # the sockets stay, it says
rm /etc/systemd/system/quire-engine.service
systemctl daemon-reload
mkdir /etc/quire/models
for name in small large broken; do echo 'model = /srv/models/demo' >"/etc/quire/models/$name.conf"; done
echo 'kv_cache_dtype = nonsense' >>/etc/quire/models/broken.conf
printf 'models_dir = /etc/quire/models\nmodels_run = /run/quire-models\nmodels_max = 1\nwake_timeout_s = 10\n' >>/etc/quire/quire.conf
systemctl start quire-model@{small,large,broken}.socket quire-front@1 quire-front@2
check "several models: the sockets listen, no engine runs" \
    "$(systemctl is-active quire-model@{small,large}.{socket,service} | tr '\n' ' ')" "active inactive active inactive "
model() { # name: the text and what the list says of its state
    curl -s -m 60 --unix-socket /run/nginx.sock -H 'Authorization: Bearer sk-test' http://x/v1/completions \
        -d '{"model":"'"$1"'","max_tokens":4,"temperature":0,"prompt":"'"$(printf 'The clever fox carried lantern %d. ' 1 2 3 4 5 6 7 8 9)"'"}' |
        python3 -c 'import json,sys; print(json.load(sys.stdin)["choices"][0]["text"])' 2>&1
}
state() {
    curl -s -m 5 --unix-socket /run/nginx.sock -H 'Authorization: Bearer sk-test' "http://x/v1/models/$1" |
        python3 -c 'import json,sys; print(json.load(sys.stdin)["state"])' 2>&1
}
check "a request starts one" "$(model small)" "$text"
check "it is awake" "$(until_is 10 awake state small)" awake
check "another one's makes it sleep" "$(model large; until_is 10 asleep state small)" "$text"$'\nasleep'
check "and it wakes again" "$(model small)" "$text"
check "the table of seats is for the fronts to read" "$(modes /run/quire-models/seats; stat -c %G /run/quire-models/seats)" \
    $'640 quire-engine /run/quire-models/seats\nquire-socket'
check "www-data cannot ask an engine" "$(connect SOCK_SEQPACKET /run/quire-models/small.sock "$www")" "Permission denied"
systemctl kill -s KILL quire-model@small
check "killed, it is started again by a request" "$(model small)" "$text"
systemctl stop quire-model@small 2>/dev/null
check "stopped, too" "$(model small)" "$text"
code() {
    curl -s -m 60 -o /dev/null -w '%{http_code}' --unix-socket /run/nginx.sock -H 'Authorization: Bearer sk-test' \
        http://x/v1/completions -d '{"model":"'"$1"'","max_tokens":1,"prompt":"a"}'
}
check "one that cannot be started is refused" "$(code broken)" 503
check "its socket has failed, and the others serve" \
    "$(systemctl is-failed quire-model@broken.socket; model large)" $'failed\n'"$text"
sed -i '/nonsense/d' /etc/quire/models/broken.conf
systemctl reset-failed quire-model@broken.socket quire-model@broken.service
systemctl start quire-model@broken.socket
check "mended and reset, it serves" "$(model broken)" "$text"
check "each has a store of its own" \
    "$(modes /var/lib/quire-models/{small,large}/prefix | cut -d' ' -f1,2 | sort -u)" "700 quire-engine"
grep -h 'RROR' /run/quire-*.log | sed 's/^/# /'
echo "1..$n"
