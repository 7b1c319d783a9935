/* SPDX-License-Identifier: Apache-2.0
 *
 * The Open Inference Protocol, version 2, as KServe and Triton have it: its health, the metadata of
 * the server and of models, and texts in and out as tensors of BYTES or by the generate extension.
 *
 *   GET  /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME, /v2/models/NAME/ready
 *   POST /v2/models/NAME/infer      {"inputs":[{"name":"text_input","datatype":"BYTES",
 *                                    "shape":[N],"data":["..."]}],"parameters":{...}}
 *   POST /v2/models/NAME/generate   {"text_input":"...","parameters":{...}}
 *
 * A request becomes a body of /v1/completions: parameters are fields of that. There is one version
 * of each model, "1". */
#include <config.h>
#include <stdio.h>
#include <string.h>

#include "front/api/api.h"

#define KSERVE_MODELS "/v2/models/"

/* A path below /v2/models/, taken apart. */
struct kserve_path {
    const char *name; /* of the model, not NUL-terminated */
    size_t name_len;
    const char *verb; /* "", "ready", "infer", "generate" */
};

/* Remove an end of the name. False: it does not have it. */
static bool kserve_cut(struct kserve_path *p, const char *end)
{
    size_t len = strlen(end);

    if (p->name_len <= len || memcmp(p->name + p->name_len - len, end, len) != 0)
        return false;
    p->name_len -= len;
    return true;
}

/* Take /v2/models/NAME[/versions/1][/VERB] apart. */
static void kserve_split(const struct exchange *x, struct kserve_path *p)
{
    static const char *const verbs[] = {"/ready", "/infer", "/generate"};
    const char *uri = fcgi_param(x->fcgi, "REQUEST_URI");

    *p = (struct kserve_path){.name = "", .verb = ""};
    if (strncmp(uri, KSERVE_MODELS, strlen(KSERVE_MODELS)) == 0)
        p->name = uri + strlen(KSERVE_MODELS);
    p->name_len = strcspn(p->name, "?");
    while (p->name_len > 0 && p->name[p->name_len - 1] == '/')
        p->name_len--;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0] && p->verb[0] == '\0'; i++) {
        if (kserve_cut(p, verbs[i]))
            p->verb = verbs[i] + 1;
    }
    (void)kserve_cut(p, "/versions/1"); /* it may be there */
}

/* GET /v2. */
void api_kserve(struct front *f, struct exchange *x, const struct json *body)
{
    static const char text[] =
        "{\"name\":\"quire\",\"version\":\"" PACKAGE_VERSION "\",\"extensions\":[\"generate\"]}";

    (void)f;
    (void)body;
    exchange_reply(x, 200, "application/json", text, sizeof text - 1);
}

/* GET /v2/health/live: this process answers. */
void api_kserve_live(struct front *f, struct exchange *x, const struct json *body)
{
    (void)f;
    (void)body;
    exchange_reply(x, 200, "application/json", "{\"live\":true}", strlen("{\"live\":true}"));
}

/* The metadata of a model: its tensors. */
static void kserve_describe(struct exchange *x)
{
    const char *name = x->served->model_name;
    struct buf buf = {0};

    buf_add_text(&buf, "{\"name\":");
    buf_add_json_string(&buf, name, strlen(name));
    buf_add_text(&buf, ",\"versions\":[\"1\"],\"platform\":\"quire\",\"inputs\":[{\"name\":"
                       "\"text_input\",\"datatype\":\"BYTES\",\"shape\":[-1]}],\"outputs\":[{"
                       "\"name\":\"text_output\",\"datatype\":\"BYTES\",\"shape\":[-1]}]}");
    exchange_reply_json(x, &buf);
}

/* GET /v2/models/NAME and /v2/models/NAME/ready. A model whose engine would be started or woken by
 * a request is ready. */
void api_kserve_model(struct front *f, struct exchange *x, const struct json *body)
{
    struct link_state engine;
    struct kserve_path path;
    struct buf buf = {0};

    (void)body;
    kserve_split(x, &path);
    if (!route_choose_model(f, x, path.name, path.name_len))
        return;
    if (path.verb[0] == '\0') {
        kserve_describe(x);
        return;
    }
    if (strcmp(path.verb, "ready") != 0) {
        exchange_reply_error(x, ERR_METHOD, NULL, NULL, 0);
        return;
    }
    engines_read_state(&x->served->engines, &engine, 0);
    if (!x->served->on_demand && (!engine.attached || engine.draining)) {
        exchange_reply_error(x, ERR_ENGINE_GONE, NULL, NULL, 1);
        return;
    }
    buf_add_text(&buf, "{\"name\":");
    buf_add_json_string(&buf, x->served->model_name, strlen(x->served->model_name));
    buf_add_text(&buf, ",\"ready\":true}");
    exchange_reply_json(x, &buf);
}

/* The texts of a request to infer: the data of its one input. NULL, with a sentence in why, when it
 * has another form. */
static const struct json *kserve_data(const struct json *body, const char **why)
{
    const struct json *inputs = json_get_kind(body, "inputs", JSON_LIST);
    const struct json *input = inputs != NULL && inputs->n == 1 ? &inputs->items[0] : NULL;
    const struct json *data = json_get_kind(input, "data", JSON_LIST);

    *why = "'inputs' must have one tensor, 'text_input' of datatype 'BYTES'";
    if (input == NULL || !json_is_text(json_get(input, "name"), "text_input") ||
        !json_is_text(json_get(input, "datatype"), "BYTES"))
        return NULL;
    *why = "'data' must be a list of texts (binary data is not supported)";
    if (data == NULL || data->n == 0)
        return NULL;
    for (uint32_t i = 0; i < data->n; i++) {
        if (data->items[i].kind != JSON_TEXT)
            return NULL;
    }
    return data;
}

/* Fields that the path decides, or that would change the form of the answer. */
static bool kserve_is_ours(const char *name)
{
    static const char *const names[] = {"model", "prompt",   "stream", "n",
                                        "echo",  "logprobs", "best_of"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/* Make the body of a completion. ERR_UNSUPPORTED, with the name in *param. */
static int kserve_translate(struct exchange *x, const struct json *body, const struct json *prompt,
                            const struct kserve_path *path, struct json *out, const char **param)
{
    const struct json *parameters = json_get_kind(body, "parameters", JSON_OBJECT);
    struct json_made made = {.arena = &x->arena};
    struct json name = {.kind = JSON_TEXT, .text = NULL, .text_len = path->name_len};
    char *own = arena_alloc(&x->arena, path->name_len + 1);

    if (own == NULL)
        return ERR_NO_MEMORY;
    memcpy(own, path->name, path->name_len);
    own[path->name_len] = '\0';
    name.text = own;
    json_put(&made, "model", &name);
    json_put(&made, "prompt", prompt);
    for (uint32_t i = 0; parameters != NULL && i < parameters->n; i++) {
        *param = parameters->items[i].key;
        if (kserve_is_ours(*param))
            return ERR_UNSUPPORTED;
        json_put(&made, *param, &parameters->items[i]);
    }
    *out = json_made(&made, JSON_OBJECT);
    return made.failed ? ERR_NO_MEMORY : ERR_OK;
}

/* POST /v2/models/NAME/infer and /generate. */
void api_kserve_infer(struct front *f, struct exchange *x, const struct json *body)
{
    const char *why = "'text_input' must be a text", *param = NULL;
    const struct json *prompt, *id = json_get_kind(body, "id", JSON_TEXT);
    struct kserve_path path;
    struct json made;
    int rc;

    kserve_split(x, &path);
    if (!route_choose_model(f, x, path.name, path.name_len))
        return;
    if (strcmp(path.verb, "infer") != 0 && strcmp(path.verb, "generate") != 0) {
        exchange_reply_error(x, ERR_NOT_FOUND, NULL, NULL, 0);
        return;
    }
    x->tensors = strcmp(path.verb, "infer") == 0;
    prompt = x->tensors ? kserve_data(body, &why) : json_get_kind(body, "text_input", JSON_TEXT);
    if (prompt == NULL) {
        exchange_reply_error(x, ERR_INVALID, why, NULL, 0);
        return;
    }
    rc = kserve_translate(x, body, prompt, &path, &made, &param);
    if (rc != ERR_OK) {
        exchange_reply_error(
            x, rc, rc == ERR_UNSUPPORTED ? "this parameter is not supported" : NULL, param, 0);
        return;
    }
    x->request = id; /* the answer repeats it */
    api_completions(f, x, &made);
}
