/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as an automaton: the check answers, and what it takes is walked within bounds. So that
 * more gets through, the head's sizes are made to fit the length first. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "grammar/walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void head_fit(struct automaton *a, size_t len, const uint8_t *bytes)
{
    size_t left = len - sizeof *a;

    a->magic = AUTOMATON_MAGIC;
    a->bytes = len;
    a->n_states = (uint32_t)(left / 3 / sizeof(struct automaton_state));
    left -= a->n_states * sizeof(struct automaton_state);
    a->n_calls = (uint32_t)(left / 2 / sizeof(struct automaton_call)) + 1;
    while (a->n_calls * sizeof(struct automaton_call) > left)
        a->n_calls--;
    left -= a->n_calls * sizeof(struct automaton_call);
    a->n_edges = (uint32_t)(left / sizeof(struct automaton_edge));
    a->bytes -= left % sizeof(struct automaton_edge);
    a->root = a->n_states > 0 ? bytes[0] % a->n_states : 0;
}

/* States take edges and calls in their order, targets are brought into range. */
static void body_fit(struct automaton *a)
{
    struct automaton_state *s = (struct automaton_state *)(a + 1);
    struct automaton_edge *e = (struct automaton_edge *)(s + a->n_states);
    struct automaton_call *c = (struct automaton_call *)(e + a->n_edges);
    uint32_t edges = 0;
    uint32_t calls = 0;
    uint32_t i;

    for (i = 0; i < a->n_states; i++) {
        uint32_t n = i + 1 == a->n_states ? a->n_edges - edges : s[i].n_edges % 5;
        uint32_t m = i + 1 == a->n_states ? a->n_calls - calls : s[i].n_calls % 4;

        s[i].edge_at = edges;
        s[i].call_at = calls;
        s[i].n_edges = (uint16_t)(n > a->n_edges - edges ? a->n_edges - edges : n);
        s[i].n_calls = (uint16_t)(m > a->n_calls - calls ? a->n_calls - calls : m);
        edges += s[i].n_edges;
        calls += s[i].n_calls;
        s[i].flags &= 3;
        s[i].base = s[i].base % 3 != 0 ? AUTOMATON_NONE : s[i].base % a->n_states;
    }
    for (i = 0; i < a->n_edges; i++)
        e[i].to = e[i].to % 16 == 0 ? AUTOMATON_DEAD : e[i].to % (a->n_states + (a->n_states == 0));
    for (i = 0; i < a->n_calls; i++) {
        c[i].start %= a->n_states + (a->n_states == 0);
        c[i].back =
            c[i].back % 4 == 0 ? AUTOMATON_NONE : c[i].back % (a->n_states + (a->n_states == 0));
    }
}

static void walk_some(const struct automaton *a, const uint8_t *bytes, size_t len)
{
    static struct walk w;
    struct walk_work *work = malloc(walk_work_bytes(256));
    struct trie_token tokens[256];
    char spelled[256][2];
    struct buf image = {0};
    uint32_t mask[8];
    const struct token_trie *v;
    int rc = ERR_OK;
    size_t i;

    for (i = 0; i < 256; i++) {
        spelled[i][0] = (char)i;
        spelled[i][1] = (char)(i * 7);
        tokens[i] = (struct trie_token){spelled[i], 1 + i % 2};
    }
    must(work != NULL && trie_build(tokens, 256, NULL, 0, &image) == ERR_OK);
    v = (const struct token_trie *)(const void *)image.bytes;
    walk_work_init(work, 256);
    walk_init(&w, a);
    for (i = 0; i < len && i < 12 && rc != ERR_LIMIT; i++) {
        rc = walk_mask(work, a, v, NULL, &w, mask);
        if (rc == ERR_OK)
            rc = walk_accept(work, a, v, &w, bytes[len - 1 - i]);
        must(w.n_tops <= WALK_TOPS_MAX && w.n_frames <= WALK_FRAMES_MAX);
    }
    buf_fini(&image);
    free(work);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct automaton *a;

    if (len < sizeof *a || len > 1 << 16)
        return 0;
    a = malloc(len);
    must(a != NULL);
    memcpy(a, bytes, len);
    if (automaton_check(a, len) != ERR_OK) {
        head_fit(a, len, bytes);
        if (a->n_states > 0 && bytes[1] % 8 != 0)
            body_fit(a);
    }
    if (automaton_check(a, (size_t)a->bytes <= len ? (size_t)a->bytes : len) == ERR_OK)
        walk_some(a, bytes, len);
    free(a);
    return 0;
}
