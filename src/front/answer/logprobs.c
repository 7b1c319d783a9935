/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities. A generation's records are one run of struct logprob: a chosen token (begins
 * is true), its alternatives, the next chosen token, and so on. Offsets into that run mark the part
 * of complete tokens (told_whole) and the part already written (told_written).
 *
 *   chosen top top top  chosen top top top  chosen top top
 *                       ^ told_written      ^ told_whole
 *
 * Here the second token is complete and waits to be written; the third one's records are still
 * arriving. */
#include "front/answer/logprobs.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define LOGPROBS_LEAST (-9999.0) /* OpenAI's value for a token without probability */

/* The run to which a record belongs. */
static struct buf *logprobs_run_of(struct gen *g, bool prompt)
{
    if (prompt)
        return &g->prompt_told;
    return &g->told;
}

/* A record of a single token: chosen, or an alternative. */
void logprobs_record(struct gen *g, const struct wire_out *o)
{
    bool prompt = o->kind == WIRE_PROMPT_CHOSEN || o->kind == WIRE_PROMPT_TOP;
    struct buf *to = logprobs_run_of(g, prompt);
    struct logprob entry = {.id = o->value,
                            .logprob = o->logprob,
                            .rank = o->rank,
                            .begins = o->kind == WIRE_CHOSEN || o->kind == WIRE_PROMPT_CHOSEN};

    buf_add(to, &entry, sizeof entry);
    g->exchange->out.failed = g->exchange->out.failed || to->failed;
}

/* --- whole rows -------------------------------------------------------------------------
 *
 * When a client wants more alternatives than WIRE_LOGPROBS_MAX, the engine sends the whole row of
 * logits, three floats per record. They are collected in g->row: row[0] is the log of the sum,
 * row[1 ..] the logits by id. */

/* Larger first; equal ones by id, so that the order is defined. */
static int logprobs_order(const void *a, const void *b)
{
    const struct logprob *left = a, *right = b;

    if (left->logprob < right->logprob)
        return 1;
    if (left->logprob > right->logprob)
        return -1;
    return (left->id > right->id) - (left->id < right->id);
}

/* A logit as the engine treats it: NaN never, infinity as the largest float. */
static float logprobs_tame(float logit)
{
    if (isnan(logit))
        return -INFINITY;
    if (logit > FLT_MAX)
        return FLT_MAX;
    return logit;
}

/* Sort the row's ids by their logits, and turn logits into log probabilities with ranks from 1
 * on. */
static void logprobs_sort(struct logprob *all, const float *row, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        all[i] = (struct logprob){.id = (int32_t)i, .logprob = logprobs_tame(row[1 + i])};
    qsort(all, n_vocab, sizeof *all, logprobs_order);
    for (uint32_t i = 0; i < n_vocab; i++) {
        all[i].logprob = fminf(all[i].logprob - row[0], 0.0f);
        all[i].rank = i + 1;
    }
}

/* Append records of the n best, then of those ids that the request asked for and that are not among
 * them. */
static void logprobs_add_row(struct gen *g, struct buf *to, uint32_t n, uint32_t n_vocab)
{
    const struct token_rules *rules = &g->exchange->token_rules;
    struct logprob *all = mem_zalloc_array(n_vocab, sizeof *all);

    if (all == NULL) {
        to->failed = true;
        return;
    }
    if (n > n_vocab)
        n = n_vocab;
    logprobs_sort(all, (const float *)(const void *)g->row.bytes, n_vocab);
    buf_add(to, all, n * sizeof *all);
    for (uint32_t i = n; i < n_vocab && to == &g->told; i++) {
        bool is_asked = false;

        for (uint32_t k = 0; k < rules->n_asked; k++)
            is_asked = is_asked || rules->asked[k] == all[i].id;
        all[i].rank = 0;
        if (is_asked)
            buf_add(to, &all[i], sizeof all[i]);
    }
    mem_free(all);
}

/* In a stream, drop the records that were already written, because they are large. */
static void logprobs_forget(struct gen *g)
{
    size_t from = g->told_written;

    if (!g->exchange->stream || from == 0)
        return;
    memmove(g->told.bytes, g->told.bytes + from, g->told.len - from);
    g->told.len -= from;
    g->told_whole -= from;
    g->told_written = 0;
}

/* A piece of a row has come. The last piece completes the row, whose best ids become records. */
void logprobs_row(struct gen *g, const struct wire_out *o, uint32_t n_vocab)
{
    bool prompt = o->kind == WIRE_PROMPT_ROW;
    struct buf *to = logprobs_run_of(g, prompt);
    uint32_t n_best = g->request.generate.n_logprobs;
    size_t whole = (1 + (size_t)n_vocab) * sizeof(float), left = whole - g->row.len;
    float piece[3];

    /* The record's members for a token hold three floats here. */
    memcpy(piece, &o->value, sizeof o->value);
    memcpy(piece + 1, o->logits, sizeof o->logits);
    buf_add(&g->row, piece, left < sizeof piece ? left : sizeof piece);
    if (g->row.len == whole) {
        if (prompt)
            n_best = g->request.generate.n_prompt_logprobs;
        logprobs_add_row(g, to, n_best, n_vocab);
        buf_clear(&g->row);
    }
    /* Bounds the memory of text that is being held back. */
    if (to->len / sizeof(struct logprob) * LOGPROBS_ENTRY_BYTES > 2 * LOGPROBS_HELD_BYTES)
        to->failed = true;
    g->exchange->out.failed = g->exchange->out.failed || to->failed || g->row.failed;
}

/* Check n against the vocabulary and the setting max_logprobs. */
static int logprobs_within(const char *field, uint32_t n, uint32_t n_vocab, int most, char *why,
                           size_t cap)
{
    if (n != LOGPROBS_ALL && n > n_vocab) {
        (void)snprintf(why, cap, "'%s' must be at least -1 and at most %u, the vocabulary, not %u",
                       field, n_vocab, n);
        return ERR_INVALID;
    }
    if (n == LOGPROBS_ALL && most >= 0 && n_vocab > (uint32_t)most) {
        (void)snprintf(why, cap,
                       "'%s' of -1 means the whole vocabulary, %u; this server returns at most %d "
                       "alternatives per token (max_logprobs)",
                       field, n_vocab, most);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* Check that the records of n_tokens tokens fit into one answer. */
static int logprobs_fit(const char *field, uint32_t n, uint32_t n_vocab, uint64_t n_tokens,
                        char *why, size_t cap)
{
    uint64_t each = n < n_vocab ? n : n_vocab;
    uint64_t most = LOGPROBS_HELD_BYTES / LOGPROBS_ENTRY_BYTES / each;

    must(n > 0);
    if (n_tokens <= most)
        return ERR_OK;
    (void)snprintf(
        why, cap,
        "'%s' asks for %llu log probabilities for each of %llu tokens; one answer holds "
        "them for at most %llu tokens of all its choices and prompts; without streaming, "
        "'max_tokens' counts in full",
        field, (unsigned long long)each, (unsigned long long)n_tokens, (unsigned long long)most);
    return ERR_INVALID;
}

/* Check the numbers of alternatives that the engine's vocabulary bounds. Small ones need no
 * check. */
int logprobs_check(const struct gen *g, uint32_t n_vocab, int most, uint32_t longest,
                   struct reason *reason)
{
    const struct exchange *x = g->exchange;
    const struct wire_generate *generate = &g->request.generate;
    uint64_t n_answer = x->max_tokens_given ? x->max_tokens : longest - g->n_prompt;
    uint32_t n_prompts = (uint32_t)x->n_gens / (uint32_t)x->n;
    int rc = ERR_OK;

    if ((g->request.flags & WIRE_LOGPROBS) != 0 && generate->n_logprobs > WIRE_LOGPROBS_MAX) {
        reason->param = x->format == EXCHANGE_CHAT ? "top_logprobs" : "logprobs";
        rc = logprobs_within(reason->param, generate->n_logprobs, n_vocab, most, reason->text,
                             sizeof reason->text);
        if (rc == ERR_OK)
            rc = logprobs_fit(reason->param, generate->n_logprobs, n_vocab,
                              (uint64_t)x->n_gens * (x->stream ? 1 : n_answer), reason->text,
                              sizeof reason->text);
    }
    if (rc == ERR_OK && (g->request.flags & WIRE_PROMPT_LOGPROBS) != 0 &&
        generate->n_prompt_logprobs > WIRE_LOGPROBS_MAX) {
        reason->param = x->prompt_logprobs ? "prompt_logprobs" : "logprobs"; /* of an echo */
        rc = logprobs_within(reason->param, generate->n_prompt_logprobs, n_vocab, most,
                             reason->text, sizeof reason->text);
        if (rc == ERR_OK)
            rc = logprobs_fit(reason->param, generate->n_prompt_logprobs, n_vocab,
                              (uint64_t)n_prompts * g->n_prompt, reason->text, sizeof reason->text);
    }
    return rc;
}

/* --- records ---------------------------------------------------------------------------- */

/* A token has come, after its records: they are now complete. */
void logprobs_token(struct gen *g)
{
    must(g->told_whole <= g->told.len);
    if (g->request.generate.n_logprobs > WIRE_LOGPROBS_MAX)
        logprobs_forget(g);
    g->told_whole = g->told.len;
}

/* The generation is submitted again: forget the records of a token that has not come. Returns the
 * request's flags, without those for records that are already here. */
uint32_t logprobs_restart(struct gen *g)
{
    uint32_t flags = g->request.flags;

    must(g->told_whole <= g->told.len);
    buf_clear(&g->row);
    g->told.len = g->told_whole;
    if (g->tokens.len > g->n_prompt)
        return flags & ~(uint32_t)WIRE_PROMPT_LOGPROBS; /* the prompt's were sent before the first
                                                         * token */
    g->prompt_told.len = 0;
    return flags;
}

/* Must the text of an echo wait? The log probabilities of its prompt belong into the first event,
 * and come with the first choice. */
bool logprobs_echo_waits(const struct gen *g)
{
    const struct exchange *x = g->exchange;
    const struct gen *first = &x->gens[g->index - g->index % x->n];

    return x->echo && x->format == EXCHANGE_COMPLETION && !g->prompt_written &&
           (g->request.flags & WIRE_LOGPROBS) != 0 && first->finish == GEN_RUNNING &&
           first->tokens.len == first->n_prompt;
}

/* --- pieces ----------------------------------------------------------------------------- */

/* The record at an offset, copied because the buffer does not align it. */
static struct logprob logprobs_at(const struct buf *told, size_t at)
{
    struct logprob entry;

    memcpy(&entry, told->bytes + at, sizeof entry);
    return entry;
}

/* The offset of the next chosen token after the one at `at`. */
static size_t logprobs_next(const struct buf *told, size_t end, size_t at)
{
    do
        at += sizeof(struct logprob);
    while (at < end && !logprobs_at(told, at).begins);
    return at;
}

/* A log probability; JSON has no infinity. */
static void logprobs_value(struct buf *b, float value)
{
    buf_printf(b, "%.8g", isfinite(value) ? (double)value : LOGPROBS_LEAST);
}

/* Write a token as text; parts of characters become U+FFFD. Returns its bytes. */
static const char *logprobs_token_text(struct buf *b, const struct gen *g, int32_t id, size_t *len)
{
    const char *text = tokenizer_bytes(g->detok.tokenizer, id, len);

    if (g->exchange->tokens_as_ids)
        buf_printf(b, "\"token_id:%d\"", id);
    else
        buf_add_json_string(b, text == NULL ? "" : text, *len);
    return text;
}

/* --- chats ------------------------------------------------------------------------------
 *
 * "logprobs":{"content":[{"token":"a","logprob":-0.1,"bytes":[97],"top_logprobs":[...]}, ...]} */

/* "token":...,"logprob":...,"bytes":[...] */
static void logprobs_chat_token(struct buf *b, const struct gen *g, const struct logprob *p)
{
    const char *text;
    size_t len;

    buf_add_text(b, "\"token\":");
    text = logprobs_token_text(b, g, p->id, &len);
    buf_add_text(b, ",\"logprob\":");
    logprobs_value(b, p->logprob);
    buf_add_text(b, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++) {
        buf_add_comma(b, i > 0);
        buf_printf(b, "%u", (unsigned char)text[i]);
    }
    buf_add_byte(b, ']');
}

/* The token at offset `at` with its alternatives, which end at offset next. */
static void logprobs_chat_entry(struct buf *b, const struct gen *g, size_t at, size_t next)
{
    struct logprob entry = logprobs_at(&g->told, at);

    must(at < next);
    buf_add_byte(b, '{');
    logprobs_chat_token(b, g, &entry);
    buf_add_text(b, ",\"top_logprobs\":[");
    for (size_t top = at + sizeof entry; top < next; top += sizeof entry) {
        entry = logprobs_at(&g->told, top);
        buf_add_text(b, top == at + sizeof entry ? "{" : ",{");
        logprobs_chat_token(b, g, &entry);
        buf_add_byte(b, '}');
    }
    buf_add_text(b, "]}");
}

/* The end of the records for this event. A token that only ends the text is written with the
 * finish_reason, because clients assign the tokens of an event to its text. */
static size_t logprobs_chat_end(const struct gen *g)
{
    bool waits = g->exchange->stream && g->finish == GEN_RUNNING && g->ended;
    size_t end = g->told_written;

    if (!waits || g->detok.include_stop)
        return g->told_whole;
    for (size_t at = end; at < g->told_whole; at = logprobs_next(&g->told, g->told_whole, at))
        end = at;
    return end;
}

/* The member "logprobs" of a chat, with the tokens since the last event. */
void logprobs_write_chat(struct buf *b, struct gen *g)
{
    size_t end = logprobs_chat_end(g);

    if ((g->request.flags & WIRE_LOGPROBS) == 0 || g->told_written == end) {
        buf_add_text(b, "\"logprobs\":null");
        return;
    }
    buf_add_text(b, "\"logprobs\":{\"content\":[");
    for (size_t at = g->told_written, next; at < end; at = next) {
        next = logprobs_next(&g->told, end, at);
        if (at > g->told_written)
            buf_add_byte(b, ',');
        logprobs_chat_entry(b, g, at, next);
    }
    buf_add_text(b, "],\"refusal\":null}");
    g->told_written = end;
}

/* Append the same objects to a list, for /v1/responses. */
void logprobs_add_text(struct buf *b, struct gen *g)
{
    bool mute = g->ended && !g->detok.include_stop; /* the last token adds no text */

    for (size_t at = g->told_written, next; at < g->told_whole; at = next) {
        next = logprobs_next(&g->told, g->told_whole, at);
        if (mute && next >= g->told_whole)
            break;
        if (b->len > 0)
            buf_add_byte(b, ',');
        logprobs_chat_entry(b, g, at, next);
    }
    g->told_written = g->told_whole;
}

/* Reasoning and calls have no log probabilities in /v1/responses. */
void logprobs_skip(struct gen *g)
{
    g->told_written = g->told_whole;
}

/* --- completions ------------------------------------------------------------------------ */

/* A completion has four lists. Each is written in a pass of its own over the same tokens. */
enum logprobs_list { LIST_OFFSETS, LIST_VALUES, LIST_TOKENS, LIST_TOPS };

/* The number of characters that begin in a token. */
static uint32_t logprobs_chars(const struct gen *g, int32_t id)
{
    size_t len;
    const char *text = tokenizer_bytes(g->detok.tokenizer, id, &len);
    uint32_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* {"token":value,...}: the chosen token and the most probable ones. The chosen one comes first
 * unless it is among them. */
static void logprobs_tops(struct buf *b, const struct gen *g, const struct buf *told, size_t at,
                          size_t next)
{
    struct logprob came = logprobs_at(told, at);
    bool listed = false, first = true;

    must(at < next);
    buf_add_byte(b, '{');
    for (size_t top = at + sizeof came; top < next; top += sizeof came)
        listed = listed || logprobs_at(told, top).id == came.id;
    for (size_t top = listed ? at + sizeof came : at; top < next; top += sizeof came) {
        struct logprob entry = logprobs_at(told, top);
        size_t len;

        if (!first)
            buf_add_byte(b, ',');
        first = false;
        (void)logprobs_token_text(b, g, entry.id, &len);
        buf_add_byte(b, ':');
        logprobs_value(b, entry.logprob);
    }
    buf_add_byte(b, '}');
}

/* The records of some tokens: bytes at .. end of told. */
struct logprobs_run {
    const struct buf *told;
    size_t at, end;
};

/* One token of a list; offset: the number of characters before it. */
static void logprobs_text_token(struct buf *b, const struct gen *g, enum logprobs_list list,
                                const struct logprobs_run *token, uint32_t offset)
{
    struct logprob entry = logprobs_at(token->told, token->at);
    size_t len;

    switch (list) {
    case LIST_OFFSETS: buf_printf(b, "%u", offset); break;
    case LIST_VALUES: logprobs_value(b, entry.logprob); break;
    case LIST_TOKENS: (void)logprobs_token_text(b, g, entry.id, &len); break;
    case LIST_TOPS: logprobs_tops(b, g, token->told, token->at, token->end); break;
    }
}

/* The tokens of a run, with commas between, and one before the first unless it is the list's first.
 * Returns the number of characters up to the last one's end. */
static uint32_t logprobs_list_run(struct buf *b, const struct gen *g, enum logprobs_list list,
                                  struct logprobs_run run, uint32_t offset, bool first)
{
    while (run.at < run.end) {
        size_t next = logprobs_next(run.told, run.end, run.at);

        buf_add_comma(b, !first);
        first = false;
        logprobs_text_token(b, g, list, &(struct logprobs_run){run.told, run.at, next}, offset);
        offset += logprobs_chars(g, logprobs_at(run.told, run.at).id);
        run.at = next;
    }
    return offset;
}

/* One list, with the echoed prompt's tokens first. */
static uint32_t logprobs_list(struct buf *b, const struct gen *g, enum logprobs_list list,
                              bool with_prompt)
{
    const struct gen *first = &g->exchange->gens[g->index - g->index % g->exchange->n];
    uint32_t offset = g->told_chars;
    size_t len;

    buf_add_byte(b, '[');
    /* The first token of a prompt has no log probability, because nothing precedes it. */
    if (with_prompt) {
        if (list == LIST_OFFSETS)
            buf_add_byte(b, '0');
        else if (list == LIST_TOKENS)
            (void)logprobs_token_text(b, g, g->tokens.ids[0], &len);
        else
            buf_add_text(b, "null");
        offset = logprobs_list_run(
            b, g, list, (struct logprobs_run){&first->prompt_told, 0, first->prompt_told.len},
            logprobs_chars(g, g->tokens.ids[0]), false);
    }
    offset = logprobs_list_run(b, g, list,
                               (struct logprobs_run){&g->told, g->told_written, g->told_whole},
                               offset, !with_prompt);
    buf_add_byte(b, ']');
    return offset;
}

/* The member "logprobs" of a completion. told_chars goes on from event to event, so that offsets
 * count from the beginning of the text. */
void logprobs_write_text(struct buf *b, struct gen *g)
{
    bool with_prompt = g->exchange->echo && !g->prompt_written;

    if ((g->request.flags & WIRE_LOGPROBS) == 0 ||
        (g->told_written == g->told_whole && !with_prompt)) {
        buf_add_text(b, "\"logprobs\":null");
        return;
    }
    buf_add_text(b, "\"logprobs\":{\"text_offset\":");
    (void)logprobs_list(b, g, LIST_OFFSETS, with_prompt);
    buf_add_text(b, ",\"token_logprobs\":");
    (void)logprobs_list(b, g, LIST_VALUES, with_prompt);
    buf_add_text(b, ",\"tokens\":");
    (void)logprobs_list(b, g, LIST_TOKENS, with_prompt);
    buf_add_text(b, ",\"top_logprobs\":");
    g->told_chars = logprobs_list(b, g, LIST_TOPS, with_prompt);
    buf_add_byte(b, '}');
    g->told_written = g->told_whole;
    g->prompt_written = true;
}

/* --- prompts ---------------------------------------------------------------------------- */

/* "id":{"logprob":...,"rank":...,"decoded_token":...} */
static void logprobs_prompt_token(struct buf *b, const struct gen *g, const struct logprob *p)
{
    size_t len;

    buf_printf(b, "\"%d\":{\"logprob\":", p->id);
    logprobs_value(b, p->logprob);
    buf_printf(b, ",\"rank\":%u,\"decoded_token\":", p->rank);
    (void)logprobs_token_text(b, g, p->id, &len);
    buf_add_byte(b, '}');
}

/* The member "prompt_logprobs": for each token an object by token id. The chosen one comes first
 * and is not repeated. */
void logprobs_write_prompt(struct buf *b, const struct gen *g)
{
    const struct buf *told = &g->prompt_told;

    buf_add_text(b, "\"prompt_logprobs\":[null");
    for (size_t at = 0, next; at < told->len; at = next) {
        struct logprob came = logprobs_at(told, at);

        next = logprobs_next(told, told->len, at);
        buf_add_text(b, ",{");
        logprobs_prompt_token(b, g, &came);
        for (size_t top = at + sizeof came; top < next; top += sizeof came) {
            struct logprob entry = logprobs_at(told, top);

            if (entry.id == came.id)
                continue;
            buf_add_byte(b, ',');
            logprobs_prompt_token(b, g, &entry);
        }
        buf_add_byte(b, '}');
    }
    buf_add_byte(b, ']');
}
