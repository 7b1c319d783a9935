/* SPDX-License-Identifier: Apache-2.0
 *
 * A text is computed in steps of as many tokens as a step may sample rows: each token is a row, and
 * the log probability that is asked for is that of the token behind it. All windows use the same
 * pages, one after another; each cache group has its own. */
#include "tools/eval.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"

#define EVAL_LEN 2048 /* tokens of context, unless another number is given */

struct eval {
    struct tokenizer *tokenizer;
    struct model *m;
    const struct model_shape *shape;
    int len, step; /* tokens of a window, of a step */
    int n_before;  /* tokens that the tokenizer puts before a text */
    struct batch b;
    struct batch_logprobs *logprobs; /* [step] */
    int32_t *ids;                    /* [step]: sampled, not used */
    int32_t *window;                 /* [len] */
};

/* Pages of a group for one sequence of e->len tokens. */
static int eval_pages_of(const struct eval *e, const struct model_shape *s, int group)
{
    if (s->groups[group].kind == CACHE_STATE)
        return s->groups[group].n_state_pages;
    return (e->len - 1) / s->page_tokens + 1;
}

/* The window's pages are the same in every step. */
static bool eval_allocate(struct eval *e)
{
    const struct model_shape *s = e->shape;
    size_t n = (size_t)e->step;
    int32_t page = 0;

    for (int g = 0; g < s->n_groups; g++) {
        if (e->b.pages_max < eval_pages_of(e, s, g))
            e->b.pages_max = eval_pages_of(e, s, g);
    }
    e->b.token_ids = mem_zalloc_array(n, sizeof(int32_t));
    e->b.seq_start = mem_zalloc_array(2, sizeof(int32_t));
    e->b.kv_len = mem_zalloc_array(1, sizeof(int32_t));
    e->b.page_ids = mem_zalloc_array((size_t)s->n_groups * (size_t)e->b.pages_max, sizeof(int32_t));
    e->b.rows = mem_zalloc_array(n, sizeof *e->b.rows);
    e->b.extras = mem_zalloc_array(n, sizeof *e->b.extras);
    e->logprobs = mem_zalloc_array(n, sizeof *e->logprobs);
    e->ids = mem_zalloc_array(n, sizeof *e->ids);
    e->window = mem_zalloc_array((size_t)e->len, sizeof *e->window);
    if (e->b.token_ids == NULL || e->b.seq_start == NULL || e->b.kv_len == NULL ||
        e->b.page_ids == NULL || e->b.rows == NULL || e->b.extras == NULL || e->logprobs == NULL ||
        e->ids == NULL || e->window == NULL)
        return false;
    for (int g = 0; g < s->n_groups; g++) {
        for (int i = 0; i < eval_pages_of(e, s, g); i++)
            e->b.page_ids[g * e->b.pages_max + i] = page++;
    }
    return true;
}

/* How many tokens the tokenizer puts before a text. */
static int eval_count_before(struct eval *e)
{
    struct token_list with = {0}, without = {0};
    int rc = tokenizer_encode(e->tokenizer, "a", 1, true, &with);

    if (rc == ERR_OK)
        rc = tokenizer_encode(e->tokenizer, "a", 1, false, &without);
    /* Some put one at the end too; the first is looked at. */
    if (rc == ERR_OK && with.len > without.len && without.len > 0 &&
        with.ids[0] != without.ids[0]) {
        e->n_before = 1;
        e->window[0] = with.ids[0];
    }
    token_list_fini(&with);
    token_list_fini(&without);
    return rc;
}

static int eval_open_model(struct eval *e, const char *folder, const struct settings *s)
{
    struct model_options o = model_options_of(s);
    int rc, n_pages = 0;

    o.dir = folder;
    rc = model_open(&e->m, &o);
    if (rc != ERR_OK)
        return rc;
    e->shape = model_shape(e->m);
    if (e->len == 0)
        e->len = e->shape->max_model_len < EVAL_LEN ? e->shape->max_model_len : EVAL_LEN;
    if (e->len > e->shape->max_model_len) {
        log_error("eval: --len %d is more than the model's %d tokens", e->len,
                  e->shape->max_model_len);
        return ERR_INVALID;
    }
    for (int g = 0; g < e->shape->n_groups; g++)
        n_pages += eval_pages_of(e, e->shape, g);
    if (n_pages > e->shape->n_pages) {
        log_error("eval: %d tokens need %d pages, and there are %d; --len sets the tokens", e->len,
                  n_pages, e->shape->n_pages);
        return ERR_NO_MEMORY;
    }
    e->step = e->shape->max_num_seqs;
    if (e->step > e->shape->max_num_batched_tokens)
        e->step = e->shape->max_num_batched_tokens;
    return ERR_OK;
}

int eval_open(struct eval **out, const char *folder, const struct settings *settings, int len)
{
    struct eval *e = mem_zalloc(sizeof *e);
    char why[600];
    int rc;

    *out = NULL;
    if (e == NULL)
        return ERR_NO_MEMORY;
    e->len = len;
    rc = tokenizer_open(&e->tokenizer, folder, why, sizeof why);
    if (rc != ERR_OK)
        log_error("eval: %s", why);
    if (rc == ERR_OK)
        rc = eval_open_model(e, folder, settings);
    if (rc == ERR_OK && !eval_allocate(e))
        rc = ERR_NO_MEMORY;
    if (rc == ERR_OK)
        rc = eval_count_before(e);
    if (rc == ERR_OK && tokenizer_n_vocab(e->tokenizer) > e->shape->n_vocab) {
        log_error("eval: the tokenizer has %d ids, and the model %d",
                  tokenizer_n_vocab(e->tokenizer), e->shape->n_vocab);
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK) {
        eval_close(e);
        return rc;
    }
    *out = e;
    return ERR_OK;
}

void eval_close(struct eval *e)
{
    if (e == NULL)
        return;
    if (e->m != NULL)
        model_close(e->m);
    tokenizer_close(e->tokenizer);
    mem_free(e->b.token_ids);
    mem_free(e->b.seq_start);
    mem_free(e->b.kv_len);
    mem_free(e->b.page_ids);
    mem_free(e->b.rows);
    mem_free(e->b.extras);
    mem_free(e->logprobs);
    mem_free(e->ids);
    mem_free(e->window);
    mem_free(e);
}

int eval_len(const struct eval *e)
{
    return e->len;
}

/* Add the log probabilities of tokens first .. n - 1 of the window, 1 <= first. The last token is
 * not computed, because nothing is behind it. */
static int eval_window(struct eval *e, int n, int first, struct eval_sum *sum)
{
    struct batch *b = &e->b;

    b->n_seqs = 1;
    for (int at = 0; at < n - 1; at += b->n_tokens) {
        int rc;

        b->n_tokens = n - 1 - at < e->step ? n - 1 - at : e->step;
        memcpy(b->token_ids, e->window + at, (size_t)b->n_tokens * sizeof(int32_t));
        b->seq_start[1] = b->n_tokens;
        b->kv_len[0] = at + b->n_tokens;
        b->n_rows = 0;
        for (int i = 0; i < b->n_tokens; i++) {
            if (at + i + 1 < first)
                continue;
            b->rows[b->n_rows] = (struct batch_row){.token_idx = i, .sampling = sampling_greedy()};
            b->extras[b->n_rows] =
                (struct batch_extra){.row = b->n_rows, .target = e->window[at + i + 1], .mask = -1};
            b->n_rows++;
        }
        b->n_extras = b->n_rows;
        rc = model_step_begin(e->m, b);
        if (rc == ERR_OK)
            rc = model_step_sample(e->m, b);
        if (rc == ERR_OK)
            rc = model_step_end(e->m, e->ids, e->logprobs);
        if (rc != ERR_OK) {
            log_error("eval: a step failed: %s", err_name(rc));
            return rc;
        }
        for (int i = 0; i < b->n_rows; i++)
            sum->nats -= (double)e->logprobs[i].chosen;
        sum->n_tokens += b->n_rows;
    }
    return ERR_OK;
}

int eval_text(struct eval *e, const char *text, size_t len, struct eval_sum *out)
{
    struct token_list all = {0};
    size_t room = (size_t)(e->len - e->n_before), at = 0, counted;
    int rc = tokenizer_encode(e->tokenizer, text, len, false, &all);

    *out = (struct eval_sum){.n_bytes = (long)len};
    if (rc == ERR_OK && all.len + (size_t)e->n_before < 2) {
        log_error("eval: the text has fewer than two tokens");
        rc = ERR_INVALID;
    }
    counted = e->n_before == 0; /* the first token is counted only behind another one */
    while (rc == ERR_OK && counted < all.len) {
        size_t n = all.len - at < room ? all.len - at : room;

        memcpy(e->window + e->n_before, all.ids + at, n * sizeof(int32_t));
        rc = eval_window(e, e->n_before + (int)n, e->n_before + (int)(counted - at), out);
        counted = at + n;
        at += room - room / 2;
    }
    token_list_fini(&all);
    return rc;
}

struct model *eval_model(const struct eval *e)
{
    return e->m;
}

/* A window's last token is not computed, so the next window begins with it. */
int eval_read(struct eval *e, const char *text, size_t len, long *n_left)
{
    struct token_list all = {0};
    struct eval_sum sum = {0};
    size_t room = (size_t)(e->len - e->n_before), at = 0;
    int rc = tokenizer_encode(e->tokenizer, text, len, false, &all);

    while (rc == ERR_OK && *n_left > 0 && at + 1 < all.len) {
        size_t n = all.len - at < room ? all.len - at : room;

        if (n > (size_t)*n_left + 1)
            n = (size_t)*n_left + 1;
        memcpy(e->window + e->n_before, all.ids + at, n * sizeof(int32_t));
        rc = eval_window(e, e->n_before + (int)n, e->n_before + (int)n - 1, &sum);
        at += n - 1;
        *n_left -= (long)n - 1;
    }
    token_list_fini(&all);
    return rc;
}

int eval_choice(struct eval *e, const char *prompt, const char *choice, struct eval_sum *out)
{
    struct token_list all = {0}, before = {0};
    size_t len = strlen(prompt) + strlen(choice);
    char *text = mem_alloc(len + 1);
    int rc = text != NULL ? ERR_OK : ERR_NO_MEMORY;
    size_t n, room = (size_t)(e->len - e->n_before);

    *out = (struct eval_sum){.n_bytes = (long)strlen(choice)};
    if (rc == ERR_OK) {
        memcpy(text, prompt, strlen(prompt));
        memcpy(text + strlen(prompt), choice, strlen(choice) + 1);
        rc = tokenizer_encode(e->tokenizer, text, len, false, &all);
    }
    if (rc == ERR_OK)
        rc = tokenizer_encode(e->tokenizer, prompt, strlen(prompt), false, &before);
    if (rc == ERR_OK) {
        n = all.len > before.len ? all.len - before.len : 0;
        if (n == 0 || n >= room) {
            log_error("eval: a choice has %zu tokens; 1 to %zu can be counted", n, room - 1);
            rc = ERR_LIMIT;
        } else if (all.len == n && e->n_before == 0) {
            log_error("eval: a prompt without tokens");
            rc = ERR_LIMIT;
        }
    }
    if (rc == ERR_OK) {
        size_t kept = all.len < room ? all.len : room;

        memcpy(e->window + e->n_before, all.ids + (all.len - kept), kept * sizeof(int32_t));
        rc = eval_window(e, e->n_before + (int)kept, e->n_before + (int)(kept - n), out);
    }
    token_list_fini(&all);
    token_list_fini(&before);
    mem_free(text);
    return rc;
}
