#!/usr/bin/env bash
# Goal: the tables of docs/api and docs/coming-from-vllm.md say what the code's tables say. Method:
# names, bounds, states and codes of both sides as lists, compared in both directions.
set -u
export LC_ALL=C
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
# Lists on standard input of diff: "<" the code alone has it, ">" the document.
differ() { diff <(sort -u <<<"$1") <(sort -u <<<"$2") | grep '^[<>]'; }

# Rows of a document's tables whose head begins with a word: the cells, tabs between.
rows() { # file, first cell of the head
    awk -F ' *[|] *' -v head="$2" '
        !/^\|/ { on = 0; next }
        $2 == head { on = 1; next }
        on && !/^\|-/ { for (i = 2; i < NF; i++) printf "%s%s", $i, i < NF - 1 ? "\t" : "\n" }' "$1"
}
bare() { tr -d '`'; }

# --- fields ---------------------------------------------------------------------------------
logprobs_max=$(sed -n 's/^#define WIRE_LOGPROBS_MAX  *\([0-9]*\).*/\1/p' src/ipc/wire_request.h)
bound() { # C numbers as a document writes them
    sed "s/INT32_MAX/2147483647/g; s/INT_MAX/2147483647/g; s/INT_MIN/-2147483648/g; s/WIRE_LOGPROBS_MAX/$logprobs_max/g"
}
# Name, bounds of numbers, and "refused" of a format's fields.
code_fields() { # CHAT or TEXT
    {
        sed -n '/fields_rows\[\] = {/,/^};/p' src/front/request/fields.c | grep -v '^#' |
            { tr '\n' ' '; echo; } |
            sed 's/    \(CHAT\|TEXT\|BOTH\)(/\n\1(/g' |
            sed -nE "s/^($1|BOTH)\(\"([a-z_]+)\", (fields_[a-z_]+)(.*RANGE_(FROM|ABOVE)\(([^,]*), ([^)]*)\))?.*/\2\t\5\t\6\t\7\t\3/p"
        sed -nE 's/^SAMPLING_REAL\(([a-z_]+), RANGE_(FROM|ABOVE)\(([^,]*), ([^)]*)\).*/\1\t\2\t\3\t\4\t/p; s/^SAMPLING_COUNT\(([a-z_]+), ([A-Z0-9_]+)\).*/\1\tFROM\t-1\t\2\t/p' \
            kernels/sampling.def
    } | awk -F '\t' '{
        printf "%s\t%s\t%s\n", $1, $2 == "" ? "" : ($2 == "ABOVE" ? "above " : "") $3 " to " $4, $5 == "fields_neutral" ? "refused" : ""
    }' | bound
}
translated() { # messages or responses
    {
        sed -n "/$1_rows\[\] = {/,/^};/p" "src/front/request/translate_$1.c"
        sed -n '/define TRANSLATE_EXTRAS/,/^$/p' src/front/request/translate.h
    } | tr '\n\\' '  ' | grep -oE '\{ *"[a-z_]+", [a-z_]+' |
        sed -E 's/\{ *"([a-z_]+)", (.*)/\1\t\t\2/; s/\t(translate_refuse|responses_stateless)$/\trefused/; s/\t(translate|messages|responses)_[a-z_]*$/\t/'
}
# Names that a page takes over from chat completions.
taken_over() { # file
    awk '/^As in \[chat completions\]/ { on = 1 } /^$/ { on = 0 } on' "$1" | grep -oE '`[a-z_]+`' | bare
}
fields() { # page, the code's list
    local doc=docs/api/$1.md names
    names=$({ rows "$doc" field | cut -f 1 | bare; taken_over "$doc"; })
    check "$doc has the fields that the server reads" "$(differ "$(cut -f 1 <<<"$2")" "$names")"
    check "$doc: no field twice" "$(sort <<<"$names" | uniq -d)"
    check "$doc: bounds of numbers, and what is refused" "$(awk -F '\t' '
        NR == FNR { values[$1] = $2; note[$1] = $4; next }
        !($1 in values) { next }
        $2 != "" && index(values[$1], $2) != 1 { print $1 ": \"" values[$1] "\", not \"" $2 "\"" }
        $3 == "refused" && index(note[$1] values[$1], "refused") == 0 { print $1 " is refused" }' \
        <(rows "$doc" field | bare) - <<<"$2")"
}
fields chat-completions "$(code_fields CHAT)"
fields completions "$(code_fields TEXT)"
fields messages "$(translated messages)"
fields responses "$(translated responses)"

# --- routes ---------------------------------------------------------------------------------
code_routes=$(sed -n '/routes\[\] = {/,/^};/p' src/front/api/route.c | tr '\n' ' ' | sed 's/    {"/\n{"/g' |
    sed -nE 's/^\{"([^"]+)", ("([A-Z]+)"|NULL), [a-zA-Z_]+, SHAPE_[A-Z]+, ([A-Z]+), ([A-Z |]+),.*/\1 \3 \4 \5/p' |
    awk '{
        access["OPEN"] = "open"; access["KEYED"] = "key"; access["ADMIN"] = "admin"; access["LOCAL"] = "local"
        any = $2 in access
        print $1, any ? "any" : $2, access[any ? $2 : $3], / BODY/ ? "yes" : "no"
    }')
check "docs/api/README.md has the routes, their methods, access and bodies" \
    "$(differ "$code_routes" "$(rows docs/api/README.md path | bare | awk -F '\t' '{ print $1, $2, $3, $4 }')")"

# --- errors ---------------------------------------------------------------------------------
code_errors=$(sed -nE 's/^ERR\([A-Z_]+, -?[0-9]+, ([0-9]+), "([a-z_]*)", "([a-z_]*)".*/\1 \3 \2/p' src/base/err.def |
    sed 's/  / null /' | grep -v '^200')
check "docs/api/errors.md has err.def's errors" \
    "$(differ "$code_errors" "$(rows docs/api/errors.md status | bare | awk -F '\t' 'NF == 5 { print $1, $2, $3 }')")"
nginx_errors=$(sed -nE 's/.*return (4[0-9]*|5[0-9]*) .*"code":"([a-z_]+)".*/\1 \2/p' nginx/quire-locations.conf)
check "docs/api/errors.md has nginx's errors" \
    "$(differ "$nginx_errors" "$(rows docs/api/errors.md status | bare | awk -F '\t' 'NF == 3 { print $1, $2 }')")"

# --- metrics --------------------------------------------------------------------------------
code_metrics=$({
    sed -nE 's/^(COUNTER|GAUGE)\([a-z0-9_]+, "([^"]+)", "((\\"|[^"])*)".*/\2 \L\1 \E\3/p; s/^HISTOGRAM\([a-z0-9_]+, "([^"]+)".*/\1 histogram /p' \
        src/ipc/metric.def
    # What a front adds: the engine's presence, its settings, a row for each tenant and rank.
    grep -oE '# TYPE (quire|vllm):[a-z_]+ [a-z]+' src/front/api/api_status.c | sed 's/# TYPE //; s/$/ /'
    grep -oE '"vllm:[a-z_]+_info"' src/front/api/api_status.c | tr -d '"' | sed 's/$/ gauge settings/'
    tr '\n' ' ' <src/front/api/api_status.c | grep -oE '"quire:tenant_[a-z_]+", "(counter|gauge)"' |
        tr -d '",' | sed 's/$/ tenant/'
    tr '\n' ' ' <src/front/api/api_status.c | grep -oE '"quire:rank_[a-z_]+", "(counter|gauge)"' |
        tr -d '",' | sed 's/$/ stage, rank/'
} | tr -d '\\' | sed 's/ $//')
check "docs/api/metrics.md has the metrics, their kinds and labels" \
    "$(differ "$code_metrics" "$(rows docs/api/metrics.md metric | bare | awk -F '\t' '{
        if ($3 == "") { print $1, $2; next }
        k = split($3, labels, /<br>/)
        for (i = 1; i <= k; i++)
            print $1, $2, labels[i]
    }')")"

# --- models ---------------------------------------------------------------------------------
archs=$(sed -n '/arch_table\[\] = {/,/^};/p' src/model/arch.c | tr '\n' ' ' | sed 's/{\.name = /\n/g' |
    grep -vE 'is_toy|is_drafter' | sed -nE 's/^"([A-Za-z0-9_]+)".*/\1/p')
check "docs/models-and-formats.md has the architectures of arch.c" \
    "$(differ "$archs" "$(rows docs/models-and-formats.md architecture | cut -f 1 | grep -oE '[A-Za-z0-9_]+')")"

# --- settings -------------------------------------------------------------------------------
settings=$(sed -nE 's/^CONF\([A-Z]*, ([a-z_0-9]*),.*/\1/p' src/base/settings.def)
check "settings that tables name exist" "$(for page in README.md docs/*.md docs/*/*.md; do
    { rows "$page" setting | cut -f 1; rows "$page" "vLLM option" | cut -f 2; } | grep -oE '`[a-z_0-9]+( =[^`]*)?`' |
        bare | sed 's/ =.*//' | grep -vxF "$settings" | sed "s|^|$page: |"
done)"
echo "1..$n"
exit $bad
