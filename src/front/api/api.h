/* The endpoints: each reads one kind of request and leaves an answer or generations in the
 * exchange. All run on reader threads; none blocks on the engine. */
#ifndef QUIRE_FRONT_API_API_H
#define QUIRE_FRONT_API_API_H

#include "base/json.h"
#include "front/front.h"

/* body is the parsed request, an object; NULL for GET. */
typedef void api_fn(struct front *f, struct exchange *x, const struct json *body);

api_fn api_chat;           /* POST /v1/chat/completions */
api_fn api_chat_batch;     /* POST /v1/chat/completions/batch */
api_fn api_completions;    /* POST /v1/completions */
api_fn api_render;         /* POST /v1/chat/completions/render, /v1/completions/render */
api_fn api_derender;       /* POST /v1/chat/completions/derender, /v1/completions/derender */
api_fn api_generate;       /* POST /inference/v1/generate */
api_fn api_tokenize;       /* POST /tokenize */
api_fn api_detokenize;     /* POST /detokenize */
api_fn api_models;         /* GET /v1/models, /v1/models/NAME */
api_fn api_index;          /* GET /v1 */
api_fn api_openapi;        /* GET /openapi.json */
api_fn api_tokenizer_info; /* GET /tokenizer_info */
api_fn api_server_info;    /* GET /server_info */
api_fn api_invocations;    /* POST /invocations */
api_fn api_health;         /* GET /health, /ping */
api_fn api_load;           /* GET /load */
api_fn api_is_sleeping;    /* GET /is_sleeping */
api_fn api_version;        /* GET /version */
api_fn api_metrics;        /* GET /metrics */

api_fn api_messages;      /* POST /v1/messages */
api_fn api_count_tokens;  /* POST /v1/messages/count_tokens */
api_fn api_responses;     /* POST /v1/responses */
api_fn api_kept_response; /* anything of /v1/responses/ID */

api_fn api_cache_list;  /* GET /admin/cache */
api_fn api_cache_pin;   /* POST /admin/cache/pin */
api_fn api_cache_drop;  /* POST /admin/cache/drop */
api_fn api_cache_reset; /* POST /reset_prefix_cache */
api_fn api_sleep;       /* POST /sleep */
api_fn api_wake_up;     /* POST /wake_up */

/* --- shared by the generating endpoints (gen.c) --- */

/* Fields, id and generations, x->n for each of n_prompts, with empty prompts. False after an error
 * answer. */
bool gen_prepare(struct front *f, struct exchange *x, const struct json *body,
                 enum exchange_format format, int n_prompts);

/* thinking_token_budget for n generations whose replies begin so. False after an error answer. */
bool gen_hold_reasoning(const struct front *f, struct exchange *x, struct gen *gens, int n,
                        enum form_start start);

/* The client's name for the request, or NULL, is the answer's id as it is, without a prefix, where
 * it can be one. */
void gen_keep_name(struct exchange *x, const struct json *name);

/* Append the ids of a list to a prompt. ERR_INVALID, with a sentence in why, when a member is none;
 * ERR_NO_MEMORY. */
int gen_add_ids(struct gen *g, const struct json *ids, char *why, size_t cap) ERR_CHECKED;

/* Append the ids of a text to a prompt. ERR_OK; ERR_TOO_LONG, with words in why, when it cannot fit
 * whatever its tokens are, and is not to be cut; tokenizer_encode()'s errors. */
int gen_add_text(struct front *f, struct gen *g, const char *text, size_t len, bool add_special,
                 char *why, size_t cap);

/* The same of a chat's prompt. Where splits_special is set, control tokens are found only in what
 * the template wrote itself; else everywhere. */
int gen_add_prompt(struct front *f, struct gen *g, const struct chat_prompt *prompt,
                   bool add_special, char *why, size_t cap);

/* What the output is held to, for all generations; start says where a reply begins. False after an
 * error answer. May take GRAMMAR_COMPILE_US. */
bool gen_hold(struct front *f, struct exchange *x, enum form_start start);

/* The prompts are complete, in the first generation of each: check them, cut them, and give them
 * to the others. False after an error answer. */
bool gen_finish_prompts(struct front *f, struct exchange *x, const char *param);

/* Where the replies to this prompt begin. The speech of its n generations, where they have one, is
 * told. */
enum form_start gen_begin(const struct front *f, struct gen *gens, int n, const struct buf *prompt);

/* Send a made body as the answer and free it; a body that failed is an error. */
void api_reply_buf(struct exchange *x, struct buf *b);

/* Render messages of body to out, which chat_prompt_fini() frees; false after an error answer. */
bool api_render_chat(struct front *f, struct exchange *x, const struct json *body,
                     struct chat_prompt *out);

#endif
