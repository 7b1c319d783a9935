/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing: the table of paths and methods, and the reading and parsing of bodies, which all
 * endpoints have in common.
 *
 * A request takes these steps, each of which may answer with an error: path and method, the admin
 * key, the check for a full server, reading the body, parsing it, the endpoint. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "front/api/api.h"
#include "front/api/cache.h"
#include "front/request/policy.h"

/* Memory limit per request, in maximum body sizes, for the body, its tree, the prompt and so on.
 * Texts need little; a tree of very small values takes fifty times its text, and is refused. */
#define ROUTE_MEMORY_FACTOR 8

/* A row: one path with one method. */
struct route {
    const char *path;
    const char *method;        /* NULL: any method, and the endpoint reads the body */
    api_fn *answer;            /* NULL: not found, in this shape */
    enum exchange_shape shape; /* of the answer, errors included */
    enum route_access {
        OPEN,  /* no key needed */
        KEYED, /* an API key; nginx checks it */
        ADMIN, /* the key of admin_key_file */
        LOCAL, /* only from this machine; nginx checks it */
    } access;
    enum route_traits {
        PLAIN = 0,
        BODY = 1,      /* the request has a JSON object */
        GENERATES = 2, /* refused while the server is full, before the body is read */
        NAMED = 4,     /* a name, which may contain slashes, may follow the path */
        WHOLE = 8,     /* about the server as a whole, not one of its models */
    } traits;
    const char *schema;  /* of the body, in /openapi.json; NULL: any object */
    const char *summary; /* one line for /openapi.json; NULL: not listed there */
};

#define ROUTE_CHAT "ChatCompletionRequest"
#define ROUTE_TEXT "CompletionRequest"

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", api_chat, SHAPE_OPENAI, KEYED, BODY | GENERATES, ROUTE_CHAT,
     "Answer a chat"},
    {"/v1/completions", "POST", api_completions, SHAPE_OPENAI, KEYED, BODY | GENERATES, ROUTE_TEXT,
     "Continue a prompt"},
    {"/v1/chat/completions/batch", "POST", api_chat_batch, SHAPE_OPENAI, KEYED, BODY | GENERATES,
     NULL, "Answer several conversations, one choice for each"},
    {"/v1/chat/completions/render", "POST", api_render, SHAPE_OPENAI, KEYED, BODY, ROUTE_CHAT,
     "The prompt of a chat and its tokens, without an answer"},
    {"/v1/completions/render", "POST", api_render, SHAPE_OPENAI, KEYED, BODY, ROUTE_TEXT,
     "The tokens of a prompt, without an answer"},
    {"/v1/chat/completions/derender", "POST", api_derender, SHAPE_OPENAI, KEYED, BODY, NULL,
     "The answer to a chat, made of tokens that were generated"},
    {"/v1/completions/derender", "POST", api_derender, SHAPE_OPENAI, KEYED, BODY, NULL,
     "The answer to a completion, made of tokens that were generated"},
    {"/inference/v1/generate", "POST", api_generate, SHAPE_TOKENS, KEYED, BODY | GENERATES, NULL,
     "Continue token ids by token ids"},
    {"/v1/messages", "POST", api_messages, SHAPE_MESSAGES, KEYED, BODY | GENERATES, NULL,
     "Anthropic's API"},
    {"/v1/messages/count_tokens", "POST", api_count_tokens, SHAPE_MESSAGES, KEYED, BODY, NULL,
     "Count the tokens of a request to /v1/messages"},
    {"/v1/messages/", NULL, NULL, SHAPE_MESSAGES, KEYED, PLAIN, NULL, NULL},
    {"/v1/responses", "POST", api_responses, SHAPE_RESPONSES, KEYED, BODY | GENERATES, NULL,
     "OpenAI's responses"},
    {"/v1/responses/", NULL, api_kept_response, SHAPE_RESPONSES, KEYED, WHOLE, NULL, NULL},
    {"/v1/embeddings", "POST", api_embeddings, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL,
     "Texts to vectors"},
    {"/pooling", "POST", api_pooling, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL,
     "Texts to what the model pools: vectors, or the scores of labels"},
    {"/classify", "POST", api_classify, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL,
     "Texts to labels"},
    {"/score", "POST", api_score, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL,
     "The scores of pairs of texts"},
    {"/v1/score", "POST", api_score, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL, "As /score"},
    {"/rerank", "POST", api_rerank, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL,
     "Documents in the order of their scores for a query, in Jina's form"},
    {"/v1/rerank", "POST", api_rerank, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL, "As /rerank"},
    {"/v2/rerank", "POST", api_rerank, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL, "As /rerank"},
    {"/v1/models", "GET", api_models, SHAPE_OPENAI, KEYED, NAMED | WHOLE, NULL,
     "The names of the model"},
    {"/v1/models/load", "POST", api_load_model, SHAPE_OPENAI, ADMIN, BODY, NULL,
     "Start or wake the engine of a model"},
    {"/v1/models/unload", "POST", api_unload_model, SHAPE_OPENAI, ADMIN, BODY, NULL,
     "Put the engine of a model to sleep"},
    {"/v1/load_lora_adapter", "POST", api_load_lora, SHAPE_OPENAI, ADMIN, BODY, NULL,
     "Load a LoRA adapter"},
    {"/v1/unload_lora_adapter", "POST", api_unload_lora, SHAPE_OPENAI, ADMIN, BODY, NULL,
     "Unload a LoRA adapter"},
    {"/v1", "GET", api_index, SHAPE_OPENAI, KEYED, WHOLE, NULL, "The endpoints"},
    {"/tokenize", "POST", api_tokenize, SHAPE_OPENAI, KEYED, BODY, NULL,
     "Text or a chat to token ids"},
    {"/detokenize", "POST", api_detokenize, SHAPE_OPENAI, KEYED, BODY, NULL, "Token ids to text"},
    {"/tokenizer_info", "GET", api_tokenizer_info, SHAPE_OPENAI, KEYED, PLAIN, NULL,
     "The contents of tokenizer_config.json"},
    {"/server_info", "GET", api_server_info, SHAPE_OPENAI, ADMIN, WHOLE, NULL,
     "The settings of a front"},
    {"/invocations", "POST", api_invocations, SHAPE_OPENAI, KEYED, BODY | GENERATES, NULL,
     "A chat, completion or response, by the body"},
    {"/openapi.json", "GET", api_openapi, SHAPE_OPENAI, OPEN, WHOLE, NULL, "This description"},
    {"/health", "GET", api_health, SHAPE_OPENAI, OPEN, WHOLE, NULL, "200 if the server can answer"},
    {"/metrics", "GET", api_metrics, SHAPE_OPENAI, LOCAL, WHOLE, NULL, "Counters for Prometheus"},
    {"/version", "GET", api_version, SHAPE_OPENAI, OPEN, WHOLE, NULL, "The server's version"},
    {"/ping", "GET", api_health, SHAPE_OPENAI, OPEN, WHOLE, NULL, "As /health"},
    {"/ping", "POST", api_health, SHAPE_OPENAI, OPEN, WHOLE, NULL, "As /health"},
    {"/load", "GET", api_load, SHAPE_OPENAI, KEYED, WHOLE, NULL, "Requests that run or wait"},
    {"/admin/cache", "GET", api_cache_list, SHAPE_OPENAI, ADMIN, PLAIN, NULL,
     "The contents of the prefix cache"},
    {"/admin/cache/pin", "POST", api_cache_pin, SHAPE_OPENAI, ADMIN, BODY, NULL,
     "Keep a prompt in the cache"},
    {"/admin/cache/drop", "POST", api_cache_drop, SHAPE_OPENAI, ADMIN, BODY, NULL,
     "Remove prompts from the cache"},
    {"/reset_prefix_cache", "POST", api_cache_reset, SHAPE_OPENAI, ADMIN, PLAIN, NULL,
     "Empty the cache"},
    {"/v2", "GET", api_kserve, SHAPE_KSERVE, KEYED, WHOLE, NULL,
     "The server, by KServe's protocol"},
    {"/v2/health/live", "GET", api_kserve_live, SHAPE_KSERVE, OPEN, WHOLE, NULL,
     "200 if the front answers"},
    {"/v2/health/ready", "GET", api_kserve_ready, SHAPE_KSERVE, OPEN, WHOLE, NULL,
     "200 if the server can answer"},
    {"/v2/models", "GET", api_kserve_model, SHAPE_KSERVE, KEYED, NAMED | WHOLE, NULL,
     "/v2/models/NAME and /v2/models/NAME/ready: a model's tensors, and whether it is ready"},
    {"/v2/models", "POST", api_kserve_infer, SHAPE_KSERVE, KEYED, BODY | NAMED | WHOLE, NULL,
     "/v2/models/NAME/infer and /v2/models/NAME/generate: continue texts"},
    {"/is_sleeping", "GET", api_is_sleeping, SHAPE_OPENAI, OPEN, WHOLE, NULL,
     "Whether the engine sleeps"},
    {"/sleep", "POST", api_sleep, SHAPE_OPENAI, ADMIN, PLAIN, NULL,
     "Put the engine to sleep: release the device memory"},
    {"/wake_up", "POST", api_wake_up, SHAPE_OPENAI, ADMIN, PLAIN, NULL,
     "Wake the engine: take the device memory again"},
};

/* Copy the path, without query and trailing slash. */
static void route_path(const struct exchange *x, char *path, size_t cap)
{
    const char *uri = fcgi_param(x->fcgi, "REQUEST_URI");
    size_t len = strcspn(uri, "?");

    while (len > 1 && uri[len - 1] == '/')
        len--;
    /* No route is as long as the buffer, so a path that was cut is not found. */
    if (len >= cap)
        len = cap - 1;
    memcpy(path, uri, len);
    path[len] = '\0';
}

/* Compressed bodies are refused, because nginx limits only their compressed size. */
static bool route_is_coded(const struct exchange *x)
{
    const char *coding = fcgi_param(x->fcgi, "HTTP_CONTENT_ENCODING");

    return coding[0] != '\0' && strcasecmp(coding, "identity") != 0;
}

/* Read and parse the body; NULL after an error answer. All parsed data lives in the exchange's
 * arena. */
static const struct json *route_body(struct front *f, struct exchange *x)
{
    const struct json *body = NULL;
    const char *text = NULL;
    char why[256] = "";
    size_t len = 0;
    int rc;

    /* From here on the request's own memory is bounded. */
    x->arena.limit_bytes = f->settings.max_body_bytes * ROUTE_MEMORY_FACTOR;
    if (route_is_coded(x)) {
        rc = ERR_CODED;
    } else {
        rc = fcgi_read_body(x->fcgi, &x->arena, f->settings.max_body_bytes, &text, &len);
    }
    if (rc == ERR_OK) {
        size_t mark = 0;

        if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
            mark = 3; /* a byte order mark, which Windows programs add */

        rc = json_parse(&body, &x->arena, text + mark, len - mark, why, sizeof why);
    }
    if (rc == ERR_OK && body->kind != JSON_OBJECT) {
        rc = ERR_INVALID;
        (void)snprintf(why, sizeof why, "the body must be a JSON object");
    }
    if (rc == ERR_OK)
        return body;
    fcgi_skip_body(x->fcgi); /* ERR_TOO_LARGE and ERR_CODED have read nothing */
    exchange_reply_error(x, rc, why, NULL, 0);
    return NULL;
}

/* A route whose path ends in a slash covers all paths below it. */
static bool route_fits(const struct route *r, const char *path)
{
    size_t len = strlen(r->path);

    if (strcmp(path, r->path) == 0)
        return true;
    if (r->path[len - 1] == '/')
        return strncmp(path, r->path, len) == 0;
    return (r->traits & NAMED) != 0 && strncmp(path, r->path, len) == 0 && path[len] == '/' &&
           path[len + 1] != '\0';
}

/* A full server refuses before it reads and parses the body, because refusals must not take time
 * from the requests that are being served. */
static bool route_turns_away(struct exchange *x)
{
    char tenant[WIRE_TENANT_BYTES];
    int again_s;

    policy_tenant(fcgi_param(x->fcgi, "QUIRE_TENANT"), tenant);
    again_s = engines_turns_away(&x->served->engines, tenant);
    if (again_s == 0)
        return false;
    if (!x->served->on_demand)
        fcgi_skip_body(x->fcgi);
    exchange_reply_error(x, ERR_OVERLOADED, NULL, NULL, again_s);
    return true;
}

/* The OpenAPI description is written from the same table. Here: the schema of a route's body. */
static void route_describe_body(struct buf *b, const struct route *r)
{
    buf_add_text(b, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":"
                    "{\"schema\":");
    if (r->schema == NULL)
        buf_add_text(b, "{\"type\":\"object\"}}}}");
    else
        buf_printf(b, "{\"$ref\":\"#/components/schemas/%s\"}}}}", r->schema);
}

/* One method of a path. Paths that need no key say so, because the description has a key as the
 * default. */
static void route_describe_one(struct buf *b, const struct route *r)
{
    bool post = strcmp(r->method, "POST") == 0;

    buf_printf(b, "\"%s\":{\"summary\":\"%s\"", post ? "post" : "get", r->summary);
    if (r->access == OPEN || r->access == LOCAL)
        buf_add_text(b, ",\"security\":[]");
    if ((r->traits & BODY) != 0)
        route_describe_body(b, r);
    buf_add_text(b, ",\"responses\":{\"200\":{\"description\":\"the answer\"},\"default\":"
                    "{\"description\":\"an error\"}}}");
}

/* The paths of the description. Rows of one path are adjacent, so they become one object. */
void route_describe(struct buf *b)
{
    const char *last = "";

    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const struct route *route = &routes[i];

        if (route->summary == NULL)
            continue;
        /* A further method of the same path. */
        if (strcmp(route->path, last) == 0)
            buf_add_byte(b, ',');
        else
            buf_printf(b, "%s\"%s\":{", last[0] == '\0' ? "" : "},", route->path);
        route_describe_one(b, route);
        last = route->path;
    }
    buf_add_byte(b, '}');
}

/* Of several engines: what each has of the prompts, before the streamer chooses one. The choices of
 * a prompt share the answer. Without memory nothing is known. */
static void route_look(struct exchange *x)
{
    if (x->served->engines.n == 1 || x->complete || x->asks || x->probe)
        return;
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];
        uint32_t *held;

        if (i % x->n != 0) {
            g->held = x->gens[i - 1].held;
            continue;
        }
        held = arena_alloc(&x->arena, sizeof *held * (size_t)x->served->engines.n);
        if (held != NULL)
            engines_look(&x->served->engines, g->tokens.ids, g->n_prompt, &g->request, held);
        g->held = held;
    }
}

/* The value of a name in the query, of *len bytes; NULL: it is not there. */
static const char *route_query(const struct exchange *x, const char *name, size_t *len)
{
    const char *at = strchr(fcgi_param(x->fcgi, "REQUEST_URI"), '?');
    size_t name_len = strlen(name);

    while (at != NULL && *at != '\0') { /* each pass begins at a '?' or '&' */
        at++;
        *len = strcspn(at, "&");
        if (*len > name_len && strncmp(at, name, name_len) == 0 && at[name_len] == '=') {
            *len -= name_len + 1;
            return at + name_len + 1;
        }
        at += *len;
    }
    return NULL;
}

/* The name of the model that a request asks for; NULL: none. */
static const char *route_model(const struct exchange *x, const struct json *body, size_t *len)
{
    const struct json *name = body == NULL ? NULL : json_get(body, "model");

    if (body == NULL)
        return route_query(x, "model", len);
    if (name == NULL || name->kind != JSON_TEXT)
        return NULL;
    *len = name->text_len;
    return name->text;
}

/* No such model, or none that this key may use: the client cannot tell which. */
static bool route_no_model(struct exchange *x, const char *name, size_t len)
{
    char why[320];

    (void)snprintf(why, sizeof why,
                   "the model '%.*s' does not exist or this key may not use it; /v1/models has "
                   "those that it may",
                   len > 200 ? 200 : (int)len, name);
    exchange_reply_error(x, ERR_NO_MODEL, why, "model", 0);
    return false;
}

/* Is the name that of an adapter of model m? Then the request is for it. */
static bool route_take_adapter(struct exchange *x, struct served *m, const char *name, size_t len)
{
    struct wire_adapter_row row;

    if (m->why != NULL || !served_is_here(m) || !engines_find_adapter(&m->engines, name, len, &row))
        return false;
    x->served = m;
    x->adapter = arena_strndup(&x->arena, row.name, strlen(row.name));
    memcpy(x->adapter_digest, row.digest, sizeof x->adapter_digest);
    return x->adapter != NULL;
}

/* Is the name that of an adapter of a model that this key may use? Names of models come first. */
static bool route_find_adapter(const struct front *f, struct exchange *x, const char *name,
                               size_t len, bool keyed)
{
    const char *list = fcgi_param(x->fcgi, "QUIRE_MODELS");

    for (int i = 0; i < f->n_served; i++) {
        if (served_has_name(&f->served[i], name, len))
            return false;
    }
    for (int i = 0; i < f->n_served; i++) {
        if ((!keyed || served_is_allowed(&f->served[i], list)) &&
            route_take_adapter(x, &f->served[i], name, len))
            return true;
    }
    return false;
}

/* Before the first engine, a name that is no model's may be an adapter's. False after an error
 * answer. */
static bool route_knows_adapters(struct exchange *x, const char *name, size_t len)
{
    struct served *m = x->served;

    if (m->on_demand || names_have(&m->names, name, len) || !served_adapts(m) ||
        engines_were_there(&m->engines))
        return true;
    exchange_reply_error(x, ERR_ENGINE_GONE, NULL, "model", 1);
    return false;
}

/* The model, if this key may use it. keyed: the request has a key. */
static bool route_set_model(struct front *f, struct exchange *x, const char *name, size_t len,
                            bool keyed)
{
    const char *list = fcgi_param(x->fcgi, "QUIRE_MODELS");
    struct served *m = NULL;

    if (name != NULL && route_find_adapter(f, x, name, len, keyed))
        return true;
    if (name != NULL)
        m = served_find(f->served, f->n_served, name, len);
    for (int i = 0; i < f->n_served && name == NULL && m == NULL; i++) {
        if (f->served[i].why == NULL && served_is_here(&f->served[i]) &&
            (!keyed || served_is_allowed(&f->served[i], list)))
            m = &f->served[i];
    }
    if (m == NULL || (keyed && !served_is_allowed(m, list)))
        return route_no_model(x, name == NULL ? "" : name, len);
    x->served = m;
    if (m->why == NULL)
        return true;
    exchange_reply_error(x, ERR_ENGINE_GONE, m->why, "model", 1);
    return false;
}

bool route_choose_model(struct front *f, struct exchange *x, const char *name, size_t len)
{
    return route_set_model(f, x, name, len, true);
}

/* Choose the model of a request: the one it names, or the first that its key may use. False after
 * an error answer. */
static bool route_choose(struct front *f, struct exchange *x, const struct route *route,
                         const struct json *body)
{
    bool keyed = route->access == KEYED;
    size_t len = 0;
    const char *name = route_model(x, body, &len);

    /* A server of one model checks names where it reads the fields. */
    if (!f->served[0].on_demand &&
        (!keyed || served_is_allowed(&f->served[0], fcgi_param(x->fcgi, "QUIRE_MODELS")))) {
        return name == NULL || route_find_adapter(f, x, name, len, keyed) ||
               route_knows_adapters(x, name, len);
    }
    return route_set_model(f, x, name, len, keyed);
}

/* The first route that fits path and method answers. If only the path fits, the error is 405 and
 * not 404. */
void route_exchange(struct front *f, struct exchange *x)
{
    const char *method = fcgi_param(x->fcgi, "REQUEST_METHOD");
    char path[256];
    char why[512];
    bool known = false;

    x->served = &f->served[0];
    route_path(x, path, sizeof path);
    /* an unusable name is ignored */
    (void)exchange_name(x, fcgi_param(x->fcgi, "QUIRE_REQUEST_ID"));
    if (strcmp(method, "HEAD") == 0)
        method = "GET"; /* nginx drops the body */
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const struct route *route = &routes[i];
        const struct json *body = NULL;

        if (!route_fits(route, path))
            continue;
        /* Also errors below have the shape of this path. */
        x->shape = route->shape;
        /* Paths below /v1/messages/ only choose the shape of the error. */
        known = known || route->answer != NULL;
        if (route->answer == NULL)
            continue;
        if (route->method != NULL && strcmp(method, route->method) != 0)
            continue;
        if (route->access == ADMIN && !cache_allows(f, x)) {
            fcgi_skip_body(x->fcgi);
            return;
        }
        if ((route->traits & GENERATES) != 0 && !x->served->on_demand && route_turns_away(x))
            return;
        if ((route->traits & BODY) != 0) {
            body = route_body(f, x);
            if (body == NULL)
                return;
        } else {
            fcgi_skip_body(x->fcgi); /* otherwise nginx, while it still writes, would answer 502 */
        }
        if ((route->traits & WHOLE) == 0 && !route_choose(f, x, route, body))
            return;
        if ((route->traits & GENERATES) != 0 && x->served->on_demand && route_turns_away(x))
            return;
        route->answer(f, x, body);
        route_look(x);
        /* An endpoint that failed after making generations has answered already. */
        if (x->complete) {
            for (int g = 0; g < x->n_gens; g++)
                x->gens[g].finish = GEN_FAILED;
        }
        return;
    }
    fcgi_skip_body(x->fcgi);
    (void)snprintf(why, sizeof why, known ? "%s is not allowed for %s" : "there is no %s %s",
                   method, path);
    exchange_reply_error(x, known ? ERR_METHOD : ERR_NOT_FOUND, why, NULL, 0);
}
