/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of tokens -> whole characters -> text that no stop string can still claim -> out.
 * Models with byte fallback have two more stages in front: runs of byte tokens wait for their
 * end, and the start of a text loses its space.
 *
 * Each stop string has a Knuth-Morris-Pratt automaton; its state is how much of the stop string
 * the text ends with, and the longest state is exactly what must be held back. */
#include "text/output/detok.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

struct detok_match {
    const char *text;
    uint16_t len;
    uint16_t state;       /* bytes of it that the text ends with */
    const uint16_t *fail; /* fail[i]: longest proper border of the first i bytes */
};

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
    uint16_t *fail;

    if (n_stops > DETOK_STOPS_MAX)
        return ERR_LIMIT;
    for (i = 0; i < n_stops; i++) {
        if (stops[i].len == 0)
            return ERR_INVALID;
        if (stops[i].len > DETOK_STOP_BYTES_MAX)
            return ERR_LIMIT;
        bytes += sizeof(struct detok_match) + (stops[i].len + 1) * sizeof *fail + stops[i].len;
        longest = stops[i].len > longest ? stops[i].len : longest;
    }
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
    fail = (uint16_t *)(void *)(detok->matches + n_stops);
    for (i = 0; i < n_stops; i++) {
        detok->matches[i] = (struct detok_match){.len = (uint16_t)stops[i].len, .fail = fail};
        detok_fill_borders(fail, stops[i].text, stops[i].len);
        fail += stops[i].len + 1;
    }
    memory = (char *)fail;
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

static void detok_match_step(struct detok_match *m, char c)
{
    while (m->state > 0 && m->text[m->state] != c)
        m->state = m->fail[m->state];
    if (m->text[m->state] == c)
        m->state++;
}

/* A stop string is complete: what is held and c end with it. */
static void detok_stop_at(struct detok *detok, int idx, char c, struct buf *out)
{
    size_t before = detok->held_len + 1 - detok->matches[idx].len;

    buf_add(out, detok->held, detok->include_stop ? detok->held_len : before);
    if (detok->include_stop)
        buf_add_byte(out, c);
    detok->held_len = 0;
    detok->partial_len = 0;
    detok->stop_idx = idx;
    detok->status = DETOK_STOPPED;
}

/* One byte of text. The bytes that no match needs leave; held_cap is the longest stop string, and
 * a complete one stops, so what is held never exceeds it. */
static void detok_put_byte(struct detok *detok, char c, struct buf *out)
{
    size_t longest = 0;
    size_t leave;
    int i;

    for (i = 0; i < detok->n_stops; i++) {
        struct detok_match *m = &detok->matches[i];

        detok_match_step(m, c);
        if (m->state == m->len) {
            detok_stop_at(detok, i, c, out);
            return;
        }
        longest = m->state > longest ? m->state : longest;
    }
    if (longest == 0) {
        buf_add(out, detok->held, detok->held_len);
        buf_add_byte(out, c);
        detok->held_len = 0;
        return;
    }
    leave = detok->held_len + 1 - longest;
    buf_add(out, detok->held, leave);
    memmove(detok->held, detok->held + leave, detok->held_len - leave);
    detok->held_len -= leave;
    detok->held[detok->held_len++] = c;
}

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

/* Append whole characters of bytes, keep the start of one that is cut off. */
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

/* Append bytes behind the character that may be open. */
static void detok_put_joined(struct detok *detok, const char *bytes, size_t len, struct buf *out)
{
    /* Finish the open character, a byte at a time; three more end it at the latest. */
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

/* Append text behind what the start of a text loses. */
static void detok_put_started(struct detok *detok, const char *bytes, size_t len, struct buf *out)
{
    uint32_t taken = 0;
    size_t from = 0;

    if (detok->strip_n > 0 && len > 0) {
        from = tokenizer_strip(detok->tokenizer, detok->strip_n, bytes, len, &taken);
        detok->strip_n = from == len ? detok->strip_n - taken : 0;
    }
    detok_put_joined(detok, bytes + from, len - from, out);
}

/* The run has ended: its characters, or one U+FFFD a byte. */
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

/* The run is as long as may be: its whole characters leave, the start of one stays. */
static void detok_shorten_run(struct detok *detok, struct buf *out)
{
    size_t whole = 0;
    size_t n;
    char rest[4];

    while (whole < detok->run_len &&
           (n = utf8_sequence(detok->run + whole, detok->run_len - whole)) != 0)
        whole += n;
    n = detok->run_len - whole;
    if (n > 0 && utf8_incomplete(detok->run + whole, n) != n) {
        detok_flush_run(detok, out);
        return;
    }
    memcpy(rest, detok->run + whole, n); /* at most three bytes begin a character */
    detok->run_len = whole;
    detok_flush_run(detok, out);
    memcpy(detok->run, rest, n);
    detok->run_len = n;
}

void detok_continue(struct detok *detok)
{
    detok->drops = false;
    detok->strip_n = 0;
}

enum detok_status detok_push(struct detok *detok, int32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(detok->tokenizer, id, &len);
    bool drops = detok->drops;

    if (detok->status == DETOK_STOPPED || bytes == NULL ||
        (detok->skip_special && tokenizer_is_skipped(detok->tokenizer, id)))
        return detok->status;
    detok->drops = false;
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
    if (detok->status == DETOK_GOING && detok->run_len > 0)
        detok_flush_run(detok, out);
    if (detok->status == DETOK_GOING && detok->partial_len > 0)
        detok_put_text(detok, "\xef\xbf\xbd", 3, out);
    detok->partial_len = 0;
    detok->run_len = 0;
    if (detok->status == DETOK_GOING)
        buf_add(out, detok->held, detok->held_len);
    detok->held_len = 0;
    return detok->status;
}
