/* SPDX-License-Identifier: Apache-2.0
 *
 * Compilations. The first thread that asks for a constraint adds an entry to the list and waits; a
 * compiler thread takes it when it is its tenant's turn. The entry lies on the stack of the asking
 * thread, which returns only after the compiler has removed the entry. Other threads that wait for
 * the same name look into the list again after each change, and then into the cache.
 *
 * Compilers are niced: a constraint that takes 180 ms must not delay the readers, the streamer or
 * an engine on the same machine, which need a thousandth of that time per request. */
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "front/structured/compiled.h"
#include "ipc/attach.h"

#define MAKE_NICE        5
#define MAKE_STACK_BYTES ((size_t)8 << 20) /* for grammars, whose recursion is deep but bounded */

/* An entry of the list: a constraint that is being compiled, or waits for it. */
struct compiled_making {
    struct compiled_making *next;
    const struct grammar_request *request;
    const struct hash *name;
    char tenant[WIRE_TENANT_BYTES];
    int n_waiting; /* threads that wait for it */
    int rc;        /* ERR_OK, or ERR_NO_MEMORY when no result could be stored */
    bool begun, done;
};

/* --- the turns ----------------------------------------------------------------------------
 *
 * Fairness between tenants. turns[] remembers the last turn of the 64 tenants that compiled last; a
 * tenant that is not among them has waited longest and goes first. */

/* The element with a tenant's last turn; for an unknown tenant the oldest element, to be
 * replaced. */
static struct compiled_turn *make_turn(struct compiled_cache *s, const char *tenant, bool *known)
{
    struct compiled_turn *oldest = &s->turns[0];

    for (int i = 0; i < COMPILED_TURNS; i++) {
        struct compiled_turn *turn_row = &s->turns[i];

        if (turn_row->turn != 0 && memcmp(turn_row->tenant, tenant, sizeof turn_row->tenant) == 0) {
            *known = true;
            return turn_row;
        }
        if (turn_row->turn < oldest->turn)
            oldest = turn_row;
    }
    *known = false;
    return oldest;
}

/* Is a compiler working for this tenant? A tenant has at most one at a time. */
static bool make_is_busy(const struct compiled_cache *s, const char *tenant)
{
    for (const struct compiled_making *making = s->making; making != NULL; making = making->next)
        if (making->begun && memcmp(making->tenant, tenant, sizeof making->tenant) == 0)
            return true;
    return false;
}

/* The entry that a compiler takes next; NULL: none may begin. */
static struct compiled_making *make_choose(struct compiled_cache *s)
{
    struct compiled_making *best = NULL;
    uint64_t best_turn = 0;

    for (struct compiled_making *making = s->making; making != NULL; making = making->next) {
        const struct compiled_turn *turn_row;
        uint64_t turn;
        bool known;

        if (making->begun || make_is_busy(s, making->tenant))
            continue;
        /* The tenant whose last turn is the longest ago comes first. */
        turn_row = make_turn(s, making->tenant, &known);
        if (known)
            turn = turn_row->turn;
        else
            turn = 0;
        if (best == NULL || turn < best_turn) {
            best = making;
            best_turn = turn;
        }
    }
    return best;
}

/* A compiler takes the entry: note the turn of its tenant. */
static void make_begin(struct compiled_cache *s, struct compiled_making *m)
{
    bool known;
    struct compiled_turn *turn_row = make_turn(s, m->tenant, &known);

    must(!m->begun);
    m->begun = true;
    memcpy(turn_row->tenant, m->tenant, sizeof turn_row->tenant);
    turn_row->turn = ++s->n_compiled;
}

/* Take the entry off the list. */
static void make_remove(struct compiled_cache *s, const struct compiled_making *m)
{
    struct compiled_making **at = &s->making;

    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
}

/* --- compilers ---------------------------------------------------------------------------- */

/* Compile, and put the image into a sealed memfd, which can be uploaded to any engine. */
static int make_structure(const struct compiled_making *m, struct compiled **out,
                          struct grammar_error *error)
{
    struct buf image = {0};
    struct compiled *st = NULL;
    int rc = grammar_compile(m->request, &image, error);

    if (rc == ERR_OK) {
        st = mem_zalloc(sizeof *st);
        if (st == NULL)
            rc = ERR_NO_MEMORY;
        else
            rc = attach_seal(image.bytes, image.len, &st->sealed);
    }
    if (rc == ERR_OK) {
        atomic_init(&st->n_refs, 1);
        st->name = *m->name;
        st->bytes = image.len;
        *out = st;
    } else {
        mem_free(st);
    }
    buf_fini(&image);
    return rc;
}

/* Only errors of the constraint itself are remembered; memory or descriptors may be there next
 * time. */
static bool make_is_refusal(int rc)
{
    return rc == ERR_SYNTAX || rc == ERR_INVALID || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT;
}

/* Compile one entry. With the lock held; it is released during the compilation. */
static void make_one(struct compiled_cache *s, struct compiled_making *m)
{
    struct grammar_error error = {.text = ""};
    struct compiled *st = NULL;
    int rc;

    must(!m->done);
    make_begin(s, m);
    (void)pthread_mutex_unlock(&s->lock);
    rc = make_structure(m, &st, &error);
    (void)pthread_mutex_lock(&s->lock);
    if (rc == ERR_OK)
        compiled_cache_keep(s, st);
    if (make_is_refusal(rc))
        compiled_cache_note_refusal(s, m->name, rc, &error);
    if (rc == ERR_OK || make_is_refusal(rc))
        m->rc = ERR_OK;
    else
        m->rc = rc;
    m->done = true;
    make_remove(s, m);
    compiled_unref(st);
    (void)pthread_cond_broadcast(&s->changed);
}

/* The thread of a compiler: take entries until the cache ends. */
static void *make_run(void *arg)
{
    struct compiled_cache *cache = arg;

    /* without it the thread has the normal priority */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), MAKE_NICE);
    (void)pthread_mutex_lock(&cache->lock);
    while (!cache->ends) {
        struct compiled_making *making = make_choose(cache);

        if (making != NULL)
            make_one(cache, making);
        else
            (void)pthread_cond_wait(&cache->changed, &cache->lock);
    }
    (void)pthread_mutex_unlock(&cache->lock);
    hash_end_thread();
    return NULL;
}

/* Start another compiler, unless there are enough; false when there is none at all. */
static bool make_start(struct compiled_cache *s)
{
    pthread_attr_t attr;

    if (s->n_compilers < COMPILED_COMPILERS && pthread_attr_init(&attr) == 0 &&
        pthread_attr_setstacksize(&attr, MAKE_STACK_BYTES) == 0 &&
        pthread_create(&s->compilers[s->n_compilers], &attr, make_run, s) == 0)
        s->n_compilers++;
    return s->n_compilers > 0;
}

/* End all compilers, after their current entries. */
void compiled_cache_end_compilers(struct compiled_cache *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->ends = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    while (s->n_compilers > 0)
        (void)pthread_join(s->compilers[--s->n_compilers], NULL); /* it was made */
}

/* --- the threads that ask -------------------------------------------------------------------- */

/* The entry of a name, or NULL. */
static struct compiled_making *make_find(const struct compiled_cache *s, const struct hash *name)
{
    struct compiled_making *making = s->making;

    while (making != NULL && memcmp(making->name, name, sizeof *name) != 0)
        making = making->next;
    return making;
}

/* The number of threads that wait for compilations of this tenant. */
static int make_count(const struct compiled_cache *s, const char *tenant)
{
    int n = 0;

    for (const struct compiled_making *making = s->making; making != NULL; making = making->next)
        if (memcmp(making->tenant, tenant, sizeof making->tenant) == 0)
            n += making->n_waiting;
    return n;
}

/* Add an entry of our own at the end of the list and wait until it is done. */
static int make_own(struct compiled_cache *s, const struct grammar_request *request,
                    const struct hash *name, const char *tenant)
{
    struct compiled_making own = {.request = request, .name = name, .n_waiting = 1};
    struct compiled_making **last = &s->making;

    if (!make_start(s))
        return ERR_NO_MEMORY;
    memcpy(own.tenant, tenant, sizeof own.tenant);
    while (*last != NULL)
        last = &(*last)->next;
    *last = &own;
    (void)pthread_cond_broadcast(&s->changed);
    while (!own.done)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    return own.rc;
}

/* Call a function without the lock. */
static void make_call(struct compiled_cache *s, void (*call)(void *arg))
{
    if (call == NULL)
        return;
    (void)pthread_mutex_unlock(&s->lock);
    call(s->wait_arg);
    (void)pthread_mutex_lock(&s->lock);
}

/* before_wait lets another reader take this one's place. The lock is released there, so the list is
 * searched only after it, and so is the cache once more: a compilation of this name may have ended
 * meanwhile. */
int compiled_cache_make(struct compiled_cache *s, const struct grammar_request *request,
                        const struct hash *name, const char *tenant)
{
    struct compiled_making *making;
    int rc = ERR_OK;

    if (s->n_waiting >= COMPILED_WAIT_MAX || make_count(s, tenant) >= COMPILED_TENANT_MAX)
        return ERR_OVERLOADED;
    s->n_waiting++;
    make_call(s, s->before_wait);
    making = make_find(s, name);
    if (making != NULL)
        making->n_waiting++;
    else if (!compiled_cache_has(s, name))
        rc = make_own(s, request, name, tenant);
    while (making != NULL && make_find(s, name) == making)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    s->n_waiting--;
    make_call(s, s->after_wait);
    return rc;
}
