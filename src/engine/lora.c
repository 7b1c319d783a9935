/* SPDX-License-Identifier: Apache-2.0
 *
 * See lora.h. The first part is the table of names and adapters, the second the reader, then the
 * commands of the API, the slots, and the start. */
#include "engine/lora.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "engine/engine.h"
#include "ipc/prefix.h"

static const uint8_t none[WIRE_ADAPTER_DIGEST];

/* --- names and adapters ----------------------------------------------------------------- */

static struct lora_name *lora_find_name(struct lora *l, const char *name)
{
    for (int i = 0; i < l->n_names; i++) {
        if (strcmp(l->names[i].name, name) == 0)
            return &l->names[i];
    }
    return NULL;
}

static struct lora_adapter *lora_find(struct lora *l, const uint8_t *digest)
{
    for (int i = 0; i < LORA_ADAPTERS_MAX; i++) {
        if (l->adapters[i].is_used && memcmp(l->adapters[i].digest.bytes, digest, HASH_BYTES) == 0)
            return &l->adapters[i];
    }
    return NULL;
}

/* Copy the names to the fronts' table. */
static void lora_publish(struct lora *l)
{
    wire_adapters_begin(l->table);
    for (int i = 0; i < l->n_names; i++) {
        struct wire_adapter_row row;

        memcpy(row.name, l->names[i].name, sizeof row.name);
        memcpy(row.path, l->names[i].adapter->path, sizeof row.path);
        memcpy(row.digest, l->names[i].adapter->digest.bytes, sizeof row.digest);
        wire_adapters_put(l->table, (uint32_t)i, &row);
    }
    wire_adapters_end(l->table, (uint32_t)l->n_names);
}

/* An adapter that neither a name nor a sequence refers to is forgotten. */
static void lora_drop(struct lora *l, struct lora_adapter *a)
{
    /* One that is being read is dropped by lora_prepare() later. */
    if (a->n_names > 0 || a->n_seqs > 0 || l->job.again == a)
        return;
    if (a->slot >= 0)
        l->in_slot[a->slot] = NULL;
    adapter_close(a->host);
    *a = (struct lora_adapter){.is_used = false};
}

/* Keep the n_hosts adapters in host memory that were used last; `but` was read just now. */
static void lora_trim_hosts(struct lora *l, const struct lora_adapter *but)
{
    int n = 0;

    for (int i = 0; i < LORA_ADAPTERS_MAX; i++)
        n += l->adapters[i].host != NULL;
    for (; n > l->n_hosts; n--) {
        struct lora_adapter *last = NULL;

        for (int i = 0; i < LORA_ADAPTERS_MAX; i++) {
            struct lora_adapter *a = &l->adapters[i];

            if (a->host != NULL && a != but && (last == NULL || a->used < last->used))
                last = a;
        }
        if (last == NULL)
            return;
        adapter_close(last->host);
        last->host = NULL;
    }
}

/* Take an adapter that was read, unless an equal one is there. NULL: there is no place. */
static struct lora_adapter *lora_take(struct lora *l, struct adapter *host, const char *path)
{
    const struct hash digest = adapter_digest(host);
    struct lora_adapter *a = lora_find(l, digest.bytes);

    for (int i = 0; i < LORA_ADAPTERS_MAX && a == NULL; i++) {
        if (l->adapters[i].is_used)
            continue;
        a = &l->adapters[i];
        *a = (struct lora_adapter){
            .is_used = true, .digest = digest, .slot = -1, .oldest = UINT64_MAX};
    }
    if (a == NULL) {
        adapter_close(host);
        return NULL;
    }
    /* An equal adapter in another folder: this one is there now. */
    (void)snprintf(a->path, sizeof a->path, "%s", path);
    adapter_close(a->host);
    a->host = host;
    a->used = ++l->n_used;
    a->failed = ERR_OK;
    lora_trim_hosts(l, a);
    return a;
}

/* Give a name to an adapter. */
static void lora_add_name(struct lora *l, const char *name, struct lora_adapter *a, bool is_kept)
{
    struct lora_name *to = &l->names[l->n_names++];

    must(l->n_names <= WIRE_ADAPTERS_MAX);
    *to = (struct lora_name){.adapter = a, .is_kept = is_kept};
    (void)snprintf(to->name, sizeof to->name, "%s", name);
    a->n_names++;
}

/* Write the names that the API has loaded, a name and a path in a line; a failure costs them at the
 * next restart only. */
static void lora_write_file(const struct lora *l)
{
    char path[sizeof l->file + 8];
    FILE *f;
    bool fine = true;

    (void)snprintf(path, sizeof path, "%s.new", l->file);
    if ((f = fopen(path, "we")) != NULL) {
        for (int i = 0; i < l->n_names; i++) {
            if (l->names[i].is_kept)
                fine =
                    fprintf(f, "%s\t%s\n", l->names[i].name, l->names[i].adapter->path) > 0 && fine;
        }
        fine = fclose(f) == 0 && fine && rename(path, l->file) == 0;
    }
    if (f == NULL || !fine)
        log_warn("engine: %s: %s; adapters that were loaded by the API are lost at a restart",
                 l->file, strerror(errno));
}

/* Letters and signs of a name or path: no control characters, which the file and logs need. */
static bool lora_is_clean(const char *text, size_t cap)
{
    size_t len = strnlen(text, cap);

    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return false;
    }
    return len > 0 && len < cap;
}

/* --- the reader ------------------------------------------------------------------------- */

/* Read a folder and fit it to the model. The model's constants may be read by any thread. */
static int lora_read(const struct engine *e, const char *path, struct adapter **out, char *why,
                     size_t why_cap)
{
    struct adapter *adapter = NULL;
    int rc = adapter_open(&adapter, path, e->lora.rank_max, why, why_cap);

    if (rc == ERR_OK)
        rc = model_adapter_check(e->model, adapter, why, why_cap);
    if (rc == ERR_OK && (rc = model_adapter_pack(e->model, adapter)) != ERR_OK)
        (void)snprintf(why, why_cap, "no memory for it");
    if (rc != ERR_OK) {
        adapter_close(adapter);
        return rc;
    }
    *out = adapter;
    return ERR_OK;
}

/* Reads the folder of the job, one after another. */
static void *lora_reader(void *arg)
{
    struct engine *e = arg;
    struct lora *l = &e->lora;
    const uint64_t one = 1;

    mem_exempt_thread();
    (void)pthread_mutex_lock(&l->lock); /* cannot fail: initialised, not held by us */
    for (;;) {                          /* until lora_close() */
        while (!l->stops && l->job.state != LORA_ASKED)
            (void)pthread_cond_wait(&l->asked, &l->lock);
        if (l->stops)
            break;
        (void)pthread_mutex_unlock(&l->lock);
        l->job.rc = lora_read(e, l->job.path, &l->job.result, l->job.why, sizeof l->job.why);
        (void)pthread_mutex_lock(&l->lock);
        l->job.state = LORA_DONE;
        (void)!write(l->event_fd, &one, sizeof one); /* a counter: it cannot be full */
    }
    (void)pthread_mutex_unlock(&l->lock);
    hash_end_thread();
    return NULL;
}

/* Ask for a folder; `again`: as in struct lora_job. Only while the reader is idle. */
static void lora_ask_reader(struct lora *l, const char *path, struct lora_adapter *again)
{
    (void)pthread_mutex_lock(&l->lock);
    must(l->job.state == LORA_IDLE);
    l->job = (struct lora_job){.state = LORA_ASKED, .again = again};
    (void)snprintf(l->job.path, sizeof l->job.path, "%s", path);
    (void)pthread_cond_signal(&l->asked);
    (void)pthread_mutex_unlock(&l->lock);
}

static int lora_job_state(struct lora *l)
{
    int state;

    (void)pthread_mutex_lock(&l->lock);
    state = (int)l->job.state;
    (void)pthread_mutex_unlock(&l->lock);
    return state;
}

/* The result has been taken next: the thread waits for another folder. */
static void lora_end_job(struct lora *l)
{
    (void)pthread_mutex_lock(&l->lock);
    l->job.state = LORA_IDLE;
    (void)pthread_mutex_unlock(&l->lock);
}

/* --- commands --------------------------------------------------------------------------- */

/* The end of a command: done, or the error with its reason. */
static void lora_tell(struct engine *e, struct lane *lane, uint32_t slot, int rc, const char *why)
{
    size_t len = rc == ERR_OK ? 0 : strnlen(why, ADAPTER_WHY_CAP);

    if (rc != ERR_OK)
        lane_put(lane, slot,
                 (struct wire_out){
                     .kind = WIRE_FACT, .value = WIRE_FACT_FAILED, .amount = (uint64_t)-rc});
    for (size_t at = 0; at < len; at += 8) {
        struct wire_out piece = {.kind = WIRE_TEXT, .value = len - at < 8 ? (int)(len - at) : 8};

        memcpy(piece.text, why + at, (size_t)piece.value);
        lane_put(lane, slot, piece);
    }
    lane_put(
        lane, slot,
        (struct wire_out){.kind = WIRE_FINISHED, .finish = WIRE_FIN_STOP, .time_us = e->now_us});
}

/* Answer the first order, and take it off the list. */
static void lora_answer(struct engine *e, int rc, const char *why)
{
    struct lora *l = &e->lora;
    const struct lora_order *order = &l->orders[0];

    if (order->lane_idx >= 0)
        lora_tell(e, &e->lanes[order->lane_idx].lane, order->slot, rc, why);
    if (rc != ERR_OK)
        log_warn("engine: LoRA adapter %s: %s", order->what.name, why);
    l->n_orders--;
    memmove(&l->orders[0], &l->orders[1], sizeof l->orders[0] * (size_t)l->n_orders);
}

/* The folder of a command as an absolute path, which must be below lora_dir. */
static int lora_resolve(const struct engine *e, const char *path, char *out, char *why,
                        size_t why_cap)
{
    const char *dir = e->settings.lora_dir;
    char root[PATH_MAX], joined[PATH_MAX], real[PATH_MAX];
    size_t len;

    if (dir[0] == '\0') {
        (void)snprintf(why, why_cap, "adapters cannot be loaded at run time: lora_dir is not set");
        return ERR_UNSUPPORTED;
    }
    if (realpath(dir, root) == NULL) {
        (void)snprintf(why, why_cap, "lora_dir %s: %s", dir, strerror(errno));
        return ERR_NOT_FOUND;
    }
    if (path[0] == '/')
        (void)snprintf(joined, sizeof joined, "%s", path);
    else if (snprintf(joined, sizeof joined, "%s/%s", root, path) >= (int)sizeof joined)
        joined[0] = '\0'; /* does not exist */
    len = strlen(root);
    if (realpath(joined, real) == NULL || strncmp(real, root, len) != 0 ||
        (real[len] != '/' && root[len - 1] != '/')) {
        (void)snprintf(why, why_cap,
                       "No adapter found for %s: there is no such folder below "
                       "lora_dir",
                       path);
        return ERR_NOT_FOUND;
    }
    if (strlen(real) >= WIRE_ADAPTER_PATH || !lora_is_clean(real, WIRE_ADAPTER_PATH)) {
        (void)snprintf(why, why_cap,
                       "the path of the folder is too long or has control characters");
        return ERR_INVALID;
    }
    memcpy(out, real, strlen(real) + 1);
    return ERR_OK;
}

/* May the name be loaded? */
static int lora_check_name(struct engine *e, const char *name, char *why, size_t why_cap)
{
    struct lora *l = &e->lora;

    if (lora_find_name(l, name) != NULL) {
        (void)snprintf(why, why_cap, "The lora adapter '%s' has already been loaded.", name);
        return ERR_INVALID;
    }
    if (names_have(&e->names, name, strlen(name)) && !e->names.any) {
        (void)snprintf(why, why_cap, "'%s' is a name of the model", name);
        return ERR_INVALID;
    }
    if (l->n_names == WIRE_ADAPTERS_MAX) {
        (void)snprintf(why, why_cap, "there are %d adapters: unload one first", WIRE_ADAPTERS_MAX);
        return ERR_LIMIT;
    }
    return ERR_OK;
}

/* The first order is to load: ask the reader, or answer at once. */
static void lora_start_load(struct engine *e)
{
    struct lora *l = &e->lora;
    const struct wire_adapter *what = &l->orders[0].what;
    char path[WIRE_ADAPTER_PATH], why[ADAPTER_WHY_CAP];
    int rc = lora_check_name(e, what->name, why, sizeof why);

    if (rc == ERR_OK)
        rc = lora_resolve(e, what->path, path, why, sizeof why);
    if (rc == ERR_OK)
        lora_ask_reader(l, path, NULL);
    else
        lora_answer(e, rc, why);
}

/* The folder of the first order was read. */
static void lora_finish_load(struct engine *e)
{
    struct lora *l = &e->lora;
    struct lora_job *job = &l->job;
    struct lora_adapter *a = NULL;
    int rc = job->rc;

    if (rc == ERR_OK && (a = lora_take(l, job->result, job->path)) == NULL) {
        rc = ERR_LIMIT;
        (void)snprintf(job->why, sizeof job->why, "too many adapters are in use");
    }
    if (rc == ERR_OK) {
        lora_add_name(l, l->orders[0].what.name, a, true);
        lora_publish(l);
        lora_write_file(l);
        log_info("engine: LoRA adapter %s: %s, rank %d, %.1f MiB", l->orders[0].what.name, a->path,
                 adapter_rank(a->host), (double)adapter_bytes(a->host) / 0x1p20);
    }
    lora_answer(e, rc, job->why);
}

static void lora_unload(struct engine *e)
{
    struct lora *l = &e->lora;
    struct lora_name *name = lora_find_name(l, l->orders[0].what.name);
    struct lora_adapter *a;
    char why[ADAPTER_WHY_CAP];

    if (name == NULL) {
        (void)snprintf(why, sizeof why, "The lora adapter '%s' cannot be found.",
                       l->orders[0].what.name);
        lora_answer(e, ERR_NOT_FOUND, why);
        return;
    }
    a = name->adapter;
    a->n_names--;
    l->n_names--;
    memmove(name, name + 1, (size_t)(l->names + l->n_names - name) * sizeof *name);
    lora_publish(l);
    lora_write_file(l);
    log_info("engine: LoRA adapter %s is unloaded; %d requests have it", l->orders[0].what.name,
             a->n_seqs);
    lora_drop(l, a);
    lora_answer(e, ERR_OK, "");
}

/* A front's texts may have no end. */
int lora_ask(struct engine *e, struct engine_lane *lane, uint32_t slot,
             const struct wire_request *request)
{
    struct lora *l = &e->lora;
    const struct wire_adapter *what = &request->change;

    if (e->draining)
        return ERR_DRAINING;
    if (what->action > WIRE_UNLOAD_ADAPTER || !lora_is_clean(what->name, sizeof what->name) ||
        (what->action == WIRE_LOAD_ADAPTER && !lora_is_clean(what->path, sizeof what->path)))
        return ERR_INVALID;
    if (!l->is_on) {
        lora_tell(e, &lane->lane, slot, ERR_UNSUPPORTED,
                  "this server has no LoRA adapters: set lora_dir, lora_modules or enable_lora");
        return ERR_OK;
    }
    if (l->n_orders == LORA_ORDERS)
        return ERR_OVERLOADED;
    l->orders[l->n_orders++] =
        (struct lora_order){.lane_idx = (int)(lane - e->lanes), .slot = slot, .what = *what};
    return ERR_OK;
}

/* The commands are carried out all the same. */
void lora_forget_lane(struct engine *e, const struct engine_lane *lane)
{
    for (int i = 0; i < e->lora.n_orders; i++) {
        if (e->lora.orders[i].lane_idx == lane - e->lanes)
            e->lora.orders[i].lane_idx = -1;
    }
}

/* An adapter was read again: it must be what it was. */
static void lora_finish_again(struct lora *l)
{
    struct lora_adapter *a = l->job.again;

    l->job.again = NULL;
    if (l->job.rc == ERR_OK) {
        const struct hash digest = adapter_digest(l->job.result);

        if (memcmp(&digest, &a->digest, sizeof digest) != 0) {
            adapter_close(l->job.result);
            l->job.rc = ERR_NO_ADAPTER;
            (void)snprintf(l->job.why, sizeof l->job.why,
                           "the folder has changed since it was loaded: load it again");
        }
    }
    if (l->job.rc != ERR_OK) {
        a->failed = l->job.rc;
        log_error("engine: LoRA adapter in %s: %s", a->path, l->job.why);
        return;
    }
    a->host = l->job.result;
    a->used = ++l->n_used;
    lora_trim_hosts(l, a);
}

void lora_pass(struct engine *e)
{
    struct lora *l = &e->lora;
    uint64_t count;

    if (!l->is_on)
        return;
    if (lora_job_state(l) != LORA_IDLE)
        e->progress_us = e->now_us; /* a slow disk is not a loop that hangs */
    if (lora_job_state(l) == LORA_DONE) {
        (void)!read(l->event_fd, &count, sizeof count); /* non-blocking: empties it */
        lora_end_job(l);
        if (l->job.again != NULL)
            lora_finish_again(l);
        else
            lora_finish_load(e);
    }
    /* Each round answers an order, or leaves it to the reader. */
    while (l->n_orders > 0 && lora_job_state(l) == LORA_IDLE) {
        if (l->orders[0].what.action == WIRE_UNLOAD_ADAPTER)
            lora_unload(e);
        else
            lora_start_load(e);
    }
}

/* --- sequences and slots ---------------------------------------------------------------- */

struct hash lora_root(const struct engine *e, const struct wire_request *request)
{
    const struct hash root = prefix_root(&e->shape->fingerprint, request->salt);

    if (memcmp(request->adapter, none, sizeof none) == 0)
        return root;
    return prefix_adapted(&root, request->adapter);
}

/* One without a name is being unloaded. */
int lora_begin(struct engine *e, struct seq *seq)
{
    struct lora_adapter *a;

    seq->adapter = NULL;
    seq->awaits_adapter = false;
    if (memcmp(seq->request.adapter, none, sizeof none) == 0)
        return ERR_OK;
    a = lora_find(&e->lora, seq->request.adapter);
    if (a == NULL || a->n_names == 0)
        return ERR_NO_ADAPTER;
    a->n_seqs++;
    a->used = ++e->lora.n_used;
    a->failed = ERR_OK;
    seq->adapter = a;
    seq->awaits_adapter = true; /* until lora_prepare() */
    return ERR_OK;
}

void lora_end(struct engine *e, struct seq *seq)
{
    struct lora_adapter *a = seq->adapter;

    if (a == NULL)
        return;
    seq->adapter = NULL;
    must(a->n_seqs > 0);
    a->n_seqs--;
    lora_drop(&e->lora, a);
}

int lora_slot_of(const struct seq *seq)
{
    return seq->adapter == NULL ? -1 : seq->adapter->slot;
}

/* Count what the sequences need, in one walk. */
static void lora_count(struct engine *e)
{
    struct lora *l = &e->lora;

    for (int i = 0; i < LORA_ADAPTERS_MAX; i++) {
        l->adapters[i].n_running = 0;
        l->adapters[i].oldest = UINT64_MAX;
    }
    for (int i = 0; i < e->pool.n; i++) {
        const struct seq *seq = &e->pool.seqs[i];

        if (seq->state == SEQ_FREE || seq->adapter == NULL)
            continue;
        seq->adapter->n_running += seq->state == SEQ_RUNNING;
        if (seq->state == SEQ_WAITING && seq->arrival < seq->adapter->oldest)
            seq->adapter->oldest = seq->arrival;
    }
}

/* n_running is of the last lora_prepare(), n_seqs of now. */
void lora_gauges(struct lora *l)
{
    uint64_t running = 0, waiting = 0;

    if (!l->is_on)
        return;
    for (int i = 0; i < l->n_names; i++) {
        const struct lora_adapter *a = l->names[i].adapter;

        if (a->n_running > 0 && a->n_seqs > 0)
            running |= (uint64_t)1 << i;
        if (a->n_seqs > a->n_running)
            waiting |= (uint64_t)1 << i;
    }
    atomic_store_explicit(&l->table->running, running, memory_order_relaxed);
    atomic_store_explicit(&l->table->waiting, waiting, memory_order_relaxed);
}

/* The adapter without slot whose oldest waiting sequence came after `after`, the first of them. */
static struct lora_adapter *lora_next(struct lora *l, uint64_t after, bool is_first)
{
    struct lora_adapter *next = NULL;

    for (int i = 0; i < LORA_ADAPTERS_MAX; i++) {
        struct lora_adapter *a = &l->adapters[i];

        if (!a->is_used || a->slot >= 0 || a->oldest == UINT64_MAX || a->failed != ERR_OK ||
            (!is_first && a->oldest <= after))
            continue;
        if (next == NULL || a->oldest < next->oldest)
            next = a;
    }
    return next;
}

/* A slot for an adapter whose oldest sequence arrived then: a free one, or that of the adapter that
 * was used least recently, among those that do not run and whose sequences came later. -1: none. */
static int lora_free_slot(const struct lora *l, uint64_t arrival)
{
    int best = -1;

    for (int slot = 0; slot < l->n_slots; slot++) {
        const struct lora_adapter *a = l->in_slot[slot];

        if (a == NULL)
            return slot;
        if (a->n_running == 0 && a->oldest > arrival &&
            (best < 0 || a->used < l->in_slot[best]->used))
            best = slot;
    }
    return best;
}

/* Put an adapter of host memory into a slot. */
static int lora_place(struct engine *e, struct lora_adapter *a, int slot)
{
    struct lora *l = &e->lora;
    int rc = model_adapter_place(e->model, slot, a->host);

    if (rc != ERR_OK)
        return rc;
    if (l->in_slot[slot] != NULL)
        l->in_slot[slot]->slot = -1;
    l->in_slot[slot] = a;
    a->slot = slot;
    a->used = ++l->n_used;
    return ERR_OK;
}

/* Give slots, the longest wait first. What is not in host memory is asked for and waits. */
static int lora_give_slots(struct engine *e)
{
    struct lora *l = &e->lora;
    struct lora_adapter *a;
    uint64_t after = 0;
    bool is_first = true;
    int rc = ERR_OK;

    l->since = UINT64_MAX;
    while (rc == ERR_OK && (a = lora_next(l, after, is_first)) != NULL) { /* `after` grows */
        int slot = lora_free_slot(l, a->oldest);

        after = a->oldest;
        is_first = false;
        if (a->host == NULL && lora_job_state(l) == LORA_IDLE)
            lora_ask_reader(l, a->path, a);
        if (a->host != NULL && slot >= 0)
            rc = lora_place(e, a, slot);
        else if (a->oldest < l->since)
            l->since = a->oldest;
    }
    return rc;
}

/* Adapters that lost their last name or sequence while they were read. */
static void lora_drop_unused(struct lora *l)
{
    for (int i = 0; i < LORA_ADAPTERS_MAX; i++) {
        if (l->adapters[i].is_used)
            lora_drop(l, &l->adapters[i]);
    }
}

/* A sequence that came long after one that waits for a slot waits too, so that those that have a
 * slot end some time. */
int lora_prepare(struct engine *e)
{
    struct lora *l = &e->lora;
    int rc;

    if (!l->is_on)
        return ERR_OK;
    lora_drop_unused(l);
    lora_count(e);
    if ((rc = lora_give_slots(e)) != ERR_OK)
        return rc;
    for (int i = 0; i < e->pool.n; i++) {
        struct seq *seq = &e->pool.seqs[i];

        if (seq->state != SEQ_WAITING || seq->adapter == NULL)
            continue;
        seq->awaits_adapter =
            seq->adapter->slot < 0 ||
            (l->since != UINT64_MAX && seq->arrival > l->since + (uint64_t)e->shape->max_num_seqs);
        if (seq->adapter->failed != ERR_OK)
            publish_finish(e, seq, WIRE_FIN_ERROR, seq->adapter->failed);
    }
    return ERR_OK;
}

/* --- the start -------------------------------------------------------------------------- */

/* Load an adapter before the engine serves. */
static int lora_load_now(struct engine *e, const char *name, const char *path, bool is_kept)
{
    struct lora *l = &e->lora;
    char why[ADAPTER_WHY_CAP] = "";
    struct adapter *host = NULL;
    struct lora_adapter *a;
    int rc = ERR_INVALID;

    if (!lora_is_clean(name, WIRE_ADAPTER_NAME) || !lora_is_clean(path, WIRE_ADAPTER_PATH))
        (void)snprintf(why, sizeof why,
                       "its name or path is empty, too long, or has control "
                       "characters");
    else
        rc = lora_check_name(e, name, why, sizeof why);
    if (rc == ERR_OK)
        rc = lora_read(e, path, &host, why, sizeof why);
    if (rc == ERR_OK && (a = lora_take(l, host, path)) == NULL)
        rc = ERR_LIMIT;
    if (rc != ERR_OK) {
        log_error("engine: LoRA adapter %s=%s: %s", name, path, why);
        return rc;
    }
    lora_add_name(l, name, a, is_kept);
    log_info("engine: LoRA adapter %s: %s, rank %d, %.1f MiB", name, path, adapter_rank(host),
             (double)adapter_bytes(host) / 0x1p20);
    return ERR_OK;
}

/* NAME=FOLDER, separated by commas or blanks. */
static int lora_load_pairs(struct engine *e, const char *list)
{
    static const char between[] = ", \t\n";
    int rc = ERR_OK;

    for (list += strspn(list, between); *list != '\0' && rc == ERR_OK;
         list += strspn(list, between)) {
        size_t len = strcspn(list, between);
        const char *equals = memchr(list, '=', len);
        char name[WIRE_ADAPTER_NAME + 1], path[WIRE_ADAPTER_PATH + 1];

        if (equals == NULL) {
            log_error("engine: lora_modules: \"%.*s\" is not NAME=FOLDER", (int)len, list);
            return ERR_INVALID;
        }
        (void)snprintf(name, sizeof name, "%.*s", (int)(equals - list), list);
        (void)snprintf(path, sizeof path, "%.*s", (int)(list + len - equals - 1), equals + 1);
        rc = lora_load_now(e, name, path, false);
        list += len;
    }
    return rc;
}

/* JSON objects with name and path: one, several with or without commas, or a list. */
static int lora_load_objects(struct engine *e, const char *list)
{
    struct arena arena = {.limit_bytes = (size_t)16 << 20};
    const struct json *all = NULL;
    struct buf text = {0};
    char why[200] = "";
    int rc;

    if (list[0] == '[')
        buf_add_text(&text, list);
    else
        buf_printf(&text, "[%s]", list);
    rc = text.failed ? ERR_NO_MEMORY
                     : json_parse(&all, &arena, buf_text(&text), text.len, why, sizeof why);
    if (rc != ERR_OK)
        log_error("engine: lora_modules: %s", why);
    for (uint32_t i = 0; rc == ERR_OK && i < all->n; i++) {
        const char *name = json_get_text(&all->items[i], "name", NULL);
        const char *path = json_get_text(&all->items[i], "path", NULL);

        if (name == NULL || path == NULL) {
            log_error("engine: lora_modules: an object needs name and path");
            rc = ERR_INVALID;
        } else {
            rc = lora_load_now(e, name, path, false);
        }
    }
    buf_fini(&text);
    arena_reset(&arena);
    return rc;
}

/* The names that the API had loaded. One that cannot be loaded any more is left out. */
static void lora_load_file(struct engine *e)
{
    char line[WIRE_ADAPTER_NAME + WIRE_ADAPTER_PATH + 2];
    FILE *f = fopen(e->lora.file, "re");

    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *path = strchr(line, '\t');

        line[strcspn(line, "\n")] = '\0';
        if (path == NULL)
            continue;
        *path++ = '\0';
        if (lora_find_name(&e->lora, line) != NULL) /* the settings have it, too */
            continue;
        (void)!lora_load_now(e, line, path, true); /* it is logged */
    }
    if (f != NULL)
        (void)fclose(f); /* was only read */
}

static int lora_start_thread(struct engine *e)
{
    struct lora *l = &e->lora;

    l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)pthread_mutex_init(&l->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&l->asked, NULL);
    l->has_thread = l->event_fd != -1 && pthread_create(&l->thread, NULL, lora_reader, e) == 0;
    if (l->has_thread)
        return ERR_OK;
    log_error("engine: the thread that reads adapters cannot be started: %s", strerror(errno));
    return ERR_NO_MEMORY;
}

int lora_open(struct engine *e, struct wire_adapters *table)
{
    const struct settings *settings = &e->settings;
    const char *modules = settings->lora_modules + strspn(settings->lora_modules, " \t");
    struct lora *l = &e->lora;
    int rc = ERR_OK;

    l->event_fd = -1;
    l->table = table;
    l->is_on = e->shape->n_adapters > 0;
    if (!l->is_on)
        return ERR_OK;
    l->n_slots = e->shape->n_adapters;
    atomic_store_explicit(&table->n_slots, (uint32_t)l->n_slots, memory_order_relaxed);
    l->n_hosts = settings->max_cpu_loras > 0 ? settings->max_cpu_loras : l->n_slots;
    l->rank_max = settings->max_lora_rank;
    (void)snprintf(l->file, sizeof l->file, "%s.adapters", settings->engine_socket);
    rc = modules[0] == '{' || modules[0] == '[' ? lora_load_objects(e, modules)
                                                : lora_load_pairs(e, modules);
    if (rc != ERR_OK)
        return rc;
    lora_load_file(e);
    lora_publish(l);
    return lora_start_thread(e);
}

void lora_close(struct engine *e)
{
    struct lora *l = &e->lora;

    if (!l->has_thread)
        return;
    (void)pthread_mutex_lock(&l->lock);
    l->stops = true;
    (void)pthread_cond_signal(&l->asked);
    (void)pthread_mutex_unlock(&l->lock);
    (void)pthread_join(l->thread, NULL);
    l->has_thread = false;
}
