/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that comes from outside: connections, uploads, requests and signals. A front is
 * trusted with its own lane and nothing else: a request is copied first and every number of the
 * copy is checked, and a lane whose ring cannot be right is dropped with all its sequences.
 *
 *   connect -> LANE_GREETING -> hello -> LANE_OPEN (a front) -> hang-up -> LANE_FREE
 *                                     -> the statistics page, then LANE_FREE (an observer) */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "base/service.h"
#include "engine/engine.h"
#include "ipc/attach.h"
#include "ipc/sampling.h"

#define INTAKE_GREETING_US 1000000  /* a front sends its hello as it connects */
#define INTAKE_QUIET_US    60000000 /* a lack after this much time without one is logged again */
#define INTAKE_UPLOADS     256      /* of a lane per pass: every place once */
/* Of a lane per pass: checking them takes some 10 ms. */
#define INTAKE_UPLOAD_BYTES  ((uint64_t)16 << 20)
#define INTAKE_UPLOADS_SPARE 4096 /* of a lane in its life, without a request */
#define INTAKE_BAD_MAX       64   /* malformed requests; more are a bug, and the lane is dropped */

/* The data of an epoll event: the kind of descriptor; for lanes INTAKE_LANE plus their index. */
enum intake_source { INTAKE_LISTEN, INTAKE_SIGNAL, INTAKE_STORE, INTAKE_LORA, INTAKE_LANE };

/* --- lanes ------------------------------------------------------------------------------------ */

/* Add a descriptor to epoll; `data` comes back with its events. */
static int intake_watch(struct engine *e, int fd, uint64_t data)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = data};

    if (epoll_ctl(e->intake.epoll_fd, EPOLL_CTL_ADD, fd, &ev) == -1)
        return ERR_IO;
    return ERR_OK;
}

/* There is no descriptor for another connection: stop polling the listener until opens_us, because
 * it would be readable all the time. 0 polls it again. */
static void intake_shut_door(struct engine *e, uint64_t opens_us)
{
    struct epoll_event ev = {.events = opens_us == 0 ? EPOLLIN : 0, .data.u64 = INTAKE_LISTEN};

    e->intake.listener_opens_us = opens_us;
    if (epoll_ctl(e->intake.epoll_fd, EPOLL_CTL_MOD, e->intake.listener.fd, &ev) == -1)
        log_error("engine: epoll: %s", strerror(errno));
}

/* The store's descriptor is polled too, so that a page from the disk wakes an idle loop. */
int intake_init(struct engine *e)
{
    e->intake.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->intake.epoll_fd == -1 || intake_watch(e, e->intake.signal_fd, INTAKE_SIGNAL) != ERR_OK ||
        intake_watch(e, e->intake.listener.fd, INTAKE_LISTEN) != ERR_OK ||
        (e->lora.is_on && intake_watch(e, e->lora.event_fd, INTAKE_LORA) != ERR_OK) ||
        (e->tiers.store != NULL &&
         intake_watch(e, store_event_fd(e->tiers.store), INTAKE_STORE) != ERR_OK)) {
        log_error("engine: epoll: %s", strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}

/* Free a lane in any state. Its sequences are retired without a record, because nothing reads its
 * ring any more. `why` completes the log line "front 12 ...". */
static void intake_drop_lane(struct engine *e, struct engine_lane *lane, const char *why)
{
    int n = 0;

    if (lane->state == LANE_OPEN) {
        for (uint32_t slot = 0; slot < lane->lane.n_slots; slot++) {
            struct seq *seq = lane->by_slot[slot];

            if (seq == NULL)
                continue;
            retire(e, seq);
            stats_add(&e->stats, METRIC_success_abort, 1);
            n++;
        }
        log_info("engine: front %d %s; %d of its requests were dropped", (int)lane->pid, why, n);
    }
    cache_admin_forget_lane(e, lane);
    sleep_forget_lane(e, lane);
    lora_forget_lane(e, lane);
    guide_lane_drop(&e->guide, &lane->guide);
    lane_detach(&lane->lane);
    (void)close(lane->control_fd); /* leaves epoll as well */
    lane->control_fd = -1;
    lane->state = LANE_FREE;
}

/* Drop peers that have not sent a hello in time: they must not keep lanes from fronts. */
static void intake_end_silence(struct engine *e)
{
    for (int i = 0; i < e->settings.max_lanes; i++) {
        struct engine_lane *lane = &e->lanes[i];

        if (lane->state == LANE_GREETING && e->now_us - lane->since_us > INTAKE_GREETING_US) {
            log_warn("engine: process %d was dropped: no hello within a second of connecting",
                     (int)lane->pid);
            intake_drop_lane(e, lane, "sent no hello");
        }
    }
}

/* A free lane, or the lane whose peer has owed its hello for the longest; NULL when all are in
 * use. */
static struct engine_lane *intake_free_lane(struct engine *e)
{
    struct engine_lane *first = NULL;

    for (int i = 0; i < e->settings.max_lanes; i++) {
        struct engine_lane *lane = &e->lanes[i];

        if (lane->state == LANE_FREE)
            return lane;
        if (lane->state == LANE_GREETING && (first == NULL || lane->since_us < first->since_us))
            first = lane;
    }
    if (first != NULL)
        intake_drop_lane(e, first, "sent no hello");
    return first;
}

/* Every connection gets a lane in LANE_GREETING, or is refused with ERR_OVERLOADED. Nothing is
 * created before the peer's hello. */
static void intake_accept(struct engine *e)
{
    int fd, rc;
    pid_t pid;
    uid_t uid;

    /* Ends when no connection waits, or descriptors have run out (ERR_OVERLOADED). */
    while ((rc = attach_accept(&e->intake.listener, &fd, &pid, &uid)) == ERR_OK) {
        struct engine_lane *lane = intake_free_lane(e);

        if (lane == NULL) {
            struct wire_welcome welcome = {
                .magic = WIRE_MAGIC, .layout = wire_layout(), .error = ERR_OVERLOADED};

            log_warn("engine: front %d refused: %d lanes are in use; raise max_lanes", (int)pid,
                     e->settings.max_lanes);
            (void)!attach_send_welcome(fd, &welcome, NULL); /* it may have closed already */
            (void)close(fd);
            continue;
        }
        lane->state = LANE_GREETING;
        lane->control_fd = fd;
        lane->pid = pid;
        lane->since_us = e->now_us;
        lane->n_bad = 0;
        lane->n_uploads = 0;
        lane->upload_bytes = 0;
        lane->n_uploaded = 0;
        lane->n_taken = 0;
        memset(lane->refused, 0, sizeof lane->refused);
        memset(lane->spans, 0, sizeof lane->spans);
        if (intake_watch(e, fd, INTAKE_LANE + (uint64_t)(lane - e->lanes)) != ERR_OK)
            intake_drop_lane(e, lane, "could not be polled");
    }
    if (rc == ERR_OVERLOADED)
        intake_shut_door(e, e->now_us + LISTENER_SHUT_MS * 1000u);
}

/* Answer a front's hello: create its lane and send it with the statistics page. */
static int intake_welcome(struct engine *e, struct engine_lane *lane)
{
    const struct model_shape *shape = e->shape;
    struct wire_welcome welcome = {
        .magic = WIRE_MAGIC,
        .layout = wire_layout(),
        .epoch = e->epoch,
        .n_vocab = (uint32_t)shape->n_words,
        .n_pooled = shape->pools ? (uint32_t)shape->n_vocab : 0,
        .max_model_len = (uint32_t)shape->max_model_len,
        .page_tokens = (uint32_t)shape->page_tokens,
        .n_eos = (uint32_t)shape->n_eos,
    };
    int fds[ATTACH_FDS] = {[ATTACH_STATS] = e->stats.fd};
    int rc = lane_create(&lane->lane, &fds[ATTACH_LANE], (uint32_t)e->settings.lane_slots,
                         e->settings.lane_arena_bytes, e->epoch, (uint32_t)lane->pid);

    if (rc != ERR_OK) {
        welcome.error = rc;
        (void)!attach_send_welcome(lane->control_fd, &welcome, NULL); /* the lane is dropped next */
        return rc;
    }
    /* The lane is filled in before the front can see it: it reads the load and the state at
     * once. */
    lane->lane.wake_fd = lane->control_fd;
    publish_lane(e, lane);
    memcpy(welcome.eos, shape->eos, sizeof welcome.eos);
    memcpy(welcome.fingerprint, shape->fingerprint.bytes, sizeof welcome.fingerprint);
    welcome.lane_bytes = lane->lane.lane_bytes;
    rc = attach_send_welcome(lane->control_fd, &welcome, fds);
    (void)close(fds[ATTACH_LANE]); /* the mapping stays */
    return rc;
}

/* An upload was lost for want of memory or a descriptor; `arrived`: the descriptor was there. The
 * front is answered when a request names the upload. Logged once per INTAKE_QUIET_US. */
static void intake_tell_lost(struct engine *e, const struct engine_lane *lane, bool arrived)
{
    if (e->intake.lost_us == 0 || e->now_us - e->intake.lost_us > INTAKE_QUIET_US)
        log_warn("engine: %s for a grammar that front %d uploads: requests that need it are "
                 "refused meanwhile; %s",
                 arrived ? "there is no memory" : "there is no descriptor", (int)lane->pid,
                 arrived ? "give the engine more memory" : "raise LimitNOFILE");
    e->intake.lost_us = e->now_us;
}

/* Has the lane uploaded as much in this pass as the other lanes can wait for? The next pass
 * continues. */
static bool intake_is_full(const struct engine_lane *lane)
{
    return lane->n_uploads >= INTAKE_UPLOADS || lane->upload_bytes >= INTAKE_UPLOAD_BYTES;
}

/* Does the lane upload more than any front needs? Per pass: a place is free again only when its
 * requests have ended, which a front learns between passes. In its life: each upload is for a
 * request, and only a few requests are withdrawn before the engine takes them. */
static bool intake_floods(const struct engine_lane *lane)
{
    return lane->n_uploaded > INTAKE_UPLOADS_SPARE + 4 * lane->n_taken ||
           lane->n_uploads > 4 * INTAKE_UPLOADS || lane->upload_bytes > 16 * INTAKE_UPLOAD_BYTES;
}

/* Read the front's messages: wakes and uploads. all: read every one, because the next request may
 * name an upload; else as many as a pass has time for. False when the lane was dropped. */
static bool intake_messages(struct engine *e, struct engine_lane *lane, bool all)
{
    struct wire_upload upload;
    int uploaded, rc;

    do { /* Ends: attach_read_upload() takes a bounded number of wakes, and uploads are counted. */
        if (!all && intake_is_full(lane))
            return true;
        if (intake_floods(lane)) {
            stats_add(&e->stats, METRIC_bad_entries, 1);
            intake_drop_lane(e, lane, "uploads more than it can use");
            return false;
        }
        rc = attach_read_upload(lane->control_fd, &upload, &uploaded);
        if (rc == 1) {
            lane->n_uploads++;
            lane->n_uploaded++;
            lane->upload_bytes +=
                upload.bytes < INTAKE_UPLOAD_BYTES ? upload.bytes : INTAKE_UPLOAD_BYTES;
            rc = guide_take_upload(&e->guide, &lane->guide, &upload, uploaded);
            if (rc == ERR_NO_MEMORY)
                intake_tell_lost(e, lane, uploaded != -1);
            if (rc == ERR_OK || rc == ERR_NO_MEMORY)
                rc = 1; /* read the next message */
        }
    } while (rc == 1);
    if (rc == 0)
        return true;
    if (rc != ERR_CLIENT_GONE)
        stats_add(&e->stats, METRIC_bad_entries, 1);
    intake_drop_lane(e, lane, rc == ERR_CLIENT_GONE ? "left" : "sent a malformed upload");
    return false;
}

/* The hello says whether the peer is a front or an observer; only a front gets a lane. An observer
 * gets the statistics page and is disconnected. */
static int intake_greet(struct engine *e, struct engine_lane *lane)
{
    int fds[ATTACH_FDS] = {[ATTACH_LANE] = e->stats.fd, [ATTACH_STATS] = e->stats.fd};
    struct wire_welcome welcome = {
        .magic = WIRE_MAGIC, .layout = wire_layout(), .epoch = e->epoch, .error = ERR_VERSION};
    enum wire_visitor visitor;
    int rc = attach_read_hello(lane->control_fd, &visitor);

    if (rc == ERR_VERSION)
        /* So that it can log the reason. */
        (void)!attach_send_welcome(lane->control_fd, &welcome, NULL);
    if (rc != ERR_OK)
        return rc;
    if (visitor == WIRE_FRONT_CHOOSES)
        held_start(&e->held);
    if (visitor != WIRE_OBSERVER)
        return intake_welcome(e, lane);
    welcome.error = ERR_OK;
    (void)!attach_send_welcome(lane->control_fd, &welcome, fds); /* it may have closed already */
    return ERR_CLIENT_GONE;                                      /* an observer needs no more */
}

/* An event on a lane's control socket. A lane is greeted once; after that its socket carries wakes,
 * uploads and, at the end, the hang-up. */
static void intake_lane_event(struct engine *e, struct engine_lane *lane, uint32_t events)
{
    int rc;

    if (lane->state == LANE_FREE)
        return; /* its lane was dropped by an earlier event of this round */
    if (lane->state == LANE_GREETING && (events & EPOLLIN) != 0) {
        rc = intake_greet(e, lane);
        if (rc == ERR_AGAIN)
            return;
        if (rc != ERR_OK) {
            intake_drop_lane(e, lane, "was refused");
            return;
        }
        lane->state = LANE_OPEN;
        log_info("engine: front %d attached", (int)lane->pid);
        return;
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP)) != 0)
        intake_drop_lane(e, lane, "left");
    else
        (void)intake_messages(e, lane, false); /* false: it was dropped */
}

/* Empty a descriptor whose content does not matter. */
static void intake_drain_fd(int fd)
{
    char bytes[256];

    while (read(fd, bytes, sizeof bytes) > 0)
        continue; /* non-blocking: ends when nothing is left */
}

void intake_drain(struct engine *e)
{
    e->draining = true;
    e->drain_until_us = e->now_us + (uint64_t)e->settings.drain_timeout_s * 1000000u;
    service_stopping();
    if (e->seats != NULL)
        seats_unready(e->seats);
    log_info("engine: stopping; %d running and %d waiting requests get %d s", e->sched.n_running,
             sched_n_waiting(&e->sched), e->settings.drain_timeout_s);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        if (e->lanes[i].state == LANE_OPEN)
            atomic_store(&e->lanes[i].lane.shared->engine_state, WIRE_DRAINING);
    }
}

/* SIGTERM or SIGINT: the first one starts to drain, a second one ends the time for it. */
static void intake_signal(struct engine *e)
{
    intake_drain_fd(e->intake.signal_fd);
    if (e->draining)
        e->drain_until_us = e->now_us; /* the second signal: now */
    else
        intake_drain(e);
}

/* While the listener is shut, the loop wakes at least every LISTENER_SHUT_MS to open it again.
 * Peers without a hello are looked for in every pass, because no event announces them. */
void intake_events(struct engine *e, int timeout_ms)
{
    bool is_shut = e->intake.listener_opens_us != 0;
    struct epoll_event ev[32];
    int n;

    if (is_shut && timeout_ms > LISTENER_SHUT_MS)
        timeout_ms = LISTENER_SHUT_MS;
    n = epoll_wait(e->intake.epoll_fd, ev, 32, timeout_ms);
    e->now_us = clock_us();
    if (is_shut && e->now_us >= e->intake.listener_opens_us)
        intake_shut_door(e, 0);
    for (int i = 0; i < n; i++) {
        switch (ev[i].data.u64) {
        case INTAKE_LISTEN: intake_accept(e); break;
        case INTAKE_SIGNAL: intake_signal(e); break;
        /* Wakes the loop; tiers_poll() looks at the store in every pass. */
        case INTAKE_STORE: break;
        case INTAKE_LORA: break; /* likewise lora_pass() */
        default: intake_lane_event(e, &e->lanes[ev[i].data.u64 - INTAKE_LANE], ev[i].events); break;
        }
    }
    intake_end_silence(e);
}

/* --- requests --------------------------------------------------------------------------------- */

/* A pooled answer has no tokens, so nothing that is said of them applies. */
static bool intake_pools(const struct wire_request *request)
{
    const uint32_t of_tokens = WIRE_LOGPROBS | WIRE_PROMPT_LOGPROBS | WIRE_THINKS;
    const struct wire_generate *g = &request->generate;

    if (g->pooling == WIRE_POOL_NONE)
        return true;
    return g->pooling <= WIRE_POOL_EACH && g->n_prompt == request->n_tokens && g->max_tokens == 1 &&
           g->min_tokens == 0 && g->n_logprobs == 0 && g->n_prompt_logprobs == 0 &&
           g->automaton == 0 && wire_generate_extra(g) == 0 && g->n_stop_ids == 0 &&
           g->think_max == 0 && (request->flags & of_tokens) == 0 &&
           !sampling_has_penalty(&g->sampling);
}

/* Is every number of a generation's copy within its bounds? Fronts check the same bounds and can
 * explain them; a request that fails here comes from a broken front. */
static int intake_check(const struct engine *e, const struct wire_request *request)
{
    const struct wire_generate *g = &request->generate;
    uint32_t longest = (uint32_t)e->shape->max_model_len;
    uint32_t most = (uint32_t)e->shape->n_vocab; /* most alternatives that can be asked for */

    if (most < WIRE_LOGPROBS_MAX)
        most = WIRE_LOGPROBS_MAX;
    if (request->n_tokens < 1 || g->n_prompt < 1 || g->n_prompt > request->n_tokens ||
        g->max_tokens < 1)
        return ERR_INVALID;
    /* An answer that is pooled needs no room for a token. */
    if (request->n_tokens >= longest + (g->pooling != WIRE_POOL_NONE))
        return ERR_TOO_LONG;
    if ((g->pooling != WIRE_POOL_NONE) != e->shape->pools || !intake_pools(request))
        return ERR_INVALID;
    if (!sampling_is_valid(&g->sampling))
        return ERR_INVALID;
    if (g->n_stop_ids > WIRE_STOP_IDS || g->n_logprobs > most || g->n_prompt_logprobs > most)
        return ERR_INVALID;
    if ((g->n_allowed != 0 && g->n_allowed != (uint32_t)e->guide.n_words) ||
        g->n_biases > WIRE_BIASES_MAX || g->n_bad > WIRE_BAD_WORDS_MAX ||
        (g->n_stops != 0 && (g->n_stops != (uint32_t)e->guide.n_words || g->n_stop_ids != 0)) ||
        g->n_asked > WIRE_ASKED_MAX || (g->n_asked > 0 && (request->flags & WIRE_LOGPROBS) == 0))
        return ERR_INVALID; /* or e->extra_words would be too short for them */
    if (g->retain > 1 + RETAIN_PINNED || g->drafts > 1 + WIRE_DRAFTS_MAX)
        return ERR_INVALID;
    for (uint32_t i = 0; i < g->n_stop_ids; i++) {
        if (g->stop_ids[i] < 0 || g->stop_ids[i] >= e->shape->n_vocab)
            return ERR_INVALID;
    }
    return ERR_OK;
}

/* Answer a request that never became a sequence. Commands and probes are not counted as requests,
 * whatever their result. */
static void intake_reject(struct engine *e, struct engine_lane *lane, uint32_t slot,
                          const struct wire_request *request, int err, uint32_t retry_after_s)
{
    if (err != ERR_OVERLOADED && request->task == WIRE_GENERATE &&
        (request->flags & WIRE_PROBE) == 0)
        stats_add(&e->stats, METRIC_success_error, 1);
    lane_put(&lane->lane, slot,
             (struct wire_out){.kind = WIRE_FINISHED,
                               .finish = WIRE_FIN_ERROR,
                               .value = err,
                               .retry_after_s = (uint16_t)retry_after_s,
                               .time_us = e->now_us});
}

/* Seconds that a request of n_tokens would have to wait; 0: not known. */
static double intake_wait_s(const struct engine *e, int tenant_idx, int n_tokens)
{
    int n_reqs;
    int64_t tokens;

    tenants_ahead(&e->sched.tenants, tenant_idx, n_tokens, &n_reqs, &tokens);
    return rate_wait_s(&e->admission.rate, n_reqs, tokens);
}

/* May the request wait in the queue? When the queue is full, the last request of a tenant that has
 * more in it may be refused in its place. */
static enum wire_refusal intake_bounds(struct engine *e, const struct wire_request *request,
                                       int tenant_idx)
{
    const struct tenants_bounds bounds = {.n_reqs = e->settings.max_num_queued_reqs,
                                          .n_tokens = e->admission.max_num_queued_tokens,
                                          .n_places = e->admission.n_places};
    enum wire_refusal why;
    double wait_s;

    if ((request->flags & (WIRE_RESUMED | WIRE_PROBE)) != 0)
        return WIRE_NOT_REFUSED;
    wait_s = intake_wait_s(e, tenant_idx, (int)request->n_tokens);
    if (e->settings.queue_timeout_s > 0 && wait_s > (double)e->settings.queue_timeout_s)
        return WIRE_REFUSED_WAIT;
    if (request->deadline_us > e->now_us &&
        wait_s * 1e6 > (double)(request->deadline_us - e->now_us))
        return WIRE_REFUSED_WAIT;
    /* Each round frees one place, so the loop ends; usually the first round does. */
    while ((why = tenants_refuse(&e->sched.tenants, (int)request->n_tokens, &bounds)) !=
           WIRE_NOT_REFUSED) {
        struct seq *seq =
            tenants_push_out(&e->sched.tenants, tenant_idx, (int)request->n_tokens, why);

        if (seq == NULL)
            return why;
        publish_refuse(e, seq, WIRE_REFUSED_TENANT, ERR_OVERLOADED);
    }
    return WIRE_NOT_REFUSED;
}

/* As intake_bounds(), and counts a refusal. ERR_OVERLOADED with the seconds after which to try
 * again, or ERR_OK. */
static int intake_admits(struct engine *e, const struct wire_request *request, int tenant_idx,
                         uint32_t *retry_after_s)
{
    enum wire_refusal why = intake_bounds(e, request, tenant_idx);
    int n_reqs;
    int64_t tokens;

    if (why == WIRE_NOT_REFUSED)
        return ERR_OK;
    tenants_ahead(&e->sched.tenants, tenant_idx, (int)request->n_tokens, &n_reqs, &tokens);
    *retry_after_s = rate_retry_after_s(&e->admission.rate, n_reqs, tokens);
    e->sched.tenants.list[tenant_idx].n_refused++;
    stats_refused(&e->stats, why, 1);
    return ERR_OVERLOADED;
}

/* The retention of the pages of the prompt. A low priority is given to the pages of the output as
 * well, because they are found only after those of the prompt. */
static void intake_retain(struct seq *seq, const struct wire_generate *g)
{
    uint64_t until = 0;

    if (g->retain == 0)
        return;
    if (g->retain_s != 0)
        until = (uint64_t)clock_stamp_s() + g->retain_s;
    if (until > UINT32_MAX)
        until = UINT32_MAX;
    seq->retain = retain_of((int)g->retain - 1, (uint32_t)until);
    if (seq->retain.rank < 0)
        seq->retain_tokens = seq->tokens_max;
    else if (g->retain_tokens == 0 || g->retain_tokens > (uint32_t)seq->n_prompt)
        seq->retain_tokens = seq->n_prompt;
    else
        seq->retain_tokens = (int)g->retain_tokens;
}

/* The maker of the request's pages: hits on pages of other makers are not reported to its tenant.
 * With a salt, all that know the salt are equal. In the shared namespace each tenant may learn
 * about its own pages, and about those that an operator has pinned. */
static uint64_t intake_maker(const struct seq *seq, const struct wire_request *request)
{
    static const uint8_t none[WIRE_SALT_BYTES];
    uint64_t maker;

    if (memcmp(request->salt, none, sizeof none) != 0 ||
        retain_priority(seq->retain) == RETAIN_PINNED)
        return PAGES_ANYBODY;
    maker = hash_xxh3(request->tenant, sizeof request->tenant);
    if (maker == 0 || maker == PAGES_ANYBODY)
        return 1;
    return maker;
}

/* Turn a request into a waiting sequence. The tokens and constraints are copied out of the lane's
 * arena and checked as they are copied; the front may reuse the arena from then on. */
static int intake_sequence(struct engine *e, struct engine_lane *lane, uint32_t slot,
                           const struct wire_request *request, uint32_t *retry_after_s)
{
    struct seq *seq;
    int tenant_idx;
    uint64_t end = (uint64_t)request->generate.n_prompt + request->generate.max_tokens;
    int tokens_max = end < (uint64_t)e->shape->max_model_len ? (int)end : e->shape->max_model_len;
    int rc;

    if (request->generate.pooling != WIRE_POOL_NONE)
        tokens_max = (int)end; /* the token is never computed */
    if (e->draining)
        return ERR_DRAINING;
    rc = intake_check(e, request);
    if (rc != ERR_OK)
        return rc;
    tenant_idx = tenants_find(&e->sched.tenants, request->tenant);
    rc = intake_admits(e, request, tenant_idx, retry_after_s);
    if (rc != ERR_OK)
        return rc;
    seq = seq_claim(&e->pool);
    if (seq == NULL)
        return ERR_OVERLOADED;
    seq->request = *request;
    seq->tenant_idx = tenant_idx;
    seq->n_tokens = (int)request->n_tokens;
    seq->n_prompt = (int)request->generate.n_prompt;
    rc = lane_tokens(&lane->lane, request, e->shape->n_words, seq->tokens);
    if (rc == ERR_OK)
        rc = lane_extra(&lane->lane, request, e->extra_words);
    if (rc == ERR_OK && tokens_max <= seq->n_tokens)
        rc = ERR_INVALID; /* it continues an output that is complete */
    if (rc == ERR_OK)
        rc = lora_begin(e, seq);
    if (rc == ERR_OK)
        rc = guide_begin(&e->guide, &lane->guide, seq, e->extra_words);
    if (rc != ERR_OK) {
        lora_end(e, seq);
        seq_release(&e->pool, seq);
        return rc;
    }
    if (request->arrival_us > e->now_us || request->arrival_us == 0)
        seq->request.arrival_us = e->now_us;
    seq->lane_idx = (int)(lane - e->lanes);
    seq->slot = slot;
    seq->arrival = e->n_requests++;
    seq->step_seen = e->n_ended;
    seq->tokens_max = tokens_max;
    seq->root = lora_root(e, request);
    intake_retain(seq, &request->generate);
    seq->maker = intake_maker(seq, request);
    if (seq_is_mean(seq))
        memset(seq->row, 0, sizeof *seq->row * (size_t)(1 + e->shape->n_vocab));
    lane->by_slot[slot] = seq;
    sched_add(&e->sched, seq);
    return ERR_OK;
}

/* Does the request name something that its front has uploaded? */
static bool intake_names_upload(const struct wire_request *request)
{
    return request->task == WIRE_GENERATE &&
           (request->generate.automaton > 0 || request->generate.think_max > 0);
}

/* Commands to the cache and to the power state use slots like generations do. */
static int intake_task(struct engine *e, struct engine_lane *lane, uint32_t slot,
                       const struct wire_request *request, uint32_t *retry_after_s)
{
    switch (request->task) { /* from outside, so any number is possible */
    case WIRE_GENERATE: return intake_sequence(e, lane, slot, request, retry_after_s);
    case WIRE_CACHE: return cache_admin_ask(e, lane, slot, request);
    case WIRE_POWER: return sleep_ask(e, lane, slot, &request->power);
    case WIRE_ADAPTER: return lora_ask(e, lane, slot, request);
    default: return ERR_INVALID;
    }
}

/* Take the requests of one lane. A malformed request is answered, and is a bug of the front when
 * there are many; a malformed ring drops the lane at once. */
static void intake_lane(struct engine *e, struct engine_lane *lane)
{
    struct wire_request request;
    uint32_t slot;
    int got;

    /* At most one round of the ring, so that a lane cannot keep the loop from its step. */
    for (uint32_t i = 0; i < lane->lane.queue_cap; i++) {
        uint32_t retry_after_s = 1;
        int rc;

        if (intake_is_full(lane))
            break;
        got = lane_take(&lane->lane, &slot, &request);
        if (got == 0)
            break;
        if (got > 0 && intake_names_upload(&request) && !intake_messages(e, lane, true))
            return; /* uploads are sent before the request that names them */
        if (got < 0 || lane->by_slot[slot] != NULL || lane_room(&lane->lane, slot) < 4) {
            stats_add(&e->stats, METRIC_bad_entries, 1);
            intake_drop_lane(e, lane, "broke the ring's rules");
            return;
        }
        lane->n_taken++;
        rc = intake_task(e, lane, slot, &request, &retry_after_s);
        if (rc != ERR_OK)
            intake_reject(e, lane, slot, &request, rc, retry_after_s);
        if (rc == ERR_INVALID) {
            stats_add(&e->stats, METRIC_bad_entries, 1);
            if (++lane->n_bad > INTAKE_BAD_MAX) {
                intake_drop_lane(e, lane, "sent too many malformed requests");
                return;
            }
        }
    }
}

/* A front counts a request as queued until the engine has taken it. So the room that is left is
 * published before lane_taken(): in between the front would send too many, which would be refused
 * after the step that begins now. */
void intake_requests(struct engine *e)
{
    bool any = false;

    for (int i = 0; i < e->settings.max_lanes; i++) {
        /* The lanes take turns in the order of their index; each gives at most one round of its
         * ring. */
        if (e->lanes[i].state != LANE_OPEN || !lane_has_work(&e->lanes[i].lane))
            continue;
        intake_lane(e, &e->lanes[i]);
        any = true;
    }
    for (int i = 0; i < e->settings.max_lanes; i++) { /* the next pass begins */
        e->lanes[i].n_uploads = 0;
        e->lanes[i].upload_bytes = 0;
    }
    if (!any)
        return;
    publish_queue(e);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        if (e->lanes[i].state == LANE_OPEN)
            lane_taken(&e->lanes[i].lane);
    }
}

/* --- sequences that have to end --------------------------------------------------------------- */

/* Has seq waited for too long to begin? A sequence that has begun may wait, because its client has
 * a part of the answer; so may other choices of such an answer. */
static bool intake_waited(const struct engine *e, const struct seq *seq)
{
    uint64_t longest_us = (uint64_t)e->settings.queue_timeout_s * 1000000u;

    return seq->state == SEQ_WAITING && seq_may_refuse(seq) && longest_us > 0 &&
           e->now_us - seq->request.arrival_us > longest_us;
}

/* Once per pass and sequence: is it cancelled or out of time, and has its ring room for the records
 * of the next step? A sequence without room is paused, so that a slow client costs pages but no
 * steps. */
static void intake_look(struct engine *e, struct seq *seq)
{
    struct engine_lane *lane = &e->lanes[seq->lane_idx];
    enum wire_cancel cancel = lane_cancelled(&lane->lane, seq->slot);
    int room = lane_room(&lane->lane, seq->slot);

    if (room < 0) {
        stats_add(&e->stats, METRIC_bad_entries, 1);
        intake_drop_lane(e, lane, "broke the ring's rules");
        return;
    }
    if (seq->tells_row && cancel == WIRE_WANTED) {
        room = publish_row(e, seq, room);
        if (seq->state == SEQ_FREE)
            return; /* that was its last token */
    }
    /* Records that may be written before the next look: those owed, then ADMITTED, a token, the end
     * and one to spare. The rest of the room is for prompt tokens. */
    room -= seq->n_owed + 3 + seq_token_records(seq);
    seq->chunk_max = 0;
    if (seq_tells_prompt(seq))
        seq->chunk_max = seq_is_mean(seq) ? INT32_MAX : room / seq_prompt_records(seq);
    if (seq->chunk_max > 1 && seq_prompt_has_rows(seq))
        seq->chunk_max = 1;
    seq->room = room;
    seq->paused = room < 0 || (seq_tells_prompt(seq) && seq->chunk_max < 1) || seq_awaits_row(seq);
    if (cancel != WIRE_WANTED)
        publish_finish(e, seq, WIRE_FIN_CANCELLED, (int32_t)cancel);
    else if (seq->request.deadline_us != 0 && e->now_us > seq->request.deadline_us)
        publish_refuse(e, seq, WIRE_REFUSED_DEADLINE, ERR_DEADLINE);
    else if (intake_waited(e, seq))
        publish_refuse(e, seq, WIRE_REFUSED_TIMEOUT, ERR_OVERLOADED);
    else if (e->draining && e->now_us >= e->drain_until_us)
        publish_finish(e, seq, WIRE_FIN_ERROR, ERR_DRAINING);
}

/* The pool is scanned completely: it has some hundred sequences, and a scan costs less than lists
 * would. */
void intake_cancellations(struct engine *e)
{
    for (int i = 0; i < e->pool.n; i++) {
        if (e->pool.seqs[i].state != SEQ_FREE)
            intake_look(e, &e->pool.seqs[i]);
    }
}
