/* SPDX-License-Identifier: Apache-2.0
 *
 * A pipeline of stages, each of which holds back the bytes it cannot decide on:
 *
 *     token -> run of byte tokens -> leading space -> characters -> stop strings -> out
 *
 * The first two stages matter only for models with byte fallback. Each stop string has a
 * Knuth-Morris-Pratt automaton; its state is the number of bytes of the stop string that the text
 * ends with. The largest state over all stop strings is exactly the number of bytes to hold back.
 * Cost per byte: amortized one comparison per stop string. */
#include "text/output/detok.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"

/* The automaton of one stop string. */
struct detok_match {
    const char *text;
    uint16_t len;
    uint16_t state;       /* bytes of text that the output ends with */
    const uint16_t *fail; /* fail[i]: longest proper border of the first i bytes */
};

/* The failure function of Knuth, Morris and Pratt: fail[i] is the length of the longest proper
 * prefix of text[0 .. i) that is also its suffix. fail has len + 1 entries. */

static void detok_fill_borders(uint16_t *fail, const char *text, size_t len)
{
    size_t border = 0;
    size_t i;

    fail[0] = 0;
    fail[1] = 0;
    for (i = 1; i < len; i++) {
        while (border > 0 && text[i] != text[border])
            border = fail[border];
        if (text[i] == text[border])
            border++;
        fail[i + 1] = (uint16_t)border;
    }
}

int detok_init(struct detok *detok, const struct tokenizer *tokenizer, bool skip_special,
               const struct detok_stop *stops, size_t n_stops, bool include_stop)
{
    size_t bytes = 0;
    size_t longest = 0;
    size_t i;
    char *memory;
    uint16_t *fail_at;

    must(detok != NULL && tokenizer != NULL);
    must(stops != NULL || n_stops == 0);
    if (n_stops > DETOK_STOPS_MAX)
        return ERR_LIMIT;
    for (i = 0; i < n_stops; i++) {
        if (stops[i].len == 0)
            return ERR_INVALID;
        if (stops[i].len > DETOK_STOP_BYTES_MAX)
            return ERR_LIMIT;
        /* A failure function has an entry for each length from 0 to the stop string's. */
        bytes += sizeof(struct detok_match) + (stops[i].len + 1) * sizeof *fail_at + stops[i].len;
        if (stops[i].len > longest)
            longest = stops[i].len;
    }
    /* One block holds the automata, their failure functions, the texts and the held bytes. */
    memory = mem_alloc(bytes + longest);
    if (memory == NULL)
        return ERR_NO_MEMORY;
    *detok = (struct detok){.tokenizer = tokenizer,
                            .skip_special = skip_special,
                            .include_stop = include_stop,
                            .stop_idx = -1,
                            .drops = tokenizer_start(tokenizer).drops,
                            .strip_n = tokenizer_start(tokenizer).strip_n,
                            .n_stops = (int)n_stops,
                            .held_cap = longest};
    detok->matches = (struct detok_match *)(void *)memory;
    fail_at = (uint16_t *)(void *)(detok->matches + n_stops);
    for (i = 0; i < n_stops; i++) {
        detok->matches[i] = (struct detok_match){.len = (uint16_t)stops[i].len, .fail = fail_at};
        detok_fill_borders(fail_at, stops[i].text, stops[i].len);
        fail_at += stops[i].len + 1;
    }
    memory = (char *)fail_at;
    for (i = 0; i < n_stops; i++) {
        memcpy(memory, stops[i].text, stops[i].len);
        detok->matches[i].text = memory;
        memory += stops[i].len;
    }
    detok->held = memory;
    return ERR_OK;
}

void detok_fini(struct detok *detok)
{
    mem_free(detok->matches);
    *detok = (struct detok){.stop_idx = -1};
}

/* Advance an automaton by one byte of output. */
static void detok_match_step(struct detok_match *m, char c)
{
    while (m->state > 0 && m->text[m->state] != c)
        m->state = m->fail[m->state];
    if (m->text[m->state] == c)
        m->state++;
}

/* A stop string is complete: the held text and c end with it. Write the text before it (or all of
 * it with include_stop) and end the stream. */
static void detok_stop_at(struct detok *detok, int idx, char c, struct buf *out)
{
    size_t before = detok->held_len + 1 - detok->matches[idx].len;

    must(detok->held_len + 1 >= detok->matches[idx].len);
    buf_add(out, detok->held, detok->include_stop ? detok->held_len : before);
    if (detok->include_stop)
        buf_add_byte(out, c);
    detok->held_len = 0;
    detok->partial_len = 0;
    detok->stop_idx = idx;
    detok->status = DETOK_STOPPED;
}

/* Stage: one byte of text. Write the bytes that no match can use. held_cap, the longest stop
 * string, is enough: a match of that length is complete and ends the stream. */
static void detok_put_byte(struct detok *detok, char c, struct buf *out)
{
    size_t longest = 0;
    size_t leave;
    int i;

    /* All automata advance by the byte. If several stop strings end here, the first one of the
     * request counts. */
    for (i = 0; i < detok->n_stops; i++) {
        struct detok_match *match = &detok->matches[i];

        detok_match_step(match, c);
        if (match->state == match->len) {
            detok_stop_at(detok, i, c, out);
            return;
        }
        if (match->state > longest)
            longest = match->state;
    }
    if (longest == 0) {
        buf_add(out, detok->held, detok->held_len);
        buf_add_byte(out, c);
        detok->held_len = 0;
        return;
    }
    /* Only the last `longest` bytes can still be the start of a stop string; those before are
     * output. */
    leave = detok->held_len + 1 - longest;
    buf_add(out, detok->held, leave);
    memmove(detok->held, detok->held + leave, detok->held_len - leave);
    detok->held_len -= leave;
    detok->held[detok->held_len++] = c;
}

/* Stage: whole characters of text, on their way to the stop strings. */
static void detok_put_text(struct detok *detok, const char *text, size_t len, struct buf *out)
{
    size_t i;

    if (detok->n_stops == 0) {
        buf_add(out, text, len);
        return;
    }
    for (i = 0; i < len && detok->status == DETOK_GOING; i++)
        detok_put_byte(detok, text[i], out);
}

/* Stage: bytes that begin at a character's first byte. Whole characters go on, invalid bytes become
 * U+FFFD, and the first bytes of a character that is cut off are kept in `partial`. */
static void detok_put_bytes(struct detok *detok, const char *bytes, size_t len, struct buf *out)
{
    size_t from = 0;
    size_t i = 0;

    while (i < len) {
        size_t n = utf8_sequence(bytes + i, len - i);

        if (n != 0) {
            i += n;
            continue;
        }
        detok_put_text(detok, bytes + from, i - from, out);
        n = utf8_incomplete(bytes + i, len - i);
        /* The rest is the beginning of a character that the next token may complete. */
        if (n != 0 && n == len - i) {
            memcpy(detok->partial, bytes + i, n);
            detok->partial_len = n;
            return;
        }
        detok_put_text(detok, "\xef\xbf\xbd", 3, out);
        i += utf8_invalid_run(bytes + i, len - i);
        from = i;
    }
    detok_put_text(detok, bytes + from, len - from, out);
}

/* Stage: bytes that follow the incomplete character of the last call, if there is one. */
static void detok_put_joined(struct detok *detok, const char *bytes, size_t len, struct buf *out)
{
    /* Complete that character one byte at a time; it needs at most three more. */
    while (detok->partial_len > 0 && len > 0) {
        char joined[5];
        size_t n = detok->partial_len;

        memcpy(joined, detok->partial, n);
        joined[n++] = *bytes++;
        len--;
        detok->partial_len = 0;
        detok_put_bytes(detok, joined, n, out);
    }
    if (detok->status == DETOK_GOING)
        detok_put_bytes(detok, bytes, len, out);
}

/* Stage: text of a token. At the start of the output the decoder's leading spaces are dropped. */
static void detok_put_started(struct detok *detok, const char *bytes, size_t len, struct buf *out)
{
    uint32_t taken = 0;
    size_t from = 0;

    if (detok->strip_n > 0 && len > 0) {
        from = tokenizer_strip(detok->tokenizer, detok->strip_n, bytes, len, &taken);
        if (from == len)
            detok->strip_n = detok->strip_n - taken;
        else
            detok->strip_n = 0;
    }
    detok_put_joined(detok, bytes + from, len - from, out);
}

/* A run of byte tokens is over: write its characters, or one U+FFFD per byte if it is invalid. */
static void detok_flush_run(struct detok *detok, struct buf *out)
{
    bool valid = utf8_is_valid(detok->run, detok->run_len);
    size_t len = detok->run_len;
    size_t i;

    detok->run_len = 0;
    if (valid)
        detok_put_started(detok, detok->run, len, out);
    for (i = 0; !valid && i < len && detok->status == DETOK_GOING; i++)
        detok_put_started(detok, "\xef\xbf\xbd", 3, out);
}

/* The run is full: write its complete characters and keep the first bytes of the last one. */
static void detok_shorten_run(struct detok *detok, struct buf *out)
{
    size_t whole = 0;
    size_t n;
    char rest[4];

    /* Find the length of the valid beginning. */
    while (whole < detok->run_len &&
           (n = utf8_sequence(detok->run + whole, detok->run_len - whole)) != 0)
        whole += n;
    n = detok->run_len - whole;
    if (n > 0 && utf8_incomplete(detok->run + whole, n) != n) {
        detok_flush_run(detok, out);
        return;
    }
    memcpy(rest, detok->run + whole, n); /* an incomplete character has at most three bytes */
    detok->run_len = whole;
    detok_flush_run(detok, out);
    memcpy(detok->run, rest, n);
    detok->run_len = n;
}

void detok_continue(struct detok *detok)
{
    must(detok->run_len == 0 && detok->partial_len == 0 && detok->held_len == 0);
    detok->drops = false;
    detok->strip_n = 0;
}

enum detok_status detok_push(struct detok *detok, int32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(detok->tokenizer, id, &len);
    bool drops = detok->drops;

    must(out != NULL);
    must(detok->run_len < DETOK_RUN_MAX);
    if (detok->status == DETOK_STOPPED || bytes == NULL ||
        (detok->skip_special && tokenizer_is_skipped(detok->tokenizer, id)))
        return detok->status;
    /* Only the first token that has a text drops its leading space. */
    detok->drops = false;
    /* Byte tokens are collected, because only a whole run shows whether its bytes are
     * characters. */
    if (tokenizer_is_byte(detok->tokenizer, id)) {
        detok->run[detok->run_len++] = bytes[0];
        if (detok->run_len == DETOK_RUN_MAX)
            detok_shorten_run(detok, out);
        return detok->status;
    }
    if (detok->run_len > 0)
        detok_flush_run(detok, out);
    if (detok->status == DETOK_STOPPED)
        return detok->status;
    if (drops) {
        struct buf first = {0};

        tokenizer_first_bytes(detok->tokenizer, id, &first);
        detok_put_started(detok, first.len == 0 ? "" : first.bytes, first.len, out);
        out->failed = out->failed || first.failed;
        buf_fini(&first);
    } else {
        detok_put_started(detok, bytes, len, out);
    }
    return detok->status;
}

enum detok_status detok_finish(struct detok *detok, struct buf *out)
{
    must(out != NULL);
    if (detok->status == DETOK_GOING && detok->run_len > 0)
        detok_flush_run(detok, out);
    /* The output ended inside of a character, which is shown as U+FFFD. */
    if (detok->status == DETOK_GOING && detok->partial_len > 0)
        detok_put_text(detok, "\xef\xbf\xbd", 3, out);
    detok->partial_len = 0;
    detok->run_len = 0;
    /* No more text can complete a stop string, so the held bytes are output. */
    if (detok->status == DETOK_GOING)
        buf_add(out, detok->held, detok->held_len);
    detok->held_len = 0;
    return detok->status;
}
