/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounds of a reasoning: any cut of its tags into tokens, beginnings with and without a reasoning,
 * tags that are begun and not ended, and the same state however often the tokens are followed. */
#include <string.h>

#include "engine/think.h"
#include "tests/tap.h"

#define TOKENS_MAX 64

/* Token i of the vocabulary spells pieces[i]; "" is special, and spells nothing. */
static const char *const pieces[] = {"a",  " ",        "<think>", "</think>", "<",
                                     "/",  "think",    ">",       "</t",      "hink>",
                                     "b<", "/think>c", "",        "\n",       "</think>a"};

enum {
    A,
    SPACE,
    OPEN,
    CLOSE,
    LT,
    SLASH,
    THINK,
    GT,
    CLOSE_1,
    CLOSE_2,
    B_LT,
    REST,
    NONE,
    LINE,
    BOTH
};

#define N_PIECES ((int)(sizeof pieces / sizeof pieces[0]))

static struct token_trie *vocabulary(struct buf *image)
{
    struct trie_token tokens[N_PIECES];

    for (int i = 0; i < N_PIECES; i++)
        tokens[i] = (struct trie_token){pieces[i], strlen(pieces[i])};
    must_ok(trie_build(tokens, N_PIECES, NULL, 0, image));
    must_ok(trie_check(image->bytes, image->len));
    return (struct token_trie *)(void *)image->bytes;
}

struct test_case {
    const char *name;
    bool inside;
    int most, n, n_ids;
    int32_t tokens[12], ids[4];
    int32_t want; /* the id that must come */
    int thought;  /* tokens of the reasoning; -1: none is counted any more */
};

static const struct test_case cases[] = {
    {"nothing yet", true, 2, 0, 1, {0}, {CLOSE}, -1, 0},
    {"none at all", true, 0, 0, 1, {0}, {CLOSE}, CLOSE, 0},
    {"one of two", true, 2, 1, 1, {A}, {CLOSE}, -1, 1},
    {"two", true, 2, 2, 1, {A, A}, {CLOSE}, CLOSE, 2},
    {"special tokens count", true, 2, 2, 1, {NONE, A}, {CLOSE}, CLOSE, 2},
    {"it has ended", true, 2, 3, 1, {A, CLOSE, A}, {CLOSE}, -1, -1},
    {"ended, and more in the token", true, 1, 2, 1, {BOTH, A}, {CLOSE}, -1, -1},
    {"not begun", false, 0, 0, 1, {0}, {CLOSE}, -1, 0},
    {"begun", false, 0, 1, 1, {OPEN}, {CLOSE}, CLOSE, 0},
    {"begun behind white space", false, 1, 4, 1, {SPACE, LINE, OPEN, A}, {CLOSE}, CLOSE, 1},
    {"an answer without one", false, 0, 2, 1, {A, OPEN}, {CLOSE}, -1, -1},
    {"a tag that becomes none", false, 0, 3, 1, {LT, A, OPEN}, {CLOSE}, -1, -1},
    {"begun in pieces", false, 1, 4, 1, {LT, THINK, GT, A}, {CLOSE}, CLOSE, 1},
    {"ended in pieces", true, 1, 5, 1, {LT, SLASH, THINK, GT, A}, {CLOSE}, -1, -1},
    {"ended in other pieces", true, 1, 4, 1, {A, B_LT, REST, A}, {CLOSE}, -1, -1},
    {"forced in pieces: first", true, 1, 1, 2, {A}, {CLOSE_1, CLOSE_2}, CLOSE_1, 1},
    {"forced in pieces: second", true, 1, 2, 2, {A, CLOSE_1}, {CLOSE_1, CLOSE_2}, CLOSE_2, 2},
    {"forced in pieces: done", true, 1, 3, 2, {A, CLOSE_1, CLOSE_2}, {CLOSE_1, CLOSE_2}, -1, -1},
    {"the model had begun it", true, 1, 2, 2, {A, CLOSE_1}, {CLOSE_1, CLOSE_2}, CLOSE_2, 2},
    {"it had begun it otherwise", true, 1, 2, 2, {A, LT}, {CLOSE_1, CLOSE_2}, CLOSE_1, 2},
    {"a beginning that is repeated", true, 9, 3, 2, {LT, CLOSE_1, CLOSE_2}, {CLOSE}, -1, -1},
};

static void begin(struct seq *q, const struct test_case *c, int32_t *tokens,
                  const struct token_trie *v)
{
    *q = (struct seq){.tokens = tokens, .n_tokens = 1, .n_prompt = 1};
    q->request = (struct wire_request){.generate.think_max = 1 + (uint32_t)c->most,
                                       .generate.n_think_ids = (uint32_t)c->n_ids,
                                       .flags = c->inside ? WIRE_THINKS : 0,
                                       .generate.think_open = "<think>",
                                       .generate.think_close = "</think>"};
    memcpy(q->request.generate.think_ids, c->ids, sizeof c->ids);
    tokens[0] = CLOSE; /* a prompt's tags are not looked at */
    memcpy(tokens + 1, c->tokens, sizeof c->tokens);
    must_ok(think_begin(q, v, N_PIECES));
}

static void check(const struct test_case *c, const struct token_trie *v)
{
    int32_t tokens[TOKENS_MAX];
    struct seq q;
    int32_t forced;

    begin(&q, c, tokens, v);
    for (int i = 0; i < c->n; i++) { /* token by token, as they come */
        q.n_tokens++;
        think_follow(&q);
    }
    forced = think_forced(&q);
    is_int(forced, c->want, "%s: what must come", c->name);
    if (c->thought >= 0)
        is_int(q.think.n_tokens, c->thought, "%s: tokens of the reasoning", c->name);
    else
        ok(!think_may_force(&q, 100), "%s: no more is forced", c->name);
    ok(forced < 0 || think_may_force(&q, 0), "%s: it may be forced, then", c->name);
    begin(&q, c, tokens, v);
    q.n_tokens += c->n; /* all at once, as another engine gets them */
    think_follow(&q);
    think_follow(&q);
    is_int(think_forced(&q), c->want, "%s: another engine says the same", c->name);
}

static void check_bounds(const struct token_trie *v)
{
    int32_t tokens[TOKENS_MAX];
    struct test_case c = cases[0];
    struct seq q;

    begin(&q, &c, tokens, v);
    ok(!think_may_force(&q, 1) && think_may_force(&q, 2), "unknown tokens may be the last ones");
    is_int(think_begin(&q, NULL, N_PIECES), ERR_NO_FORM, "no vocabulary");
    q.request.generate.n_think_ids = 0;
    is_int(think_begin(&q, v, N_PIECES), ERR_INVALID, "no ids");
    q.request.generate.n_think_ids = WIRE_THINK_IDS + 1;
    is_int(think_begin(&q, v, N_PIECES), ERR_INVALID, "too many");
    q.request.generate.n_think_ids = 1;
    q.request.generate.think_ids[0] = N_PIECES;
    is_int(think_begin(&q, v, N_PIECES), ERR_INVALID, "an id that there is not");
    q.request.generate.think_ids[0] = CLOSE;
    memset(q.request.generate.think_close, 'x', WIRE_THINK_TAG);
    is_int(think_begin(&q, v, N_PIECES), ERR_INVALID, "a tag without an end");
    q.request.generate.think_max = 0;
    is_int(think_begin(&q, NULL, N_PIECES), ERR_OK, "without a bound nothing is looked at");
    ok(!think_may_force(&q, 1000), "nor forced");
}

int main(void)
{
    struct buf image = {0};
    const struct token_trie *v = vocabulary(&image);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check(&cases[i], v);
    check_bounds(v);
    buf_fini(&image);
    return tap_done();
}
