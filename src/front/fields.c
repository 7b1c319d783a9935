/* SPDX-License-Identifier: Apache-2.0
 *
 * Every field is a row: its name, the formats that have it, the function that reads it. What is
 * known and would change the answer, but is not there yet, is refused by name. A field that is in
 * no row is passed over, as vLLM does: clients send what other servers know. */
#include "front/fields.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "front/lax.h"
#include "front/retention.h"

#define FIELDS_STOP_BYTES_MAX 131072 /* each choice has three bytes of memory for one of these */

enum { FIELDS_CHAT = 1, FIELDS_TEXT = 2, FIELDS_BOTH = 3 };

struct fields_read_context {
    struct fields *out;
    struct exchange *x;
    const struct names *names;
    const struct presets *presets;
    size_t stop_bytes; /* of all stop strings */
    int best_of;       /* 0: not given */
    char *why;
    size_t why_cap;
};

struct fields_row;
typedef int fields_fn(struct fields_read_context *c, const struct fields_row *row,
                      const struct json *v);

struct fields_row {
    const char *name;
    int formats;
    fields_fn *read;
    size_t offset; /* in struct wire_request, for numbers */
    double low; /* range of numbers (of an object's members), both ends allowed unless low_open */
    double high;
    bool low_open;
};

static int fields_type(struct fields_read_context *c, const struct fields_row *row,
                       const char *wanted, const struct json *v)
{
    char shown[LAX_SHOW_BYTES];

    (void)snprintf(c->why, c->why_cap, "'%s' must be %s, not %s", row->name, wanted,
                   lax_show(v, shown));
    return ERR_INVALID;
}

static int fields_range(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v, double *out)
{
    const struct json number = lax_number(v);
    char shown[LAX_SHOW_BYTES];
    double d;

    if (!json_is_number(&number))
        return fields_type(c, row, "a number", v);
    d = json_real(&number);
    /* Tiny numbers are 0 once they are floats, which is what the engine gets. */
    if (!(d >= row->low && d <= row->high) || (row->low_open && (float)d <= (float)row->low)) {
        (void)snprintf(c->why, c->why_cap, "'%s' must be %s %.15g and at most %.15g, not %s",
                       row->name, row->low_open ? "above" : "at least", row->low, row->high,
                       lax_show(v, shown));
        return ERR_INVALID;
    }
    *out = d;
    return ERR_OK;
}

static int fields_real(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    double d;
    int rc = fields_range(c, row, v, &d);

    if (rc == ERR_OK)
        memcpy((char *)&c->out->request + row->offset, &(float){(float)d}, sizeof(float));
    return rc;
}

static int fields_whole_range(struct fields_read_context *c, const struct fields_row *row,
                              const struct json *v, double *out)
{
    const struct json number = lax_number(v);
    char wanted[96];

    if (number.kind == JSON_INT || number.kind == JSON_UINT)
        return fields_range(c, row, v, out);
    (void)snprintf(wanted, sizeof wanted, "a whole number from %.15g to %.15g", row->low,
                   row->high);
    return fields_type(c, row, wanted, v);
}

static int fields_whole(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    double d;
    int rc = fields_whole_range(c, row, v, &d);

    if (rc == ERR_OK)
        memcpy((char *)&c->out->request + row->offset, &(int32_t){(int32_t)d}, sizeof(int32_t));
    return rc;
}

static int fields_top_k(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    int rc = fields_whole(c, row, v);

    if (rc == ERR_OK && c->out->request.top_k < 0)
        c->out->request.top_k = 0; /* vLLM writes "off" as -1, too */
    return rc;
}

static int fields_seed(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    const struct json number = lax_number(v);

    if (number.kind != JSON_INT && number.kind != JSON_UINT)
        return fields_type(c, row, "a whole number of 64 bits", v);
    c->out->request.seed = number.kind == JSON_INT ? (uint64_t)number.whole : number.uwhole;
    c->out->seed_given = number.kind == JSON_UINT || number.whole != -1; /* -1: none, as in vLLM */
    return ERR_OK;
}

static int fields_length_penalty(struct fields_read_context *c, const struct fields_row *row,
                                 const struct json *v)
{
    return fields_range(c, row, v, &c->out->beams.length_penalty);
}

static int fields_timeout(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    double d;
    int rc = fields_range(c, row, v, &d);

    if (rc == ERR_OK)
        c->x->timeout_us = 1 + (uint64_t)(d * 1e6);
    return rc;
}

static int fields_max_tokens(struct fields_read_context *c, const struct fields_row *row,
                             const struct json *v)
{
    double d;
    int rc = fields_whole_range(c, row, v, &d);

    /* max_completion_tokens wins over max_tokens, whichever comes first. */
    if (rc == ERR_OK && c->x->max_tokens_given && strcmp(row->name, "max_tokens") == 0)
        return ERR_OK;
    if (rc == ERR_OK) {
        c->x->max_tokens_given = true;
        c->x->max_tokens = (uint32_t)d;
    }
    return rc;
}

/* A chat says whether, and top_logprobs how many; a completion says how many. */
static int fields_logprobs(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    bool flag;

    if (!lax_flag(v, &flag))
        return fields_type(c, row, "true or false", v);
    if (flag)
        c->out->request.flags |= WIRE_LOGPROBS;
    return ERR_OK;
}

/* How many alternatives: -1 is the whole vocabulary, which no record of the lane has room for. */
static int fields_n_told(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    const struct json number = lax_number(v);
    struct fields_row bounded = *row;

    bounded.high = c->presets->max_logprobs;
    if (number.kind != JSON_INT || number.whole != -1)
        return fields_whole(c, &bounded, v);
    (void)snprintf(c->why, c->why_cap,
                   "'%s' of -1 asks for the whole vocabulary; this server tells at most %u "
                   "alternatives of a token (max_logprobs)",
                   row->name, c->presets->max_logprobs);
    return ERR_UNSUPPORTED;
}

static int fields_n_logprobs(struct fields_read_context *c, const struct fields_row *row,
                             const struct json *v)
{
    int rc = fields_n_told(c, row, v);

    if (rc == ERR_OK && c->x->format == EXCHANGE_COMPLETION)
        c->out->request.flags |= WIRE_LOGPROBS;
    return rc;
}

static int fields_prompt_logprobs(struct fields_read_context *c, const struct fields_row *row,
                                  const struct json *v)
{
    int rc = fields_n_told(c, row, v);

    if (rc == ERR_OK) {
        c->out->request.flags |= WIRE_PROMPT_LOGPROBS;
        c->x->prompt_logprobs = true;
    }
    return rc;
}

static int fields_biases(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    (void)row;
    return steering_read_biases(&c->x->steering, &c->x->arena, v, c->why, c->why_cap);
}

static int fields_asked(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    int rc = steering_read_asked(&c->x->steering, &c->x->arena, v, c->why, c->why_cap);

    (void)row;
    if (rc == ERR_OK && c->x->steering.n_asked > 0 && c->x->format == EXCHANGE_COMPLETION)
        c->out->request.flags |= WIRE_LOGPROBS;
    return rc;
}

static int fields_allowed(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    (void)row;
    return steering_read_allowed(&c->x->steering, &c->x->arena, v, c->why, c->why_cap);
}

/* They are read where the tokenizer is. */
static int fields_bad_words(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    if (v->kind != JSON_LIST)
        return fields_type(c, row, "a list of strings", v);
    c->out->bad_words = v;
    return ERR_OK;
}

/* Some of these are read by the endpoint; here they must be flags. */
static int fields_flag(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    bool flag;

    if (!lax_flag(v, &flag))
        return fields_type(c, row, "true or false", v);
    if (strcmp(row->name, "stream") == 0)
        c->x->stream = flag;
    if (strcmp(row->name, "skip_special_tokens") == 0) {
        c->out->skip_special = flag;
        c->out->skip_special_given = true;
    } else if (strcmp(row->name, "include_stop_str_in_output") == 0)
        c->out->include_stop = flag;
    else if (strcmp(row->name, "parallel_tool_calls") == 0)
        c->x->one_call = !flag;
    else if (strcmp(row->name, "include_reasoning") == 0)
        c->x->hides_reasoning = !flag;
    else if (strcmp(row->name, "return_token_ids") == 0)
        c->x->return_ids = flag;
    else if (strcmp(row->name, "return_tokens_as_token_ids") == 0)
        c->x->tokens_as_ids = flag;
    else if (strcmp(row->name, "use_beam_search") == 0)
        c->out->use_beams = flag;
    else if (strcmp(row->name, "early_stopping") == 0)
        c->out->beams.early_stopping = flag;
    else if (strcmp(row->name, "echo") == 0)
        c->x->echo = flag;
    else if (strcmp(row->name, "ignore_eos") == 0 && flag)
        c->out->request.flags |= WIRE_IGNORE_EOS;
    return ERR_OK;
}

static int fields_stream_options(struct fields_read_context *c, const struct fields_row *row,
                                 const struct json *v)
{
    if (v->kind != JSON_OBJECT)
        return fields_type(c, row, "an object", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *m = &v->items[i];

        if (m->kind == JSON_NULL)
            continue;
        if (m->kind == JSON_BOOL && strcmp(m->key, "include_usage") == 0) {
            c->x->include_usage = m->flag;
        } else if (m->kind == JSON_BOOL && strcmp(m->key, "continuous_usage_stats") == 0) {
            c->x->usage_always = m->flag;
        } else if (m->kind != JSON_BOOL || m->flag || strcmp(m->key, "include_obfuscation") != 0) {
            (void)snprintf(c->why, c->why_cap, "'stream_options.%.64s' is not supported", m->key);
            return ERR_UNSUPPORTED;
        }
    }
    return ERR_OK;
}

static int fields_stop_text(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    size_t n = (size_t)c->presets->max_stops;

    if (v->kind != JSON_TEXT)
        return fields_type(c, row, "a string or a list of strings", v);
    if (v->text_len == 0 || v->text_len > DETOK_STOP_BYTES_MAX ||
        c->out->n_stops == c->presets->max_stops) {
        (void)snprintf(c->why, c->why_cap, "'stop' takes at most %d strings of 1 to %d bytes",
                       c->presets->max_stops, DETOK_STOP_BYTES_MAX);
        return ERR_INVALID;
    }
    c->stop_bytes += v->text_len;
    if (c->stop_bytes > FIELDS_STOP_BYTES_MAX) {
        (void)snprintf(c->why, c->why_cap, "'stop' takes at most %d bytes in all its strings",
                       FIELDS_STOP_BYTES_MAX);
        return ERR_INVALID;
    }
    if (c->out->n_stops == 0) {
        c->out->stops = arena_alloc(&c->x->arena, n * sizeof *c->out->stops);
        c->x->stop_texts = arena_alloc(&c->x->arena, n * sizeof *c->x->stop_texts);
    }
    if (c->out->stops == NULL || c->x->stop_texts == NULL)
        return ERR_NO_MEMORY;
    c->out->stops[c->out->n_stops] = (struct detok_stop){.text = v->text, .len = v->text_len};
    c->x->stop_texts[c->x->n_stops++] = c->out->stops[c->out->n_stops++];
    return ERR_OK;
}

static int fields_stop(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    int rc = ERR_OK;

    if (v->kind != JSON_LIST)
        return fields_stop_text(c, row, v);
    for (uint32_t i = 0; i < v->n && rc == ERR_OK; i++)
        rc = fields_stop_text(c, row, &v->items[i]);
    return rc;
}

static int fields_stop_ids(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    struct wire_request *r = &c->out->request;

    if (v->kind != JSON_LIST)
        return fields_type(c, row, "a list of token ids", v);
    if (v->n > WIRE_STOP_IDS) {
        (void)snprintf(c->why, c->why_cap, "'stop_token_ids' takes at most %d ids", WIRE_STOP_IDS);
        return ERR_INVALID;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json id = lax_number(&v->items[i]);

        if (id.kind != JSON_INT || id.whole < 0 || id.whole > INT32_MAX)
            return fields_type(c, row, "a list of token ids", &v->items[i]);
        r->stop_ids[r->n_stop_ids++] = (int32_t)id.whole;
    }
    return ERR_OK;
}

static int fields_model(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    if (v->kind != JSON_TEXT)
        return fields_type(c, row, "a string", v);
    if (names_have(c->names, v->text, v->text_len))
        return ERR_OK;
    (void)snprintf(c->why, c->why_cap, "the model '%.200s' does not exist; this server has '%s'",
                   v->text, c->names->at[0]);
    return ERR_NO_MODEL;
}

/* What says which form the output has: form.c knows. */
static int fields_form(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    struct form *f = &c->out->form;

    if (strcmp(row->name, "tools") == 0)
        return form_read_tools(f, v, c->why, c->why_cap);
    if (strcmp(row->name, "tool_choice") == 0)
        return form_read_tool_choice(f, v, c->why, c->why_cap);
    if (strcmp(row->name, "response_format") == 0)
        return form_read_response_format(f, v, c->why, c->why_cap);
    if (strcmp(row->name, "structured_outputs") == 0)
        return form_read_structured(f, v, c->why, c->why_cap);
    return form_read_guided(f, row->name, v, c->why, c->why_cap);
}

/* The number of choices of each prompt, or best_of, which must not ask for more. */
static int fields_n(struct fields_read_context *c, const struct fields_row *row,
                    const struct json *v)
{
    double d;
    int rc = fields_whole_range(c, row, v, &d);

    if (rc != ERR_OK)
        return rc;
    if (strcmp(row->name, "n") == 0)
        c->x->n = (int)d;
    else
        c->best_of = (int)d;
    return ERR_OK;
}

bool fields_read_salt(const struct json *v, uint8_t salt[WIRE_SALT_BYTES])
{
    struct hash h;

    if (v->kind != JSON_TEXT || v->text_len == 0)
        return false;
    h = hash_sha256("cache_salt", sizeof "cache_salt", v->text, v->text_len);
    memcpy(salt, &h, WIRE_SALT_BYTES);
    return true;
}

static int fields_salt(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    return fields_read_salt(v, c->out->request.salt)
               ? ERR_OK
               : fields_type(c, row, "a string that is not empty", v);
}

static int fields_retention(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    (void)row;
    return retention_read(&c->out->request, v, c->why, c->why_cap);
}

/* The endpoint reads them; what marks in them say of the cache stands here. */
static int fields_messages(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    (void)row;
    return retention_read_marks(v, &c->out->mark_s, c->why, c->why_cap);
}

/* -1: what the model takes beside the answer (gen_truncate()). */
static int fields_truncate(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    const struct json number = lax_number(v);

    if (number.kind != JSON_INT || number.whole < -1 || number.whole == 0 || number.whole > INT_MAX)
        return fields_type(c, row, "-1 or a whole number from 1 to 2147483647", v);
    c->x->truncate_to = number.whole;
    return ERR_OK;
}

static int fields_think(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    double d;
    int rc = fields_whole_range(c, row, v, &d);

    if (rc == ERR_OK)
        c->x->think_max = (int64_t)d;
    return rc;
}

static int fields_side(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    if (!json_is_text(v, "left") && !json_is_text(v, "right"))
        return fields_type(c, row, "left or right", v);
    c->x->truncates_right = json_is_text(v, "right");
    return ERR_OK;
}

static int fields_text(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    if (v->kind != JSON_TEXT)
        return fields_type(c, row, "a string", v);
    if (strcmp(row->name, "request_id") == 0 && !json_has_nul(v))
        (void)exchange_name(c->x, v->text); /* one that cannot be a name is not used */
    return ERR_OK;
}

bool fields_is_effort(const struct json *v)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    bool is = false;

    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++)
        is = is || json_is_text(v, efforts[i]);
    return is;
}

/* The template gets it. */
static int fields_effort(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    return fields_is_effort(v)
               ? ERR_OK
               : fields_type(c, row, "none, minimal, low, medium, high, xhigh or max", v);
}

/* The endpoint reads it. */
static int fields_list(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    return v->kind == JSON_LIST ? ERR_OK : fields_type(c, row, "a list", v);
}

/* The endpoint reads it. */
static int fields_object(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    if (v->kind != JSON_OBJECT)
        return fields_type(c, row, "an object", v);
    if (row->high == 0 || v->n <= row->high)
        return ERR_OK;
    (void)snprintf(c->why, c->why_cap, "'%s' has more than %g members", row->name, row->high);
    return ERR_INVALID;
}

/* Has no bearing on the answer. */
static int fields_ignore(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    (void)c;
    (void)row;
    (void)v;
    return ERR_OK;
}

/* A feature that is not there: accepted only when the value asks for nothing. */
static int fields_neutral(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    bool nothing = false;

    switch (v->kind) {
    case JSON_NULL: nothing = true; break;
    case JSON_BOOL: nothing = !v->flag; break;
    case JSON_INT: nothing = v->whole == (int64_t)row->low; break;
    case JSON_UINT:
    case JSON_REAL: nothing = json_real(v) == row->low; break;
    case JSON_TEXT: nothing = v->text_len == 0 || json_is_text(v, "none"); break;
    case JSON_LIST:
        nothing = v->n == 0 || (v->n == 1 && strcmp(row->name, "modalities") == 0 &&
                                json_is_text(&v->items[0], "text"));
        break;
    case JSON_OBJECT: nothing = v->n == 0; break;
    }
    if (nothing)
        return ERR_OK;
    (void)snprintf(c->why, c->why_cap, "'%s' is not supported with this value", row->name);
    return ERR_UNSUPPORTED;
}

#define AT(field) offsetof(struct wire_request, field)

static const struct fields_row fields_rows[] = {
    {"model", FIELDS_BOTH, fields_model, 0, 0, 0, false},
    {"messages", FIELDS_CHAT, fields_messages, 0, 0, 0, false},
    {"prompt", FIELDS_TEXT, fields_ignore, 0, 0, 0, false}, /* api_completions.c */
    {"thinking_token_budget", FIELDS_CHAT, fields_think, 0, -1, INT_MAX, false},
    {"add_special_tokens", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"add_generation_prompt", FIELDS_CHAT, fields_flag, 0, 0, 0, false},
    {"continue_final_message", FIELDS_CHAT, fields_flag, 0, 0, 0, false},
    {"split_special_tokens", FIELDS_CHAT, fields_flag, 0, 0, 0, false}, /* api_chat.c reads it */
    {"chat_template_kwargs", FIELDS_CHAT, fields_object, 0, 0, 256, false},
    {"reasoning_effort", FIELDS_CHAT, fields_effort, 0, 0, 0, false}, /* api_chat.c reads it */
    {"max_tokens", FIELDS_CHAT, fields_max_tokens, 0, 1, INT_MAX, false},
    {"max_tokens", FIELDS_TEXT, fields_max_tokens, 0, 0, INT_MAX, false}, /* 0: with echo */
    {"max_completion_tokens", FIELDS_CHAT, fields_max_tokens, 0, 1, INT_MAX, false},
    {"min_tokens", FIELDS_BOTH, fields_whole, AT(min_tokens), 0, INT_MAX, false},
    {"temperature", FIELDS_BOTH, fields_real, AT(temperature), 0, 100, false}, /* vLLM: no bound */
    {"top_p", FIELDS_BOTH, fields_real, AT(top_p), 0, 1, true},
    {"top_k", FIELDS_BOTH, fields_top_k, AT(top_k), -1, INT_MAX, false},
    {"min_p", FIELDS_BOTH, fields_real, AT(min_p), 0, 1, false},
    {"presence_penalty", FIELDS_BOTH, fields_real, AT(presence), -2, 2, false},
    {"frequency_penalty", FIELDS_BOTH, fields_real, AT(frequency), -2, 2, false},
    {"repetition_penalty", FIELDS_BOTH, fields_real, AT(repetition), 0, 100, true},
    {"priority", FIELDS_BOTH, fields_whole, AT(priority), INT_MIN, INT_MAX, false},
    {"timeout_s", FIELDS_BOTH, fields_timeout, 0, 0, 86400, true},
    {"seed", FIELDS_BOTH, fields_seed, 0, 0, 0, false},
    {"stop", FIELDS_BOTH, fields_stop, 0, 0, 0, false},
    {"stop_token_ids", FIELDS_BOTH, fields_stop_ids, 0, 0, 0, false},
    {"ignore_eos", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"stream", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"stream_options", FIELDS_BOTH, fields_stream_options, 0, 0, 0, false},
    {"skip_special_tokens", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"include_stop_str_in_output", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    /* Harmless: for the books of whoever runs a service. */
    {"user", FIELDS_BOTH, fields_ignore, 0, 0, 0, false},
    {"metadata", FIELDS_CHAT, fields_ignore, 0, 0, 0, false},
    {"store", FIELDS_CHAT, fields_flag, 0, 0, 0, false}, /* nothing is, and no answer says so */
    {"service_tier", FIELDS_CHAT, fields_ignore, 0, 0, 0, false},
    {"safety_identifier", FIELDS_CHAT, fields_ignore, 0, 0, 0, false},
    {"prompt_cache_key", FIELDS_CHAT, fields_ignore, 0, 0, 0, false},
    {"request_id", FIELDS_BOTH, fields_text, 0, 0, 0, false},
    {"n", FIELDS_BOTH, fields_n, 0, 1, 128, false},
    {"best_of", FIELDS_TEXT, fields_n, 0, 1, 128, false},
    {"use_beam_search", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"length_penalty", FIELDS_BOTH, fields_length_penalty, 0, -100, 100, false},
    {"early_stopping", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"echo", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"return_token_ids", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"logprobs", FIELDS_CHAT, fields_logprobs, 0, 0, 0, false},
    {"logprobs", FIELDS_TEXT, fields_n_logprobs, AT(n_logprobs), 0, WIRE_LOGPROBS_MAX, false},
    {"top_logprobs", FIELDS_CHAT, fields_n_logprobs, AT(n_logprobs), 0, WIRE_LOGPROBS_MAX, false},
    {"prompt_logprobs", FIELDS_BOTH, fields_prompt_logprobs, AT(n_prompt_logprobs), 0,
     WIRE_LOGPROBS_MAX, false},
    {"logprob_token_ids", FIELDS_BOTH, fields_asked, 0, 0, 0, false},
    {"return_tokens_as_token_ids", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"logit_bias", FIELDS_BOTH, fields_biases, 0, 0, 0, false},
    {"allowed_token_ids", FIELDS_BOTH, fields_allowed, 0, 0, 0, false},
    {"bad_words", FIELDS_BOTH, fields_bad_words, 0, 0, 0, false},
    {"cache_salt", FIELDS_BOTH, fields_salt, 0, 0, 0, false},
    {"cache_retention", FIELDS_BOTH, fields_retention, 0, 0, 0, false},
    {"truncate_prompt_tokens", FIELDS_BOTH, fields_truncate, 0, 0, 0, false},
    {"truncation_side", FIELDS_BOTH, fields_side, 0, 0, 0, false},
    {"documents", FIELDS_CHAT, fields_list, 0, 0, 0, false}, /* api_chat.c reads it */
    {"spaces_between_special_tokens", FIELDS_BOTH, fields_flag, 0, 0, 0, false},
    {"tools", FIELDS_CHAT, fields_form, 0, 0, 0, false},
    {"tool_choice", FIELDS_CHAT, fields_form, 0, 0, 0, false},
    {"response_format", FIELDS_BOTH, fields_form, 0, 0, 0, false},
    {"structured_outputs", FIELDS_BOTH, fields_form, 0, 0, 0, false},
    {"guided_json", FIELDS_BOTH, fields_form, 0, 0, 0, false}, /* vLLM's older names */
    {"guided_regex", FIELDS_BOTH, fields_form, 0, 0, 0, false},
    {"guided_choice", FIELDS_BOTH, fields_form, 0, 0, 0, false},
    {"guided_grammar", FIELDS_BOTH, fields_form, 0, 0, 0, false},
    {"guided_whitespace_pattern", FIELDS_BOTH, fields_form, 0, 0, 0, false},
    {"parallel_tool_calls", FIELDS_CHAT, fields_flag, 0, 0, 0, false},
    {"include_reasoning", FIELDS_CHAT, fields_flag, 0, 0, 0, false},
    /* Not there yet; low is the number that asks for nothing. */
    {"suffix", FIELDS_TEXT, fields_neutral, 0, 0, 0, false},
    {"chat_template", FIELDS_CHAT, fields_neutral, 0, 0, 0, false},
    {"functions", FIELDS_CHAT, fields_neutral, 0, 0, 0, false},
    {"function_call", FIELDS_CHAT, fields_neutral, 0, 0, 0, false},
    {"prompt_embeds", FIELDS_TEXT, fields_neutral, 0, 0, 0, false},
    {"modalities", FIELDS_CHAT, fields_neutral, 0, 0, 0, false},
    {"repetition_detection", FIELDS_BOTH, fields_neutral, 0, 0, 0, false},
    {"return_token_offsets", FIELDS_BOTH, fields_neutral, 0, 0, 0, false},
    {"return_prompt_text", FIELDS_CHAT, fields_neutral, 0, 0, 0, false},
    {"return_assistant_tokens_mask", FIELDS_CHAT, fields_neutral, 0, 0, 0, false},
};

static const struct fields_row *fields_find(const char *name, enum exchange_format format)
{
    int mask = format == EXCHANGE_CHAT ? FIELDS_CHAT : FIELDS_TEXT;

    for (size_t i = 0; i < sizeof fields_rows / sizeof fields_rows[0]; i++) {
        const struct fields_row *row = &fields_rows[i];

        /* The first letter spares a million unknown fields nearly all calls. */
        if (row->name[0] == name[0] && (row->formats & mask) != 0 && strcmp(row->name, name) == 0)
            return row;
    }
    return NULL;
}

/* Fields that only fit together. *param is the one to be named. */
static int fields_check_logprobs(struct fields_read_context *c, const char **param)
{
    struct wire_request *r = &c->out->request;
    struct exchange *x = c->x;
    const char *wrong = NULL;

    if (x->format == EXCHANGE_CHAT && r->n_logprobs > 0 && (r->flags & WIRE_LOGPROBS) == 0) {
        *param = "top_logprobs";
        wrong = "'top_logprobs' needs 'logprobs' to be true";
    } else if (x->steering.n_asked > 0 && (r->flags & WIRE_LOGPROBS) == 0) {
        *param = "logprob_token_ids";
        wrong = "'logprob_token_ids' needs 'logprobs' to be true";
    } else if (x->prompt_logprobs && x->stream && r->n_prompt_logprobs > 0) {
        *param = "prompt_logprobs";
        wrong = "'prompt_logprobs' is not told in streams";
    } else if (x->max_tokens_given && x->max_tokens == 0 && !x->echo) {
        *param = "max_tokens";
        wrong = "'max_tokens' must be at least 1, or 'echo' true";
    }
    if (wrong != NULL) {
        (void)snprintf(c->why, c->why_cap, "%s", wrong);
        return ERR_INVALID;
    }
    if (x->prompt_logprobs && x->stream) { /* of 0: as vLLM takes it, though nothing is told */
        x->prompt_logprobs = false;
        r->flags &= ~(uint32_t)WIRE_PROMPT_LOGPROBS;
    }
    if (x->echo && x->format == EXCHANGE_COMPLETION &&
        (r->flags & WIRE_LOGPROBS) != 0) { /* the echo has them, too */
        r->flags |= WIRE_PROMPT_LOGPROBS;
        r->n_prompt_logprobs =
            r->n_prompt_logprobs > r->n_logprobs ? r->n_prompt_logprobs : r->n_logprobs;
    }
    if (x->max_tokens_given && x->max_tokens == 0) {
        x->only_echo = true;
        x->max_tokens = 1; /* the engine knows no less */
    }
    return ERR_OK;
}

/* A search does not draw tokens. Fields of that kind that clients always send (temperature, top_p,
 * top_k, min_p, seed) are passed over, as in vLLM; the others are refused. */
static int fields_check_beams(struct fields_read_context *c, const char **param)
{
    const struct fields *out = c->out;
    const struct wire_request *r = &out->request;
    const struct exchange *x = c->x;
    const struct {
        const char *name;
        bool given;
    } others[] = {
        {"stream", x->stream},
        {"stop", out->n_stops > 0},
        {"bad_words", out->bad_words != NULL},
        {"logit_bias", x->steering.n_biases > 0},
        {"allowed_token_ids", x->steering.n_allowed > 0},
        {"logprob_token_ids", x->steering.n_asked > 0},
        {"presence_penalty", r->presence != 0.0f},
        {"frequency_penalty", r->frequency != 0.0f},
        {"repetition_penalty", r->repetition != 1.0f && r->repetition != c->presets->repetition},
        {"min_tokens", r->min_tokens > 0},
        {"thinking_token_budget", x->think_max >= 0},
    };

    if (!out->use_beams)
        return ERR_OK;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (!others[i].given)
            continue;
        *param = others[i].name;
        (void)snprintf(c->why, c->why_cap, "'%s' is not supported with 'use_beam_search'",
                       others[i].name);
        return ERR_UNSUPPORTED;
    }
    if (form_binds(&out->form)) {
        *param = "use_beam_search";
        (void)snprintf(c->why, c->why_cap,
                       "'use_beam_search' is not supported with an output that has to follow a "
                       "form (response_format, structured_outputs, strict or forced tools)");
        return ERR_UNSUPPORTED;
    }
    if (x->n > BEAMS_WIDTH_MAX) {
        *param = "n";
        (void)snprintf(c->why, c->why_cap, "'n' must be at most %d with 'use_beam_search'",
                       BEAMS_WIDTH_MAX);
        return ERR_INVALID;
    }
    return ERR_OK;
}

int fields_read(struct fields *out, struct exchange *x, const struct json *body,
                const struct presets *presets, const struct names *names, char *why, size_t why_cap,
                const char **param)
{
    struct fields_read_context c = {
        .out = out, .x = x, .names = names, .presets = presets, .why = why, .why_cap = why_cap};
    int rc;

    *out = (struct fields){
        .request = {.temperature = presets->temperature,
                    .top_p = presets->top_p,
                    .top_k = presets->top_k,
                    .min_p = presets->min_p,
                    .repetition = presets->repetition},
        .skip_special = true,
        .beams = {.length_penalty = 1.0},
    };
    x->n = 1;
    x->think_max = -1;
    x->tokens_as_ids = presets->tokens_as_ids;
    for (uint32_t i = 0; i < body->n; i++) {
        const struct json *v = &body->items[i];
        const struct fields_row *row = fields_find(v->key, x->format);

        *param = v->key;
        if (row == NULL) {
            log_debug("front: a request has '%.64s', which nobody knows", v->key);
            continue;
        }
        rc = v->kind == JSON_NULL ? ERR_OK : row->read(&c, row, v);
        if (rc != ERR_OK)
            return rc;
    }
    retention_mark(&out->request, out->mark_s);
    if (x->include_usage && !x->stream) {
        *param = "stream_options";
        (void)snprintf(why, why_cap, "'stream_options' is only allowed when 'stream' is true");
        return ERR_INVALID;
    }
    x->include_usage = x->stream && (x->include_usage || presets->include_usage);
    if (c.best_of != 0 && c.best_of != x->n) {
        *param = "best_of";
        (void)snprintf(why, why_cap, "'best_of' other than 'n' is not supported");
        return ERR_UNSUPPORTED;
    }
    if (fields_check_logprobs(&c, param) != ERR_OK)
        return ERR_INVALID;
    rc = fields_check_beams(&c, param);
    if (rc != ERR_OK)
        return rc;
    rc = form_check(&out->form, param, why, why_cap);
    if (rc != ERR_OK)
        return rc;
    if (!x->max_tokens_given && presets->max_tokens > 0) {
        x->max_tokens_given = true;
        x->max_tokens = presets->max_tokens;
    }
    *param = NULL;
    return ERR_OK;
}

/* What a row takes, as JSON schema names it; NULL: several things. */
static const char *fields_schema_type(const struct fields_row *row)
{
    static const struct {
        fields_fn *read;
        const char *type;
    } types[] = {
        {fields_real, "number"},
        {fields_timeout, "number"},
        {fields_length_penalty, "number"},
        {fields_whole, "integer"},
        {fields_top_k, "integer"},
        {fields_seed, "integer"},
        {fields_think, "integer"},
        {fields_max_tokens, "integer"},
        {fields_n, "integer"},
        {fields_n_logprobs, "integer"},
        {fields_truncate, "integer"},
        {fields_prompt_logprobs, "integer"},
        {fields_flag, "boolean"},
        {fields_logprobs, "boolean"},
        {fields_model, "string"},
        {fields_text, "string"},
        {fields_salt, "string"},
        {fields_effort, "string"},
        {fields_side, "string"},
        {fields_list, "array"},
        {fields_messages, "array"},
        {fields_stop_ids, "array"},
        {fields_allowed, "array"},
        {fields_asked, "array"},
        {fields_bad_words, "array"},
        {fields_object, "object"},
        {fields_biases, "object"},
        {fields_stream_options, "object"},
        {fields_retention, "object"},
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].read == row->read)
            return types[i].type;
    }
    return NULL;
}

void fields_describe(struct buf *b, enum exchange_format format)
{
    int wanted = format == EXCHANGE_CHAT ? FIELDS_CHAT : FIELDS_TEXT;
    const char *comma = "";

    for (size_t i = 0; i < sizeof fields_rows / sizeof fields_rows[0]; i++) {
        const struct fields_row *row = &fields_rows[i];
        const char *type = fields_schema_type(row);

        if ((row->formats & wanted) == 0 || row->read == fields_neutral)
            continue;
        buf_printf(b, "%s\"%s\":{", comma, row->name);
        comma = ",";
        if (type != NULL)
            buf_printf(b, "\"type\":\"%s\"", type);
        if (type != NULL && row->high != 0 && (type[0] == 'n' || type[0] == 'i'))
            buf_printf(b, ",\"%s\":%.15g,\"maximum\":%.15g",
                       row->low_open ? "exclusiveMinimum" : "minimum", row->low, row->high);
        buf_add_byte(b, '}');
    }
}
