/* SPDX-License-Identifier: Apache-2.0
 *
 * There are two families of decoders. ByteLevel: the characters of a token spell bytes, and invalid
 * UTF-8 is replaced when all bytes are joined. The other family is a chain: Replace or Metaspace
 * change each token, ByteFallback decodes runs of <0x..> tokens, Fuse joins the rest, and Strip
 * drops spaces at the start. Everything that depends on one token only is done once, when the
 * tokenizer is built. */
#define _GNU_SOURCE 1 /* memmem() */
#include "text/tokenizer/decode.h"

#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/vocab.h"

#define TOKEN_BYTES_MAX ((size_t)1 << 20) /* bound on the result of a hostile Replace */

/* --- reading -----------------------------------------------------------------------------------*/

/* Report a decoder that is not known, at start: decoding it wrongly would go unnoticed. */
static int decode_refuse_step(char *why, size_t why_cap, const char *what, const char *name)
{
    (void)snprintf(why, why_cap, "decoder%s \"%.80s\" is not supported", what, name);
    return ERR_UNSUPPORTED;
}

/* The character in a member that must hold exactly one; 0 when it does not. */
static uint32_t decode_read_char(const struct json *node, const char *name)
{
    const struct json *text = json_get_kind(node, name, JSON_TEXT);

    if (text == NULL || text->text_len == 0 ||
        utf8_sequence(text->text, text->text_len) != text->text_len)
        return 0;
    return utf8_decode(text->text);
}

/* {"type": "Replace", "pattern": {"String": "▁"}, "content": " "} */
static int decode_read_replace(struct decode_draft *draft, const struct json *node, char *why,
                               size_t why_cap)
{
    const struct json *pattern = json_get_kind(json_get(node, "pattern"), "String", JSON_TEXT);
    const struct json *content = json_get_kind(node, "content", JSON_TEXT);

    /* Replacing the empty text would insert between all characters. */
    if (pattern == NULL || pattern->text_len == 0 || content == NULL ||
        draft->n_replaces == DECODE_REPLACES_MAX)
        return decode_refuse_step(why, why_cap, " Replace of", "anything but a text");
    draft->patterns[draft->n_replaces] = pattern;
    draft->contents[draft->n_replaces++] = content;
    return ERR_OK;
}

/* {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}: the space that the
 * pre-tokenizer put before the text is dropped, unless the scheme is "never". */
static int decode_read_metaspace(struct decode_draft *draft, const struct json *node, char *why,
                                 size_t why_cap)
{
    /* Older files have add_prefix_space in place of the scheme. */
    const struct json *prefix = json_get_kind(node, "add_prefix_space", JSON_BOOL);
    bool never = strcmp(json_get_text(node, "prepend_scheme", "always"), "never") == 0 ||
                 (prefix != NULL && !prefix->flag);

    draft->drop_char = decode_read_char(node, "replacement");
    if (draft->drop_char == 0 || draft->n_replaces > 0)
        return decode_refuse_step(why, why_cap, " Metaspace",
                                  "after Replace or without a replacement");
    if (never)
        draft->flags |= 0;
    else
        draft->flags |= IMAGE_DECODE_DROP;
    return ERR_OK;
}

/* {"type": "Strip", "content": " ", "start": 1, "stop": 0} */
static int decode_read_strip(struct decode_draft *draft, const struct json *node, char *why,
                             size_t why_cap)
{
    int64_t start = json_get_int(node, "start", 0);

    draft->strip_char = decode_read_char(node, "content");
    /* Strip at the end would need the end of the text, which a stream does not have until the
     * reply is finished. */
    if (draft->strip_char == 0 || start < 0 || start > 1000 || json_get_int(node, "stop", 0) != 0)
        return decode_refuse_step(why, why_cap, " Strip", "at the end");
    draft->strip_n = (uint32_t)start;
    return ERR_OK;
}

/* Read one decoder of a chain. *stage is the stage reached so far; the order of stages is fixed. */
static int decode_read_step(struct decode_draft *draft, const struct json *node, int *stage,
                            char *why, size_t why_cap)
{
    static const struct {
        const char *type;
        int stage; /* decoders of lower stages must come before it */
    } steps[] = {{"Replace", 0}, {"Metaspace", 0}, {"ByteFallback", 1}, {"Fuse", 2}, {"Strip", 3}};
    const char *type = json_get_text(node, "type", "");
    int at = -1;
    size_t i;

    for (i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (strcmp(type, steps[i].type) == 0)
            at = steps[i].stage;
    if (at < 0)
        return decode_refuse_step(why, why_cap, "", type);
    if (at < *stage || (at == *stage && at > 0) || (at == 3 && *stage != 2))
        return decode_refuse_step(why, why_cap, " in this order:", type);
    *stage = at;
    switch (at) {
    case 0:
        return type[0] == 'R' ? decode_read_replace(draft, node, why, why_cap)
                              : decode_read_metaspace(draft, node, why, why_cap);
    case 1: draft->flags |= IMAGE_DECODE_RUNS; return ERR_OK;
    case 3: return decode_read_strip(draft, node, why, why_cap);
    default: return ERR_OK;
    }
}

int decode_read(struct decode_draft *out, const struct json *node, char *why, size_t why_cap)
{
    const struct json *list = json_get_kind(node, "decoders", JSON_LIST);
    const char *type = json_get_text(node, "type", "");
    int stage = 0;
    int rc = ERR_OK;
    uint32_t i;

    must(out != NULL);
    *out = (struct decode_draft){0};
    /* A Sequence of one decoder is that decoder. */
    if (list != NULL && list->n == 1 && strcmp(type, "Sequence") == 0)
        type = json_get_text(&list->items[0], "type", "");
    if (strcmp(type, "ByteLevel") == 0) {
        out->flags = IMAGE_DECODE_BYTES;
        return ERR_OK;
    }
    if (node == NULL || node->kind == JSON_NULL)
        return decode_refuse_step(why, why_cap, "", "none");
    if (list == NULL)
        return decode_read_step(out, node, &stage, why, why_cap);
    for (i = 0; i < list->n && rc == ERR_OK; i++)
        rc = decode_read_step(out, &list->items[i], &stage, why, why_cap);
    return rc;
}

/* --- tokens ------------------------------------------------------------------------------------*/

/* Append the bytes that a text spells in GPT-2's alphabet. False when a character is not in the
 * alphabet, as in added tokens, whose text is the plain one. */
static bool decode_spell(const char *text, size_t len, struct buf *out)
{
    size_t from = out->len;
    size_t i = 0;

    while (i < len) {
        int byte = vocab_char_byte(utf8_decode(text + i));

        /* The plain text is then used, so bytes that were written are taken back. */
        if (byte < 0) {
            out->len = from;
            return false;
        }
        buf_add_byte(out, (char)byte);
        i += utf8_sequence(text + i, len - i);
    }
    return true;
}

/* Replace all occurrences of pattern in text. */
static void decode_replace_all(struct buf *text, const struct json *pattern,
                               const struct json *content)
{
    struct buf old = *text;
    size_t from = 0;

    *text = (struct buf){.limit = old.limit};
    /* The search goes on after each replacement, so a content that contains the pattern is not
     * replaced again. */
    while (from <= old.len) {
        const char *found = old.len == 0 ? NULL
                                         : memmem(old.bytes + from, old.len - from, pattern->text,
                                                  pattern->text_len);
        size_t at = found == NULL ? old.len : (size_t)(found - old.bytes);

        /* At the end of the old text there is nothing to find, but the part after the last match
         * is still to be copied. */
        buf_add(text, old.bytes + from, at - from);
        if (found == NULL)
            break;
        buf_add(text, content->text, content->text_len);
        from = at + pattern->text_len;
    }
    text->failed = text->failed || old.failed;
    buf_fini(&old);
}

/* The byte of a token such as <0x2E>; -1 when it is no such token. Hugging Face parses the digits
 * as a number, so that <0x+E> is accepted, too. */
static int decode_fallback_byte(const char *text, size_t len)
{
    int value = 0;
    size_t i;

    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (i = 3; i < 5; i++) {
        char c = text[i];
        int digit = hex_digit((unsigned char)c);

        /* A '+' is accepted in the first place only, where a sign of a number can be, and counts
         * as 0. */
        if (digit < 0 && !(i == 3 && c == '+'))
            return -1;
        value = value * 16 + (digit < 0 ? 0 : digit);
    }
    return value;
}

/* Append text, with the character `drop` replaced by `with`. */
static void decode_add_dropped(uint32_t drop, const char *with, const char *text, size_t len,
                               struct buf *out)
{
    size_t i = 0;

    while (i < len) {
        size_t n = utf8_sequence(text + i, len - i);

        if (n > 0 && utf8_decode(text + i) == drop)
            buf_add_text(out, with);
        else
            buf_add(out, text + i, n > 0 ? n : 1); /* a damaged image may hold any bytes */
        if (n > 0)
            i += n;
        else
            i += 1;
    }
}

void decode_token(const struct decode_draft *draft, const char *text, size_t len, struct buf *out,
                  bool *is_byte)
{
    struct buf changed = {.limit = TOKEN_BYTES_MAX};
    int byte;
    int i;

    must(is_byte != NULL);
    *is_byte = false;
    if ((draft->flags & IMAGE_DECODE_BYTES) != 0) {
        /* An added token need not be spelled in the alphabet of bytes; it is then its own text. */
        if (!decode_spell(text, len, out))
            buf_add(out, text, len);
        return;
    }
    if (draft->drop_char != 0)
        decode_add_dropped(draft->drop_char, " ", text, len, &changed);
    else
        buf_add(&changed, text, len);
    for (i = 0; i < draft->n_replaces; i++)
        decode_replace_all(&changed, draft->patterns[i], draft->contents[i]);
    /* A byte token is spelled <0x0A>, which has six characters. */
    if ((draft->flags & IMAGE_DECODE_RUNS) != 0 && changed.len == 6)
        byte = decode_fallback_byte(changed.bytes, changed.len);
    else
        byte = -1;
    if (byte >= 0) {
        *is_byte = true;
        buf_add_byte(out, (char)byte);
    } else {
        buf_add(out, changed.bytes, changed.len);
    }
    out->failed = out->failed || changed.failed;
    buf_fini(&changed);
}

/* --- texts -------------------------------------------------------------------------------------*/

void decode_first(const struct image_facts *facts, const char *text, size_t len, struct buf *out)
{
    decode_add_dropped(facts->drop_char, "", text, len, out);
}

/* A run of byte tokens. If the bytes are not valid UTF-8, Hugging Face replaces each of them. */
void decode_run(const char *bytes, size_t len, struct buf *out)
{
    size_t i;

    must(bytes != NULL || len == 0);
    /* <0xE2><0x96><0x81> is one character. A run that ends in the middle of one has a
     * replacement character per byte. */
    if (utf8_is_valid(bytes, len)) {
        buf_add(out, bytes, len);
        return;
    }
    for (i = 0; i < len; i++)
        buf_add(out, "\xef\xbf\xbd", 3);
}

/* Skip up to n characters at the start, and count them. */
size_t decode_strip(const struct image_facts *facts, uint32_t n, const char *text, size_t len,
                    uint32_t *taken)
{
    char utf8[4];
    size_t n_bytes = utf8_encode(facts->strip_char, utf8);
    size_t at = 0;

    must(taken != NULL);
    *taken = 0;
    /* Only whole characters are skipped: strip_char may have several bytes. */
    while (*taken < n && len - at >= n_bytes && memcmp(text + at, utf8, n_bytes) == 0) {
        at += n_bytes;
        ++*taken;
    }
    return at;
}

/* Append text with each invalid sequence replaced by U+FFFD. Valid text, the usual case, is copied
 * at once. */
void decode_lossy(const char *text, size_t len, struct buf *out)
{
    size_t from = 0;
    size_t i = 0;

    must(text != NULL || len == 0);
    if (len == 0)
        return; /* text may be NULL */
    if (utf8_is_valid(text, len)) {
        buf_add(out, text, len);
        return;
    }
    /* text[from .. i) is valid and not appended yet. */
    while (i < len) {
        size_t n = (unsigned char)text[i] < 0x80 ? 1 : utf8_sequence(text + i, len - i);

        if (n != 0) {
            i += n;
            continue;
        }
        buf_add(out, text + from, i - from);
        buf_add(out, "\xef\xbf\xbd", 3);
        i += utf8_invalid_run(text + i, len - i);
        from = i;
    }
    buf_add(out, text + from, len - from);
}
