/* SPDX-License-Identifier: Apache-2.0
 *
 * Automata, requests and masks of guide.h. A front is hostile: its images are sealed, mapped and
 * checked as a whole before anything walks them, and the cost of a walk is bounded
 * (grammar/walk.h). A place that a sequence uses cannot be filled again. */
#include "engine/guide.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "engine/think.h"
#include "ipc/attach.h"

#define GUIDE_THREADS_MAX 8
#define GUIDE_CACHE_BYTES ((size_t)4 << 20) /* at least; only touched pages take memory */
/* So many masks of the whole vocabulary fit into the cache. */
#define GUIDE_CACHE_MASKS 256

/* The scratch memory of one thread that walks. */
struct walk_work *guide_work(const struct guide *g)
{
    struct walk_work *work = mem_zalloc(walk_work_bytes((uint32_t)g->n_vocab));

    if (work != NULL)
        walk_work_init(work, (uint32_t)g->n_vocab);
    return work;
}

/* Half of the cores make masks: the other half belongs to the loop and the device's threads. */
int guide_init(struct guide *g, const struct guide_shape *s)
{
    int n_threads = pool_cores() / 2, rc;
    size_t width;

    *g = (struct guide){.n_vocab = s->n_vocab,
                        .n_words = (s->n_vocab + 31) / 32,
                        .n_eos = s->n_eos,
                        .waits = s->waits,
                        .eos = s->eos,
                        .masks = s->masks};
    g->jobs = mem_zalloc_array((size_t)s->max_num_seqs, sizeof *g->jobs);
    g->firsts = mem_zalloc_array((size_t)s->max_num_seqs, sizeof *g->firsts);
    if (n_threads < 1)
        n_threads = 1;
    if (n_threads > GUIDE_THREADS_MAX)
        n_threads = GUIDE_THREADS_MAX;
    rc = pool_open(&g->pool, n_threads);
    if (rc != ERR_OK)
        return rc;
    width = (size_t)pool_width(g->pool);
    g->works = mem_zalloc_array(width, sizeof *g->works);
    g->scratch = mem_zalloc_array(width, sizeof *g->scratch);
    g->ahead = mem_zalloc_array(width, sizeof(struct walk *));
    if (g->jobs == NULL || g->firsts == NULL || g->works == NULL || g->scratch == NULL ||
        g->ahead == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < width; i++) {
        g->works[i] = guide_work(g);
        g->scratch[i] = mem_zalloc_array((size_t)g->n_words, sizeof(uint32_t));
        g->ahead[i] = mem_zalloc(sizeof(struct walk));
        if (g->works[i] == NULL || g->scratch[i] == NULL || g->ahead[i] == NULL)
            return ERR_NO_MEMORY;
    }
    return guide_late_init(g);
}

/* Places for automata; a place is filled when a front uploads to it. */
int guide_lane_init(struct guide_lane *l)
{
    l->automata = mem_zalloc_array(WIRE_AUTOMATA_MAX, sizeof *l->automata);
    if (l->automata == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* --- uploads ---------------------------------------------------------------------------------- */

/* NULL is allowed: an automaton may have no cache. */
static void guide_unmap(const void *bytes, size_t len)
{
    if (bytes != NULL)
        (void)munmap((void *)(uintptr_t)bytes, len);
}

/* Unmap a place. must(): a sequence that still uses it would read unmapped memory. */
static void guide_free_place(struct guide_automaton *automaton)
{
    must(automaton->n_users == 0);
    guide_unmap(automaton->a, automaton->bytes);
    guide_unmap(automaton->cache, automaton->cache_bytes);
    *automaton = (struct guide_automaton){0};
}

/* Late masks are stopped first, because their threads read the automata that are unmapped next. */
void guide_lane_drop(struct guide *g, struct guide_lane *l)
{
    guide_late_drop(g, l);
    for (int i = 0; i < WIRE_AUTOMATA_MAX; i++)
        guide_free_place(&l->automata[i]);
    guide_unmap(l->vocab, l->vocab_bytes);
    l->vocab = NULL;
}

/* As attach_map_upload(), for an upload whose descriptor may have been lost on its way. */
static int guide_map(const struct wire_upload *upload, int uploaded, const void **bytes)
{
    if (uploaded == -1)
        return ERR_NO_MEMORY;
    return attach_map_upload(upload, uploaded, bytes);
}

/* The vocabulary comes once per front. It must not have more tokens than the model, or a mask would
 * be too short for it. */
static int guide_take_vocabulary(const struct guide *g, struct guide_lane *l,
                                 const struct wire_upload *upload, int uploaded)
{
    const void *bytes = NULL;
    int rc = guide_map(upload, uploaded, &bytes);

    if (rc != ERR_OK)
        return rc;
    /* A front repeats it when it cannot know which of its uploads was lost. */
    if (l->vocab != NULL) {
        guide_unmap(bytes, (size_t)upload->bytes);
        return ERR_OK;
    }
    if (trie_check(bytes, (size_t)upload->bytes) != ERR_OK ||
        ((const struct token_trie *)bytes)->n_vocab > (uint32_t)g->n_vocab) {
        guide_unmap(bytes, (size_t)upload->bytes);
        return ERR_CORRUPT;
    }
    l->vocab = bytes;
    l->vocab_bytes = (size_t)upload->bytes;
    return ERR_OK;
}

/* Map an automaton and check all of it, so that a walk needs no check of its own. */
static int guide_map_automaton(const struct guide_lane *l, const struct wire_upload *upload,
                               int uploaded, const void **bytes)
{
    const void *p = NULL;
    int rc = guide_map(upload, uploaded, &p);

    if (rc == ERR_OK && automaton_check(p, (size_t)upload->bytes) != ERR_OK)
        rc = ERR_CORRUPT;
    if (rc == ERR_OK && l->vocab == NULL)
        rc = ERR_NO_MEMORY; /* the vocabulary was lost before it */
    if (rc == ERR_OK)
        *bytes = p;
    else
        guide_unmap(p, (size_t)upload->bytes);
    return rc;
}

/* Memory for the results of walks, which many sequences share; without it masks take longer. */
static void guide_map_cache(struct guide_automaton *automaton)
{
    size_t bytes = walk_cache_bytes(automaton->vocab->n_vocab, GUIDE_CACHE_MASKS);
    void *cache;

    if (bytes < GUIDE_CACHE_BYTES)
        bytes = GUIDE_CACHE_BYTES;
    cache = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (cache == MAP_FAILED)
        return;
    walk_cache_init(cache, bytes);
    automaton->cache = cache;
    automaton->cache_bytes = bytes;
}

/* A failed upload empties the place, so that a request cannot use the automaton that was there
 * before under the new one's number. */
static int guide_take_automaton(struct guide_lane *l, const struct wire_upload *upload,
                                int uploaded)
{
    struct guide_automaton *automaton = &l->automata[upload->idx];
    const void *bytes = NULL;
    int rc;

    if (automaton->n_users > 0)
        rc = attach_refuse_upload(uploaded);
    else
        rc = guide_map_automaton(l, upload, uploaded, &bytes);
    if (rc == ERR_CORRUPT)
        return rc;
    /* First, so that no request takes the place's last content for the lost one. */
    guide_free_place(automaton);
    automaton->lost = rc != ERR_OK;
    if (automaton->lost)
        return rc;
    *automaton =
        (struct guide_automaton){.a = bytes, .bytes = (size_t)upload->bytes, .vocab = l->vocab};
    guide_map_cache(automaton);
    return ERR_OK;
}

/* Any other kind is a broken front; the descriptor must be closed in every case. */
int guide_take_upload(const struct guide *g, struct guide_lane *l, const struct wire_upload *upload,
                      int uploaded)
{
    if (upload->kind == WIRE_VOCABULARY)
        return guide_take_vocabulary(g, l, upload, uploaded);
    if (upload->kind == WIRE_AUTOMATON && upload->idx < WIRE_AUTOMATA_MAX)
        return guide_take_automaton(l, upload, uploaded);
    return attach_refuse_upload(uploaded);
}

/* --- a request -------------------------------------------------------------------------- */

/* Bad words are lists of ids, each after its length: 2 17 4 1 99 is the two lists {17, 4} and
 * {99}. */
static bool guide_bad_words_hold(const int32_t *words, uint32_t n, int n_vocab)
{
    uint32_t at = 0;

    while (at < n) {
        int32_t len = words[at++];

        if (len < 1 || (uint32_t)len > n - at)
            return false;
        for (int32_t i = 0; i < len; i++, at++) {
            if (words[at] < 0 || words[at] >= n_vocab)
                return false;
        }
    }
    return true;
}

/* memcpy(), but with no bytes either pointer may be NULL. */
static void guide_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0)
        memcpy(dst, src, bytes);
}

/* The constraints follow the request's tokens in one array of words:
 *
 *   allowed  n_allowed words, one bit per token
 *   biases   n_biases pairs {id, float}, by rising id
 *   bad      n_bad words, lists with their lengths
 *   asked    n_asked ids
 *   stops    n_stops words, one bit per token */
int guide_begin(const struct guide *g, struct guide_lane *l, struct seq *seq, const int32_t *words)
{
    const struct wire_generate *generate = &seq->request.generate;
    const int32_t *biases = words + generate->n_allowed;
    int rc;

    if ((generate->n_allowed != 0 && generate->n_allowed != (uint32_t)g->n_words) ||
        generate->n_biases > BATCH_BIASES_MAX || generate->n_bad > WIRE_BAD_WORDS_MAX ||
        generate->automaton > WIRE_AUTOMATA_MAX ||
        (generate->automaton > 0 && l->automata[generate->automaton - 1].a == NULL &&
         !l->automata[generate->automaton - 1].lost) ||
        !guide_bad_words_hold(biases + 2 * (size_t)generate->n_biases, generate->n_bad, g->n_vocab))
        return ERR_INVALID;
    for (uint32_t i = 0; i < generate->n_biases; i++) {
        struct batch_bias *bias = &seq->biases[i];

        memcpy(bias, biases + 2 * (size_t)i, sizeof *bias);
        if (bias->id < 0 || bias->id >= g->n_vocab || !isfinite(bias->value) ||
            (i > 0 && bias->id <= seq->biases[i - 1].id))
            return ERR_INVALID;
    }
    guide_copy(seq->allowed, words, generate->n_allowed * sizeof *seq->allowed);
    guide_copy(seq->bad, biases + 2 * (size_t)generate->n_biases,
               generate->n_bad * sizeof *seq->bad);
    guide_copy(seq->asked, biases + 2 * (size_t)generate->n_biases + generate->n_bad,
               generate->n_asked * sizeof *seq->asked);
    guide_copy(seq->stops,
               biases + 2 * (size_t)generate->n_biases + generate->n_bad + generate->n_asked,
               generate->n_stops * sizeof *seq->stops);
    for (uint32_t i = 0; i < generate->n_asked; i++) {
        if (seq->asked[i] < 0 || seq->asked[i] >= g->n_vocab)
            return ERR_INVALID;
    }
    /* Only now are references taken, so that an error above leaves seq as it was. */
    rc = think_begin(seq, l->vocab, g->n_vocab);
    if (generate->automaton == 0 || rc != ERR_OK)
        return rc;
    if (l->automata[generate->automaton - 1].lost)
        return ERR_NO_FORM;
    if (l->automata[generate->automaton - 1].refused)
        return ERR_LIMIT;
    seq->automaton = &l->automata[generate->automaton - 1];
    seq->automaton->n_users++;
    seq->n_walked = seq->n_prompt;
    walk_init(seq->walk, seq->automaton->a);
    return ERR_OK;
}

/* A late mask of seq goes on without it and frees its own place later. */
void guide_end(struct seq *seq)
{
    if (seq->automaton != NULL)
        seq->automaton->n_users--;
    seq->automaton = NULL;
    if (seq->late != NULL)
        seq->late->q = NULL;
    seq->late = NULL;
}

/* Without an automaton most sequences have no mask at all, and their rows are sampled together with
 * the step. */
bool guide_has_mask(struct seq *seq)
{
    think_follow(seq);
    return think_may_force(seq, seq->n_pending) || seq->automaton != NULL ||
           seq->request.generate.n_allowed > 0 || seq->request.generate.n_bad > 0 ||
           seq_bans_stops(seq, seq->n_pending);
}

/* Without an automaton the stop ids decide (publish_is_end()). */
bool guide_has_ended(const struct guide *g, const struct seq *seq, int32_t id)
{
    for (int i = 0; i < g->n_eos && seq->automaton != NULL; i++) {
        if (g->eos[i] == id)
            return true;
    }
    return false;
}

/* --- masks ------------------------------------------------------------------------------ */

/* Bit id of a mask allows token id; masks are words of 32 bits. */
static void guide_ban(uint32_t *mask, int32_t id)
{
    mask[id / 32] &= ~(UINT32_C(1) << id % 32);
}

/* Forbid the last id of each bad word whose other ids are the end of the output of n_tokens. */
static void guide_ban_words(const struct seq *seq, int n_tokens, uint32_t *mask)
{
    for (uint32_t at = 0; at < seq->request.generate.n_bad;) {
        int32_t before = seq->bad[at] - 1;
        const int32_t *ids = &seq->bad[at + 1];

        if (n_tokens - seq->n_prompt >= before &&
            memcmp(seq->tokens + n_tokens - before, ids, (size_t)before * sizeof *ids) == 0)
            guide_ban(mask, ids[before]);
        at += (uint32_t)before + 2;
    }
}

/* Before min_tokens, forbid the end-of-sequence tokens; but if nothing else is allowed, they are,
 * because the form is complete and leaves no other token. */
static void guide_ban_ends(const struct guide *g, const struct seq *seq, int n_tokens,
                           uint32_t *mask)
{
    uint32_t left = 0, ends = 0;

    if (n_tokens - seq->n_prompt >= (int)seq->request.generate.min_tokens)
        return;
    for (int i = 0; i < g->n_eos; i++) {
        ends |= mask[g->eos[i] / 32] >> g->eos[i] % 32 & 1;
        guide_ban(mask, g->eos[i]);
    }
    for (int i = 0; i < g->n_words; i++)
        left |= mask[i];
    for (int i = 0; i < g->n_eos && left == 0 && ends != 0; i++)
        mask[g->eos[i] / 32] |= UINT32_C(1) << g->eos[i] % 32;
}

/* The elementary steps that seq's mask may take now. share: 1; 2 for masks behind drafts, which
 * have half of each bound. */
static uint32_t guide_budget(struct guide *g, const struct seq *seq, uint32_t share)
{
    uint32_t pass = GUIDE_PASS_STEPS * (uint32_t)pool_width(g->pool) / share;
    uint32_t of_pass = atomic_load_explicit(&g->pass_steps, memory_order_relaxed);
    uint32_t of_tenant =
        atomic_load_explicit(&g->tenant_steps[seq->tenant_idx], memory_order_relaxed);

    if (g->waits)
        return UINT32_MAX;
    if (of_pass >= pass || of_tenant >= GUIDE_TENANT_STEPS / share)
        return 0;
    return GUIDE_MASK_STEPS / share;
}

/* Counted after the work, so the last mask of a step may exceed the bound by its own length. */
static void guide_spend(struct guide *g, const struct seq *seq, uint32_t steps)
{
    (void)atomic_fetch_add_explicit(&g->pass_steps, steps, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&g->tenant_steps[seq->tenant_idx], steps, memory_order_relaxed);
}

/* Walk over the tokens that seq has got since, then make the mask of the next one. ERR_AGAIN: it
 * does not fit into the step's bounds. */
static int guide_walk(struct guide *g, struct seq *seq, struct walk_work *work, uint32_t *mask)
{
    const struct guide_automaton *automaton = seq->automaton;
    uint32_t budget = guide_budget(g, seq, 1), steps = 0;
    int rc = ERR_OK;

    /* The walk keeps the position that it has reached, so a later call continues there. */
    while (rc == ERR_OK && seq->n_walked < seq->n_tokens && steps < budget) {
        rc = walk_accept(work, automaton->a, automaton->vocab, seq->walk,
                         seq->tokens[seq->n_walked]);
        steps += walk_steps(work);
        seq->n_walked += rc == ERR_OK;
    }
    if (rc == ERR_OK && seq->n_walked == seq->n_tokens && steps < budget) {
        const struct walk_language language = {automaton->a, automaton->vocab, automaton->cache};

        rc = walk_mask_within(work, &language, seq->walk, budget - steps, mask);
        steps += walk_steps(work);
    } else if (rc == ERR_OK) {
        rc = ERR_AGAIN;
    }
    guide_spend(g, seq, steps);
    if (rc == ERR_INVALID)
        return ERR_NO_TOKEN;
    return rc;
}

/* The mask behind a draft, whose predecessor's mask was just made: a copy of the walk follows the
 * drafts. Errors as guide_walk(). */
static int guide_walk_draft(struct guide *g, const struct guide_job *job, int worker)
{
    struct seq *seq = job->q;
    const struct guide_automaton *automaton = seq->automaton;
    const struct walk_language language = {automaton->a, automaton->vocab, automaton->cache};
    uint32_t budget = guide_budget(g, seq, 2), steps;
    struct walk *ahead = g->ahead[worker];
    int rc;

    if (budget == 0 || seq->n_walked != seq->n_tokens)
        return ERR_AGAIN;
    if (job->n_drafts == 1)
        walk_copy(ahead, seq->walk);
    rc = walk_accept(g->works[worker], automaton->a, automaton->vocab, ahead,
                     seq->tokens[seq->n_tokens + job->n_drafts - 1]);
    steps = walk_steps(g->works[worker]);
    if (rc == ERR_OK && steps >= budget)
        rc = ERR_AGAIN;
    if (rc == ERR_OK) {
        rc = walk_mask_within(g->works[worker], &language, ahead, budget - steps,
                              g->scratch[worker]);
        steps += walk_steps(g->works[worker]);
    }
    guide_spend(g, seq, steps);
    return rc == ERR_INVALID ? ERR_NO_TOKEN : rc;
}

/* And the automaton's mask into the job's: a finished late one, or one that is made now. */
static int guide_mask(struct guide *g, const struct guide_job *job, int worker)
{
    struct seq *seq = job->q;
    const uint32_t *mask = seq->made;
    int n_words = (int)seq->automaton->vocab->n_words, rc = ERR_OK;

    if (seq->automaton->refused)
        return ERR_LIMIT;
    if (seq->late != NULL)
        return ERR_AGAIN; /* seq was preempted meanwhile and is back before its late mask is
                           * ready */
    if (job->n_drafts > 0 || seq->n_made != seq->n_tokens) {
        rc = job->n_drafts > 0 ? guide_walk_draft(g, job, worker)
                               : guide_walk(g, seq, g->works[worker], g->scratch[worker]);
        mask = g->scratch[worker];
    }
    for (int i = 0; i < g->n_words && rc == ERR_OK; i++)
        job->mask[i] &= i < n_words ? mask[i] : 0;
    return rc;
}

/* The end tag of a reasoning that has reached its budget is forced, whatever else is allowed. The
 * automaton catches up when the next mask is made. A sequence has no drafts when that is near. */
static bool guide_forces(struct guide *g, struct guide_job *job)
{
    int32_t id;

    if (job->n_drafts > 0)
        return false;
    think_follow(job->q);
    id = think_forced(job->q);
    if (id < 0)
        return false;
    memset(job->mask, 0, (size_t)g->n_words * sizeof *job->mask);
    job->mask[id / 32] |= UINT32_C(1) << id % 32;
    job->rc = ERR_OK;
    return true;
}

/* Make the mask of one job, on any worker: all tokens but those that a constraint forbids. rc: of
 * the job of the draft before, which seq's later ones follow. */
static void guide_make(struct guide *guide, struct guide_job *job, int worker, int rc)
{
    const struct seq *seq = job->q;
    size_t bytes = (size_t)guide->n_words * sizeof *job->mask;
    int n_tokens = seq->n_tokens + job->n_drafts;
    uint32_t left = 0;

    if (guide_forces(guide, job))
        return;
    memset(job->mask, 0xff, bytes);
    if (guide->n_vocab % 32 != 0)
        job->mask[guide->n_words - 1] = (UINT32_C(1) << guide->n_vocab % 32) - 1;
    for (int i = 0; i < (int)seq->request.generate.n_allowed; i++)
        job->mask[i] &= seq->allowed[i];
    for (int i = 0; i < guide->n_words && seq_bans_stops(seq, job->n_drafts); i++)
        job->mask[i] &= ~seq->stops[i];
    job->rc = rc;
    if (rc == ERR_OK && seq->automaton != NULL)
        job->rc = guide_mask(guide, job, worker);
    guide_ban_words(seq, n_tokens, job->mask);
    if (seq->automaton != NULL)
        guide_ban_ends(guide, seq, n_tokens, job->mask);
    for (int i = 0; i < guide->n_words; i++)
        left |= job->mask[i];
    if (job->rc == ERR_OK && left == 0)
        job->rc = ERR_NO_TOKEN;
    if (job->rc != ERR_OK)
        memset(job->mask, 0xff, bytes); /* its row is sampled, but the result is dropped */
}

/* The masks of one sequence, in their order: each walks on from the one before. */
static void guide_make_all(void *arg, int task, int worker)
{
    struct guide *g = arg;
    int end = task + 1 < g->n_seqs ? g->firsts[task + 1] : g->n_jobs, rc = ERR_OK;

    for (int i = g->firsts[task]; i < end; i++) {
        guide_make(g, &g->jobs[i], worker, rc);
        rc = g->jobs[i].rc;
    }
}

/* The budgets are per step. */
void guide_clear(struct guide *g)
{
    g->n_jobs = g->n_seqs = 0;
    atomic_store_explicit(&g->pass_steps, 0, memory_order_relaxed);
    for (int i = 0; i < WIRE_TENANTS; i++)
        atomic_store_explicit(&g->tenant_steps[i], 0, memory_order_relaxed);
}

/* Masks are made in the model's own memory, so that no copy is needed. */
int guide_add(struct guide *g, struct seq *seq)
{
    int i = g->n_jobs++;
    bool is_first = i == 0 || g->jobs[i - 1].q != seq;

    if (is_first)
        g->firsts[g->n_seqs++] = i;
    g->jobs[i] = (struct guide_job){.q = seq,
                                    .n_drafts = is_first ? 0 : g->jobs[i - 1].n_drafts + 1,
                                    .mask = g->masks + (size_t)i * (size_t)g->n_words};
    return i;
}

/* The results are looked at on the engine's thread alone: seq->is_late and `refused` need no
 * lock. */
void guide_run(struct guide *g)
{
    if (g->n_seqs == 1)
        guide_make_all(g, 0, 0); /* no worker has to be woken */
    else if (g->n_seqs > 1)
        pool_run(g->pool, guide_make_all, g, g->n_seqs);
    for (int k = 0; k < g->n_seqs; k++) {
        int i = g->firsts[k];
        struct seq *seq = g->jobs[i].q;

        seq->is_late = g->jobs[i].rc == ERR_AGAIN;
        if (g->jobs[i].rc == ERR_LIMIT)
            seq->automaton->refused = true;
    }
}
