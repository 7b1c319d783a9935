/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of request fields and the functions that read them.
 * A row is a name, the formats that have the field (chat, completion), a function that checks and
 * stores its value, and the function's parameters: the member it sets, a range, a flag. A field
 * that would change the answer and is not supported is refused by name, so that no client believes
 * it was applied. A field without a row is ignored, as in vLLM, because clients send fields of
 * other servers too.
 *
 * For example, the row
 *   BOTH("n", fields_whole, .place = EXCHANGE_MEMBER(n), .range = RANGE_FROM(1, 128))
 * makes one with "n": 3 set exchange.n, and "n": 0 an error: "'n' must be at least 1 and ..". */
#include "front/request/fields.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"
#include "base/range.h"
#include "front/request/lax.h"
#include "front/request/retention.h"

/* bounds the memory: each choice uses three bytes per byte of stop strings */
#define FIELDS_STOP_BYTES_MAX 131072

enum { FIELDS_CHAT = 1, FIELDS_TEXT = 2, FIELDS_BOTH = 3 };

/* The state of reading one request's fields. */
struct fields_read_context {
    struct fields *out;
    struct exchange *x;
    const struct names *names;
    const struct defaults *defaults;
    size_t stop_bytes; /* sum of all stop strings */
    int best_of;       /* 0: not given */
    char *why;
    size_t why_cap;
};

struct fields_row;
typedef int fields_fn(struct fields_read_context *c, const struct fields_row *row,
                      const struct json *v);

typedef int fields_form_fn(struct form *f, const struct json *v, char *why, size_t why_cap);

/* The member that a row sets. Its type (float, int32_t or bool) follows from the row's function. */
struct fields_place {
    enum fields_struct { FIELDS_NOWHERE, FIELDS_OUT, FIELDS_EXCHANGE } in;
    size_t offset;
};

struct fields_row {
    const char *name;
    int formats;
    fields_fn *read;
    struct fields_place place;
    struct range range;        /* of a number's value */
    uint32_t members_max;      /* of an object; 0: any number */
    uint32_t flag;             /* enum wire_flags bit that fields_wire_flag() sets */
    fields_form_fn *read_form; /* the function that fields_form() calls */
    const char *harmless;      /* a list of only this text is accepted by fields_neutral() */
};

/* The address of the member that the row sets. */
static void *fields_member(const struct fields_read_context *c, const struct fields_row *row)
{
    must(row->place.in != FIELDS_NOWHERE);
    return (char *)(row->place.in == FIELDS_OUT ? (void *)c->out : (void *)c->x) +
           row->place.offset;
}

/* Error texts. All name the field, the expected values and the value found: "'top_p' must be above
 * 0 and at most 1, not 1.5". lax_show() shortens long values. */
static int fields_type(struct fields_read_context *c, const struct fields_row *row,
                       const char *wanted, const struct json *v)
{
    char shown[LAX_SHOW_BYTES];

    (void)snprintf(c->why, c->why_cap, "'%s' must be %s, not %s", row->name, wanted,
                   lax_show(v, shown));
    return ERR_INVALID;
}

/* Numbers. Each function checks type and range; lax_number() also accepts "0.7" in quotes, which
 * some clients send. */
static int fields_range(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v, double *out)
{
    const struct json number = lax_number(v);
    char shown[LAX_SHOW_BYTES];
    double parsed;

    if (!json_is_number(&number))
        return fields_type(c, row, "a number", v);
    parsed = json_real(&number);
    if (!range_has(&row->range, parsed)) {
        (void)snprintf(c->why, c->why_cap, "'%s' must be %s %.15g and at most %.15g, not %s",
                       row->name, row->range.low_open ? "above" : "at least", row->range.low,
                       row->range.high, lax_show(v, shown));
        return ERR_INVALID;
    }
    *out = parsed;
    return ERR_OK;
}

/* A real number, stored as a float. */
static int fields_real(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    double number;
    int rc = fields_range(c, row, v, &number);

    if (rc == ERR_OK)
        memcpy(fields_member(c, row), &(float){(float)number}, sizeof(float));
    return rc;
}

/* A whole number within the row's range. All ranges here lie where a double is exact. */
static int fields_whole_range(struct fields_read_context *c, const struct fields_row *row,
                              const struct json *v, double *out)
{
    const struct json number = lax_number(v);
    char wanted[96];

    if (number.kind == JSON_INT || number.kind == JSON_UINT)
        return fields_range(c, row, v, out);
    (void)snprintf(wanted, sizeof wanted, "a whole number from %.15g to %.15g", row->range.low,
                   row->range.high);
    return fields_type(c, row, wanted, v);
}

/* A whole number, stored as an int32_t. */
static int fields_whole(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    double number;
    int rc = fields_whole_range(c, row, v, &number);

    if (rc == ERR_OK)
        memcpy(fields_member(c, row), &(int32_t){(int32_t)number}, sizeof(int32_t));
    return rc;
}

/* A count; 0 means off, and so does -1, as in vLLM. */
static int fields_count(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    int32_t *member = fields_member(c, row);
    int rc = fields_whole(c, row, v);

    if (rc == ERR_OK && *member < 0)
        *member = 0;
    return rc;
}

/* The seed of sampling, which may be signed or unsigned: all 64 bits are used. */
static int fields_seed(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    const struct json number = lax_number(v);

    if (number.kind != JSON_INT && number.kind != JSON_UINT)
        return fields_type(c, row, "a whole number of 64 bits", v);
    c->out->request.generate.sampling.seed =
        number.kind == JSON_INT ? (uint64_t)number.whole : number.uwhole;
    /* -1: no seed, as in vLLM */
    c->out->seed_given = number.kind == JSON_UINT || number.whole != -1;
    return ERR_OK;
}

/* For beam searches. */
static int fields_length_penalty(struct fields_read_context *c, const struct fields_row *row,
                                 const struct json *v)
{
    return fields_range(c, row, v, &c->out->beams.length_penalty);
}

/* Stored plus 1 us, so that 0 can mean "not given". */
static int fields_timeout(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    double number;
    int rc = fields_range(c, row, v, &number);

    if (rc == ERR_OK)
        c->x->timeout_us = 1 + (uint64_t)(number * 1e6);
    return rc;
}

/* The limit of the reply's tokens. */
static int fields_max_completion(struct fields_read_context *c, const struct fields_row *row,
                                 const struct json *v)
{
    double number;
    int rc = fields_whole_range(c, row, v, &number);

    if (rc == ERR_OK) {
        c->x->max_tokens_given = true;
        c->x->max_tokens = (uint32_t)number;
    }
    return rc;
}

/* max_completion_tokens takes precedence over max_tokens, in either order. */
static int fields_max_tokens(struct fields_read_context *c, const struct fields_row *row,
                             const struct json *v)
{
    double number;

    if (c->x->max_tokens_given)
        return fields_whole_range(c, row, v, &number);
    return fields_max_completion(c, row, v);
}

/* A number of alternatives. -1 means the whole vocabulary, stored as UINT32_MAX; only the engine
 * knows its size, so logprobs_check() resolves it later. The upper bound is a setting, so the row's
 * range is replaced. */
static int fields_n_told(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    const struct json number = lax_number(v);
    struct fields_row bounded = *row;

    bounded.range.low = 0;
    if (c->defaults->max_logprobs < 0)
        bounded.range.high = INT_MAX;
    else
        bounded.range.high = c->defaults->max_logprobs;
    if (number.kind != JSON_INT || number.whole != -1)
        return fields_whole(c, &bounded, v);
    if (bounded.range.high > WIRE_LOGPROBS_MAX) {
        memcpy(fields_member(c, row), &(uint32_t){UINT32_MAX}, sizeof(uint32_t));
        return ERR_OK;
    }
    (void)snprintf(c->why, c->why_cap,
                   "'%s' of -1 means the whole vocabulary; this server returns at most %d "
                   "alternatives per token (max_logprobs)",
                   row->name, c->defaults->max_logprobs);
    return ERR_UNSUPPORTED;
}

/* In a completion, "logprobs": 0 already asks for the chosen tokens' log probabilities. A chat has
 * the flag "logprobs" for that, and "top_logprobs" only for the alternatives. */
static int fields_n_logprobs(struct fields_read_context *c, const struct fields_row *row,
                             const struct json *v)
{
    int rc = fields_n_told(c, row, v);

    if (rc == ERR_OK && c->x->format == EXCHANGE_COMPLETION)
        c->out->request.flags |= WIRE_LOGPROBS;
    return rc;
}

/* Log probabilities of the prompt's tokens, with so many alternatives. */
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

/* Rules on tokens: token_rules.c reads them. */
static int fields_biases(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    (void)row;
    return token_rules_read_biases(&c->x->token_rules, &c->x->arena, v, c->why, c->why_cap);
}

/* Tokens whose log probabilities the client wants at each position. */
static int fields_asked(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    int rc = token_rules_read_asked(&c->x->token_rules, &c->x->arena, v, c->why, c->why_cap);

    (void)row;
    if (rc == ERR_OK && c->x->token_rules.n_asked > 0 && c->x->format == EXCHANGE_COMPLETION)
        c->out->request.flags |= WIRE_LOGPROBS;
    return rc;
}

/* The only tokens that may be sampled. */
static int fields_allowed(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    (void)row;
    return token_rules_read_allowed(&c->x->token_rules, &c->x->arena, v, c->why, c->why_cap);
}

/* Only kept here: encoding bad words needs the tokenizer (token_rules.c). */
static int fields_bad_words(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    if (v->kind != JSON_LIST)
        return fields_type(c, row, "a list of strings", v);
    c->out->bad_words = v;
    return ERR_OK;
}

/* A flag. A row without a place only checks the type; the endpoint reads the value. */
static int fields_flag(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    bool flag;

    if (!lax_flag(v, &flag))
        return fields_type(c, row, "true or false", v);
    if (row->place.in != FIELDS_NOWHERE)
        *(bool *)fields_member(c, row) = flag;
    return ERR_OK;
}

/* The exchange's member is the negation of the field, such as one_call of parallel_tool_calls. */
static int fields_flag_not(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    bool *member = fields_member(c, row);
    int rc = fields_flag(c, row, v);

    if (rc == ERR_OK)
        *member = !*member;
    return rc;
}

/* A flag whose default depends on other fields, so it is remembered that the client set it. */
static int fields_skip_special(struct fields_read_context *c, const struct fields_row *row,
                               const struct json *v)
{
    int rc = fields_flag(c, row, v);

    c->out->skip_special_given = c->out->skip_special_given || rc == ERR_OK;
    return rc;
}

/* A flag that is passed on to the engine. */
static int fields_wire_flag(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    bool flag;

    if (!lax_flag(v, &flag))
        return fields_type(c, row, "true or false", v);
    if (flag)
        c->out->request.flags |= row->flag;
    return ERR_OK;
}

/* {"include_usage": true, "continuous_usage_stats": true}. include_obfuscation is accepted as
 * false, because quire never pads events. */
static int fields_stream_options(struct fields_read_context *c, const struct fields_row *row,
                                 const struct json *v)
{
    if (v->kind != JSON_OBJECT)
        return fields_type(c, row, "an object", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *member = &v->items[i];

        if (member->kind == JSON_NULL)
            continue;
        if (member->kind == JSON_BOOL && strcmp(member->key, "include_usage") == 0) {
            c->x->include_usage = member->flag;
        } else if (member->kind == JSON_BOOL &&
                   strcmp(member->key, "continuous_usage_stats") == 0) {
            c->x->usage_always = member->flag;
        } else if (member->kind != JSON_BOOL || member->flag ||
                   strcmp(member->key, "include_obfuscation") != 0) {
            (void)snprintf(c->why, c->why_cap, "'stream_options.%.64s' is not supported",
                           member->key);
            return ERR_UNSUPPORTED;
        }
    }
    return ERR_OK;
}

/* Stop strings: one string or a list. They are stored twice: detok.c strips them from the text, and
 * the exchange keeps them to report which one matched. */
static int fields_stop_text(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    size_t n = (size_t)c->defaults->max_stops;

    if (v->kind != JSON_TEXT)
        return fields_type(c, row, "a string or a list of strings", v);
    if (v->text_len == 0 || v->text_len > DETOK_STOP_BYTES_MAX ||
        c->out->n_stops == c->defaults->max_stops) {
        (void)snprintf(c->why, c->why_cap, "'stop' takes at most %d strings of 1 to %d bytes",
                       c->defaults->max_stops, DETOK_STOP_BYTES_MAX);
        return ERR_INVALID;
    }
    /* The sum is bounded because each choice keeps its own matching state of all strings. */
    c->stop_bytes += v->text_len;
    if (c->stop_bytes > FIELDS_STOP_BYTES_MAX) {
        (void)snprintf(c->why, c->why_cap, "'stop' takes at most %d bytes in all its strings",
                       FIELDS_STOP_BYTES_MAX);
        return ERR_INVALID;
    }
    /* The arrays are made for the maximum at once, when the first string comes. */
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

/* "stop": one string or a list. */
static int fields_stop(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    int rc = ERR_OK;

    if (v->kind != JSON_LIST)
        return fields_stop_text(c, row, v);
    /* fields_stop_text() checks the number, too, but its error lacks the list's length. */
    if (v->n > (uint32_t)c->defaults->max_stops) {
        (void)snprintf(c->why, c->why_cap, "'stop' has %u strings; at most %d are allowed", v->n,
                       c->defaults->max_stops);
        return ERR_INVALID;
    }
    for (uint32_t i = 0; i < v->n && rc == ERR_OK; i++)
        rc = fields_stop_text(c, row, &v->items[i]);
    return rc;
}

/* Token ids that end the reply. */
static int fields_stop_ids(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    (void)row;
    return token_rules_read_stops(&c->x->token_rules, &c->x->arena, v, c->why, c->why_cap);
}

/* The model's name; any of the served ones is accepted. */
static int fields_model(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    if (v->kind != JSON_TEXT)
        return fields_type(c, row, "a string", v);
    if (c->x->adapter != NULL || names_have(c->names, v->text, v->text_len))
        return ERR_OK;
    (void)snprintf(c->why, c->why_cap, "the model '%.200s' does not exist; this server has '%s'",
                   v->text, c->names->at[0]);
    return ERR_NO_MODEL;
}

/* An output constraint; form.c reads it. */
static int fields_form(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    return row->read_form(&c->out->form, v, c->why, c->why_cap);
}

/* An older name of a constraint. */
static int fields_guided(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    return form_read_guided(&c->out->form, row->name, v, c->why, c->why_cap);
}

/* best_of is compared with n when all fields are known. */
static int fields_best_of(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    double number;
    int rc = fields_whole_range(c, row, v, &number);

    if (rc == ERR_OK)
        c->best_of = (int)number;
    return rc;
}

/* Requests with different salts do not share cached pages. */
static int fields_salt(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    if (fields_read_salt(v, c->out->request.salt))
        return ERR_OK;
    return fields_type(c, row, "a string that is not empty", v);
}

/* How long the prompt's pages should be kept. */
static int fields_retention(struct fields_read_context *c, const struct fields_row *row,
                            const struct json *v)
{
    (void)row;
    return retention_read(&c->out->request.generate, v, c->why, c->why_cap);
}

/* The endpoint reads the messages; here only their cache_control marks are read. */
static int fields_messages(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    (void)row;
    return retention_read_marks(v, &c->out->mark_s, c->why, c->why_cap);
}

/* -1: as many tokens as fit beside the answer (gen_truncate()). */
static int fields_truncate(struct fields_read_context *c, const struct fields_row *row,
                           const struct json *v)
{
    const struct json number = lax_number(v);

    if (number.kind != JSON_INT || number.whole < -1 || number.whole == 0 || number.whole > INT_MAX)
        return fields_type(c, row, "-1 or a whole number from 1 to 2147483647", v);
    c->x->truncate_to = number.whole;
    return ERR_OK;
}

/* The limit of the reasoning's tokens; -1: none. */
static int fields_think(struct fields_read_context *c, const struct fields_row *row,
                        const struct json *v)
{
    double number;
    int rc = fields_whole_range(c, row, v, &number);

    if (rc == ERR_OK)
        c->x->think_max = (int64_t)number;
    return rc;
}

/* At most so many drafts at a time; 0: none. */
static int fields_drafts(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    double number;
    int rc = fields_whole_range(c, row, v, &number);

    if (rc == ERR_OK)
        c->out->request.generate.drafts = 1 + (uint32_t)number;
    return rc;
}

/* The side on which truncate_prompt_tokens cuts. */
static int fields_side(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    if (!json_is_text(v, "left") && !json_is_text(v, "right"))
        return fields_type(c, row, "left or right", v);
    c->x->truncates_right = json_is_text(v, "right");
    return ERR_OK;
}

/* The client's name of the request, which appears in the log and the answer. */
static int fields_request_id(struct fields_read_context *c, const struct fields_row *row,
                             const struct json *v)
{
    if (v->kind != JSON_TEXT)
        return fields_type(c, row, "a string", v);
    if (!json_has_nul(v))
        (void)exchange_name(c->x, v->text); /* an unusable name is ignored */
    return ERR_OK;
}

/* Only checked here: the chat template gets the value. */
static int fields_effort(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    static const char type[] = "none, minimal, low, medium, high, xhigh or max";

    return fields_is_effort(v) ? ERR_OK : fields_type(c, row, type, v);
}

/* Lists and objects are only checked here; the endpoint reads them. */
static int fields_list(struct fields_read_context *c, const struct fields_row *row,
                       const struct json *v)
{
    return v->kind == JSON_LIST ? ERR_OK : fields_type(c, row, "a list", v);
}

static int fields_object(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    if (v->kind != JSON_OBJECT)
        return fields_type(c, row, "an object", v);
    if (row->members_max == 0 || v->n <= row->members_max)
        return ERR_OK;
    (void)snprintf(c->why, c->why_cap, "'%s' has more than %u members", row->name,
                   row->members_max);
    return ERR_INVALID;
}

/* Does not affect the answer. */
static int fields_ignore(struct fields_read_context *c, const struct fields_row *row,
                         const struct json *v)
{
    (void)c;
    (void)row;
    (void)v;
    return ERR_OK;
}

/* An unsupported feature: accepted only when the value switches it off. */
static int fields_neutral(struct fields_read_context *c, const struct fields_row *row,
                          const struct json *v)
{
    bool nothing = false;

    switch (v->kind) {
    case JSON_NULL: nothing = true; break;
    case JSON_BOOL: nothing = !v->flag; break;
    case JSON_INT:
    case JSON_UINT:
    case JSON_REAL: nothing = json_real(v) == 0.0; break;
    case JSON_TEXT: nothing = v->text_len == 0 || json_is_text(v, "none"); break;
    case JSON_LIST:
        nothing = v->n == 0 ||
                  (v->n == 1 && row->harmless != NULL && json_is_text(&v->items[0], row->harmless));
        break;
    case JSON_OBJECT: nothing = v->n == 0; break;
    }
    if (nothing)
        return ERR_OK;
    (void)snprintf(c->why, c->why_cap, "'%s' is not supported with this value", row->name);
    return ERR_UNSUPPORTED;
}

/* A row for chats, for completions, or for both: a name, the function, then its parameters. */
/* clang-format off */
#define CHAT(n, ...) {.name = (n), .formats = FIELDS_CHAT, .read = __VA_ARGS__}
#define TEXT(n, ...) {.name = (n), .formats = FIELDS_TEXT, .read = __VA_ARGS__}
#define BOTH(n, ...) {.name = (n), .formats = FIELDS_BOTH, .read = __VA_ARGS__}
#define OUT_MEMBER(m)      {.in = FIELDS_OUT, .offset = offsetof(struct fields, m)}
#define EXCHANGE_MEMBER(m) {.in = FIELDS_EXCHANGE, .offset = offsetof(struct exchange, m)}
/* clang-format on */

/* All fields that a chat or a completion may have. */
static const struct fields_row fields_rows[] = {
    BOTH("model", fields_model),
    CHAT("messages", fields_messages),
    TEXT("prompt", fields_ignore), /* api_completions.c */
    CHAT("thinking_token_budget", fields_think, .range = RANGE_FROM(-1, INT_MAX)),
    BOTH("add_special_tokens", fields_flag),
    CHAT("add_generation_prompt", fields_flag),
    CHAT("continue_final_message", fields_flag),
    CHAT("split_special_tokens", fields_flag), /* api_chat.c reads it */
    CHAT("chat_template_kwargs", fields_object, .members_max = 256),
    CHAT("reasoning_effort", fields_effort), /* api_chat.c reads it */
    CHAT("max_tokens", fields_max_tokens, .range = RANGE_FROM(1, INT_MAX)),
    TEXT("max_tokens", fields_max_tokens, .range = RANGE_FROM(0, INT_MAX)), /* 0: only with echo */
    CHAT("max_completion_tokens", fields_max_completion, .range = RANGE_FROM(1, INT_MAX)),
    BOTH("min_tokens", fields_whole, .place = OUT_MEMBER(request.generate.min_tokens),
         .range = RANGE_FROM(0, INT_MAX)),
#define SAMPLING_REAL(member, bounds, fallback)                                       \
    BOTH(#member, fields_real, .place = OUT_MEMBER(request.generate.sampling.member), \
         .range = bounds),
#define SAMPLING_COUNT(member, most)                                                   \
    BOTH(#member, fields_count, .place = OUT_MEMBER(request.generate.sampling.member), \
         .range = RANGE_FROM(-1, most)),
#include "kernels/sampling.def"
    BOTH("priority", fields_whole, .place = OUT_MEMBER(request.priority),
         .range = RANGE_FROM(INT_MIN, INT_MAX)),
    BOTH("num_speculative_tokens", fields_drafts, .range = RANGE_FROM(0, 64)),
    BOTH("timeout_s", fields_timeout, .range = RANGE_ABOVE(0, 86400)),
    BOTH("seed", fields_seed),
    BOTH("stop", fields_stop),
    BOTH("stop_token_ids", fields_stop_ids),
    BOTH("ignore_eos", fields_wire_flag, .flag = WIRE_IGNORE_EOS),
    BOTH("stream", fields_flag, .place = EXCHANGE_MEMBER(stream)),
    BOTH("stream_options", fields_stream_options),
    BOTH("skip_special_tokens", fields_skip_special, .place = OUT_MEMBER(skip_special)),
    BOTH("include_stop_str_in_output", fields_flag, .place = OUT_MEMBER(include_stop)),
    /* Harmless: for the accounting of service operators. */
    BOTH("user", fields_ignore),
    CHAT("metadata", fields_ignore),
    CHAT("store", fields_flag), /* chats are never stored; answers do not claim it */
    CHAT("service_tier", fields_ignore),
    CHAT("safety_identifier", fields_ignore),
    CHAT("prompt_cache_key", fields_ignore),
    BOTH("request_id", fields_request_id),
    BOTH("n", fields_whole, .place = EXCHANGE_MEMBER(n), .range = RANGE_FROM(1, 128)),
    TEXT("best_of", fields_best_of, .range = RANGE_FROM(1, 128)),
    BOTH("use_beam_search", fields_flag, .place = OUT_MEMBER(use_beams)),
    BOTH("length_penalty", fields_length_penalty, .range = RANGE_FROM(-100, 100)),
    BOTH("early_stopping", fields_flag, .place = OUT_MEMBER(beams.early_stopping)),
    BOTH("echo", fields_flag, .place = EXCHANGE_MEMBER(echo)),
    BOTH("return_token_ids", fields_flag, .place = EXCHANGE_MEMBER(return_ids)),
    CHAT("logprobs", fields_wire_flag, .flag = WIRE_LOGPROBS),
    TEXT("logprobs", fields_n_logprobs, .place = OUT_MEMBER(request.generate.n_logprobs),
         .range = RANGE_FROM(-1, INT_MAX)),
    CHAT("top_logprobs", fields_n_logprobs, .place = OUT_MEMBER(request.generate.n_logprobs),
         .range = RANGE_FROM(-1, INT_MAX)),
    BOTH("prompt_logprobs", fields_prompt_logprobs,
         .place = OUT_MEMBER(request.generate.n_prompt_logprobs), .range = RANGE_FROM(-1, INT_MAX)),
    BOTH("logprob_token_ids", fields_asked),
    BOTH("return_tokens_as_token_ids", fields_flag, .place = EXCHANGE_MEMBER(tokens_as_ids)),
    BOTH("logit_bias", fields_biases),
    BOTH("allowed_token_ids", fields_allowed),
    BOTH("bad_words", fields_bad_words),
    BOTH("cache_salt", fields_salt),
    BOTH("cache_retention", fields_retention),
    BOTH("truncate_prompt_tokens", fields_truncate),
    BOTH("truncation_side", fields_side),
    CHAT("documents", fields_list), /* api_chat.c reads it */
    BOTH("spaces_between_special_tokens", fields_flag),
    CHAT("tools", fields_form, .read_form = form_read_tools),
    CHAT("tool_choice", fields_form, .read_form = form_read_tool_choice),
    BOTH("response_format", fields_form, .read_form = form_read_response_format),
    BOTH("structured_outputs", fields_form, .read_form = form_read_structured),
    BOTH("guided_json", fields_guided), /* older names of vLLM's */
    BOTH("guided_regex", fields_guided),
    BOTH("guided_choice", fields_guided),
    BOTH("guided_grammar", fields_guided),
    BOTH("guided_whitespace_pattern", fields_guided),
    CHAT("parallel_tool_calls", fields_flag_not, .place = EXCHANGE_MEMBER(one_call)),
    CHAT("include_reasoning", fields_flag_not, .place = EXCHANGE_MEMBER(hides_reasoning)),
    /* Not supported; refused unless the value switches the feature off. */
    TEXT("suffix", fields_neutral),
    CHAT("chat_template", fields_neutral),
    CHAT("functions", fields_neutral),
    CHAT("function_call", fields_neutral),
    TEXT("prompt_embeds", fields_neutral),
    CHAT("modalities", fields_neutral, .harmless = "text"),
    BOTH("repetition_detection", fields_neutral),
    BOTH("return_token_offsets", fields_neutral),
    CHAT("return_prompt_text", fields_neutral),
    CHAT("return_assistant_tokens_mask", fields_neutral),
};

/* The row of a field for this format; NULL: unknown. */
static const struct fields_row *fields_find(const char *name, enum exchange_format format)
{
    int mask = format == EXCHANGE_CHAT ? FIELDS_CHAT : FIELDS_TEXT;

    for (size_t i = 0; i < sizeof fields_rows / sizeof fields_rows[0]; i++) {
        const struct fields_row *row = &fields_rows[i];

        /* comparing first letters first keeps a million unknown fields cheap */
        if (row->name[0] == name[0] && (row->formats & mask) != 0 && strcmp(row->name, name) == 0)
            return row;
    }
    return NULL;
}

/* Checks of fields that depend on each other, and the effects of one on another. *param is the
 * field to name in the error. */
static int fields_check_logprobs(struct fields_read_context *c, const char **param)
{
    struct wire_request *request = &c->out->request;
    struct exchange *x = c->x;
    const char *wrong = NULL;

    if (x->format == EXCHANGE_CHAT && request->generate.n_logprobs > 0 &&
        (request->flags & WIRE_LOGPROBS) == 0) {
        *param = "top_logprobs";
        wrong = "'top_logprobs' needs 'logprobs' to be true";
    } else if (x->token_rules.n_asked > 0 && (request->flags & WIRE_LOGPROBS) == 0) {
        *param = "logprob_token_ids";
        wrong = "'logprob_token_ids' needs 'logprobs' to be true";
    } else if (x->prompt_logprobs && x->stream && request->generate.n_prompt_logprobs > 0) {
        *param = "prompt_logprobs";
        wrong = "'prompt_logprobs' is not available when streaming";
    } else if (x->max_tokens_given && x->max_tokens == 0 && !x->echo) {
        *param = "max_tokens";
        wrong = "'max_tokens' must be at least 1, or 'echo' true";
    }
    if (wrong != NULL) {
        (void)snprintf(c->why, c->why_cap, "%s", wrong);
        return ERR_INVALID;
    }
    if (x->prompt_logprobs && x->stream) { /* prompt_logprobs = 0 is accepted in streams, as in
                                            * vLLM, without effect */
        x->prompt_logprobs = false;
        request->flags &= ~(uint32_t)WIRE_PROMPT_LOGPROBS;
    }
    if (x->echo && x->format == EXCHANGE_COMPLETION &&
        (request->flags & WIRE_LOGPROBS) != 0) { /* the echoed prompt has log probabilities, too */
        request->flags |= WIRE_PROMPT_LOGPROBS;
        if (request->generate.n_prompt_logprobs < request->generate.n_logprobs)
            request->generate.n_prompt_logprobs = request->generate.n_logprobs;
    }
    if (x->max_tokens_given && x->max_tokens == 0) {
        x->only_echo = true;
        x->max_tokens = 1; /* the engine generates at least one token */
    }
    return ERR_OK;
}

/* A beam search does not sample. Sampling fields that clients always send (temperature, top_p,
 * top_k, min_p, seed) are ignored, as in vLLM; the others are refused. */
static int fields_check_beams(struct fields_read_context *c, const char **param)
{
    const struct fields *out = c->out;
    const struct wire_request *request = &out->request;
    const struct sampling *sampling = &request->generate.sampling;
    const struct exchange *x = c->x;
    const struct {
        const char *name;
        bool given;
    } others[] = {
        {"stream", x->stream},
        {"stop", out->n_stops > 0},
        {"bad_words", out->bad_words != NULL},
        {"logit_bias", x->token_rules.n_biases > 0},
        {"allowed_token_ids", x->token_rules.n_allowed > 0},
        {"logprob_token_ids", x->token_rules.n_asked > 0},
        {"presence_penalty", sampling->presence_penalty != 0.0f},
        {"frequency_penalty", sampling->frequency_penalty != 0.0f},
        {"repetition_penalty",
         sampling->repetition_penalty != 1.0f &&
             sampling->repetition_penalty != c->defaults->sampling.repetition_penalty},
        {"min_tokens", request->generate.min_tokens > 0},
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
    /* The engine would have to walk the automaton for each beam. */
    if (form_binds(&out->form)) {
        *param = "use_beam_search";
        (void)snprintf(c->why, c->why_cap,
                       "'use_beam_search' is not supported with output constraints "
                       "(response_format, structured_outputs, strict or forced tools)");
        return ERR_UNSUPPORTED;
    }
    /* Each step of a search asks for alternatives itself, and they share one limit. */
    if (request->generate.n_logprobs > WIRE_LOGPROBS_MAX) {
        if (x->format == EXCHANGE_CHAT)
            *param = "top_logprobs";
        else
            *param = "logprobs";
        (void)snprintf(c->why, c->why_cap,
                       "'%s' must be at least 0 and at most %d with 'use_beam_search'", *param,
                       WIRE_LOGPROBS_MAX);
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

/* Fields are read in the order of the request; everything that depends on several of them is
 * checked after the loop. */
int fields_read(struct fields *out, struct exchange *x, const struct json *body,
                const struct defaults *defaults, const struct names *names, struct reason *reason)
{
    struct fields_read_context context = {.out = out,
                                          .x = x,
                                          .names = names,
                                          .defaults = defaults,
                                          .why = reason->text,
                                          .why_cap = sizeof reason->text};
    int rc;

    must(body->kind == JSON_OBJECT);
    *out = (struct fields){
        .request = {.generate = {.sampling = defaults->sampling}},
        .skip_special = true,
        .beams = {.length_penalty = 1.0},
    };
    x->n = 1;
    x->think_max = -1;
    x->tokens_as_ids = defaults->tokens_as_ids;
    for (uint32_t i = 0; i < body->n; i++) {
        const struct json *value = &body->items[i];
        const struct fields_row *row = fields_find(value->key, x->format);

        reason->param = value->key;
        if (row == NULL) {
            log_debug("front: a request has an unknown field '%.64s'; it is ignored", value->key);
            continue;
        }
        /* A field that is null counts as missing. */
        if (value->kind == JSON_NULL)
            rc = ERR_OK;
        else
            rc = row->read(&context, row, value);
        if (rc != ERR_OK)
            return rc;
    }
    /* After the loop, because cache_retention may follow the messages. */
    retention_mark(&out->request.generate, out->mark_s);
    if (x->include_usage && !x->stream) {
        reason->param = "stream_options";
        (void)snprintf(reason->text, sizeof reason->text,
                       "'stream_options' is only allowed when 'stream' is true");
        return ERR_INVALID;
    }
    /* The server's setting may force the usage into all streams. */
    x->include_usage = x->stream && (x->include_usage || defaults->include_usage);
    /* vLLM has dropped best_of; OpenAI's clients still send it equal to n. */
    if (context.best_of != 0 && context.best_of != x->n) {
        reason->param = "best_of";
        (void)snprintf(reason->text, sizeof reason->text,
                       "'best_of' other than 'n' is not supported");
        return ERR_UNSUPPORTED;
    }
    if (fields_check_logprobs(&context, &reason->param) != ERR_OK)
        return ERR_INVALID;
    rc = fields_check_beams(&context, &reason->param);
    if (rc != ERR_OK)
        return rc;
    rc = form_check(&out->form, &reason->param, reason->text, sizeof reason->text);
    if (rc != ERR_OK)
        return rc;
    /* The model's default applies only if the client sets no limit. */
    if (!x->max_tokens_given && defaults->max_tokens > 0) {
        x->max_tokens_given = true;
        x->max_tokens = defaults->max_tokens;
    }
    reason->param = NULL;
    return ERR_OK;
}

/* The JSON schema type of the values that a function reads. Functions that accept several types are
 * not listed. */
static const struct {
    fields_fn *read;
    const char *type;
} fields_types[] = {
    {fields_real, "number"},
    {fields_timeout, "number"},
    {fields_length_penalty, "number"},
    {fields_whole, "integer"},
    {fields_count, "integer"},
    {fields_seed, "integer"},
    {fields_think, "integer"},
    {fields_max_tokens, "integer"},
    {fields_max_completion, "integer"},
    {fields_best_of, "integer"},
    {fields_n_logprobs, "integer"},
    {fields_truncate, "integer"},
    {fields_prompt_logprobs, "integer"},
    {fields_flag, "boolean"},
    {fields_flag_not, "boolean"},
    {fields_skip_special, "boolean"},
    {fields_wire_flag, "boolean"},
    {fields_model, "string"},
    {fields_request_id, "string"},
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

/* NULL: several types. */
static const char *fields_schema_type(const struct fields_row *row)
{
    for (size_t i = 0; i < sizeof fields_types / sizeof fields_types[0]; i++) {
        if (fields_types[i].read == row->read)
            return fields_types[i].type;
    }
    return NULL;
}

/* The fields as properties of a JSON schema, for /openapi.json. Fields that are refused are left
 * out. */
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
        /* Only numbers have a range. */
        if (type != NULL && row->range.high != 0 && (type[0] == 'n' || type[0] == 'i'))
            buf_printf(b, ",\"%s\":%.15g,\"maximum\":%.15g",
                       row->range.low_open ? "exclusiveMinimum" : "minimum", row->range.low,
                       row->range.high);
        buf_add_byte(b, '}');
    }
}
