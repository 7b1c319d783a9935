/* SPDX-License-Identifier: Apache-2.0
 *
 * An exchange: one HTTP request, from its first byte to the last byte of its answer.
 *
 * A reader thread makes it and parses the request into either a complete answer or generations.
 * Then it hands the exchange over to the streamer thread, which owns it from there on. */
#ifndef QUIRE_FRONT_REQUEST_EXCHANGE_H
#define QUIRE_FRONT_REQUEST_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/http/fcgi.h"
#include "front/request/token_rules.h"
#include "front/structured/form.h"
#include "ipc/wire_lane.h"
#include "text/output/detok.h"
#include "text/output/reply.h"
#include "text/tokenizer/tokenizer.h"

/* A beam search (answer/beams.h) needs twice as many alternatives as it has beams. */
#define BEAMS_WIDTH_MAX (WIRE_LOGPROBS_MAX / 2)

struct beams_options {
    double length_penalty;
    bool early_stopping; /* stop at the first n complete beams */
};

enum exchange_format { EXCHANGE_CHAT, EXCHANGE_COMPLETION };

/* The API whose objects and events the answer has. */
enum exchange_shape {
    SHAPE_OPENAI,
    SHAPE_MESSAGES,
    SHAPE_RESPONSES,
    SHAPE_KSERVE, /* the Open Inference Protocol: texts, or tensors of texts */
    SHAPE_TOKENS, /* token ids only, for /inference/v1/generate; errors are OpenAI's */
};

/* Why a generation ended: the finish reason. */
enum gen_finish { GEN_RUNNING, GEN_STOP, GEN_LENGTH, GEN_FAILED };

/* The condition that a waiting generation needs. */
enum gen_wants {
    GEN_WANTS_ENGINE,     /* an engine that is attached and not draining */
    GEN_WANTS_VOCABULARY, /* the vocabulary in the engine's form; it is still being made */
    GEN_WANTS_ROOM,       /* a free slot, or room in the attached engine's queue */
};

/* A reply as a list of blocks, for the APIs that have one (blocks.h). A block is a run of output of
 * one kind: text, reasoning, or one tool call. */
struct blocks {
    int n;             /* blocks begun so far */
    bool is_open;      /* the last block has not ended */
    int kind;          /* enum reply_kind of the last block; REPLY_CALL_BEGIN: a call */
    int call;          /* index of the call in the last block */
    struct buf name;   /* of the call */
    struct buf text;   /* text of the last block so far */
    struct buf told;   /* log probabilities of the last block: JSON, with commas between */
    size_t told_said;  /* bytes of it that were sent in a stream's events */
    struct buf done;   /* closed blocks: JSON, with commas between */
    uint32_t n_events; /* events sent: the sequence_number of the next one */
};

/* A chat's reply, split into its parts. A stream sends the parts at once; otherwise they are
 * collected here. */
struct speech {
    struct reply reply;
    struct buf content, reasoning; /* without streaming */
    struct buf calls;              /* without streaming: members of tool_calls, as JSON */
    int n_calls;                   /* calls begun, of those that the client gets */
    uint32_t n_reasoning;          /* tokens of reasoning */
    struct blocks blocks;          /* used in place of the buffers by shapes that have blocks */
};

/* For answers made of tokens that the client sent (/v1/derender): values that the front would
 * otherwise know from the engine. */
struct brought {
    uint64_t prompt_tokens;         /* of all generations */
    const struct json **told;       /* [n_gens]: prompt_logprobs as received, or NULL */
    const struct json *kv_transfer; /* kv_transfer_params as received, or NULL */
};

struct link;
struct pooled;
struct served;
struct trace_span;

/* One continuation of one prompt. The front holds the prompt and all output tokens so far, so that
 * the generation can go on with another engine when one dies. */
struct gen {
    struct exchange *exchange;
    int index;                   /* of the choice: prompt index * n + its number among the n */
    struct wire_request request; /* the part that the fields set; the rest is added at submission */
    struct token_list tokens;    /* prompt, then output */
    uint32_t n_prompt;
    uint32_t n_cached;           /* prompt tokens found in the prefix cache */
    uint32_t found[WIRE_GROUPS]; /* 1 + the prompt tokens of a WIRE_FOUND; 0: there was none */
    struct link *link;           /* to the engine that it was submitted to last; NULL: none yet */
    int64_t slot;                /* in that engine's lane, or -1 */
    int only;                    /* 1 + the index of the one engine that it is for; 0: any */
    int n_submits;               /* engines that it was submitted to */
    int n_lost;                  /* of these, engines that died meanwhile */
    const uint32_t *held; /* [engines], prompt tokens that each had in its cache when the request
                           * was read; in the arena; NULL: not known */
    bool admitted;
    bool ended; /* the last token ends the text; WIRE_FINISHED may still be missing */
    enum gen_finish finish;
    int error;       /* enum err, with GEN_FAILED */
    int32_t stop_id; /* the member of stop_token_ids that ended it, or -1 */
    struct detok detok;
    struct buf text;        /* text that is not sent yet; without streaming all of it */
    const char *chunk_head; /* constant first part of a stream's events, in the arena; or NULL */
    size_t chunk_head_len;
    const struct json *echoed;    /* the last message's content, which the answer continues; or
                                   * NULL */
    struct speech *speech;        /* parts of a chat's reply, in the arena; NULL: plain text */
    uint32_t n_said;              /* output tokens whose ids were sent (return_token_ids) */
    struct buf told, prompt_told; /* log probabilities (logprobs.h) of output and prompt */
    struct buf row;               /* floats received of a whole row: a token's, or a pooled one */
    struct buf facts;             /* of an operator's request: struct wire_out each */
    size_t told_whole;            /* bytes of told whose tokens have arrived */
    size_t told_written;          /* bytes of told that are in the answer */
    uint32_t told_chars;          /* characters of those tokens */
    bool prompt_written;          /* the echoed prompt's log probabilities are in the answer */
    struct gen *next;             /* in the streamer's list of waiting generations */
    bool waiting;                 /* is in that list */
    enum gen_wants wants;         /* the condition, while waiting */
    uint64_t wait_us;             /* clock_us() when it began to wait */
};

struct exchange {
    struct fcgi *fcgi;
    struct arena arena; /* the body and everything parsed from it */
    uint64_t arrival_us;
    struct served *served; /* the model that it is for; set by the route */

    /* The answer. */
    struct buf out; /* the answer's bytes; those before out_sent were sent */
    size_t out_sent;
    bool complete;  /* no more bytes will be added to out */
    bool head_sent; /* the status line is in out, so errors must go into the stream */

    /* Generations, if it has any. */
    enum exchange_format format;
    enum exchange_shape shape;  /* of answers and errors; set by the route */
    const struct json *request; /* the request, where the answer repeats parts of it; in the
                                 * arena */
    struct pooled *pooled;      /* the answer is made of rows of numbers (answer/pooled.h), in the
                                 * arena; NULL: of tokens */
    struct beams *beams;        /* state of a beam search, in the arena; NULL: tokens are sampled */
    void (*on_free)(struct exchange *x); /* frees the beams' memory outside the arena; or NULL */
    struct keeping *keeping; /* kept.h, in the arena; NULL: the response is not stored */
    int64_t completed;       /* unix seconds of the answer's end; 0: not ended */
    struct gen *gens;        /* [n_gens], in the arena */
    int n_gens;
    int n_finished;
    int n; /* choices per prompt */
    bool stream;
    bool include_usage;
    bool usage_always;    /* continuous_usage_stats */
    bool tensors;         /* SHAPE_KSERVE: the answer is a tensor */
    bool echo;            /* the text begins with the prompt; in chats with gen.echoed */
    bool one_call;        /* parallel_tool_calls is false */
    bool hides_reasoning; /* include_reasoning is false */
    bool splits_special;  /* special tokens in a chat's values are encoded as text */
    bool return_ids;      /* return_token_ids */
    bool tokens_as_ids;   /* return_tokens_as_token_ids: "token_id:7" in log probabilities */
    bool prompt_logprobs; /* the answer contains those of the prompt */
    bool only_echo;       /* max_tokens is 0: the engine's one output token is dropped */
    int64_t think_max;    /* thinking_token_budget; -1: none */
    int64_t truncate_to;  /* last prompt tokens to keep; 0: all; -1: as many as fit */
    bool truncates_right; /* truncation_side: keep the first ones */
    struct token_rules token_rules;
    struct detok_stop *stop_texts; /* [n_stops], to report the matched one; in the arena */
    int n_stops;
    bool max_tokens_given;
    uint32_t max_tokens;       /* when given */
    uint64_t timeout_us;       /* timeout_s; 0: not given */
    bool max_tokens_bends;     /* max_tokens is reduced to the room in the context, not refused */
    const struct form *form;   /* the output constraint; in the arena */
    struct compiled *compiled; /* a reference; NULL: the output is not constrained */
    char request_id[72];       /* the client's or ours; only letters, digits, '-', '.', '_' */
    char id[88];               /* "chatcmpl-..." */
    int64_t created;           /* unix seconds */
    bool asks;                 /* an operator's request: the answer is made of facts */
    bool probe;                /* /health?deep=1: the answer reports whether a token came */
    const char *model;         /* the name of the model or of its adapter; lives as long as the
                                * exchange */
    const char *adapter;       /* the name of the adapter that the request is for; NULL: none */
    uint8_t adapter_digest[WIRE_ADAPTER_DIGEST];
    const char *role;              /* of a chat's answer; lives as long as the process */
    const char *fingerprint;       /* of the build and the model; lives as long as the process */
    const struct brought *brought; /* NULL: the tokens are the engine's own */
    const char *notice;            /* value of the header X-Quire-Notice in a successful answer; or
                                    * NULL */

    /* Used by the streamer. */
    struct trace_span *span; /* in the arena; NULL: it is not traced */
    uint64_t answer;         /* as in wire_generate; 0: at most one choice */
    int retry_after_s;       /* the engine's estimate for this request; 0: none */
    bool watching_out;       /* epoll is asked for writability */
    uint64_t progress_us; /* clock_us() when the client last took a byte, or nothing was to send */
    uint64_t said_us;     /* clock_us() of the last output or keep-alive */
    bool dead;            /* freed at the end of the streamer's pass */
    bool unflushed;       /* in the streamer's list of exchanges with bytes to send */
    struct exchange *next_unflushed;
    struct exchange *prev, *next;
};

/* Tokens that the prompt must leave room for: max_tokens, or 1 when it may be reduced; none where
 * no token follows. */
static inline uint64_t exchange_least_answer(const struct exchange *x)
{
    if (x->pooled != NULL)
        return 0;
    if (x->max_tokens_given && !x->max_tokens_bends)
        return x->max_tokens;
    return 1;
}

/* NULL when memory is exhausted. fcgi belongs to the exchange from then on. */
struct exchange *exchange_new(struct fcgi *f);

/* Free the exchange. The caller has made sure that the engine no longer writes to its slots. */
void exchange_free(struct exchange *x);

/* Set the request id to a name from the client; false when it is empty, too long, or holds other
 * bytes than letters, digits, '-', '.' and '_'. */
bool exchange_name(struct exchange *x, const char *name);

/* Append the header of x->notice to the head of an answer, if there is one. */
void exchange_add_notice(struct exchange *x);

/* Make the whole answer: head and body. The exchange is complete then. */
void exchange_reply(struct exchange *x, int status, const char *type, const char *body, size_t len);

/* Answer with status 200 and the JSON text of a buffer, and free the buffer. A buffer that ran out
 * of memory becomes an error answer. */
void exchange_reply_json(struct exchange *x, struct buf *json);

/* Answer with an error object of the exchange's shape. message NULL or "": the error's
 * sentence in err.def. param may be NULL. retry_after_s > 0 adds a Retry-After header. */
void exchange_reply_error(struct exchange *x, int err, const char *message, const char *param,
                          int retry_after_s);

/* Append `{"error":{...}}`, the form of OpenAI's APIs. */
void exchange_add_error(struct buf *b, int err, const char *message, const char *param);

/* Append `{"error":"..."}`, the form of the Open Inference Protocol. */
void exchange_add_error_kserve(struct buf *b, int err, const char *message, const char *param);

/* Append `{"type":"error","error":{...}}`, the form of Anthropic's API. */
void exchange_add_error_messages(struct buf *b, const struct exchange *x, int err,
                                 const char *message);

#endif
