#!/usr/bin/env bash
# Goal: the nginx files that are installed do what they say, and tools/run-local keeps a server
# alive. Method: the whole server in a folder, curl over HTTPS and over the plain socket.
set -u
src=$(cd "${srcdir:-.}" && pwd) build=$(cd "${builddir:-build}" && pwd)
PATH=$PATH:/usr/sbin:/sbin
for tool in nginx openssl curl python3; do
    command -v $tool >/dev/null || { echo "1..0 # SKIP $tool is not installed"; exit 0; }
done
run=$(mktemp -d /tmp/quire-site.XXXXXX) || exit 1
trap '"$src/tools/run-local" stop "$run" >/dev/null 2>&1; rm -rf "$run"' EXIT
trap 'exit 1' HUP INT TERM
n=0 bad=0
check() { # name, what came, what was wanted (a bash pattern)
    n=$((n + 1))
    # shellcheck disable=SC2053 # a pattern is meant
    if [[ $2 == $3 ]]; then
        echo "ok $n - $1"
    else
        bad=1
        echo "not ok $n - $1"
        printf 'got  %s\nwant %s\n' "${2:0:1500}" "$3" | sed 's/^/# /'
    fi
}

"$src/tools/run-local" start "$run" --build "$build" --engine "--device cpu --cpu-threads 1" \
    >"$run/start.log" 2>&1 || {
    sed 's/^/# /' "$run/start.log"
    echo "not ok 1 - the server starts"
    echo "1..1"
    exit 1
}
check "it says where it is" "$(cat "$run/start.log")" "https://127.0.0.1:*$run/key*"
url=https://localhost:$(cat "$run/port") key=$(cat "$run/key")
get() { curl -sS -m 30 --cacert "$run/cert.pem" "$@" 2>&1; }
code() { get -o /dev/null -w '%{http_code}' "$@"; }
keyed() { get -H "Authorization: Bearer $key" -H 'Content-Type: application/json' "$@"; }
plain() { curl -sS -m 30 --unix-socket "$run/nginx.sock" "$@" 2>&1; }
body='{"model":"demo","temperature":0,"messages":[{"role":"user","content":"What is the capital of France?"}]'
# What a client reads of an error: status, kind, code; "not JSON" if it is none.
said() {
    python3 -c '
import json, sys
head, _, body = sys.stdin.read().replace("\r", "").rpartition("\n\n")
lines = [l for l in head.splitlines() if l.startswith("HTTP/")]
names = sorted(l.split(":")[0].lower() for l in head.splitlines() if ":" in l)
try:
    e = json.loads(body)["error"]
    assert set(e) >= {"message", "type", "param", "code"}
    print(lines[-1].split()[1], e["type"], e["code"], *[n for n in names
          if n in ("retry-after", "www-authenticate", "x-request-id")])
except Exception as bad:
    print(lines, "not JSON:", bad, body[:300])'
}

check "HTTP/2 over TLS" "$(get -o /dev/null -w '%{http_version} %{http_code}' "$url/health")" "2 200"
check "TLS 1.1 is refused" \
    "$(get --tls-max 1.1 --ciphers DEFAULT:@SECLEVEL=0 -o /dev/null -w '%{http_code}' "$url/health")" "*000"
check "no key is needed for /version" "$(code "$url/version")" 200
check "without a key file there are no operators" "$(code "$url/admin/cache")" 404
check "whatever he asks for" "$(code -X POST "$url/reset_prefix_cache")" 404
check "/metrics for this machine" "$(get "$url/metrics")" "*# TYPE *"
check "an answer" "$(keyed -d "$body}" "$url/v1/chat/completions")" "*The capital of France is Paris.*"
check "a stream" "$(keyed -N -d "$body,\"stream\":true}" "$url/v1/chat/completions")" "*data: \[DONE\]*"

check "no key: 401" "$(get -i "$url/v1/models" | said)" \
    "401 invalid_request_error invalid_api_key www-authenticate x-request-id"
check "a wrong key: 401" "$(get -i -H "Authorization: Bearer $key-" "$url/v1/models" | said)" \
    "401 invalid_request_error invalid_api_key *"
check "a wrong key on /tokenize/: 401" "$(get -i -d '{}' "$url/tokenize/" | said)" "401 *"
check "a key as X-Api-Key" "$(code -H "X-Api-Key: $key" "$url/v1/models")" 200
check "a wrong X-Api-Key: 401 in Anthropic's shape on its path" \
    "$(get -i -d '{}' -H "X-Api-Key: $key-" "$url/v1/messages")" \
    '*401*x-request-id*{"type":"error","error":{"type":"authentication_error",*'
check "another path: 404" "$(get -i "$url/.git/config" | said)" "404 * not_found x-request-id"
check "TRACE: 405" "$(keyed -i -X TRACE "$url/v1/models" | said)" "405 * method_not_allowed*"
check "the front's own 405 passes" "$(keyed -i -X PUT "$url/v1/models" | said)" "405 *"
check "plain HTTP at the TLS port: 400" "$(curl -s -i "http://localhost:${url##*:}/" | said)" \
    "400 * bad_request*"
head -c 33554433 /dev/zero >"$run/big"
check "33 MB over HTTP/2: 413" \
    "$(keyed -i --data-binary "@$run/big" "$url/v1/chat/completions" | said)" "413 * request_too_large*"
check "33 MB over HTTP/1.1: 413" "$(keyed -i --http1.1 -H Expect: --data-binary "@$run/big" \
    "$url/v1/chat/completions" | said)" "413 * request_too_large*"
for at in health ping version is_sleeping metrics; do
    check "2 KB for /$at, which reads none: 413" \
        "$(head -c 2048 "$run/big" | get -i --http1.1 -H Expect: --data-binary @- "$url/$at" | said)" "413 *"
    check "32 MB in chunks: as soon as 1 KB is there" \
        "$(head -c 33554432 "$run/big" | get -i --http1.1 -H Expect: -H 'Transfer-Encoding: chunked' \
            --data-binary @- "$url/$at" 2>&1 | said)" "413 *"
done
rm -f "$run/big"
check "nginx kept no such body" "$(find "$run/tmp-body" -type f | wc -l)" 0
check "a body that is not read, 60 times" "$(for _ in $(seq 60); do
    head -c 1000 /dev/zero | get -o /dev/null -w '%{http_code} ' --data-binary @- "$url/ping"; done)" \
    "$(printf '200 %.0s' $(seq 60))"
check "one address asks 400 times at once without a key: some get 429" "$(for _ in $(seq 400); do
    printf 'url = "%s/version"\noutput = /dev/null\n' "$url"; done |
    curl -s -Z --parallel-max 50 --cacert "$run/cert.pem" -w '%{http_code}\n' -K - 2>/dev/null | sort | uniq -c |
    awk '{ printf "%s ", $2 }')" "200 429 "
sleep 3 # 60 more are let in again

# Tightened limits come by a reload, while a stream is under way; it is not cut.
long='{"model":"demo","prompt":"Once","max_tokens":1500,"ignore_eos":true,"temperature":0,"stream":true}'
plain -N -H "Authorization: Bearer $key" -H 'Content-Type: application/json' -d "$long" \
    http://localhost/v1/completions >"$run/stream" &
stream=$!
for _ in $(seq 100); do [ ! -s "$run/stream" ] && sleep 0.05; done
sed -i 's,rate=100r/s,rate=6r/m,; s/zone=quire_rate:1m/zone=quire_slow:1m/' "$run/quire-http.conf"
sed -i 's/quire_rate burst=400/quire_slow burst=3/; s/quire_streams 1024/quire_streams 1/' \
    "$run/quire-locations.conf"
sed -i '$a"Bearer sk-other" other;' "$run/keys.map"
under_way=$(kill -0 $stream 2>/dev/null && echo yes)
nginx -s reload -p "$run" -c "$run/nginx.conf" 2>>"$run/nginx.log"
# limit_conn counts the streams of the new workers only, so the new key shows the reload.
for _ in $(seq 100); do
    other=$(code -H 'Authorization: Bearer sk-other' "$url/v1/models")
    [ "$other" = 200 ] && break
    sleep 0.05
done
check "the stream was under way at the reload" "$under_way" yes
wait $stream
check "a stream outlives a reload" "$(tail -n 2 "$run/stream")" "data: \[DONE\]*"
check "a key added by a reload" "$other" 200

codes=$(for _ in 1 2 3 4 5 6 7 8; do code -H "Authorization: Bearer $key" "$url/v1/models"; echo; done)
check "some of 8 requests at 6 a minute and 3 more: 200" "$codes" "200*"
check "the rest: 429" "$codes" "*429"
check "429 has Retry-After" "$(keyed -i "$url/v1/models" | said)" \
    "429 rate_limit_error rate_limit_exceeded retry-after x-request-id"
check "and on Anthropic's path its shape" "$(keyed -i -d '{}' "$url/v1/messages")" \
    '*429*retry-after*{"type":"error","error":{"type":"rate_limit_error",*'
check "without a key nothing is limited" \
    "$(for _ in $(seq 20); do code "$url/health"; done)" "$(printf '200%.0s' $(seq 20))"
plain -N -H 'Authorization: Bearer sk-other' -H 'Content-Type: application/json' -d "$long" \
    http://localhost/v1/completions >"$run/stream" &
stream=$!
for _ in $(seq 100); do [ ! -s "$run/stream" ] && sleep 0.02; done
check "a second stream of one key, when one is allowed: 429" \
    "$(get -i -H 'Authorization: Bearer sk-other' "$url/v1/models" | said)" \
    "429 * rate_limit_exceeded retry-after *"
check "it was the limit of streams" "$(tail -n 1 "$run/nginx-error.log")" \
    '*limiting connections by zone "quire_streams"*'
wait $stream

# Deaths.
killed() { for f in "$@"; do kill -KILL "$(cat "$run/$f.pid")"; done; }
killed front1
check "one front of two dies: no request fails" \
    "$(for _ in $(seq 10); do code "$url/version"; done)" "$(printf '200%.0s' $(seq 10))"
for _ in $(seq 100); do kill -0 "$(cat "$run/front1.pid")" 2>/dev/null && break || sleep 0.05; done
killed front1 front2
for _ in $(seq 50); do [ "$(code "$url/version")" = 200 ] && break || sleep 0.1; done
check "both die and are back" "$(code "$url/version")" 200
check "nginx gave up neither" "$(grep -c 'no live upstreams' "$run/nginx-error.log")" 0
mv "$run/front1.sock" "$run/front1.gone" && mv "$run/front2.sock" "$run/front2.gone"
check "no front: 502" "$(get -i "$url/version" | said)" "502 server_error bad_gateway retry-after *"
mv "$run/front1.gone" "$run/front1.sock" && mv "$run/front2.gone" "$run/front2.sock"
was=$(cat "$run/engine.pid")
killed engine
# A front may say 200 until it sees that the engine is gone: wait for the next one first.
for _ in $(seq 100); do [ "$(cat "$run/engine.pid")" != "$was" ] && break || sleep 0.1; done
for _ in $(seq 100); do [ "$(code "$url/health")" = 200 ] && break || sleep 0.1; done
check "the engine dies and is back" "$(code "$url/health")" 200
check "and answers" "$(get -H 'Authorization: Bearer sk-other' -H 'Content-Type: application/json' \
    -d "$body}" "$url/v1/chat/completions")" "*Paris*"

# A front that is stopped answers nothing: nginx's own 504.
sed -i '/^location.*admin/,/^}/s/allow 127.0.0.1;//' "$run/quire-locations.conf"
sed -i 's/fastcgi_read_timeout 600s/fastcgi_read_timeout 1s/' "$run/quire-fastcgi.conf"
nginx -s reload -p "$run" -c "$run/nginx.conf" 2>>"$run/nginx.log"
sleep 0.5
check "operators' paths are for addresses that are named" \
    "$(code "$url/admin/cache") $(code "$url/reset_prefix_cache")" "403 403"
check "and the socket" "$(plain -o /dev/null -w '%{http_code}' http://localhost/admin/cache)" 404
kill -STOP "$(cat "$run/front1.pid")" "$(cat "$run/front2.pid")"
check "no answer: 504" "$(get -i "$url/version" | said)" "504 server_error timeout*"
kill -CONT "$(cat "$run/front1.pid")" "$(cat "$run/front2.pid")"

check "the log has neither keys nor prompts" \
    "$(grep -cE "$key|sk-other|capital" "$run/access.log")" 0
check "each line of the log is JSON with a tenant" "$(python3 -c '
import json, sys
print(sorted({json.loads(l)["tenant"] for l in open(sys.argv[1])}))' "$run/access.log")" \
    "*'local', 'other'*"

# A pid file that a crash left behind names another process.
"$src/tools/run-local" stop "$run"
check "everything is stopped" "$("$src/tools/run-local" status "$run")" "nothing runs in *"
sleep 60 &
echo $! >"$run/engine.pid"
"$src/tools/run-local" stop "$run"
check "a stranger's pid is left alone" "$(kill -0 $! && echo alive)" alive
kill $!
check "what cannot start is said at once" "$(timeout 20 "$src/tools/run-local" start "$run" \
    --build "$build" --engine "--max-model-len none" 2>&1)" "*does not get ready*"
# The shell starts nginx with QUIT ignored, and nginx has a handler for it only later.
mkdir "$run/slow"
printf '#!/bin/sh\ncase "$*" in "-t "*) ;; *) sleep 1 ;; esac\nexec %s "$@"\n' \
    "$(PATH=$PATH:/usr/sbin command -v nginx)" >"$run/slow/nginx"
chmod +x "$run/slow/nginx"
check "nor does an nginx stay that has not yet begun" "$(PATH=$run/slow:$PATH timeout 20 \
    "$src/tools/run-local" start "$run" --build "$build" --engine "--max-model-len none" 2>&1)" \
    "*does not get ready*"
check "a folder without a model is refused" "$("$src/tools/run-local" start "$run" --build "$build" \
    --model /nonexistent 2>&1)" "*/nonexistent has no config.json*"
check "a model's folder does not become the server's" "$("$src/tools/run-local" start \
    "$src/tools/demo-model/model" 2>&1)" "*is a model's folder*--model*"
check "nothing was written to it" "$(ls "$src/tools/demo-model/model" | grep -c 'nginx\|key')" 0
check "the quick start refuses what is no model" "$("$src/tools/quickstart" --model "$run" 2>&1)" \
    "*has no config.json*"
check "so is a folder without the programs" "$(timeout 20 "$src/tools/run-local" start "$run" \
    --build "$run" 2>&1)" "*no quire-engine*"
echo "1..$n"
exit $bad
