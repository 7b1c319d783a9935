/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators' commands: see cache.h. The first part checks the admin key, the second makes a request
 * to the engine, the third turns the engine's facts into JSON.
 *
 * The facts of a list, one row for each object:
 *
 *   TIER 0    PAGES 120  SLOTS 4096  KEPT 8  KEPT_MAX 2048         the device
 *   SPACE id  SHARED 0  DEVICE 12  HOST 40  STORE 90  HITS ...     a namespace
 *   HINT id   PRIORITY 100  UNTIL 0  DEVICE 3 ...                  a retained prefix */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hex.h"
#include "base/log.h"
#include "base/must.h"
#include "front/api/api.h"
#include "front/api/cache.h"
#include "front/request/fields.h"
#include "front/request/policy.h"
#include "front/request/retention.h"
#include "text/file.h"

/* --- the key ------------------------------------------------------------------------------ */

/* The file's first word is the key. Only its digest is kept. */
int cache_open(struct front *f)
{
    const char *path = f->settings.admin_key_file;
    struct buf text = {0};
    struct stat st;
    char why[256] = "";
    size_t len;
    int rc;

    if (path[0] == '\0')
        return ERR_OK;
    rc = file_read(&text, NULL, path, 4096, why, sizeof why);
    if (rc != ERR_OK) {
        log_error("front: admin_key_file %s: %s", path, why[0] == '\0' ? err_sentence(rc) : why);
        buf_fini(&text);
        return rc;
    }
    /* An empty file has no bytes at all. */
    if (text.bytes == NULL)
        len = 0;
    else
        len = strcspn(text.bytes, " \t\r\n");
    if (len < 16 || len > CACHE_KEY_MAX) {
        log_error(
            "front: %s: its first line must be a key of 16 to %d bytes; make one with openssl "
            "rand -hex 24",
            path, CACHE_KEY_MAX);
        rc = ERR_INVALID;
    } else {
        f->admin_key = hash_sha256("", 0, text.bytes, len);
        f->has_admin_key = true;
    }
    if (stat(path, &st) == 0 && (st.st_mode & S_IROTH) != 0)
        log_warn("front: all users can read %s; chmod 0640", path);
    buf_fini(&text);
    return rc;
}

/* Compare the request's key. 404 without a key in the settings: the commands do not exist then. */
bool cache_allows(const struct front *f, struct exchange *x)
{
    const char *key = fcgi_param(x->fcgi, "QUIRE_ADMIN_KEY");
    struct hash digest;

    if (!f->has_admin_key) {
        exchange_reply_error(x, ERR_NOT_FOUND,
                             "not available: this server has no admin key (setting admin_key_file)",
                             NULL, 0);
        return false;
    }
    /* As a header of any HTTP client has it. */
    if (strncmp(key, "Bearer ", 7) == 0)
        key += 7;
    digest =
        hash_sha256("", 0, key, strlen(key)); /* comparing digests: the time taken reveals nothing
                                               * of the key */
    if (memcmp(&digest, &f->admin_key, sizeof digest) == 0)
        return true;
    exchange_reply_error(x, ERR_ADMIN_KEY, NULL, NULL, 0);
    return false;
}

/* --- asking ------------------------------------------------------------------------------- */

/* Mark x as an operator's command: its answer is made from the engine's facts, and the token of its
 * generation is dropped. */
static void cache_ask(struct exchange *x)
{
    x->asks = true;
    x->only_echo = true;
    x->stream = false;
    x->max_tokens_given = true;
    x->max_tokens = 1;
}

/* Make n generations, each a copy of the command *from for one engine. With one engine it is for
 * any, as generations are. attached: only for engines that are there now; if none is, the first
 * that comes gets it. */
static int cache_spread(struct exchange *x, const struct gen *from, bool attached)
{
    struct gen *gens = arena_zalloc(&x->arena, sizeof *gens * (size_t)x->served->engines.n);
    int n = 0, rc = ERR_OK;

    if (gens == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < x->served->engines.n && rc == ERR_OK; i++) {
        struct link_state state;

        link_read_state(&x->served->engines.links[i], &state, 0);
        if (attached && !state.attached && (n > 0 || i + 1 < x->served->engines.n))
            continue;
        gens[n] = (struct gen){.exchange = x,
                               .index = n,
                               .slot = -1,
                               .stop_id = -1,
                               .n_prompt = from->n_prompt,
                               .request = from->request,
                               .only = state.attached || !attached ? i + 1 : 0};
        if (x->served->engines.n == 1)
            gens[n].only = 0;
        rc = token_list_add_all(&gens[n].tokens, from->tokens.ids, from->tokens.len);
        n++;
    }
    x->gens = gens;
    x->n_gens = n;
    return rc;
}

/* A command without a prompt. Every request has at least one token; the engine ignores this one. */
void cache_ask_alone(struct exchange *x, const struct wire_request *r, bool attached)
{
    struct gen from = {.n_prompt = 1, .request = *r};
    int rc = token_list_add(&from.tokens, 0);

    x->format = EXCHANGE_COMPLETION;
    x->n = 1;
    if (rc == ERR_OK)
        rc = cache_spread(x, &from, attached);
    token_list_fini(&from.tokens);
    if (rc == ERR_OK)
        cache_ask(x);
    else
        exchange_reply_error(x, rc, NULL, NULL, 1);
}

/* Send the prepared command about a prompt to all engines. */
static void cache_ask_all(struct exchange *x)
{
    struct gen from = x->gens[0];
    int rc;

    must(x->n_gens == 1);
    if (x->served->engines.n == 1)
        return;
    rc = cache_spread(x, &from, false);
    token_list_fini(&from.tokens);
    detok_fini(&from.detok);
    buf_fini(&from.text);
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, NULL, NULL, 1);
}

/* A command about the whole cache. */
static void cache_ask_cache(struct exchange *x, enum wire_cache_action action)
{
    const struct wire_request request = {.task = WIRE_CACHE, .cache = {.action = action}};

    cache_ask_alone(x, &request, action == WIRE_LIST);
}

/* Sleep or wake up. An engine that is not there holds no memory of the device, and does not sleep
 * when it comes. */
void cache_ask_power(struct exchange *x, enum wire_power_action action, bool attached)
{
    const struct wire_request request = {.task = WIRE_POWER, .power = {.action = action}};

    cache_ask_alone(x, &request, attached);
}

/* Turn the prepared generation into a command to drop its prompt's pages. */
static void cache_ask_drop(struct exchange *x)
{
    struct wire_request *request = &x->gens[0].request;

    memset(&request->generate, 0, sizeof request->generate);
    request->task = WIRE_CACHE;
    request->cache = (struct wire_cache){.action = WIRE_DROP_PROMPT};
    cache_ask(x);
    cache_ask_all(x);
}

/* The members of a body that make up a prompt. */
static bool cache_is_prompt(const char *name)
{
    static const char *const names[] = {"model",
                                        "prompt",
                                        "messages",
                                        "tools",
                                        "documents",
                                        "chat_template_kwargs",
                                        "cache_salt",
                                        "add_special_tokens",
                                        "add_generation_prompt",
                                        "split_special_tokens",
                                        "continue_final_message"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

/* An error answer of an operator's command. */
static void cache_refuse(struct exchange *x, const char *why, const char *param)
{
    exchange_reply_error(x, ERR_INVALID, why, param, 0);
}

/* Prepare the generation for body's prompt, as the generating endpoints would; extra is an
 * additional member. A chat's prompt ends after its last message by default, because the pinned or
 * dropped part is the beginning of longer prompts. Only one prompt is allowed. False after an error
 * answer. */
static bool cache_prompt(struct front *f, struct exchange *x, const struct json *body,
                         const struct json_made *extra, const char *extra_name)
{
    struct json_made made = {.arena = &x->arena};
    struct json request;
    bool chat = json_get(body, "messages") != NULL;

    for (uint32_t i = 0; i < body->n; i++) {
        if (cache_is_prompt(body->items[i].key))
            json_put(&made, body->items[i].key, &body->items[i]);
    }
    if (chat && json_get(body, "add_generation_prompt") == NULL)
        json_put_flag(&made, "add_generation_prompt", false);
    if (extra != NULL)
        json_put_made(&made, extra_name, JSON_OBJECT, extra);
    if (made.failed) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    request = json_made(&made, JSON_OBJECT);
    x->asks = true;
    if (chat)
        api_chat(f, x, &request);
    else
        api_completions(f, x, &request);
    if (!x->complete && x->n_gens != 1)
        cache_refuse(x, "one prompt at a time", "prompt");
    return !x->complete;
}

/* Refuse unknown members: with a misspelt one, the wrong pages might be pinned or dropped. */
static bool cache_knows(struct exchange *x, const struct json *body, const char *const *names)
{
    char why[128];

    for (uint32_t i = 0; i < body->n; i++) {
        const char *key = body->items[i].key;
        bool known = cache_is_prompt(key);

        for (const char *const *n = names; *n != NULL; n++)
            known = known || strcmp(*n, key) == 0;
        if (known)
            continue;
        (void)snprintf(why, sizeof why, "'%.64s' is not a field of this command", key);
        cache_refuse(x, why, key);
        return false;
    }
    return true;
}

/* With cache_per_key, `tenant` selects the cache of that tenant; without it, that of requests
 * without a tenant. False after an error answer. */
static bool cache_choose(const struct front *f, struct exchange *x, const struct json *body,
                         struct wire_request *r)
{
    const struct json *tenant = json_get(body, "tenant");

    if (tenant == NULL)
        return true;
    if (tenant->kind != JSON_TEXT || tenant->text_len == 0 || json_has_nul(tenant) ||
        !f->settings.cache_per_key) {
        cache_refuse(x,
                     "'tenant' must be the name of a tenant, and needs the setting cache_per_key",
                     "tenant");
        return false;
    }
    /* As policy_read() does for that tenant's own requests, so that the namespaces are equal. */
    policy_tenant(tenant->text, r->tenant);
    policy_isolate(r);
    memset(r->tenant, 0, sizeof r->tenant); /* the tenant did not send this request */
    return true;
}

/* GET /admin/cache: tiers, namespaces, retained prefixes. */
void api_cache_list(struct front *f, struct exchange *x, const struct json *body)
{
    (void)f;
    (void)body;
    cache_ask_cache(x, WIRE_LIST);
}

/* POST /admin/cache/pin: compute a prompt, unless it is cached, and retain its pages. It is a
 * generation of one token whose retention is set, so that it waits its turn like any request. */
void api_cache_pin(struct front *f, struct exchange *x, const struct json *body)
{
    static const char *const names[] = {"priority", "seconds", "tokens", NULL};
    static const char *const known[] = {"priority", "seconds", "tokens", "tenant", NULL};
    static const struct json pinned = {
        .kind = JSON_INT, .n = 3, .whole = RETENTION_PRIORITY_MAX, .text = "100"};
    struct json_made hint = {.arena = &x->arena};

    if (!cache_knows(x, body, known))
        return;
    /* Without a priority, pin for ever. */
    if (json_get(body, "priority") == NULL)
        json_put(&hint, "priority", &pinned);
    /* The other members are those of cache_retention. */
    for (const char *const *n = names; *n != NULL; n++) {
        if (json_get(body, *n) != NULL)
            json_put(&hint, *n, json_get(body, *n));
    }
    if (!cache_prompt(f, x, body, &hint, "cache_retention") ||
        !cache_choose(f, x, body, &x->gens[0].request))
        return;
    cache_ask(x);
    x->gens[0].request.flags |= WIRE_TELL_KEPT;
    cache_ask_all(x);
}

/* A namespace as GET /admin/cache writes it: 16 hexadecimal digits. */
static bool cache_read_space(const struct json *v, uint64_t *space)
{
    uint8_t bytes[sizeof *space] = {0};

    if (v->kind != JSON_TEXT || v->text_len != 2 * sizeof bytes ||
        strspn(v->text, "0123456789abcdef") != v->text_len)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)hex_number(v->text + 2 * i, 2, 2);
    memcpy(space, bytes, sizeof bytes);
    return *space != 0;
}

/* POST /admin/cache/drop: drop the pages of a prompt, of a namespace, of a salt or tenant, or all.
 * Exactly one of these is used, in this order. */
void api_cache_drop(struct front *f, struct exchange *x, const struct json *body)
{
    static const char *const names[] = {"namespace", "all", "tenant", NULL};
    const struct json *salt = json_get(body, "cache_salt");
    const struct json *space = json_get(body, "namespace");
    struct wire_request request = {.task = WIRE_CACHE, .cache = {.action = WIRE_DROP_SPACE}};

    if (!cache_knows(x, body, names))
        return;
    /* A prompt is tokenized as for a generation, because pages have names made of its tokens. */
    if (json_get(body, "prompt") != NULL || json_get(body, "messages") != NULL) {
        if (cache_prompt(f, x, body, NULL, NULL) && cache_choose(f, x, body, &x->gens[0].request))
            cache_ask_drop(x);
    } else if (space != NULL) {
        if (cache_read_space(space, &request.cache.space))
            cache_ask_alone(x, &request, false);
        else
            cache_refuse(x, "'namespace' must be 16 hexadecimal digits, as in GET /admin/cache",
                         "namespace");
    } else if (salt != NULL || json_get(body, "tenant") != NULL) {
        if (salt != NULL && !fields_read_salt(salt, request.salt))
            cache_refuse(x, "'cache_salt' must be a string that is not empty", "cache_salt");
        else if (cache_choose(f, x, body, &request))
            cache_ask_alone(x, &request, false);
    } else if (json_get_bool(body, "all", false)) {
        cache_ask_cache(x, WIRE_DROP_ALL);
    } else {
        cache_refuse(x,
                     "nothing to drop: give 'prompt', 'messages', 'cache_salt', 'tenant', "
                     "'namespace' or 'all': true",
                     NULL);
    }
}

/* vLLM's POST /reset_prefix_cache. */
void api_cache_reset(struct front *f, struct exchange *x, const struct json *body)
{
    (void)f;
    (void)body;
    cache_ask_cache(x, WIRE_DROP_ALL);
}

/* vLLM's commands. Its sleep levels are ignored: weights always go to host memory. */
void api_sleep(struct front *f, struct exchange *x, const struct json *body)
{
    (void)f;
    (void)body;
    cache_ask_power(x, WIRE_SLEEP, true);
}

/* The counterpart of api_sleep(). */
void api_wake_up(struct front *f, struct exchange *x, const struct json *body)
{
    (void)f;
    (void)body;
    cache_ask_power(x, WIRE_WAKE, true);
}

/* --- answering ----------------------------------------------------------------------------
 *
 * The facts arrive as records; a row is a fact that names its object and the facts up to the next
 * such fact. */

/* A fact has come; the answer is made when all have. */
void cache_fact(struct gen *g, const struct wire_out *o)
{
    buf_add(&g->facts, o, sizeof *o);
}

/* The number of facts. */
static size_t cache_n_facts(const struct gen *g)
{
    return g->facts.len / sizeof(struct wire_out);
}

/* Fact i. It is copied, because the buffer does not align records. */
static struct wire_out cache_at(const struct gen *g, size_t i)
{
    struct wire_out record;

    must(i < cache_n_facts(g));
    memcpy(&record, g->facts.bytes + i * sizeof record, sizeof record);
    return record;
}

/* Is this a fact that names an object? */
static bool cache_begins_row(const struct wire_out *o)
{
    return o->value == WIRE_FACT_TIER || o->value == WIRE_FACT_SPACE || o->value == WIRE_FACT_HINT;
}

/* The number of a fact in the row that begins at i; fallback when the row lacks it. */
static uint64_t cache_of(const struct gen *g, size_t i, enum wire_fact fact, uint64_t fallback)
{
    for (size_t k = i + 1; k < cache_n_facts(g); k++) {
        struct wire_out record = cache_at(g, k);

        if (cache_begins_row(&record))
            break;
        if (record.value == (int32_t)fact)
            return record.amount;
    }
    return fallback;
}

/* A namespace as 16 hexadecimal digits, or null. */
static void cache_add_space(struct buf *b, uint64_t space)
{
    uint8_t bytes[sizeof space];
    char hex[2 * sizeof bytes + 1];

    memcpy(bytes, &space, sizeof bytes);
    hash_hex(bytes, sizeof bytes, hex);
    if (space == 0)
        buf_add_text(b, "\"namespace\":null"); /* several, or unknown */
    else
        buf_printf(b, "\"namespace\":\"%s\"", hex);
}

/* One tier: pages in use, all slots, retained pages and their limit. */
static void cache_add_tier(struct buf *b, const struct gen *g, size_t i, uint64_t tier)
{
    static const char *const names[WIRE_TIERS] = {"device", "host", "disk"};

    if (tier >= WIRE_TIERS)
        return;
    buf_printf(b, "\"%s\":{\"pages\":%llu,\"slots\":%llu,\"retained\":%llu,\"retained_max\":%llu}",
               names[tier], (unsigned long long)cache_of(g, i, WIRE_FACT_PAGES, 0),
               (unsigned long long)cache_of(g, i, WIRE_FACT_SLOTS, 0),
               (unsigned long long)cache_of(g, i, WIRE_FACT_KEPT, 0),
               (unsigned long long)cache_of(g, i, WIRE_FACT_KEPT_MAX, 0));
}

/* Pages of a namespace or a prefix, by tier. */
static void cache_add_pages(struct buf *b, const struct gen *g, size_t i)
{
    buf_printf(b, ",\"pages\":{\"device\":%llu,\"host\":%llu,\"disk\":%llu}",
               (unsigned long long)cache_of(g, i, WIRE_FACT_DEVICE, 0),
               (unsigned long long)cache_of(g, i, WIRE_FACT_HOST, 0),
               (unsigned long long)cache_of(g, i, WIRE_FACT_STORE, 0));
}

/* One namespace, with its pages and its hit rate. */
static void cache_add_namespace(struct buf *b, const struct gen *g, size_t i, uint64_t space)
{
    unsigned long long queries = cache_of(g, i, WIRE_FACT_QUERIES, 0);
    unsigned long long hits = cache_of(g, i, WIRE_FACT_HITS, 0);

    buf_add_byte(b, '{');
    cache_add_space(b, space);
    buf_printf(b, ",\"shared\":%s", json_flag_text(cache_of(g, i, WIRE_FACT_SHARED, 0) != 0));
    cache_add_pages(b, g, i);
    buf_printf(b, ",\"retained\":%llu,\"queries\":%llu,\"hits\":%llu,\"hit_rate\":%.4f}",
               (unsigned long long)cache_of(g, i, WIRE_FACT_KEPT_PAGES, 0), queries, hits,
               queries == 0 ? 0.0 : (double)hits / (double)queries);
}

/* One retained prefix. "pinned" means priority 100 without an end. */
static void cache_add_hint(struct buf *b, const struct gen *g, size_t i, uint64_t space)
{
    unsigned long long priority = cache_of(g, i, WIRE_FACT_PRIORITY, 0); /* 0: several */
    unsigned long long until = cache_of(g, i, WIRE_FACT_UNTIL, 0);

    buf_add_byte(b, '{');
    cache_add_space(b, space);
    if (priority == 0)
        buf_add_text(b, ",\"priority\":null,\"until\":");
    else
        buf_printf(b, ",\"priority\":%llu,\"until\":", priority);
    if (until == 0)
        buf_add_text(b, "null");
    else
        buf_printf(b, "%llu", until);
    buf_printf(b, ",\"pinned\":%s",
               json_flag_text(priority == RETENTION_PRIORITY_MAX && until == 0));
    cache_add_pages(b, g, i);
    buf_add_byte(b, '}');
}

/* All rows that begin with this fact, with commas between. */
static void cache_add_rows(struct buf *b, const struct gen *g, enum wire_fact first)
{
    bool any = false;

    for (size_t i = 0; i < cache_n_facts(g); i++) {
        struct wire_out record = cache_at(g, i);

        if (record.value != (int32_t)first)
            continue;
        if (any)
            buf_add_byte(b, ',');
        any = true;
        if (first == WIRE_FACT_TIER)
            cache_add_tier(b, g, i, record.amount);
        else if (first == WIRE_FACT_SPACE)
            cache_add_namespace(b, g, i, record.amount);
        else
            cache_add_hint(b, g, i, record.amount);
    }
}

/* The members of one engine's list. */
static void cache_add_engine(struct buf *b, const struct gen *g)
{
    buf_printf(b, "\"page_tokens\":%u,\"tiers\":{", g->link->engine.page_tokens);
    cache_add_rows(b, g, WIRE_FACT_TIER);
    buf_add_text(b, "},\"namespaces\":[");
    cache_add_rows(b, g, WIRE_FACT_SPACE);
    buf_add_text(b, "],\"retained\":[");
    cache_add_rows(b, g, WIRE_FACT_HINT);
    buf_add_byte(b, ']');
}

/* The answer to GET /admin/cache: of several engines a list, because each has tiers of its own. */
static void cache_add_list(struct buf *b, const struct exchange *x)
{
    buf_add_byte(b, '{');
    if (x->served->engines.n == 1) {
        cache_add_engine(b, &x->gens[0]);
    } else {
        buf_add_text(b, "\"engines\":[");
        for (int i = 0; i < x->n_gens; i++) {
            const struct gen *g = &x->gens[i];

            buf_add_comma(b, i > 0);
            buf_printf(b, "{\"engine\":%d,", (int)(g->link - x->served->engines.links));
            cache_add_engine(b, g);
            buf_add_byte(b, '}');
        }
        buf_add_byte(b, ']');
    }
    buf_add_byte(b, '}');
}

/* The number of a fact that belongs to no row. */
static unsigned long long cache_alone(const struct gen *g, enum wire_fact fact)
{
    for (size_t i = 0; i < cache_n_facts(g); i++) {
        struct wire_out record = cache_at(g, i);

        if (record.value == (int32_t)fact)
            return record.amount;
    }
    return 0;
}

/* The answer to a pin: what every engine retains. retained_tokens may be below tokens: only whole
 * pages are retained. */
static void cache_add_pin(struct buf *b, const struct exchange *x)
{
    const struct wire_generate *generate = &x->gens[0].request.generate;
    unsigned long long held = cache_alone(&x->gens[0], WIRE_FACT_HELD);

    for (int i = 1; i < x->n_gens; i++) {
        if (cache_alone(&x->gens[i], WIRE_FACT_HELD) < held)
            held = cache_alone(&x->gens[i], WIRE_FACT_HELD);
    }
    buf_printf(b, "{\"tokens\":%u,\"retained_tokens\":%llu,\"priority\":%u,\"seconds\":",
               x->gens[0].n_prompt, held, generate->retain - 1);
    if (generate->retain_s == 0)
        buf_add_text(b, "null}");
    else
        buf_printf(b, "%u}", generate->retain_s);
}

/* The answer to a drop: the sum of all engines. */
static void cache_add_drop(struct buf *b, const struct exchange *x)
{
    unsigned long long n = 0;

    for (int i = 0; i < x->n_gens; i++)
        n += cache_alone(&x->gens[i], WIRE_FACT_DROPPED);
    buf_printf(b, "{\"dropped_pages\":%llu}", n);
}

/* The state of an engine that has done it, as /v1/models has it. */
static const char *cache_state(uint32_t action)
{
    switch ((enum wire_power_action)action) {
    case WIRE_SLEEP: return "asleep";
    case WIRE_WAKE: return "awake";
    case WIRE_END: return "stopped";
    }
    return "";
}

/* Make the answer of a finished command. The request's task shows which command it was. */
static void cache_answer(struct exchange *x)
{
    const struct wire_request *request = &x->gens[0].request;
    struct buf buf = {0};

    switch ((enum wire_task)request->task) {
    case WIRE_GENERATE: cache_add_pin(&buf, x); break;
    case WIRE_CACHE:
        if (request->cache.action == WIRE_LIST)
            cache_add_list(&buf, x);
        else
            cache_add_drop(&buf, x);
        break;
    case WIRE_POWER:
        buf_add_byte(&buf, '{');
        if (x->served->on_demand) {
            buf_add_text(&buf, "\"model\":");
            buf_add_json_string(&buf, x->served->model_name, strlen(x->served->model_name));
            buf_printf(&buf, ",\"state\":\"%s\",", cache_state(request->power.action));
        }
        buf_printf(&buf, "\"is_sleeping\":%s}",
                   json_flag_text(request->power.action == WIRE_SLEEP));
        break;
    case WIRE_ADAPTER: lora_answer(x); return;
    }
    for (int i = 0; i < x->n_gens; i++)
        buf.failed = buf.failed || x->gens[i].facts.failed;
    if (buf.failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    else
        exchange_reply(x, 200, "application/json", buf.bytes, buf.len);
    buf_fini(&buf);
}

/* g's engine has done it. */
void cache_end(struct gen *g)
{
    struct exchange *x = g->exchange;

    must(x->asks);
    must(x->n_finished < x->n_gens);
    g->finish = GEN_STOP;
    x->n_finished++;
    if (x->n_finished == x->n_gens)
        cache_answer(x);
}
