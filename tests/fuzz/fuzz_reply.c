/* SPDX-License-Identifier: Apache-2.0
 *
 * The input: a byte that chooses format and reasoning, a byte that says how far apart cuts are,
 * then a reply. Whatever it is: in one piece and in pieces the same is said, calls begin and end in
 * turn, and what is not said of it is tags and white space. */
#include <string.h>

#include "base/must.h"
#include "text/output/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct told {
    struct buf text;
    int kind;
    bool in_call;
};

static void said(void *arg, const struct reply_event *e)
{
    struct told *t = arg;

    must((e->kind == REPLY_CALL_BEGIN || e->kind == REPLY_CALL_END) || e->len > 0);
    must(t->in_call == (e->kind == REPLY_CALL_ARGS || e->kind == REPLY_CALL_END));
    if (e->kind == REPLY_CALL_BEGIN || e->kind == REPLY_CALL_END)
        t->in_call = e->kind == REPLY_CALL_BEGIN;
    if ((int)e->kind != t->kind)
        buf_printf(&t->text, "\n%d:%d:", (int)e->kind, e->call);
    if (e->len > 0)
        buf_add(&t->text, e->bytes, e->len);
    t->kind = (int)e->kind;
}

static void tell(struct told *t, const struct reply_options *o, const char *text, size_t len,
                 size_t piece)
{
    struct reply r;

    *t = (struct told){.kind = -1};
    reply_init(&r, o, said, t);
    for (size_t at = 0; at < len; at += piece)
        must(reply_push(&r, text + at, len - at < piece ? len - at : piece) == ERR_OK);
    must(reply_finish(&r) == ERR_OK);
    reply_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct reply_options o;
    struct told whole, cut;
    const char *text = (const char *)bytes + 2;

    if (len < 3 || memchr(text, '\0', len - 2) != NULL)
        return 0;
    o = (struct reply_options){.format = (enum reply_format)(bytes[0] % REPLY_FORMATS),
                               .reasoning =
                                   (enum reply_reasoning)(bytes[0] / 16 % REPLY_REASONINGS),
                               .begins_inside = bytes[0] >= 128};
    tell(&whole, &o, text, len - 2, len - 2);
    tell(&cut, &o, text, len - 2, bytes[1] % 7 + 1u);
    must(whole.text.len == cut.text.len &&
         (whole.text.len == 0 || memcmp(whole.text.bytes, cut.text.bytes, whole.text.len) == 0));
    buf_fini(&whole.text);
    buf_fini(&cut.text);
    return 0;
}
