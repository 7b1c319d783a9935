/* SPDX-License-Identifier: Apache-2.0 */
#include "front/structured/structure.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

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
    s->refused = mem_zalloc_array(STRUCTURES_REFUSALS, sizeof *s->refused);
    return s->refused != NULL && pthread_mutex_init(&s->lock, NULL) == 0 &&
                   pthread_cond_init(&s->changed, NULL) == 0
               ? ERR_OK
               : ERR_NO_MEMORY;
}

void structures_fini(struct structures *s)
{
    structures_end_compilers(s);
    while (s->n_kept > 0)
        structure_unref(s->kept[--s->n_kept]);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s->refused);
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

void structures_keep(struct structures *s, struct structure *st)
{
    while (s->n_kept > 0 &&
           (s->n_kept == STRUCTURES_MAX || s->bytes + st->bytes > STRUCTURES_BYTES_MAX))
        structures_drop_last(s);
    memmove(s->kept + 1, s->kept, s->n_kept * sizeof *s->kept);
    s->kept[0] = structure_ref(st);
    s->n_kept++;
    s->bytes += st->bytes;
}

static const struct structure_refusal *structures_find_refusal(const struct structures *s,
                                                               const struct hash *name)
{
    for (size_t i = 0; i < STRUCTURES_REFUSALS; i++)
        if (s->refused[i].rc != 0 && memcmp(&s->refused[i].name, name, sizeof *name) == 0)
            return &s->refused[i];
    return NULL;
}

void structures_note_refusal(struct structures *s, const struct hash *name, int rc,
                             const struct grammar_error *error)
{
    if (structures_find_refusal(s, name) == NULL)
        s->refused[s->n_refused++ % STRUCTURES_REFUSALS] =
            (struct structure_refusal){.name = *name, .rc = rc, .error = *error};
}

void structures_refuse(struct structures *s, const struct hash *name, int rc, const char *text)
{
    struct grammar_error error = {.text = ""};

    (void)snprintf(error.text, sizeof error.text, "%s", text);
    (void)pthread_mutex_lock(&s->lock);
    structures_note_refusal(s, name, rc, &error);
    (void)pthread_mutex_unlock(&s->lock);
}

/* With the lock held: what is known of this name. ERR_AGAIN: nothing. */
static int structures_know(struct structures *s, const struct hash *name, struct structure **out,
                           struct grammar_error *error)
{
    const struct structure_refusal *refusal = structures_find_refusal(s, name);

    if (refusal != NULL) {
        if (error != NULL)
            *error = refusal->error;
        return refusal->rc;
    }
    *out = structures_find(s, name);
    return *out == NULL ? ERR_AGAIN : ERR_OK;
}

int structures_get(struct structures *s, const struct grammar_request *request, const char *tenant,
                   struct structure **out, struct grammar_error *error)
{
    struct structure *found = NULL;
    struct hash name;
    int rc = structure_name(request, &name);

    if (rc != ERR_OK)
        return rc;
    (void)pthread_mutex_lock(&s->lock);
    rc = structures_know(s, &name, &found, error);
    for (int i = 0; i < 2 && rc == ERR_AGAIN; i++) { /* once more if it was dropped at once */
        rc = structures_make(s, request, &name, tenant);
        if (rc == ERR_OK)
            rc = structures_know(s, &name, &found, error);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (rc == ERR_OVERLOADED && error != NULL)
        (void)snprintf(error->text, sizeof error->text,
                       "too many forms wait to be compiled, try again later");
    if (rc == ERR_OK)
        *out = found;
    return rc == ERR_AGAIN ? ERR_OVERLOADED : rc;
}
