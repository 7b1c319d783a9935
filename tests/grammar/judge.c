/* SPDX-License-Identifier: Apache-2.0
 *
 * Says what the grammar of each schema makes of each instance, for scripts that compare it with
 * what should be. One request a line on standard input, one answer a line on standard output:
 *
 *   {"schema": ..., "values": [...]}   or "regex", "ebnf": "text", and "texts": ["...", ...]
 *   {"tags": ..., "texts": [...]}      a structural tag
 *   {"schema": ..., "walks": 20, "seed": 1}: texts made of random tokens under masks, to the end;
 *       behind them as many as "large" says, of a vocabulary of 131,072 tokens (pieces.h)
 *   {"pieces": 1000}: the first of those tokens, valid UTF-8 all of them: {"pieces": ["...", ...]}
 *   {"us": 812, "states": 44, "bytes": 1816, "answers": [true, false]}
 *   {"error": -6, "text": "...", "where": "/properties/a/not", "us": 99}
 *
 * A grammar fixes the order of members, JSON does not: a value is accepted when it is in some
 * order, which is searched for, members that the automaton cannot take next being given up at
 * once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/must.h"
#include "base/utf8.h"
#include "front/structured/tags.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"
#include "tests/grammar/pieces.h"

#define N_LARGE     131072
#define CACHE_BYTES ((size_t)8 << 20)

static struct walk_work *work;
static struct walk_cache *cache; /* of the automaton that is judged, with the large vocabulary */
static struct pieces pieces;
static struct buf pieces_bytes; /* the large vocabulary, once it was asked for */

static bool accepts(const struct automaton *a, const struct json *text)
{
    struct walk w;

    walk_init(&w, a);
    return walk_bytes(work, a, &w, text->text, text->text_len) == ERR_OK &&
           walk_can_end(work, a, &w);
}

/* --- a value, its members in any order ---------------------------------------------------- */

#define TRIES_MAX 100000

/* What is still to be written: a list whose tails are shared by all orders that are tried. */
struct rest {
    enum { REST_TEXT, REST_VALUE, REST_MEMBERS } kind;
    const char *text;
    size_t len;
    const struct json *node;
    const bool *used; /* of MEMBERS */
    const struct rest *next;
};

struct search {
    const struct automaton *a;
    struct arena arena;
    int tries;
};

static const struct rest *rest_of(struct search *s, struct rest r, const struct rest *next)
{
    struct rest *copy = arena_alloc(&s->arena, sizeof *copy);

    must(copy != NULL);
    *copy = r;
    copy->next = next;
    return copy;
}

static const struct rest *rest_text(struct search *s, const char *text, const struct rest *next)
{
    return rest_of(s, (struct rest){.kind = REST_TEXT, .text = text, .len = strlen(text)}, next);
}

static const struct rest *rest_value(struct search *s, const struct json *v,
                                     const struct rest *next)
{
    struct buf text = {0};
    uint32_t i;

    if (v->kind == JSON_OBJECT) {
        bool *used = arena_zalloc(&s->arena, v->n + 1);

        next = rest_of(s, (struct rest){.kind = REST_MEMBERS, .node = v, .used = used}, next);
        return rest_text(s, "{", next);
    }
    if (v->kind == JSON_LIST) {
        next = rest_text(s, "]", next);
        for (i = v->n; i-- > 0;) {
            next = rest_of(s, (struct rest){.kind = REST_VALUE, .node = &v->items[i]}, next);
            if (i > 0)
                next = rest_text(s, ", ", next);
        }
        return rest_text(s, "[", next);
    }
    if (json_is_number(v))
        return rest_of(s, (struct rest){.kind = REST_TEXT, .text = v->text, .len = v->n}, next);
    json_write(&text, v, JSON_COMPACT);
    next = rest_text(s, arena_strndup(&s->arena, text.bytes, text.len), next);
    buf_fini(&text);
    return next;
}

static bool search(struct search *s, struct walk *w, const struct rest *r);

static bool search_members(struct search *s, const struct walk *w, const struct rest *r)
{
    struct walk *copy = arena_alloc(&s->arena, sizeof *copy);
    bool first = true;
    bool left = false;
    uint32_t i;

    must(copy != NULL);
    for (i = 0; i < r->node->n; i++)
        first = first && !r->used[i];
    for (i = 0; i < r->node->n && s->tries < TRIES_MAX; i++) {
        struct buf key = {0};
        const struct rest *next;
        bool *used;

        if (r->used[i])
            continue;
        left = true;
        used = arena_alloc(&s->arena, r->node->n + 1);
        memcpy(used, r->used, r->node->n);
        used[i] = true;
        next =
            rest_of(s, (struct rest){.kind = REST_MEMBERS, .node = r->node, .used = used}, r->next);
        next = rest_of(s, (struct rest){.kind = REST_VALUE, .node = &r->node->items[i]}, next);
        buf_add_text(&key, first ? "" : ", ");
        buf_add_json_string(&key, r->node->items[i].key, r->node->items[i].key_len);
        buf_add_text(&key, ": ");
        next = rest_text(s, arena_strndup(&s->arena, key.bytes, key.len), next);
        buf_fini(&key);
        walk_copy(copy, w);
        if (search(s, copy, next))
            return true;
    }
    if (left)
        return false;
    walk_copy(copy, w);
    return search(s, copy, rest_text(s, "}", r->next));
}

static bool search(struct search *s, struct walk *w, const struct rest *r)
{
    for (; r != NULL && s->tries++ < TRIES_MAX; r = r->next) {
        if (r->kind == REST_MEMBERS)
            return search_members(s, w, r);
        if (r->kind == REST_VALUE) {
            r = rest_value(s, r->node, r->next); /* begins with a text */
        }
        if (walk_bytes(work, s->a, w, r->text, r->len) != ERR_OK)
            return false;
    }
    return r == NULL && walk_can_end(work, s->a, w);
}

static bool accepts_value(const struct automaton *a, const struct json *v)
{
    struct search s = {.a = a};
    struct walk *w = malloc(sizeof *w);
    bool yes;

    must(w != NULL);
    walk_init(w, a);
    yes = search(&s, w, rest_value(&s, v, NULL));
    arena_reset(&s.arena);
    free(w);
    return yes;
}

/* --- random walks ------------------------------------------------------------------------- */

#define WALK_STEPS 4000 /* tokens of one text; what is longer is given up */
#define WALK_CALM  60   /* after so many, what closes is preferred */

static const char *const words[] = {"true",     "null",         "\"a\"", "\": ",  "\", \"", "abc",
                                    " word",    "[[",           "\"}",   "]}",    "0.5",    "\\n",
                                    "\xc3\xa9", "\xe2\x82\xac", "12",    "2024-", "-01",    "://",
                                    "@",        ".com",         "\\u00"};

#define N_WORDS (sizeof words / sizeof words[0])

static const struct token_trie *walk_vocab(struct buf *image)
{
    static char bytes[128];
    struct trie_token tokens[128 + N_WORDS + 1];
    int32_t end = 128 + N_WORDS;
    size_t i;

    for (i = 0; i < 128; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct trie_token){bytes + i, 1};
    }
    for (i = 0; i < N_WORDS; i++)
        tokens[128 + i] = (struct trie_token){words[i], strlen(words[i])};
    tokens[128 + N_WORDS] = (struct trie_token){"", 0};
    must(trie_build(tokens, 128 + N_WORDS + 1, &end, 1, image) == ERR_OK);
    return (const struct token_trie *)(const void *)image->bytes;
}

static unsigned draw(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A token of the mask; what closes is tried first once in a while. -1: there is none. */
static int32_t choose(const struct token_trie *v, const uint32_t *mask, unsigned *seed, bool calm)
{
    static const char closing[] = "}]\"";
    uint32_t start = draw(seed) % v->n_vocab;
    uint32_t i;

    if ((mask[v->n_vocab / 32] >> (v->n_vocab - 1) % 32 & 1) != 0 && (calm || draw(seed) % 4 == 0))
        return (int32_t)v->n_vocab - 1;
    if (calm || draw(seed) % 5 == 0)
        for (i = 0; i < 3; i++) {
            char one = closing[(start + i) % 3]; /* any may stand in a string or begin a name */

            if ((mask[one / 32] >> one % 32 & 1) != 0)
                return one;
        }
    for (i = 0; i < v->n_vocab; i++) {
        uint32_t t = (start + i) % v->n_vocab;

        if ((mask[t / 32] >> t % 32 & 1) != 0)
            return (int32_t)t;
    }
    return -1;
}

/* One text, as a JSON string; null when it grew too long. */
static void walk_once(const struct automaton *a, const struct token_trie *v,
                      struct walk_cache *kept, unsigned *seed, struct buf *out)
{
    static struct walk w;
    static uint32_t mask[N_LARGE / 32];
    struct buf text = {0};
    int step;

    walk_init(&w, a);
    for (step = 0; step < WALK_STEPS && !w.ended; step++) {
        int32_t t;

        must(walk_mask(work, a, v, kept, &w, mask) == ERR_OK);
        t = choose(v, mask, seed, step > WALK_CALM);
        if (t < 0) {
            buf_add_text(&text, "<nothing may follow>");
            break;
        }
        must(walk_accept(work, a, v, &w, t) == ERR_OK);
        buf_add(&text, trie_text(v) + trie_text_at(v)[t],
                trie_text_at(v)[t + 1] - trie_text_at(v)[t]);
    }
    if (step == WALK_STEPS)
        buf_add_text(out, "null");
    else
        buf_add_json_string(out, text.bytes, text.len);
    buf_fini(&text);
}

static const struct token_trie *large_vocab(void)
{
    if (pieces_bytes.len == 0) {
        pieces_begin(&pieces, N_LARGE - 1);
        pieces_fill(&pieces);
        (void)pieces_image(&pieces, &pieces_bytes);
    }
    return (const struct token_trie *)(const void *)pieces_bytes.bytes;
}

static void pieces_tell(int64_t n, struct buf *out)
{
    const char *comma = "";

    (void)large_vocab();
    buf_add_text(out, "{\"pieces\": [");
    for (uint32_t i = 256; i < pieces.n && n > 0; i++) {
        if (!utf8_is_valid(pieces.tokens[i].bytes, pieces.tokens[i].len))
            continue;
        buf_add_text(out, comma);
        buf_add_json_string(out, pieces.tokens[i].bytes, pieces.tokens[i].len);
        comma = ", ";
        n--;
    }
    buf_add_text(out, "]}\n");
}

static void walk_all(const struct automaton *a, const struct json *line, struct buf *out)
{
    struct buf image = {0};
    const struct token_trie *v = walk_vocab(&image);
    unsigned seed = (unsigned)json_get_int(line, "seed", 1);
    int64_t n = json_get_int(line, "walks", 0), n_large = json_get_int(line, "large", 0);
    int64_t i;

    walk_cache_init(cache, CACHE_BYTES);
    for (i = 0; i < n + n_large; i++) {
        buf_add_text(out, i > 0 ? ", " : "");
        walk_once(a, i < n ? v : large_vocab(), i < n ? NULL : cache, &seed, out);
    }
    buf_fini(&image);
}

/* --- requests ----------------------------------------------------------------------------- */

static bool request_read(const struct json *line, struct grammar_request *r, struct buf *source)
{
    static const struct {
        const char *name;
        enum grammar_kind kind;
    } kinds[] = {{"regex", GRAMMAR_REGEX}, {"ebnf", GRAMMAR_EBNF}};
    const struct json *v = json_get(line, "schema");
    size_t i;

    if (v != NULL) {
        json_write(source, v, JSON_COMPACT);
        r->kind = GRAMMAR_SCHEMA;
        r->source = source->bytes;
        r->source_len = source->len;
        return true;
    }
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        v = json_get_kind(line, kinds[i].name, JSON_TEXT);
        if (v == NULL)
            continue;
        r->kind = kinds[i].kind;
        r->source = v->text;
        r->source_len = v->text_len;
        return true;
    }
    return false;
}

/* What the front makes of a structural tag, then the compiler. */
static int compile(const struct json *line, struct arena *arena, struct grammar_request *r,
                   struct buf *image, struct grammar_error *why)
{
    const struct json *tags = json_get(line, "tags");
    struct grammar_part *part = arena_zalloc(arena, sizeof *part);
    int rc;

    if (tags == NULL)
        return grammar_compile(r, image, why);
    must(part != NULL);
    why->where[0] = '\0';
    rc = tags_compose(tags, REPLY_PLAIN, arena, part, why->text, sizeof why->text);
    *r = (struct grammar_request){.kind = GRAMMAR_PARTS, .parts = part, .n_parts = 1};
    return rc != ERR_OK ? rc : grammar_compile(r, image, why);
}

static void judge(const struct json *line, struct arena *arena, struct buf *out)
{
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA};
    const struct json *texts = json_get_kind(line, "texts", JSON_LIST);
    const struct json *instances = texts != NULL ? texts : json_get_kind(line, "values", JSON_LIST);
    struct grammar_error why;
    struct buf source = {0};
    struct buf image = {0};
    const struct automaton *a;
    uint64_t start;
    uint32_t i;
    int rc;

    must(request_read(line, &r, &source) || json_get(line, "tags") != NULL);
    start = clock_cpu_us(); /* as grammar_compile() itself looks at the time */
    rc = compile(line, arena, &r, &image, &why);
    start = clock_cpu_us() - start;
    if (rc != ERR_OK) {
        buf_printf(out, "{\"error\": %d, \"us\": %llu, \"text\": ", rc, (unsigned long long)start);
        buf_add_json_string(out, why.text, strlen(why.text));
        buf_add_text(out, ", \"where\": ");
        buf_add_json_string(out, why.where, strlen(why.where));
        buf_add_text(out, "}\n");
    } else {
        a = (const struct automaton *)(const void *)image.bytes;
        must(automaton_check(a, image.len) == ERR_OK);
        buf_printf(out, "{\"us\": %llu, \"states\": %u, \"bytes\": %zu, \"answers\": [",
                   (unsigned long long)start, a->n_states, image.len);
        walk_all(a, line, out);
        for (i = 0; instances != NULL && i < instances->n; i++)
            buf_printf(out, "%s%s", i > 0 || json_get(line, "walks") != NULL ? ", " : "",
                       (texts != NULL ? accepts : accepts_value)(a, &instances->items[i])
                           ? "true"
                           : "false");
        buf_add_text(out, "]}\n");
    }
    buf_fini(&source);
    buf_fini(&image);
}

#define NOT_JSON                                                           \
    "{\"error\": -4, \"us\": 0, \"text\": \"not JSON that quire reads\", " \
    "\"where\": \"\"}\n"

int main(void)
{
    struct arena arena = {0};
    struct buf out = {0};
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;

    work = malloc(walk_work_bytes(N_LARGE));
    cache = malloc(CACHE_BYTES);
    must(work != NULL && cache != NULL);
    walk_work_init(work, N_LARGE);
    while ((len = getline(&text, &cap, stdin)) > 0) {
        const struct json *line;
        char why[200];

        buf_clear(&out);
        if (json_parse(&line, &arena, text, (size_t)len, why, sizeof why) != ERR_OK)
            buf_add_text(&out, NOT_JSON); /* as a front would: lone surrogates */
        else if (json_get(line, "pieces") != NULL)
            pieces_tell(json_get_int(line, "pieces", 0), &out);
        else
            judge(line, &arena, &out);
        (void)fwrite(out.bytes, 1, out.len, stdout); /* a reader that is gone ends us anyway */
        (void)fflush(stdout);
        arena_reset(&arena);
    }
    buf_fini(&out);
    if (pieces_bytes.len > 0)
        pieces_end(&pieces);
    buf_fini(&pieces_bytes);
    free(text);
    free(cache);
    free(work);
    return 0;
}
