/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a mask allows exactly the tokens that can be accepted, whatever was cached; copies go back;
 * damaged images and vocabularies do no harm.
 * Method: random automata, honest and damaged, with small random vocabularies; each token of each
 * mask against walk_accept() and against a plain interpreter of the image written for this test. */
#include <pthread.h>

#include "base/must.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"
#include "tests/grammar/pieces.h"
#include "tests/tap.h"

#define N_TOKENS 300
#define N_LARGE  131072 /* tokens of the large vocabulary, the end included */

static struct walk_work *work;
static struct walk_cache *cache;
static const size_t cache_bytes = 4 << 20;
static unsigned seed;

/* --- a plain interpreter: configurations are whole stacks --------------------------------- */

#define STACK_MAX  60
#define STACKS_MAX 4000

struct stack {
    uint32_t state;
    uint32_t n;
    uint32_t frames[STACK_MAX];
};

struct stacks {
    uint32_t n;
    bool overflow; /* it cannot say */
    struct stack items[STACKS_MAX];
};

static struct stacks now, next;

static void plain_add(struct stacks *s, const struct stack *one)
{
    uint32_t i;

    for (i = 0; i < s->n; i++)
        if (s->items[i].state == one->state && s->items[i].n == one->n &&
            memcmp(s->items[i].frames, one->frames, one->n * sizeof(uint32_t)) == 0)
            return;
    if (s->n == STACKS_MAX)
        s->overflow = true;
    else
        s->items[s->n++] = *one;
}

/* Calls and ends followed; true when the output may end. */
static bool plain_close(const struct automaton *a, struct stacks *s)
{
    bool end = false;
    uint32_t i, k;

    for (i = 0; i < s->n && !s->overflow; i++) {
        struct stack top = s->items[i];
        const struct automaton_state *state = automaton_states(a) + top.state;

        for (k = 0; k < state->n_calls; k++) {
            const struct automaton_call *call = automaton_calls(a) + state->call_at + k;
            struct stack pushed = top;

            pushed.state = call->start;
            if (call->back != AUTOMATON_NONE) {
                if (pushed.n == STACK_MAX) {
                    s->overflow = true;
                    break;
                }
                pushed.frames[pushed.n++] = call->back;
            }
            plain_add(s, &pushed);
        }
        if ((state->flags & AUTOMATON_END) == 0)
            continue;
        if (top.n == 0) {
            end = true;
        } else {
            top.state = top.frames[--top.n];
            plain_add(s, &top);
        }
    }
    return end;
}

static bool plain_bytes(const struct automaton *a, struct stacks *s, const char *bytes, size_t len)
{
    size_t i;
    uint32_t k;

    for (i = 0; i < len && s->n > 0 && !s->overflow; i++) {
        (void)plain_close(a, s);
        next.n = 0;
        next.overflow = s->overflow;
        for (k = 0; k < s->n; k++) {
            struct stack one = s->items[k];

            one.state = automaton_step(a, one.state, (uint8_t)bytes[i]);
            if (one.state != AUTOMATON_DEAD)
                plain_add(&next, &one);
        }
        memcpy(s->items, next.items, next.n * sizeof next.items[0]);
        s->n = next.n;
        s->overflow = next.overflow;
    }
    return s->n > 0;
}

/* What is used of it: all of it is a megabyte. */
static void plain_copy(struct stacks *to, const struct stacks *from)
{
    to->n = from->n;
    to->overflow = from->overflow;
    memcpy(to->items, from->items, from->n * sizeof from->items[0]);
}

static void plain_begin(const struct automaton *a)
{
    now.n = 1;
    now.overflow = false;
    now.items[0] = (struct stack){.state = a->root};
}

/* --- random grammars and vocabularies ----------------------------------------------------- */

static const char *const grammars[] = {
    "root ::= \"[\" (root (\",\" root)*)? \"]\" | [ab]+",
    "root ::= a b? c*\na ::= \"x\" | \"xy\" a\nb ::= \"y\" | \"\" \nc ::= \"(\" root \")\" | [x-z]",
    "root ::= s | \"\\\"\" [^\"\\\\]* \"\\\"\" t\ns ::= \"a\" s \"b\" | \"\"\nt ::= (\":\" root)?",
    "root ::= (a | b)*\na ::= \"ab\" | \"a\"\nb ::= \"b\" a | \"(\" root \")\"",
    "root ::= \"\\\"\" [a-z]{3} [^\"\\\\]{0,9} \"\\\"\" \",\" root | \"e\"",
};

static const char *const schemas[] = {
    "{}",
    "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"string\",\"maxLength\":7},\"b\":{}},"
    "\"required\":[\"ab\"]}",
    "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"integer\",\"minimum\":3,\"maximum\":40},"
    "{\"type\":\"string\",\"pattern\":\"^[ab]+x\"},{\"enum\":[\"aa\",\"ab\"]}]}}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":3000}",
};

struct made {
    struct buf image, vocab;
    char spelled[N_TOKENS][12];
    struct trie_token tokens[N_TOKENS + 2];
};

static const struct automaton *automaton_of(const struct made *m)
{
    return (const struct automaton *)(const void *)m->image.bytes;
}

static const struct token_trie *vocab_of(const struct made *m)
{
    return (const struct token_trie *)(const void *)m->vocab.bytes;
}

static void make_vocab(struct made *m)
{
    static const char letters[] = "[]{}(),:\"\\abxyzue1234 0-\n\xc3\xa9\xe2\x82\xac";
    int32_t ends[2] = {N_TOKENS, 5};
    size_t i, k;

    for (i = 0; i < N_TOKENS; i++) {
        size_t len = i < sizeof letters - 1 ? 1 : 1 + random_next(&seed) % 9;

        for (k = 0; k < len; k++)
            m->spelled[i][k] = letters[random_next(&seed) % (sizeof letters - 1)];
        if (len == 1 && i < sizeof letters - 1)
            m->spelled[i][0] = letters[i];
        if (i % 7 == 3 && i > 60) /* words, of which slices are made */
            for (k = 0; k < len; k++)
                m->spelled[i][k] = (char)('a' + random_next(&seed) % 26);
        m->tokens[i].bytes = m->spelled[i];
        m->tokens[i].len = i % 50 == 49 ? 0 : len;
    }
    m->tokens[N_TOKENS] = (struct trie_token){"", 0};
    m->tokens[N_TOKENS + 1] = m->tokens[70]; /* spells the same */
    m->vocab = (struct buf){0};
    must_ok(trie_build(m->tokens, N_TOKENS + 2, ends, 2, &m->vocab));
    must_ok(trie_check(m->vocab.bytes, m->vocab.len));
}

static void make(struct made *m, const char *source, enum grammar_kind kind)
{
    struct grammar_request r = {.kind = kind, .source = source, .source_len = strlen(source)};
    struct grammar_error why;

    m->image = (struct buf){0};
    if (grammar_compile(&r, &m->image, &why) != 0) {
        printf("Bail out! %s: %s\n", source, why.text);
        exit(1);
    }
    must_ok(automaton_check(m->image.bytes, m->image.len));
    make_vocab(m);
}

static void unmake(struct made *m)
{
    buf_fini(&m->image);
    buf_fini(&m->vocab);
}

/* Is the mask what both ways of accepting say? Tokens that differ. */
static int mask_differs(const struct made *m, const struct walk *w, const uint32_t *mask)
{
    static struct walk after;
    static struct stacks before;
    bool can_end;
    int wrong = 0;
    int32_t i;

    plain_copy(&before, &now);
    can_end = plain_close(automaton_of(m), &before);
    for (i = 0; i < N_TOKENS + 2 && !now.overflow; i++) {
        bool allowed = (mask[i / 32] >> i % 32 & 1) != 0;
        bool plain;
        int rc;

        plain_copy(&before, &now);
        plain = m->tokens[i].len > 0 &&
                plain_bytes(automaton_of(m), &before, m->tokens[i].bytes, m->tokens[i].len);
        if (i == 5 || i == N_TOKENS)
            plain = can_end;
        walk_copy(&after, w);
        rc = walk_accept(work, automaton_of(m), vocab_of(m), &after, i);
        if (before.overflow)
            continue;
        wrong += allowed != plain;
        wrong += i != 5 && (rc == ERR_OK) != plain;
    }
    return wrong;
}

/* Random tokens under masks; every mask is looked at, with and without what the cache knows. */
static void walk_randomly(const struct made *m, int steps, int *masks, int *wrong)
{
    static struct walk w, copy;
    uint32_t mask[N_TOKENS / 32 + 2];
    uint32_t again[N_TOKENS / 32 + 2];
    int step;

    walk_init(&w, automaton_of(m));
    plain_begin(automaton_of(m));
    for (step = 0; step < steps && !w.ended; step++) {
        int32_t tries, token = -1;

        must_ok(walk_mask(work, automaton_of(m), vocab_of(m), cache, &w, mask));
        must_ok(walk_mask(work, automaton_of(m), vocab_of(m), NULL, &w, again));
        *wrong += memcmp(mask, again, vocab_of(m)->n_words * sizeof mask[0]) != 0;
        *wrong += mask_differs(m, &w, mask);
        (*masks)++;
        for (tries = 0; tries < 2000 && token < 0; tries++) {
            int32_t t = (int32_t)(random_next(&seed) % (N_TOKENS + 2));

            if ((mask[t / 32] >> t % 32 & 1) != 0 && t != 5 && t != N_TOKENS)
                token = t;
        }
        if (token < 0)
            break;
        walk_copy(&copy, &w);
        must_ok(walk_accept(work, automaton_of(m), vocab_of(m), &w, token));
        if (step % 3 == 0) { /* back, and once more */
            walk_copy(&w, &copy);
            must_ok(walk_accept(work, automaton_of(m), vocab_of(m), &w, token));
        }
        (void)plain_bytes(automaton_of(m), &now, m->tokens[token].bytes, m->tokens[token].len);
        if (now.overflow)
            break;
    }
}

static void test_masks(void)
{
    static struct made m;
    size_t n = sizeof grammars / sizeof grammars[0];
    size_t i;
    int round;

    for (i = 0; i < n + sizeof schemas / sizeof schemas[0]; i++) {
        int masks = 0;
        int wrong = 0;

        for (round = 0; round < 8; round++) {
            if (i < n)
                make(&m, grammars[i], GRAMMAR_EBNF);
            else
                make(&m, schemas[i - n], GRAMMAR_SCHEMA);
            walk_cache_init(cache, cache_bytes);
            walk_randomly(&m, 25, &masks, &wrong);
            walk_randomly(&m, 25, &masks, &wrong);
            unmake(&m);
        }
        is_int(wrong, 0, "%d masks of %.40s", masks, i < n ? grammars[i] : schemas[i - n]);
    }
}

/* --- damage ------------------------------------------------------------------------------- */

/* Bytes of an image are changed; what passes the check is walked. */
static void test_damage(void)
{
    static struct made m;
    static struct walk w;
    uint32_t mask[N_TOKENS / 32 + 2];
    int passed = 0;
    int limits = 0;
    int i, k;

    for (i = 0; i < 3000; i++) {
        if (i % 100 == 0) {
            if (i > 0)
                unmake(&m);
            make(&m, grammars[i / 100 % 5], GRAMMAR_EBNF);
        }
        for (k = 0; k < 1 + i % 3; k++) {
            size_t at = random_next(&seed) % m.image.len;

            m.image.bytes[at] = (char)(m.image.bytes[at] ^ 1);
            if (random_next(&seed) % 4 == 0)
                m.image.bytes[at] = (char)random_next(&seed);
        }
        if (automaton_check(m.image.bytes, m.image.len) != ERR_OK) {
            unmake(&m);
            make(&m, grammars[i / 100 % 5], GRAMMAR_EBNF);
            continue;
        }
        passed++;
        walk_init(&w, automaton_of(&m));
        for (k = 0; k < 5; k++) {
            int32_t t = (int32_t)(random_next(&seed) % N_TOKENS);

            limits += walk_mask(work, automaton_of(&m), vocab_of(&m), NULL, &w, mask) != ERR_OK;
            if (walk_accept(work, automaton_of(&m), vocab_of(&m), &w, t) == ERR_LIMIT)
                walk_init(&w, automaton_of(&m));
        }
    }
    unmake(&m);
    ok(passed > 100,
       "%d of 3000 damaged images pass the check and are walked, %d masks end at a bound", passed,
       limits);
}

static void test_vocab_damage(void)
{
    static struct made m;
    static struct walk w;
    uint32_t mask[N_TOKENS / 32 + 2];
    int passed = 0;
    int limits = 0;
    int i;

    make(&m, grammars[0], GRAMMAR_EBNF);
    for (i = 0; i < 5000; i++) {
        size_t at = random_next(&seed) % m.vocab.len;
        char was = m.vocab.bytes[at];

        m.vocab.bytes[at] = (char)(was ^ (1 << random_next(&seed) % 8));
        if (trie_check(m.vocab.bytes, m.vocab.len) == ERR_OK) {
            passed++;
            walk_init(&w, automaton_of(&m));
            limits += walk_mask(work, automaton_of(&m), vocab_of(&m), NULL, &w, mask) != ERR_OK;
            limits +=
                walk_accept(work, automaton_of(&m), vocab_of(&m), &w, i % N_TOKENS) == ERR_LIMIT;
        }
        m.vocab.bytes[at] = was;
    }
    unmake(&m);
    ok(passed > 10 && limits == 0, "%d of 5000 damaged vocabularies pass the check and are walked",
       passed);
}

static void test_depth(void)
{
    static struct made m;
    static struct walk w;
    uint32_t mask[N_TOKENS / 32 + 2];
    int32_t open = -1;
    int32_t t;
    int n;

    make(&m, "{}", GRAMMAR_SCHEMA);
    for (t = 0; t < N_TOKENS; t++)
        if (m.tokens[t].len == 1 && m.spelled[t][0] == '[')
            open = t;
    walk_init(&w, automaton_of(&m));
    for (n = 0; n < 2000; n++) {
        bool allowed;

        must_ok(walk_mask(work, automaton_of(&m), vocab_of(&m), NULL, &w, mask));
        allowed = (mask[open / 32] >> open % 32 & 1) != 0;
        if (allowed != (walk_accept(work, automaton_of(&m), vocab_of(&m), &w, open) == ERR_OK))
            break;
        if (!allowed)
            break;
    }
    ok(n > 190 && n <= WALK_NEST_MAX + 1, "'[' is allowed %d times, then no longer", n);
    for (; n > 0 && walk_bytes(work, automaton_of(&m), &w, "]", 1) == ERR_OK; n--)
        continue;
    ok(n == 0 && walk_can_end(work, automaton_of(&m), &w), "and all of them can be closed");
    unmake(&m);
}

static void test_forced(void)
{
    static struct made m;
    static struct walk w;
    char bytes[64];
    size_t n;

    make(&m,
         "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}},"
         "\"required\":[\"name\"]}",
         GRAMMAR_SCHEMA);
    walk_init(&w, automaton_of(&m));
    n = walk_forced(work, automaton_of(&m), &w, bytes, sizeof bytes);
    ok(n == 1 && bytes[0] == '{', "'{' must come");
    must_ok(walk_bytes(work, automaton_of(&m), &w, "{\"", 2));
    n = walk_forced(work, automaton_of(&m), &w, bytes, sizeof bytes);
    ok(n == 5 && memcmp(bytes, "name\"", 5) == 0, "then the rest of the name");
    unmake(&m);
}

/* Threads that fill one cache agree. */
struct crowd {
    const struct made *m;
    uint32_t sum;
};

static void *crowd_run(void *arg)
{
    struct crowd *c = arg;
    struct walk_work *own = malloc(walk_work_bytes(N_TOKENS + 2));
    struct walk *w = malloc(sizeof *w);
    uint32_t mask[N_TOKENS / 32 + 2];
    int i;
    uint32_t k;

    must(own != NULL && w != NULL);
    walk_work_init(own, N_TOKENS + 2);
    for (i = 0; i < 200; i++) {
        walk_init(w, automaton_of(c->m));
        must(walk_bytes(own, automaton_of(c->m), w, "{\"ab\":\"xyz", (size_t)(i % 11)) == ERR_OK);
        must(walk_mask(own, automaton_of(c->m), vocab_of(c->m), cache, w, mask) == ERR_OK);
        for (k = 0; k < vocab_of(c->m)->n_words; k++)
            c->sum = c->sum * 31 + mask[k];
    }
    free(w);
    free(own);
    return NULL;
}

static void test_threads(void)
{
    static struct made m;
    struct crowd c[4];
    pthread_t threads[4];
    int i;

    make(&m, schemas[1], GRAMMAR_SCHEMA);
    walk_cache_init(cache, cache_bytes);
    for (i = 0; i < 4; i++) {
        c[i] = (struct crowd){&m, 0};
        must(pthread_create(&threads[i], NULL, crowd_run, &c[i]) == 0);
    }
    for (i = 0; i < 4; i++)
        must(pthread_join(threads[i], NULL) == 0);
    ok(c[0].sum == c[1].sum && c[0].sum == c[2].sum && c[0].sum == c[3].sum,
       "four threads make the same masks over one cache");
    unmake(&m);
}

/* --- a vocabulary as large as models have -------------------------------------------------- */

struct large {
    struct pieces pieces;
    struct buf image;
    const struct token_trie *v;
    struct walk_work *work;
    struct walk_cache *cache;
    uint32_t mask[N_LARGE / 32 + 1], again[N_LARGE / 32 + 1];
};

static uint32_t inner_nodes(const struct token_trie *v)
{
    const struct trie_node *nodes = trie_nodes(v) + v->tries[0].node_at;
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->tries[0].n_nodes; i++)
        n += nodes[i].skip > 1;
    return n;
}

static void large_begin(struct large *l)
{
    pieces_begin(&l->pieces, N_LARGE - 1);
    pieces_fill(&l->pieces);
    l->v = pieces_image(&l->pieces, &l->image);
    l->work = malloc(walk_work_bytes(N_LARGE));
    l->cache = malloc(cache_bytes * 4);
    must(l->work != NULL && l->cache != NULL);
    walk_work_init(l->work, N_LARGE);
    ok(inner_nodes(l->v) > 100000, "%u tokens, %u nodes, %u inner ones", l->v->n_vocab,
       l->v->tries[0].n_nodes, inner_nodes(l->v));
}

/* Tokens of a mask that are not what walk_accept() says; every stride-th is looked at. */
static int large_differs(struct large *l, const struct automaton *a, const struct walk *w,
                         int32_t stride)
{
    static struct walk after;
    int wrong = 0;

    for (int32_t t = (int32_t)(random_next(&seed) % (unsigned)stride); t < N_LARGE; t += stride) {
        bool allowed = (l->mask[t / 32] >> t % 32 & 1) != 0;

        walk_copy(&after, w);
        wrong += allowed != (walk_accept(l->work, a, l->v, &after, t) == ERR_OK);
    }
    return wrong;
}

/* Along a text by its longest tokens: each mask can be made, cached or not, and is right. */
static void large_walk(struct large *l, const struct automaton *a, const char *text,
                       const char *name)
{
    static struct walk w;
    size_t len = strlen(text), at = 0, n = 1;
    int limits = 0, wrong = 0, differ = 0, masks = 0;
    int32_t id;

    walk_init(&w, a);
    walk_cache_init(l->cache, cache_bytes * 4);
    for (; at <= len && n > 0; at += n, masks++) {
        limits += walk_mask(l->work, a, l->v, l->cache, &w, l->mask) != ERR_OK;
        limits += walk_mask(l->work, a, l->v, l->cache, &w, l->again) != ERR_OK;
        differ += memcmp(l->mask, l->again, l->v->n_words * sizeof l->mask[0]) != 0;
        limits += walk_mask(l->work, a, l->v, NULL, &w, l->again) != ERR_OK;
        differ += memcmp(l->mask, l->again, l->v->n_words * sizeof l->mask[0]) != 0;
        wrong += limits == 0 ? large_differs(l, a, &w, 37) : 0;
        n = at < len ? pieces_longest(&l->pieces, text + at, len - at, &id) : 0;
        if (n > 0)
            must_ok(walk_accept(l->work, a, l->v, &w, id));
    }
    ok(limits == 0 && wrong == 0 && differ == 0,
       "%d masks of %s: %d at a bound, %d tokens wrong, %d differ by the cache", masks, name,
       limits, wrong, differ);
}

static void large_source(struct large *l, enum grammar_kind kind, const char *source,
                         const char *text)
{
    struct grammar_request r = {.kind = kind, .source = source, .source_len = strlen(source)};
    struct buf image = {0};

    must_ok(grammar_compile(&r, &image, NULL));
    large_walk(l, (const struct automaton *)(const void *)image.bytes, text, source);
    buf_fini(&image);
}

/* Free text in a choice beside tags, as beside strict tools; a call comes back to it. */
static void large_parts(struct large *l)
{
    static const struct grammar_part call[] = {
        {.kind = PART_TEXT, .text = "<tool_call>", .len = 11},
        {.kind = PART_SCHEMA, .text = "{\"items\":{\"type\":\"integer\"}}", .len = 28},
        {.kind = PART_TEXT, .text = "</tool_call>", .len = 12}};
    static const struct grammar_part tag = {.kind = PART_SEQUENCE, .parts = call, .n_parts = 3};
    static const struct grammar_part inner[] = {
        {.kind = PART_TRIGGERS, .parts = &tag, .n_parts = 1, .max = UINT32_MAX},
        {.kind = PART_FREE}};
    static const struct grammar_part body = {.kind = PART_CHOICE, .parts = inner, .n_parts = 2};
    static const struct grammar_part top[] = {
        {.kind = PART_REPEAT, .parts = &body, .n_parts = 1, .max = 3, .text = "; ", .len = 2},
        {.kind = PART_REGEX, .text = "[a-z ]*!?", .len = 9}};
    struct grammar_request r = {.kind = GRAMMAR_PARTS, .parts = top, .n_parts = 2};
    struct grammar_error why = {.text = ""};
    struct buf image = {0};
    const struct automaton *a;

    is_int(grammar_compile(&r, &image, &why), 0, "free text with tags compiles %s", why.text);
    a = (const struct automaton *)(const void *)image.bytes;
    large_walk(l, a, "some words; <tool_call>[12, 3]</tool_call> more <too", "free text with tags");
    buf_fini(&image);
}

/* What a call may cost grows with the vocabulary: as many steps at each of its nodes. */
static void large_ambiguous(struct large *l)
{
    large_source(l, GRAMMAR_EBNF, "root ::= x \"1\"\nx ::= y | y x\ny ::= [a-z ]+ \"z\"?",
                 "some wo1");
}

static void test_large(void)
{
    static struct large l;

    large_begin(&l);
    large_source(&l, GRAMMAR_REGEX, ".*", "some words\xe2\x82\xac of \"it\"");
    large_source(&l, GRAMMAR_REGEX, "[\\s\\S]*", "some\nwords");
    large_source(&l, GRAMMAR_REGEX, "Answer: .*", "Answer: some");
    large_source(&l, GRAMMAR_EBNF, "root ::= text (\"<\" text \">\" text)*\ntext ::= [^<>]*",
                 "some <words> more");
    large_source(&l, GRAMMAR_EBNF,
                 "root ::= a \"!\"\na ::= b \"?\"?\nb ::= c \",\"?\nc ::= d \" \"?\n"
                 "d ::= \"(\" a \")\" | [a-z]*",
                 "(words) ,?!");
    large_ambiguous(&l);
    large_source(&l, GRAMMAR_SCHEMA, "{}", "{\"some\": [1, \"words\"]}");
    large_parts(&l);
    buf_fini(&l.image);
    pieces_end(&l.pieces);
    free(l.cache);
    free(l.work);
}

int main(void)
{
    seed = tap_seed(20260101);
    work = malloc(walk_work_bytes(N_TOKENS + 2));
    cache = malloc(cache_bytes);
    must(work != NULL && cache != NULL);
    walk_work_init(work, N_TOKENS + 2);
    test_masks();
    test_depth();
    test_forced();
    test_threads();
    test_damage();
    test_vocab_damage();
    test_large();
    free(cache);
    free(work);
    return tap_done();
}
