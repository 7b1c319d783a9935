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

static void fill_borders(uint16_t *fail, const char *text, size_t len)
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

int detok_init(struct detok *d, const struct tokenizer *t, bool skip_special,
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
    *d = (struct detok){.tokenizer = t,
                        .skip_special = skip_special,
                        .include_stop = include_stop,
                        .stop_idx = -1,
                        .drops = tokenizer_start(t).drops,
                        .strip_n = tokenizer_start(t).strip_n,
                        .n_stops = (int)n_stops,
                        .held_cap = longest};
    d->matches = (struct detok_match *)(void *)memory;
    fail = (uint16_t *)(void *)(d->matches + n_stops);
    for (i = 0; i < n_stops; i++) {
        d->matches[i] = (struct detok_match){.len = (uint16_t)stops[i].len, .fail = fail};
        fill_borders(fail, stops[i].text, stops[i].len);
        fail += stops[i].len + 1;
    }
    memory = (char *)fail;
    for (i = 0; i < n_stops; i++) {
        memcpy(memory, stops[i].text, stops[i].len);
        d->matches[i].text = memory;
        memory += stops[i].len;
    }
    d->held = memory;
    return ERR_OK;
}

void detok_fini(struct detok *d)
{
    mem_free(d->matches);
    *d = (struct detok){.stop_idx = -1};
}

static void match_step(struct detok_match *m, char c)
{
    while (m->state > 0 && m->text[m->state] != c)
        m->state = m->fail[m->state];
    if (m->text[m->state] == c)
        m->state++;
}

/* A stop string is complete: what is held and c end with it. */
static void stop(struct detok *d, int idx, char c, struct buf *out)
{
    size_t before = d->held_len + 1 - d->matches[idx].len;

    buf_add(out, d->held, d->include_stop ? d->held_len : before);
    if (d->include_stop)
        buf_add_byte(out, c);
    d->held_len = 0;
    d->partial_len = 0;
    d->stop_idx = idx;
    d->status = DETOK_STOPPED;
}

/* One byte of text. The bytes that no match needs leave; held_cap is the longest stop string, and
 * a complete one stops, so what is held never exceeds it. */
static void put_byte(struct detok *d, char c, struct buf *out)
{
    size_t longest = 0;
    size_t leave;
    int i;

    for (i = 0; i < d->n_stops; i++) {
        struct detok_match *m = &d->matches[i];

        match_step(m, c);
        if (m->state == m->len) {
            stop(d, i, c, out);
            return;
        }
        longest = m->state > longest ? m->state : longest;
    }
    if (longest == 0) {
        buf_add(out, d->held, d->held_len);
        buf_add_byte(out, c);
        d->held_len = 0;
        return;
    }
    leave = d->held_len + 1 - longest;
    buf_add(out, d->held, leave);
    memmove(d->held, d->held + leave, d->held_len - leave);
    d->held_len -= leave;
    d->held[d->held_len++] = c;
}

static void put_text(struct detok *d, const char *text, size_t len, struct buf *out)
{
    size_t i;

    if (d->n_stops == 0) {
        buf_add(out, text, len);
        return;
    }
    for (i = 0; i < len && d->status == DETOK_GOING; i++)
        put_byte(d, text[i], out);
}

/* Append whole characters of bytes, keep the start of one that is cut off. */
static void put_bytes(struct detok *d, const char *bytes, size_t len, struct buf *out)
{
    size_t from = 0;
    size_t i = 0;

    while (i < len) {
        size_t n = utf8_sequence(bytes + i, len - i);

        if (n != 0) {
            i += n;
            continue;
        }
        put_text(d, bytes + from, i - from, out);
        n = utf8_incomplete(bytes + i, len - i);
        if (n != 0 && n == len - i) {
            memcpy(d->partial, bytes + i, n);
            d->partial_len = n;
            return;
        }
        put_text(d, "\xef\xbf\xbd", 3, out);
        i += utf8_invalid_run(bytes + i, len - i);
        from = i;
    }
    put_text(d, bytes + from, len - from, out);
}

/* Append bytes behind the character that may be open. */
static void put_joined(struct detok *d, const char *bytes, size_t len, struct buf *out)
{
    /* Finish the open character, a byte at a time; three more end it at the latest. */
    while (d->partial_len > 0 && len > 0) {
        char joined[5];
        size_t n = d->partial_len;

        memcpy(joined, d->partial, n);
        joined[n++] = *bytes++;
        len--;
        d->partial_len = 0;
        put_bytes(d, joined, n, out);
    }
    if (d->status == DETOK_GOING)
        put_bytes(d, bytes, len, out);
}

/* Append text behind what the start of a text loses. */
static void put_started(struct detok *d, const char *bytes, size_t len, struct buf *out)
{
    uint32_t taken = 0;
    size_t from = 0;

    if (d->strip_n > 0 && len > 0) {
        from = tokenizer_strip(d->tokenizer, d->strip_n, bytes, len, &taken);
        d->strip_n = from == len ? d->strip_n - taken : 0;
    }
    put_joined(d, bytes + from, len - from, out);
}

/* The run has ended: its characters, or one U+FFFD a byte. */
static void flush_run(struct detok *d, struct buf *out)
{
    bool valid = utf8_is_valid(d->run, d->run_len);
    size_t len = d->run_len;
    size_t i;

    d->run_len = 0;
    if (valid)
        put_started(d, d->run, len, out);
    for (i = 0; !valid && i < len && d->status == DETOK_GOING; i++)
        put_started(d, "\xef\xbf\xbd", 3, out);
}

/* The run is as long as may be: its whole characters leave, the start of one stays. */
static void shorten_run(struct detok *d, struct buf *out)
{
    size_t whole = 0;
    size_t n;
    char rest[4];

    while (whole < d->run_len && (n = utf8_sequence(d->run + whole, d->run_len - whole)) != 0)
        whole += n;
    n = d->run_len - whole;
    if (n > 0 && utf8_incomplete(d->run + whole, n) != n) {
        flush_run(d, out);
        return;
    }
    memcpy(rest, d->run + whole, n); /* at most three bytes begin a character */
    d->run_len = whole;
    flush_run(d, out);
    memcpy(d->run, rest, n);
    d->run_len = n;
}

void detok_continue(struct detok *d)
{
    d->drops = false;
    d->strip_n = 0;
}

enum detok_status detok_push(struct detok *d, int32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(d->tokenizer, id, &len);
    bool drops = d->drops;

    if (d->status == DETOK_STOPPED || bytes == NULL ||
        (d->skip_special && tokenizer_is_skipped(d->tokenizer, id)))
        return d->status;
    d->drops = false;
    if (tokenizer_is_byte(d->tokenizer, id)) {
        d->run[d->run_len++] = bytes[0];
        if (d->run_len == DETOK_RUN_MAX)
            shorten_run(d, out);
        return d->status;
    }
    if (d->run_len > 0)
        flush_run(d, out);
    if (d->status == DETOK_STOPPED)
        return d->status;
    if (drops) {
        struct buf first = {0};

        tokenizer_first_bytes(d->tokenizer, id, &first);
        put_started(d, first.len == 0 ? "" : first.bytes, first.len, out);
        out->failed = out->failed || first.failed;
        buf_fini(&first);
    } else {
        put_started(d, bytes, len, out);
    }
    return d->status;
}

enum detok_status detok_finish(struct detok *d, struct buf *out)
{
    if (d->status == DETOK_GOING && d->run_len > 0)
        flush_run(d, out);
    if (d->status == DETOK_GOING && d->partial_len > 0)
        put_text(d, "\xef\xbf\xbd", 3, out);
    d->partial_len = 0;
    d->run_len = 0;
    if (d->status == DETOK_GOING)
        buf_add(out, d->held, d->held_len);
    d->held_len = 0;
    return d->status;
}
