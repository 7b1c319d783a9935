/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a request goes: the cost of a request at an engine is counted in prompt tokens that are
 * computed there before its own first token, and in requests that it shares each step with.
 *
 *   cost = ENGINES_MISS * prompt tokens that the engine has not in its cache
 *        + prompt tokens that wait there for computation
 *        + ENGINES_SEAT * requests that run or wait there
 *        + a price of waking, of an engine that drains, and of one whose loop stands still
 *
 * An engine publishes its load once per pass. Until then this front knows only its own requests
 * there; nginx sends as many to each of the other fronts, so they count once for each front.
 * Without that, all fronts would rush to the engine that published the least: of 1024 requests that
 * came within a second one of four engines got 438, and another 151.
 *
 * tests/bench/route.py compares this rule with others. */
#include "front/link/engines.h"

#include <string.h>

#include "base/log.h"
#include "base/must.h"
#include "ipc/prefix.h"

/* In prompt tokens. A request beside ours makes each step of ours longer, for some hundreds of
 * steps. A token that is not in the cache is computed, and its page displaces another. The
 * simulation shows how little either number matters: 16 to 256, and 1.5 to 3. */
#define ENGINES_SEAT 64
#define ENGINES_MISS 2
/* Waking takes seconds, in which an engine computes that many tokens: the others are used until
 * they have as much work. */
#define ENGINES_WAKE 20000
/* A loop that has made no pass for so long costs ENGINES_STALL tokens per second more: a step of a
 * long prompt may take a while, an engine that is stopped stands still for ever. An idle loop
 * passes once per second. */
#define ENGINES_STALE_US 2000000
#define ENGINES_STALL    20000
#define ENGINES_BLANKS   ", \t" /* between the sockets of a list */
#define ENGINES_NAMES    32     /* pages of a prompt that are looked up at a time */
/* Above any other cost. */
#define ENGINES_DRAIN ((uint64_t)1 << 48)

/* --- the list --------------------------------------------------------------------------------- */

/* Add the engine whose socket is the first len bytes of path. */
static int engines_add(struct engines *e, const char *path, size_t len)
{
    char *own;

    if (e->n == ENGINES_MAX) {
        log_error("front: engine_socket names more than %d engines", ENGINES_MAX);
        return ERR_INVALID;
    }
    own = e->paths[e->n];
    if (len >= sizeof e->paths[0]) {
        log_error("front: engine_socket: %.*s is longer than %zu bytes", (int)len, path,
                  sizeof e->paths[0] - 1);
        return ERR_INVALID;
    }
    memcpy(own, path, len);
    own[len] = '\0';
    for (int i = 0; i < e->n; i++) {
        if (strcmp(e->paths[i], own) == 0) {
            log_error("front: engine_socket names %s twice", own);
            return ERR_INVALID;
        }
    }
    return link_init(&e->links[e->n++], own);
}

/* Add the engines of a list. */
static int engines_add_list(struct engines *e, const char *sockets)
{
    const char *path = sockets + strspn(sockets, ENGINES_BLANKS);
    int rc = ERR_OK;

    while (*path != '\0' && rc == ERR_OK) {
        size_t len = strcspn(path, ENGINES_BLANKS);

        rc = engines_add(e, path, len);
        path += len;
        path += strspn(path, ENGINES_BLANKS);
    }
    if (rc == ERR_OK && e->n == 0) {
        log_error("front: engine_socket is empty; set it to the control socket of an engine");
        rc = ERR_INVALID;
    }
    return rc;
}

/* Add `size` engines whose sockets have numbers. */
static int engines_add_numbered(struct engines *e, const char *socket, int size)
{
    char path[2 * sizeof e->paths[0]]; /* longer than any that is allowed */
    int rc = ERR_OK;

    if (strpbrk(socket, ENGINES_BLANKS) != NULL) {
        log_error("front: engine_socket is a list: data_parallel_size must be 1 then");
        return ERR_INVALID;
    }
    for (int i = 0; i < size && rc == ERR_OK; i++) {
        attach_path_of(path, sizeof path, socket, i);
        rc = engines_add(e, path, strlen(path));
    }
    return rc;
}

int engines_init(struct engines *e, const char *sockets, int size)
{
    int rc;

    memset(e, 0, sizeof *e);
    if (size > 1)
        rc = engines_add_numbered(e, sockets, size);
    else
        rc = engines_add_list(e, sockets);
    /* A hung engine must not stop the streams of the others. */
    for (int i = 0; i < e->n && e->n > 1; i++) {
        e->links[i].patience_ms = 0;
        e->links[i].chooses = true;
    }
    return rc;
}

struct link *engines_at(struct engines *e, const void *p)
{
    for (int i = 0; i < e->n; i++) {
        if (p == &e->links[i].control_fd || p == &e->links[i].calling_fd)
            return &e->links[i];
    }
    return NULL;
}

/* Does it serve what the engines that are attached serve? */
static bool engines_is_alike(const struct engines *e, const struct link *l)
{
    for (int i = 0; i < e->n; i++) {
        const struct link *other = &e->links[i];

        if (other == l || other->control_fd == -1)
            continue;
        if (other->engine.n_vocab != l->engine.n_vocab ||
            memcmp(other->engine.fingerprint, l->engine.fingerprint,
                   sizeof l->engine.fingerprint) != 0)
            return false;
    }
    return true;
}

bool engines_try(struct engines *e, int i, uint64_t now_us)
{
    struct link *link = &e->links[i];

    must(i >= 0 && i < e->n);
    if (!link_try(link, now_us))
        return false;
    if (engines_is_alike(e, link))
        return true;
    log_error("front: the engine at %s is not used: its model, its types or its pages differ from "
              "those of the other engines",
              link->path);
    link_refuse_engine(link, now_us);
    return false;
}

/* --- the choice ------------------------------------------------------------------------------- */

/* A front that reads this flag may be late; the engine then refuses the request, and sets it. */
static bool engines_drains(const struct link *l)
{
    return l->drains || atomic_load(&l->lane.shared->engine_state) == WIRE_DRAINING;
}

bool engines_takes(const struct link *l)
{
    return l->control_fd != -1 && !engines_drains(l);
}

bool engines_serve(const struct engines *e)
{
    for (int i = 0; i < e->n; i++) {
        if (engines_takes(&e->links[i]))
            return true;
    }
    return false;
}

bool engines_drain(const struct engines *e)
{
    for (int i = 0; i < e->n; i++) {
        if (e->links[i].control_fd != -1)
            return !engines_serve(e);
    }
    return false;
}

/* The price of an engine that does not compute at once. */
static uint64_t engines_delay(const struct link *l, uint64_t now_us)
{
    const struct wire_lane *lane = l->lane.shared;
    uint64_t beat_us = atomic_load_explicit(&lane->heartbeat_us, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&lane->engine_state, memory_order_relaxed);
    uint64_t cost = 0;

    if (engines_drains(l))
        cost += ENGINES_DRAIN;
    if (state == WIRE_ASLEEP || state == WIRE_WAKING)
        cost += ENGINES_WAKE;
    if (now_us > beat_us + ENGINES_STALE_US)
        cost += (now_us - beat_us) / 1000000 * ENGINES_STALL;
    return cost;
}

/* n_held: tokens of the prompt that the engine has. */
static uint64_t engines_cost(struct link *l, const struct wire_request *r, uint32_t n_held,
                             uint64_t now_us)
{
    const struct wire_lane *lane = l->lane.shared;
    uint32_t n_fronts = atomic_load_explicit(&lane->n_fronts, memory_order_relaxed), n_reqs;
    uint64_t n_tokens;

    lane_backlog(&l->lane, &n_reqs, &n_tokens);
    if (n_fronts > 1) {
        n_reqs *= n_fronts;
        n_tokens *= n_fronts;
    }
    n_reqs += atomic_load_explicit(&lane->n_running, memory_order_relaxed);
    n_reqs += atomic_load_explicit(&lane->n_waiting, memory_order_relaxed);
    n_tokens += atomic_load_explicit(&lane->todo_tokens, memory_order_relaxed);
    if (n_held < r->n_tokens)
        n_tokens += ENGINES_MISS * (uint64_t)(r->n_tokens - n_held);
    return n_tokens + (uint64_t)ENGINES_SEAT * n_reqs + engines_delay(l, now_us);
}

/* The search begins after the engine that was chosen last, so that equals are taken in turn. */
struct link *engines_choose(struct engines *e, const struct wire_request *r, const uint32_t *held,
                            uint64_t now_us, enum wire_refusal *why)
{
    struct link *best = NULL;
    uint64_t best_cost = 0;

    *why = WIRE_NOT_REFUSED;
    if (e->n == 1) {
        best = &e->links[0];
        if (best->control_fd == -1)
            return NULL;
        *why = link_refuses(best, r);
        return best;
    }
    for (int k = 1; k <= e->n; k++) {
        int i = (e->last + k) % e->n;
        struct link *link = &e->links[i];
        enum wire_refusal refusal;
        uint64_t cost;

        if (link->control_fd == -1)
            continue;
        refusal = link_refuses(link, r);
        cost = engines_cost(link, r, held == NULL ? 0 : held[i], now_us);
        /* One that takes the request is better than any that refuses it. */
        if (best != NULL && (refusal == WIRE_NOT_REFUSED) == (*why == WIRE_NOT_REFUSED)
                ? cost >= best_cost
                : best != NULL && refusal != WIRE_NOT_REFUSED)
            continue;
        best = link;
        best_cost = cost;
        *why = refusal;
    }
    if (best != NULL)
        e->last = (int)(best - e->links);
    return best;
}

int engines_retry_after(const struct engines *e)
{
    int least_s = 0;

    for (int i = 0; i < e->n; i++) {
        const struct link *link = &e->links[i];
        int s;

        if (link->control_fd == -1)
            continue;
        s = (int)atomic_load(&link->lane.shared->retry_after_s);
        if (s < 1)
            s = 1;
        if (least_s == 0 || s < least_s)
            least_s = s;
    }
    return least_s;
}

/* --- any thread ------------------------------------------------------------------------------- */

/* Add the state of a further engine. */
static void engines_join(struct link_state *all, const struct link_state *one)
{
    if (one->max_model_len != 0 &&
        (all->max_model_len == 0 || one->max_model_len < all->max_model_len))
        all->max_model_len = one->max_model_len;
    if (all->n_vocab == 0)
        all->n_vocab = one->n_vocab;
    if (!one->attached)
        return;
    if (!all->attached) {
        uint32_t max_model_len = all->max_model_len;

        *all = *one;
        all->max_model_len = max_model_len;
        return;
    }
    all->draining = all->draining && one->draining;
    /* Waking: one wakes and none is awake. */
    all->waking = (all->waking && (one->waking || one->asleep)) || (all->asleep && one->waking);
    all->asleep = all->asleep && one->asleep;
    if (one->heartbeat_age_us < all->heartbeat_age_us)
        all->heartbeat_age_us = one->heartbeat_age_us;
    if (one->progress_age_us < all->progress_age_us)
        all->progress_age_us = one->progress_age_us;
    all->n_running += one->n_running;
    all->n_waiting += one->n_waiting;
}

void engines_read_state(struct engines *e, struct link_state *out, uint64_t now_us)
{
    *out = (struct link_state){0};
    for (int i = 0; i < e->n; i++) {
        struct link_state one;

        link_read_state(&e->links[i], &one, now_us);
        engines_join(out, &one);
    }
}

/* The size of a page and the root of the names, which are those of all engines. False: there was no
 * engine yet. */
static bool engines_root(struct engines *e, const struct wire_request *r, struct hash *root,
                         uint32_t *page_tokens)
{
    static const uint8_t none[WIRE_ADAPTER_DIGEST];
    struct wire_welcome engine = {0};

    for (int i = 0; i < e->n && engine.page_tokens == 0; i++) {
        (void)pthread_mutex_lock(&e->links[i].lock);
        if (e->links[i].attached)
            engine = e->links[i].engine;
        (void)pthread_mutex_unlock(&e->links[i].lock);
    }
    if (engine.page_tokens == 0)
        return false;
    memcpy(root->bytes, engine.fingerprint, sizeof root->bytes);
    *root = prefix_root(root, r->salt);
    if (memcmp(r->adapter, none, sizeof none) != 0)
        *root = prefix_adapted(root, r->adapter);
    *page_tokens = engine.page_tokens;
    return true;
}

/* Some names at a time, so that a prompt that no engine has costs little, and the locks are held
 * for a moment only. */
void engines_look(struct engines *e, const int32_t *tokens, uint32_t n_tokens,
                  const struct wire_request *r, uint32_t *held)
{
    struct hash names[ENGINES_NAMES];
    uint32_t page_tokens, n_pages;
    bool goes_on = true;

    memset(held, 0, sizeof *held * (size_t)e->n);
    if (!engines_root(e, r, &names[0], &page_tokens))
        return;
    n_pages = n_tokens / page_tokens;
    for (uint32_t at = 0; at < n_pages && goes_on; at += ENGINES_NAMES) {
        struct hash parent = names[at == 0 ? 0 : ENGINES_NAMES - 1];
        int n = (int)(n_pages - at < ENGINES_NAMES ? n_pages - at : ENGINES_NAMES);

        for (int k = 0; k < n; k++) {
            names[k] = prefix_name(&parent, tokens + (size_t)(at + (uint32_t)k) * page_tokens,
                                   (int)page_tokens);
            parent = names[k];
        }
        goes_on = false;
        for (int i = 0; i < e->n; i++) {
            if (held[i] != at * page_tokens)
                continue;
            held[i] += (uint32_t)link_n_held(&e->links[i], names, n) * page_tokens;
            goes_on = goes_on || held[i] == (at + ENGINES_NAMES) * page_tokens;
        }
    }
}

int engines_turns_away(struct engines *e, const char tenant[WIRE_TENANT_BYTES])
{
    int best = -1, best_s = 0;

    for (int i = 0; i < e->n; i++) {
        int s = link_is_full(&e->links[i], tenant);

        if (s == 0)
            return 0;
        if (s > 0 && (best == -1 || s < best_s)) {
            best = i;
            best_s = s;
        }
    }
    if (best == -1)
        return 0;
    return link_turns_away(&e->links[best], tenant);
}

bool engines_find_adapter(struct engines *e, const char *name, size_t len,
                          struct wire_adapter_row *out)
{
    for (int i = 0; i < e->n; i++) {
        if (link_find_adapter(&e->links[i], name, len, out))
            return true;
    }
    return false;
}

bool engines_were_there(struct engines *e)
{
    bool any = false;

    for (int i = 0; i < e->n && !any; i++) {
        (void)pthread_mutex_lock(&e->links[i].lock);
        any = e->links[i].page != NULL;
        (void)pthread_mutex_unlock(&e->links[i].lock);
    }
    return any;
}

/* Those of the first that was there. */
bool engines_adapter(struct engines *e, uint32_t i, struct wire_adapter_row *out)
{
    for (int k = 0; k < e->n; k++) {
        struct wire_adapter_row first;

        if (link_adapter(&e->links[k], 0, &first))
            return link_adapter(&e->links[k], i, out);
    }
    return false;
}
