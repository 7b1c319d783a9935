/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of compiled constraints: references, names, and the lists of results and refusals. Both
 * lists are searched linearly, because they are short and a compilation takes milliseconds.
 *
 *   kept       automata, the last used first; the last ones make room
 *   refused    errors of the constraints that were refused last
 *   making     constraints that are being compiled (compiled_make.c)
 *
 * A request is searched among the refused and then the kept ones; if it is in neither, it is
 * compiled, unless a compilation is under way already. */
#include "front/structured/compiled.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"

/* --- references ---------------------------------------------------------------------------- */

/* Take a reference. */
struct compiled *compiled_ref(struct compiled *st)
{
    must(st != NULL);
    (void)atomic_fetch_add(&st->n_refs, 1);
    return st;
}

/* Give a reference back; the last one frees the automaton. */
void compiled_unref(struct compiled *st)
{
    if (st == NULL || atomic_fetch_sub(&st->n_refs, 1) > 1)
        return;
    (void)close(st->sealed);
    mem_free(st);
}

/* --- names -------------------------------------------------------------------------------- */

/* Each text is preceded by its length, so that different requests never give the same bytes. */
static void name_text(struct buf *b, const char *text, size_t len)
{
    buf_add(b, &len, sizeof len);
    buf_add(b, text == NULL ? "" : text, len);
}

/* Recursive; parts are nested as deep as grammar_compile() allows at most. */
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

/* The name covers everything that grammar_compile() reads, and nothing else. */
static int compiled_name(const struct grammar_request *r, struct hash *out)
{
    const uint32_t numbers[] = {(uint32_t)r->kind, (uint32_t)r->space};
    struct buf buf = {0};
    int rc;

    buf_add(&buf, numbers, sizeof numbers);
    name_text(&buf, r->spacing, r->spacing_len);
    name_text(&buf, r->source, r->source_len);
    buf_add(&buf, &r->n_choices, sizeof r->n_choices);
    for (size_t i = 0; i < r->n_choices; i++)
        name_text(&buf, r->choices[i], strlen(r->choices[i]));
    name_parts(&buf, r->parts, r->n_parts, 0);
    if (buf.failed)
        rc = ERR_NO_MEMORY;
    else
        rc = ERR_OK;
    if (rc == ERR_OK)
        *out = hash_sha256(buf.bytes, buf.len, NULL, 0);
    buf_fini(&buf);
    return rc;
}

/* --- the cache ---------------------------------------------------------------------------- */

/* An empty cache. */
int compiled_cache_init(struct compiled_cache *s)
{
    *s = (struct compiled_cache){0};
    s->refused = mem_zalloc_array(COMPILED_REFUSALS, sizeof *s->refused);
    if (s->refused == NULL || pthread_mutex_init(&s->lock, NULL) != 0 ||
        pthread_cond_init(&s->changed, NULL) != 0)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Free the cache. Only tests do; a front uses its cache until it exits. */
void compiled_cache_fini(struct compiled_cache *s)
{
    compiled_cache_end_compilers(s);
    while (s->n_kept > 0)
        compiled_unref(s->kept[--s->n_kept]);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s->refused);
}

/* Drop the entry that was used least recently. */
static void compiled_cache_drop_last(struct compiled_cache *s)
{
    struct compiled *last = s->kept[--s->n_kept];

    must(s->n_kept > 0);
    s->bytes -= last->bytes;
    compiled_unref(last);
}

/* A reference to the entry of this name, which is moved to the front; NULL. */
static struct compiled *compiled_cache_find(struct compiled_cache *s, const struct hash *name)
{
    for (size_t i = 0; i < s->n_kept; i++) {
        struct compiled *st = s->kept[i];

        if (memcmp(&st->name, name, sizeof *name) != 0)
            continue;
        memmove(s->kept + 1, s->kept, i * sizeof *s->kept);
        s->kept[0] = st;
        return compiled_ref(st);
    }
    return NULL;
}

/* Add an entry at the front; the last ones make room. They live on while requests use them. */
void compiled_cache_keep(struct compiled_cache *s, struct compiled *st)
{
    while (s->n_kept > 0 &&
           (s->n_kept == COMPILED_MAX || s->bytes + st->bytes > COMPILED_BYTES_MAX))
        compiled_cache_drop_last(s);
    must(s->n_kept < COMPILED_MAX);
    memmove(s->kept + 1, s->kept, s->n_kept * sizeof *s->kept);
    s->kept[0] = compiled_ref(st);
    s->n_kept++;
    s->bytes += st->bytes;
}

/* The refusal of this name, or NULL. */
static const struct compiled_refusal *compiled_cache_find_refusal(const struct compiled_cache *s,
                                                                  const struct hash *name)
{
    for (size_t i = 0; i < COMPILED_REFUSALS; i++)
        if (s->refused[i].rc != 0 && memcmp(&s->refused[i].name, name, sizeof *name) == 0)
            return &s->refused[i];
    return NULL;
}

/* With the lock held: remember a refusal, in place of the oldest. A client that repeats a bad
 * schema then costs no compilation. */
void compiled_cache_note_refusal(struct compiled_cache *s, const struct hash *name, int rc,
                                 const struct grammar_error *error)
{
    if (compiled_cache_find_refusal(s, name) == NULL)
        s->refused[s->n_refused++ % COMPILED_REFUSALS] =
            (struct compiled_refusal){.name = *name, .rc = rc, .error = *error};
}

/* Remember a refusal that another part of the front has found. */
void compiled_cache_refuse(struct compiled_cache *s, const struct hash *name, int rc,
                           const char *text)
{
    struct grammar_error error = {.text = ""};

    (void)snprintf(error.text, sizeof error.text, "%s", text);
    (void)pthread_mutex_lock(&s->lock);
    compiled_cache_note_refusal(s, name, rc, &error);
    (void)pthread_mutex_unlock(&s->lock);
}

/* With the lock held: is the name in one of the two lists? */
bool compiled_cache_has(const struct compiled_cache *s, const struct hash *name)
{
    for (size_t i = 0; i < s->n_kept; i++)
        if (memcmp(&s->kept[i]->name, name, sizeof *name) == 0)
            return true;
    return compiled_cache_find_refusal(s, name) != NULL;
}

/* With the lock held: look the name up in both lists. ERR_AGAIN: unknown. */
static int compiled_cache_know(struct compiled_cache *s, const struct hash *name,
                               struct compiled **out, struct grammar_error *error)
{
    const struct compiled_refusal *refusal = compiled_cache_find_refusal(s, name);

    if (refusal != NULL) {
        if (error != NULL)
            *error = refusal->error;
        return refusal->rc;
    }
    *out = compiled_cache_find(s, name);
    if (*out == NULL)
        return ERR_AGAIN;
    return ERR_OK;
}

/* An entry can be dropped between its compilation and the second lookup, if many others are added
 * meanwhile; so two attempts are made. */
int compiled_cache_get(struct compiled_cache *s, const struct grammar_request *request,
                       const char *tenant, struct compiled **out, struct grammar_error *error)
{
    struct compiled *found = NULL;
    struct hash name;
    int rc = compiled_name(request, &name);

    if (rc != ERR_OK)
        return rc;
    (void)pthread_mutex_lock(&s->lock);
    rc = compiled_cache_know(s, &name, &found, error);
    for (int i = 0; i < 2 && rc == ERR_AGAIN; i++) { /* again if it was dropped at once */
        rc = compiled_cache_make(s, request, &name, tenant);
        if (rc == ERR_OK)
            rc = compiled_cache_know(s, &name, &found, error);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (rc == ERR_OVERLOADED && error != NULL)
        (void)snprintf(error->text, sizeof error->text,
                       "too many output constraints wait to be compiled, try again later");
    if (rc == ERR_OK)
        *out = found;
    if (rc == ERR_AGAIN)
        return ERR_OVERLOADED;
    return rc;
}
