#!/usr/bin/env bash
# Goal: documents name what exists, are current, and are found. Method: every path and link in them
# against the tree; what scripts make, made again; man pages through their own readers.
set -u
export LC_ALL=C
cd "${srcdir:-.}" || exit 1
build=$(cd "$OLDPWD" && cd "${builddir:-.}" && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
: >"$dir/anchors"
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
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
docs=$(find docs -name '*.md' | sort)
pages="README.md $docs $(find src kernels nginx systemd tests tools -name README.md | sort)"

# Text in backquotes that is a path of the tree, or a file by its name alone, stands at the end of
# some file's path. Folders end in a slash. Headers of other projects are not in the tree.
foreign='lmdb.h|cJSON.h|nccl.h|cublasLt.h|fcgiapp.h|pcre2.h|config.h|wire_digest.h|api_server.py|arg_utils.py'
named() { # file
    awk '/^```|^    /{ next } { print }' "$1" | grep -oE '`[^`]+`' | tr -d '`' |
        grep -E '^(src|kernels|nginx|systemd|tests|tools|docs)/[A-Za-z0-9_./*{},@-]+$|^[A-Za-z0-9_./*-]+\.(c|h|cu|cuh|def|inc|t|sh|py|md|service|socket|target)$' |
        grep -vE "^\*?\.|(^|/)($foreign)$" | sort -u
}
missing=$({
    find src kernels nginx systemd tests tools docs -type f | sed 's/\.in$//; s|^|F |'
    find src kernels nginx systemd tests tools docs -type d | sed 's|^|F |; s|$|/|'
    ls | sed 's|^|F |'
    for page in $pages; do named "$page" | sed "s|^|N $page |"; done
} | awk '
    function expand(text,    open, close_, parts, k, m, before, after) { # a,b in braces
        open = index(text, "{")
        if (open == 0) {
            wanted[++n_wanted] = text
            return
        }
        close_ = index(text, "}")
        before = substr(text, 1, open - 1)
        after = substr(text, close_ + 1)
        m = split(substr(text, open + 1, close_ - open - 1), parts, ",")
        for (k = 1; k <= m; k++)
            wanted[++n_wanted] = before parts[k] after
    }
    $1 == "F" {
        all[++n_all] = "/" $2
        path = $2
        for (;;) { # every end of the path
            end[path] = 1
            slash = index(path, "/")
            if (slash == 0 || slash == length(path))
                break
            path = substr(path, slash + 1)
        }
        next
    }
    {
        n_wanted = 0
        expand($3)
        for (i = 1; i <= n_wanted; i++) {
            w = wanted[i]
            found = w in end || (w "/") in end || (w ".c") in end
            if (!found && index(w, "*") > 0) {
                gsub(/\./, "\\.", w)
                gsub(/\*/, "[^/]*", w)
                for (k = 1; k <= n_all && !found; k++)
                    found = all[k] ~ ("/" w "$")
            }
            if (!found)
                print $2 ": " wanted[i]
        }
    }')
check "every file that a document names exists" "$missing"

missing=$(awk '
    function slug(text) { # as GitHub and others make an anchor of a heading
        text = tolower(text)
        gsub(/[^a-z0-9_ -]/, "", text)
        gsub(/ /, "-", text)
        return text
    }
    FNR == 1 { files[FILENAME]; folder = FILENAME; if (!sub(/[^\/]*$/, "", folder)) folder = "" }
    /^#+ / { text = $0; sub(/^#+ /, "", text); heading[FILENAME "#" slug(text)] }
    {
        rest = $0
        while (match(rest, /\]\([^) ]+\)/)) {
            link = substr(rest, RSTART + 2, RLENGTH - 3)
            rest = substr(rest, RSTART + RLENGTH)
            if (link ~ /^(https?|mailto):/)
                continue
            path = link ~ /^#/ ? FILENAME link : folder link
            while (sub(/(^|\/)[^\/.]+\/\.\.\//, "/", path) > 0)
                ;
            sub(/^\//, "", path)
            print path "\t" FILENAME ": " link >"/dev/fd/3"
        }
    }
    END { for (h in heading) print h }' $pages 3>"$dir/links" | sort >"$dir/headings"
    while IFS=$'\t' read -r path place; do
        [ -e "${path%%#*}" ] || { echo "$place"; continue; }
        case $path in *#*) echo "$path" >>"$dir/anchors"; esac
    done <"$dir/links"
    sort -u "$dir/anchors" | comm -23 - "$dir/headings")
check "every link leads to a file and a heading" "$missing"

unnamed() { # document, files: those whose name it lacks
    local page=$1
    shift
    printf '%s\n' "$@" | sed 's|.*/||' | grep -vxF -f <(grep -oE '`[^`]+`' "$page" | tr -d '`')
}
check "kernels/README.md names every file of kernels" \
    "$(unnamed kernels/README.md kernels/*.c kernels/*.h kernels/*.cu kernels/*.cuh kernels/*.def kernels/*.txt)"
check "tests/README.md names every test of integration" \
    "$(unnamed tests/README.md tests/integration/*.t tests/integration/*.sh)"

check "README.md has at most 800 words" \
    "$(w=$(wc -w <README.md); [ "$w" -le 800 ] || echo "$w words")"
lost=$(comm -23 <(tr ' ' '\n' <<<"$docs" | sort) <(cut -f 1 "$dir/links" | sed 's/#.*//' | sort -u))
check "every document is reached by a link" "$lost"
check "no line of prose is longer than 110 characters" \
    "$(awk '!/^[|>]/ && !/^    / && length($0) > 110 { print FILENAME ":" FNR ": " length($0) }' \
        README.md $docs)"

check "docs/configuration.md is what make-configuration makes of settings.def" \
    "$(diff docs/configuration.md <(docs/make-configuration src/base/settings.def))"
for shell in bash zsh; do
    check "tools/quire.$shell is what make-completion makes" \
        "$(diff "tools/quire.$shell" <(tools/make-completion "$shell" . "$build" 2>&1))"
done
for page in docs/man/*.[1-8]; do
    check "$page is what make-man makes" \
        "$(diff "$page" <(docs/man/make-man "$(basename "$page")" . "$build" 2>&1))"
done
if command -v mandoc >/dev/null; then
    check "mandoc takes the man pages" "$(mandoc -T lint -W warning docs/man/*.[1-8] 2>&1)"
else
    skip "mandoc takes the man pages" "mandoc is not installed"
fi
if command -v man >/dev/null && man -l docs/man/quire.1 >/dev/null 2>&1; then
    check "man takes the man pages" "$(MANWIDTH=80 man --warnings -l docs/man/*.[1-8] 2>&1 >/dev/null)"
else
    skip "man takes the man pages" "man with -l is not installed"
fi
echo "1..$n"
exit $bad
