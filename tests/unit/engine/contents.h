/* SPDX-License-Identifier: Apache-2.0
 *
 * A device whose pages have contents that tell what they stand for, for simulations of the
 * scheduler over cache groups. Word t of a page of tokens is a digest of the sequence's tokens up
 * to there; the first two words of a page of a state are the digest up to the last token that the
 * state has seen, and how many there were. */
#ifndef QUIRE_TESTS_CONTENTS_H
#define QUIRE_TESTS_CONTENTS_H

#include "engine/tables.h"

/* The token of q at a place, known or not. */
typedef int32_t contents_token_fn(const struct seq *q, int at);

static uint32_t contents_next(uint32_t digest, int32_t token)
{
    return digest * 1000003 + (uint32_t)token;
}

/* Compute tokens [begin, end) of q over pages, uint32 [n_pages][block], as a model does: tokens see
 * what their groups say, states go on from where they are. False when something that is seen is not
 * of q's own tokens. */
static bool contents_compute(uint32_t *pages, const struct tables *t, const struct seq *q,
                             int begin, int end, contents_token_fn *token)
{
    int block = t->limits.page_tokens;
    uint32_t digest = 1, before = 1;
    bool good = true;

    for (int at = 0; at < end; at++) {
        digest = contents_next(digest, token(q, at));
        before = at + 1 == begin ? digest : before;
        for (int g = 0; g < t->limits.n_groups; g++) {
            const struct cache_group *of = &t->groups[g];
            int seen = of->kind == CACHE_WINDOW ? begin - of->window + 1 : 0;
            uint32_t *place;

            if (of->kind == CACHE_STATE || at < seen)
                continue;
            good = good && at / block >= q->tables[g].first && at / block < q->tables[g].n;
            if (!good)
                return false;
            place = &pages[(size_t)q->tables[g].pages[at / block] * (size_t)block +
                           (size_t)(at % block)];
            if (at >= begin)
                *place = digest + (uint32_t)g;
            good = good && *place == digest + (uint32_t)g;
        }
    }
    for (int g = 0; g < t->limits.n_groups; g++) {
        for (int k = 0; t->groups[g].kind == CACHE_STATE && k < t->groups[g].n_state_pages; k++) {
            uint32_t *state = &pages[(size_t)q->tables[g].pages[k] * (size_t)block];

            good = good && (begin == 0 || (state[0] == before + (uint32_t)(100 * g + k) &&
                                           state[1] == (uint32_t)begin));
            state[0] = digest + (uint32_t)(100 * g + k);
            state[1] = (uint32_t)end;
        }
    }
    return good;
}

static void contents_copy(uint32_t *pages, struct tables *t)
{
    size_t block = (size_t)t->limits.page_tokens;

    for (int i = 0; i < t->n_copies; i++)
        memcpy(pages + (size_t)t->copies[i].to * block, pages + (size_t)t->copies[i].from * block,
               block * sizeof *pages);
    tables_copied(t);
}

/* Models of the simulations. */
struct contents_kind {
    const char *name;
    int n_groups;
    struct cache_group groups[4];
};

static const struct contents_kind contents_kinds[] = {
    {"all tokens", 1, {{.kind = CACHE_FULL}}},
    {"a window beside all tokens",
     3,
     {{.kind = CACHE_FULL},
      {.kind = CACHE_WINDOW, .window = 9},
      {.kind = CACHE_WINDOW, .window = 9}}},
    {"a window", 1, {{.kind = CACHE_WINDOW, .window = 13}}},
    {"states beside all tokens",
     3,
     {{.kind = CACHE_FULL},
      {.kind = CACHE_STATE, .n_state_pages = 2},
      {.kind = CACHE_STATE, .n_state_pages = 1}}},
    {"states", 1, {{.kind = CACHE_STATE, .n_state_pages = 2}}},
    {"all three",
     4,
     {{.kind = CACHE_WINDOW, .window = 4},
      {.kind = CACHE_FULL},
      {.kind = CACHE_WINDOW, .window = 30},
      {.kind = CACHE_STATE, .n_state_pages = 3}}},
};
#define CONTENTS_KINDS (int)(sizeof contents_kinds / sizeof contents_kinds[0])

#endif
