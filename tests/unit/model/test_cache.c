/* SPDX-License-Identifier: Apache-2.0
 *
 * How layers become groups of pages: the rule on plans of all sorts, and what must hold of any. */
#include "base/log.h"
#include "model/cache.h"
#include "tests/tap.h"

#define BLOCK      16
#define LAYERS_MAX 80

static struct layer_plan layers[LAYERS_MAX];
static struct plan plan = {.layers = layers};
static struct cache c;

/* f: all tokens, w and v: windows of 32 and 100 tokens, g: all tokens with twice the heads, s: a
 * state of 700 floats. */
static int make(const char *text)
{
    plan.n_layers = (int)strlen(text);
    for (int i = 0; i < plan.n_layers; i++) {
        layers[i] = (struct layer_plan){
            .attn = {.n_heads = 4, .n_kv_heads = text[i] == 'g' ? 4 : 2, .head_dim = 8}};
        layers[i].attn.window = text[i] == 'w' ? 32 : text[i] == 'v' ? 100 : 0;
        if (text[i] == 's')
            layers[i] = (struct layer_plan){.mixer = MIXER_RECURRENT, .recurrent = {.width = 700}};
    }
    cache_fini(&c);
    c = (struct cache){0};
    return cache_make(&c, &plan, BLOCK, 2);
}

#define LAYER ((size_t)(BLOCK * 2 * 2 * 8 * 2)) /* bytes of one */

static const struct {
    const char *layers;
    int layers_a_page, n_groups;
} cases[] = {
    {"ffff", 4, 1},
    {"wwww", 4, 1},
    {"ffwwww", 2, 3}, /* as vLLM does */
    {"wfwwwf", 2, 3}, /* in any order */
    {"fw", 1, 2},
    {"fffffffffwwwwwwwwww", 5, 4},          /* 9 and 10: 20 in place of 27 */
    {"ffvvww", 2, 3},                       /* two windows */
    {"fffffwwwwww", 3, 4},                  /* 12 in place of 11, which wants 11 groups */
    {"wwwwwfwwwwwfwwwwwfwwwww", 3, 8},      /* 3 and 20 */
    {"fwwwwwwwwwwwwwwwwwwwwwwwwwww", 4, 8}, /* 1 and 27: 28 groups are too many */
};

/* The bytes of layer i. */
static size_t bytes_of(int i)
{
    return LAYER * (size_t)layers[i].attn.n_kv_heads / 2;
}

/* The first thing that is wrong with c, or NULL. */
static const char *fault(void)
{
    static char used[CACHE_GROUPS_MAX][LAYERS_MAX * 64];
    int n_used = 0;

    memset(used, 0, sizeof used);
    for (int i = 0; i < plan.n_layers; i++) {
        const struct cache_place *p = &c.layers[i];
        const struct cache_group *g = &c.groups[p->group];
        size_t first = p->at * 2 / (LAYER / 2), n = bytes_of(i) / (LAYER / 2);

        if (p->group < 0 || p->group >= c.n_groups)
            return "a group";
        if (g->window != layers[i].attn.window ||
            g->kind != (g->window > 0 ? CACHE_WINDOW : CACHE_FULL))
            return "its kind";
        if (p->at * 2 + bytes_of(i) > c.page_bytes)
            return "room in the page";
        for (size_t k = first; k < first + n; k++) {
            if (used[p->group][k]++ != 0)
                return "two layers in one place";
        }
    }
    for (int g = 0; g < c.n_groups; g++)
        n_used += used[g][0] != 0;
    return n_used == c.n_groups ? NULL : "a group without layers";
}

static void check_cases(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *wrong;

        is_int(make(cases[i].layers), ERR_OK, "%s", cases[i].layers);
        wrong = fault();
        ok(wrong == NULL, "%s: %s", cases[i].layers, wrong == NULL ? "all in place" : wrong);
        is_int((long)(c.page_bytes / LAYER), cases[i].layers_a_page, "layers a page");
        is_int(c.n_groups, cases[i].n_groups, "groups");
    }
}

/* A model of one group has its layers in their order, as if there were no groups. */
static void check_simple(void)
{
    bool same = true;

    is_int(make("ffffff"), ERR_OK, "six layers of all tokens");
    for (int i = 0; i < 6; i++)
        same = same && c.layers[i].at == (size_t)i * LAYER / 2;
    ok(same && cache_is_simple(&c), "one behind the other in a simple page");
    is_int(make("ffff"), ERR_OK, "one set");
    ok(cache_is_simple(&c), "is simple");
    is_int(make("wwww"), ERR_OK, "windows");
    ok(!cache_is_simple(&c), "are not");
}

/* The last two layers read those of layers before them. */
static void check_shared(void)
{
    struct cache_place own[3];
    size_t page_bytes;

    is_int(make("fwf"), ERR_OK, "three layers");
    memcpy(own, c.layers, sizeof own);
    page_bytes = c.page_bytes;
    plan.n_layers = 5;
    layers[3] = layers[1];
    layers[4] = layers[2];
    layers[3].attn.is_shared = layers[4].attn.is_shared = true;
    layers[3].attn.kv_layer = 1;
    layers[4].attn.kv_layer = 2;
    cache_fini(&c);
    is_int(cache_make(&c, &plan, BLOCK, 2), ERR_OK, "and two that share");
    ok(memcmp(own, c.layers, sizeof own) == 0 && c.page_bytes == page_bytes, "take no room");
    ok(memcmp(&c.layers[3], &own[1], sizeof own[1]) == 0 &&
           memcmp(&c.layers[4], &own[2], sizeof own[2]) == 0,
       "and have the places of those that they read");
}

static void check_sizes(void)
{
    is_int(make("ffgg"), ERR_OK, "layers of two sizes");
    ok(fault() == NULL && c.n_groups == 1 && c.page_bytes == 6 * LAYER, "share a page");
    is_int(make("ggw"), ERR_OK, "a small set and large layers");
    ok(fault() == NULL && c.page_bytes >= 2 * LAYER, "have pages for the largest");
}

static void check_states(void)
{
    is_int(make("sffsww"), ERR_OK, "states beside others");
    is_int(c.n_groups, 3, "have a group");
    ok(c.groups[2].kind == CACHE_STATE && c.groups[2].n_state_pages == 3 &&
           c.page_bytes == 2 * LAYER,
       "of 5600 bytes in pages of 2048");
    ok(c.layers[0].group == 2 && c.layers[0].at == 0 && c.layers[3].at == 700,
       "one behind the other");
    is_int(cache_need(&c, 160), 10 + 4 + 6, "and two of them are counted");
    is_int(cache_row(&c, 1), 3, "a table has room for them");
    is_int(make("ss"), ERR_OK, "states alone");
    ok(c.n_groups == 1 && c.groups[0].n_state_pages == 1 && c.page_bytes >= 5600 &&
           c.page_bytes % 16 == 0 && !cache_is_simple(&c),
       "are one page");
}

static void check_need(void)
{
    is_int(make("ffwwww"), ERR_OK, "2 and 4");
    is_int(cache_need(&c, 1), 3, "a page of each for one token");
    is_int(cache_need(&c, 160), 10 + 2 * 4, "all pages, and windows'");
    is_int(cache_tokens(&c, 18, 1000), 160, "how many tokens so many pages hold");
    is_int(cache_tokens(&c, 2, 1000), 0, "too few pages hold none");
    is_int(cache_tokens(&c, 1000000, 1000), 1000, "up to a length");
    is_int(cache_first_page(&c, &c.groups[1], 31), 0, "token 31 sees 32 tokens");
    is_int(cache_first_page(&c, &c.groups[1], 46), 0, "token 46 sees token 15");
    is_int(cache_first_page(&c, &c.groups[1], 47), 1, "token 47 does not");
    is_int(cache_first_page(&c, &c.groups[0], 1000), 0, "without a window all are seen");
}

/* Different groupings have different names. */
static void check_digest(void)
{
    const struct hash zero = {{0}};
    struct hash a, b;

    is_int(make("ffwwww"), ERR_OK, "one grouping");
    a = cache_digest(&c, zero);
    is_int(make("fwfwww"), ERR_OK, "another");
    b = cache_digest(&c, zero);
    ok(memcmp(&a, &b, sizeof a) != 0, "has another digest");
    is_int(make("ffvvvv"), ERR_OK, "another window");
    b = cache_digest(&c, zero);
    ok(memcmp(&a, &b, sizeof a) != 0, "has another digest, too");
}

static void check_too_many(void)
{
    plan.n_layers = 40;
    for (int i = 0; i < 40; i++)
        layers[i].attn.window = 10 + i;
    cache_fini(&c);
    is_int(cache_make(&c, &plan, BLOCK, 2), ERR_UNSUPPORTED, "forty windows are too many");
}

int main(void)
{
    check_cases();
    check_simple();
    check_shared();
    check_sizes();
    check_states();
    check_need();
    check_digest();
    check_too_many();
    cache_fini(&c);
    return tap_done();
}
