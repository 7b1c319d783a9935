/* SPDX-License-Identifier: Apache-2.0
 *
 * The models: GET /v1/models, and of several models POST /v1/models/load and /v1/models/unload. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "front/api/api.h"
#include "front/api/cache.h"
#include "ipc/seats.h"

/* The model that a path /models/NAME asks for, of *len bytes; NULL: it asks for all. */
static const char *api_model_asked(const struct exchange *x, size_t *len)
{
    static const char before[] = "/models/";
    const char *name = strstr(fcgi_param(x->fcgi, "REQUEST_URI"), before);

    if (name == NULL)
        return NULL;
    name += sizeof before - 1;
    *len = strcspn(name, "?");
    while (*len > 0 && name[*len - 1] == '/')
        (*len)--;
    if (*len > 0)
        return name;
    return NULL;
}

/* What a key sees of the models. */
struct models_view {
    const char *list;    /* those that the key may use */
    struct seats *seats; /* the engines' table; NULL: one model, or no engine has run yet */
    uint64_t now_us;
};

static struct models_view models_see(const struct front *f, const struct exchange *x)
{
    struct models_view view = {.list = fcgi_param(x->fcgi, "QUIRE_MODELS"), .now_us = clock_us()};

    if (!f->served[0].on_demand || seats_observe(&view.seats, f->settings.models_run) != ERR_OK)
        view.seats = NULL;
    return view;
}

/* The state of one of several models. */
static const char *models_state(struct served *m, const struct models_view *view)
{
    struct link_state engine;
    enum seat_state seat = SEAT_STARTING;
    bool ready = false;

    if (m->why != NULL)
        return "failed";
    engines_read_state(&m->engines, &engine, view->now_us);
    if (engine.attached && engine.asleep)
        return "asleep";
    if (engine.attached)
        return engine.waking ? "starting" : "awake";
    if (view->seats == NULL || !seats_find(view->seats, m->settings.engine_socket, &seat, &ready))
        return "stopped";
    if (ready && seat == SEAT_ASLEEP)
        return "asleep";
    return ready && seat == SEAT_HELD ? "awake" : "starting";
}

/* The model under one of its names; "root" is its first name. */
static void models_add(struct served *m, struct buf *b, const char *name, size_t len,
                       const struct models_view *view)
{
    struct link_state engine;

    engines_read_state(&m->engines, &engine, view->now_us);
    buf_add_text(b, "{\"id\":");
    buf_add_json_string(b, name, len);
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"quire\",\"root\":",
               (long long)m->model_unix_s);
    buf_add_json_string(b, m->model_name, strlen(m->model_name));
    buf_add_text(b, ",\"parent\":null,\"max_model_len\":");
    if (engine.max_model_len == 0)
        buf_add_text(b, "null");
    else
        buf_printf(b, "%u", engine.max_model_len);
    if (m->on_demand)
        buf_printf(b, ",\"state\":\"%s\"", models_state(m, view));
    buf_add_byte(b, '}');
}

/* An adapter, as vLLM shows it: its parent is the model, its root the folder. */
static void models_add_adapter(struct served *m, struct buf *b, const struct wire_adapter_row *row)
{
    struct link_state engine;

    engines_read_state(&m->engines, &engine, 0);
    buf_add_text(b, "{\"id\":");
    buf_add_json_string(b, row->name, strlen(row->name));
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"quire\",\"root\":",
               (long long)m->model_unix_s);
    buf_add_json_string(b, row->path, strlen(row->path));
    buf_add_text(b, ",\"parent\":");
    buf_add_json_string(b, m->model_name, strlen(m->model_name));
    buf_printf(b, ",\"max_model_len\":%u}", engine.max_model_len);
}

/* All adapters of a model, behind its names. */
static void models_add_adapters(struct served *m, struct buf *b)
{
    struct wire_adapter_row row;

    for (uint32_t i = 0; engines_adapter(&m->engines, i, &row); i++) {
        buf_add_byte(b, ',');
        models_add_adapter(m, b, &row);
    }
}

/* The adapter of a name, of a model that the key may use; false: there is none. */
static bool models_find_adapter(const struct front *f, struct buf *b, const char *name, size_t len,
                                const struct models_view *view)
{
    struct wire_adapter_row row;

    for (int i = 0; i < f->n_served; i++) {
        struct served *m = &f->served[i];

        if (!served_is_here(m) || !served_is_allowed(m, view->list) ||
            !engines_find_adapter(&m->engines, name, len, &row))
            continue;
        models_add_adapter(m, b, &row);
        return true;
    }
    return false;
}

/* All names of all models that the key may use. */
static void models_add_all(const struct front *f, struct buf *b, const struct models_view *view)
{
    bool any = false;

    buf_add_text(b, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < f->n_served; i++) {
        struct served *m = &f->served[i];

        if (!served_is_here(m) || !served_is_allowed(m, view->list))
            continue;
        for (int k = 0; k < m->names.n; k++) {
            buf_add_comma(b, any);
            any = true;
            models_add(m, b, m->names.at[k], strlen(m->names.at[k]), view);
        }
        models_add_adapters(m, b);
    }
    buf_add_text(b, "]}");
}

/* The list of models, or one of them. The names are those of served_model_name. Before the first
 * engine, max_model_len is null. */
void api_models(struct front *f, struct exchange *x, const struct json *body)
{
    struct models_view view = models_see(f, x);
    struct buf buf = {0};
    size_t len = 0;
    const char *one = api_model_asked(x, &len);
    struct served *m = one == NULL ? NULL : served_find(f->served, f->n_served, one, len);
    bool is_adapter = one != NULL && (m == NULL || !served_has_name(m, one, len)) &&
                      models_find_adapter(f, &buf, one, len, &view);
    char why[512];

    (void)body;
    if (one == NULL) {
        models_add_all(f, &buf, &view);
    } else if (!is_adapter && m != NULL && served_is_allowed(m, view.list)) {
        models_add(m, &buf, one, len, &view);
    } else if (!is_adapter) {
        /* The message names at most 200 bytes of the client's text. */
        (void)snprintf(why, sizeof why, "the model '%.*s' does not exist; this server has '%s'",
                       len > 200 ? 200 : (int)len, one, f->served[0].model_name);
        exchange_reply_error(x, ERR_NO_MODEL, f->served[0].on_demand ? NULL : why, "model", 0);
    }
    seats_close(view.seats);
    if (!x->complete)
        exchange_reply(x, 200, "application/json", buf_text(&buf), buf.len);
    buf_fini(&buf);
}

/* Is this one of several models? False after an error answer. */
static bool models_are_many(const struct front *f, struct exchange *x)
{
    if (f->served[0].on_demand)
        return true;
    exchange_reply_error(x, ERR_NOT_FOUND,
                         "this server has one model: use /sleep and /wake_up (setting models_dir)",
                         NULL, 0);
    return false;
}

/* Start or wake the engine. It gets a seat as for a request. */
void api_load_model(struct front *f, struct exchange *x, const struct json *body)
{
    (void)body;
    if (models_are_many(f, x))
        cache_ask_power(x, WIRE_WAKE, false);
}

/* End the engine's process. One that does not run is not started for it. */
void api_unload_model(struct front *f, struct exchange *x, const struct json *body)
{
    struct models_view view = models_see(f, x);
    const char *state = "";
    char text[128];

    (void)body;
    if (models_are_many(f, x))
        state = models_state(x->served, &view);
    seats_close(view.seats);
    if (x->complete)
        return;
    if (strcmp(state, "stopped") != 0 && strcmp(state, "failed") != 0) {
        cache_ask_power(x, WIRE_END, true);
        return;
    }
    (void)snprintf(text, sizeof text, "{\"model\":\"%.64s\",\"state\":\"%s\"}",
                   x->served->model_name, state);
    exchange_reply(x, 200, "application/json", text, strlen(text));
}
