/* SPDX-License-Identifier: Apache-2.0 */
#include "front/structure.h"

#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "ipc/attach.h"

/* --- one ---------------------------------------------------------------------------------- */

struct structure *structure_ref(struct structure *st)
{
    (void)atomic_fetch_add(&st->n_refs, 1);
    return st;
}

void structure_unref(struct structure *st)
{
    if (st == NULL || atomic_fetch_sub(&st->n_refs, 1) > 1)
        return;
    (void)close(st->sealed);
    mem_free(st);
}

static int structure_compile(const struct grammar_request *request, const struct hash *name,
                             struct structure **out, struct grammar_error *error)
{
    struct buf image = {0};
    struct structure *st = NULL;
    int rc = grammar_compile(request, &image, error);

    if (rc == ERR_OK) {
        st = mem_zalloc(sizeof *st);
        rc = st == NULL ? ERR_NO_MEMORY : attach_seal(image.bytes, image.len, &st->sealed);
    }
    if (rc == ERR_OK) {
        atomic_init(&st->n_refs, 1);
        st->name = *name;
        st->bytes = image.len;
        *out = st;
    } else {
        mem_free(st);
    }
    buf_fini(&image);
    return rc;
}

/* --- names -------------------------------------------------------------------------------- */

/* Lengths stand before texts, so that no two requests are written alike. */
static void name_text(struct buf *b, const char *text, size_t len)
{
    buf_add(b, &len, sizeof len);
    buf_add(b, text == NULL ? "" : text, len);
}

/* Recurses as deep as parts are nested, which grammar_compile() bounds, too. */
static void name_parts(struct buf *b, const struct grammar_part *parts, size_t n, int depth)
{
    buf_add(b, &n, sizeof n);
    for (size_t i = 0; i < n && depth < 32; i++) {
        const uint32_t numbers[] = {(uint32_t)parts[i].kind, parts[i].min, parts[i].max};

        buf_add(b, numbers, sizeof numbers);
        name_text(b, parts[i].text, parts[i].len);
        name_parts(b, parts[i].parts, parts[i].n_parts, depth + 1);
        name_parts(b, parts[i].never, parts[i].n_never, depth + 1);
    }
}

static int structure_name(const struct grammar_request *r, struct hash *out)
{
    const uint32_t numbers[] = {(uint32_t)r->kind, (uint32_t)r->space};
    struct buf b = {0};
    int rc;

    buf_add(&b, numbers, sizeof numbers);
    name_text(&b, r->spacing, r->spacing_len);
    name_text(&b, r->source, r->source_len);
    buf_add(&b, &r->n_choices, sizeof r->n_choices);
    for (size_t i = 0; i < r->n_choices; i++)
        name_text(&b, r->choices[i], strlen(r->choices[i]));
    name_parts(&b, r->parts, r->n_parts, 0);
    rc = b.failed ? ERR_NO_MEMORY : ERR_OK;
    if (rc == ERR_OK)
        *out = hash_sha256(b.bytes, b.len, NULL, 0);
    buf_fini(&b);
    return rc;
}

/* --- the cache ---------------------------------------------------------------------------- */

int structures_init(struct structures *s)
{
    *s = (struct structures){0};
    return pthread_mutex_init(&s->lock, NULL) == 0 ? ERR_OK : ERR_NO_MEMORY;
}

void structures_fini(struct structures *s)
{
    while (s->n_kept > 0)
        structure_unref(s->kept[--s->n_kept]);
    (void)pthread_mutex_destroy(&s->lock);
}

static void structures_drop_last(struct structures *s)
{
    struct structure *last = s->kept[--s->n_kept];

    s->bytes -= last->bytes;
    structure_unref(last);
}

/* A reference to the one of this name, which comes to the front; NULL. */
static struct structure *structures_find(struct structures *s, const struct hash *name)
{
    for (size_t i = 0; i < s->n_kept; i++) {
        struct structure *st = s->kept[i];

        if (memcmp(&st->name, name, sizeof *name) != 0)
            continue;
        memmove(s->kept + 1, s->kept, i * sizeof *s->kept);
        s->kept[0] = st;
        return structure_ref(st);
    }
    return NULL;
}

static void structures_keep(struct structures *s, struct structure *st)
{
    while (s->n_kept > 0 &&
           (s->n_kept == STRUCTURES_MAX || s->bytes + st->bytes > STRUCTURES_BYTES_MAX))
        structures_drop_last(s);
    memmove(s->kept + 1, s->kept, s->n_kept * sizeof *s->kept);
    s->kept[0] = structure_ref(st);
    s->n_kept++;
    s->bytes += st->bytes;
}

int structures_get(struct structures *s, const struct grammar_request *request,
                   struct structure **out, struct grammar_error *error)
{
    struct structure *found, *own = NULL;
    struct hash name;
    int rc = structure_name(request, &name);

    if (rc != ERR_OK)
        return rc;
    (void)pthread_mutex_lock(&s->lock);
    found = structures_find(s, &name);
    (void)pthread_mutex_unlock(&s->lock);
    if (found == NULL) {
        rc = structure_compile(request, &name, &own, error);
        if (rc != ERR_OK)
            return rc;
        (void)pthread_mutex_lock(&s->lock);
        found = structures_find(s, &name); /* somebody may have been faster */
        if (found == NULL) {
            structures_keep(s, own);
            found = structure_ref(own);
        }
        (void)pthread_mutex_unlock(&s->lock);
        structure_unref(own);
    }
    *out = found;
    return ERR_OK;
}
