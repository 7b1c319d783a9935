/* SPDX-License-Identifier: Apache-2.0
 *
 * The endpoints. Each reads one kind of request and leaves a complete answer or generations in the
 * exchange. All run on reader threads; none waits for the engine. */
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
api_fn api_embeddings;     /* POST /v1/embeddings */
api_fn api_pooling;        /* POST /pooling */
api_fn api_classify;       /* POST /classify */
api_fn api_score;          /* POST /score, /v1/score */
api_fn api_rerank;         /* POST /rerank, /v1/rerank, /v2/rerank */
api_fn api_tokenize;       /* POST /tokenize */
api_fn api_detokenize;     /* POST /detokenize */
api_fn api_models;         /* GET /v1/models, /v1/models/NAME */
api_fn api_load_model;     /* POST /v1/models/load */
api_fn api_unload_model;   /* POST /v1/models/unload */
api_fn api_load_lora;      /* POST /v1/load_lora_adapter */
api_fn api_unload_lora;    /* POST /v1/unload_lora_adapter */
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

api_fn api_kserve;       /* GET /v2 */
api_fn api_kserve_live;  /* GET /v2/health/live */
api_fn api_kserve_ready; /* GET /v2/health/ready */
api_fn api_kserve_model; /* GET /v2/models/NAME, /v2/models/NAME/ready */
api_fn api_kserve_infer; /* POST /v2/models/NAME/infer, /v2/models/NAME/generate */

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

/* --- used by all generating endpoints (gen.c) --- */

/* Read the fields, choose the id, and make the generations: x->n for each of n_prompts, with empty
 * prompts. False after an error answer. */
bool gen_prepare(struct front *f, struct exchange *x, const struct json *body,
                 enum exchange_format format, int n_prompts);

/* Apply thinking_token_budget to n generations whose replies begin as `start`. False after an error
 * answer. */
bool gen_hold_reasoning(struct exchange *x, struct gen *gens, int n, enum form_start start);

/* Use the client's name for the request (NULL: none) as the answer's id, without a prefix, if it is
 * usable as one. */
void gen_keep_name(struct exchange *x, const struct json *name);

/* Append the token ids in a list to a prompt. ERR_INVALID, with a sentence in why, when a member is
 * not a token id; ERR_NO_MEMORY. */
int gen_add_ids(struct gen *g, const struct json *ids, char *why, size_t cap) ERR_CHECKED;

/* Encode a text and append its ids to a prompt. ERR_TOO_LONG, with a sentence in why, when the text
 * cannot fit whatever its tokens are and must not be cut; otherwise as tokenizer_encode(). */
int gen_add_text(struct gen *g, const struct json *text, bool add_special, char *why, size_t cap);

/* Encode a chat's prompt and append its ids. With splits_special, special tokens are recognised
 * only in the parts that the template itself wrote; otherwise everywhere. */
int gen_add_prompt(struct gen *g, const struct chat_prompt *prompt, bool add_special, char *why,
                   size_t cap);

/* Compile the output constraint for all generations; start is the position of the reply's first
 * token. False after an error answer. May take GRAMMAR_COMPILE_US. */
bool gen_hold(struct exchange *x, enum form_start start);

/* When the first generation of each prompt has all its tokens: check and cut the prompts, and copy
 * them to the other choices. False after an error answer. */
bool gen_finish_prompts(struct exchange *x, const char *param);

/* Find out where the replies to this prompt begin (inside a reasoning or not), and pass that on to
 * the speech of its n generations. */
enum form_start gen_begin(struct gen *gens, int n, const struct buf *prompt);

/* Choose the model of a request whose path names it: sets x->served. False after an error answer
 * (route.c). */
bool route_choose_model(struct front *f, struct exchange *x, const char *name, size_t len);

/* Send a buffer as a JSON answer and free it; a failed buffer becomes an error answer. */
void api_reply_buf(struct exchange *x, struct buf *b);

/* Render the messages of body to out, for chat_prompt_fini() to free; false after an error
 * answer. */
bool api_render_chat(struct exchange *x, const struct json *body, struct chat_prompt *out);

#endif
