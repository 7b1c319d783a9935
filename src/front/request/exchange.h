/* An exchange: one HTTP request from its first byte to the last of its answer.
 *
 * A reader thread makes it, parses the request into either an answer or generations, and hands
 * it to the streamer thread, which owns it from there on. */
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

/* A beam search (answer/beams.h) asks for twice as many alternatives as there are beams. */
#define BEAMS_WIDTH_MAX (WIRE_LOGPROBS_MAX / 2)

struct beams_options {
    double length_penalty;
    bool early_stopping; /* the first n complete beams are the answer */
};

enum exchange_format { EXCHANGE_CHAT, EXCHANGE_COMPLETION };

/* Which API's objects and events the answer has. */
enum exchange_shape {
    SHAPE_OPENAI,
    SHAPE_MESSAGES,
    SHAPE_RESPONSES,
    SHAPE_TOKENS, /* token ids alone, as /inference/v1/generate answers; errors are OpenAI's */
};

/* Why a generation ended, as the API says it. */
enum gen_finish { GEN_RUNNING, GEN_STOP, GEN_LENGTH, GEN_FAILED };

/* What a generation waits for. */
enum gen_wants {
    GEN_WANTS_ENGINE,     /* one that is there and not leaving */
    GEN_WANTS_VOCABULARY, /* there is an engine, but none is made for it yet */
    GEN_WANTS_ROOM,       /* in the engine that there is */
};

/* A reply as a list of blocks, for the APIs that have it so (blocks.h). A block is what is said of
 * one kind in a row: a text, reasoning, a call. */
struct blocks {
    int n;             /* begun */
    bool is_open;      /* the last one */
    int kind;          /* enum reply_kind of it; REPLY_CALL_BEGIN is a call */
    int call;          /* index of the call that it is */
    struct buf name;   /* of the call */
    struct buf text;   /* of it so far */
    struct buf told;   /* log probabilities of the text so far: JSON with commas between */
    size_t told_said;  /* bytes of told that a stream's events have */
    struct buf done;   /* closed ones, as JSON with commas between */
    uint32_t n_events; /* sent: the sequence_number of the next */
};

/* What a chat's reply is taken apart into. A stream says it at once; else it is collected. */
struct speech {
    struct reply reply;
    struct buf content, reasoning; /* without streaming */
    struct buf calls;              /* without streaming: members of tool_calls, as JSON */
    int n_calls;                   /* begun, of those that are passed on */
    uint32_t n_reasoning;          /* tokens of the reasoning */
    struct blocks blocks;          /* in place of the buffers, where the shape has blocks */
};

/* What an answer says that is made of tokens which the client brought: the front has no prompt. */
struct brought {
    uint64_t prompt_tokens;         /* of all generations */
    const struct json **told;       /* [n_gens]: prompt_logprobs as they came, or NULL */
    const struct json *kv_transfer; /* kv_transfer_params as they came, or NULL */
};

/* One continuation of one prompt. The front holds the truth: prompt and all tokens so far, so
 * that an engine that died can be replaced by the next. */
struct gen {
    struct exchange *exchange;
    int index;                   /* of the choice: prompt * n + which of its n */
    struct wire_request request; /* what its fields say; the rest is filled in when submitted */
    struct token_list tokens;    /* prompt, then output */
    uint32_t n_prompt;
    uint32_t n_cached; /* prompt tokens that the prefix cache had */
    int64_t slot;      /* in the lane, or -1 */
    int n_submits;     /* engines that were given it */
    bool admitted;
    bool ended; /* the last token is one that ends the text; its end may not have come yet */
    enum gen_finish finish;
    int error;       /* enum err, with GEN_FAILED */
    int32_t stop_id; /* the stop_token_ids member that ended it, or -1 */
    struct detok detok;
    struct buf text;        /* what is not sent yet; without streaming all of it */
    const char *chunk_head; /* what a stream's events begin with, in the arena; or NULL */
    size_t chunk_head_len;
    const struct json *echoed;    /* content of a last message of the assistant's; NULL: none */
    struct speech *speech;        /* NULL: the text is the answer; in the exchange's arena */
    uint32_t n_said;              /* output tokens whose ids have been sent (return_token_ids) */
    struct buf told, prompt_told; /* log probabilities (logprobs.h), of output and prompt */
    struct buf row;               /* float: what has come of a token's whole row */
    size_t told_whole;            /* bytes of told whose tokens have come */
    size_t told_written;          /* bytes of told that the answer has */
    uint32_t told_chars;          /* characters of these tokens */
    bool prompt_written;          /* the echoed prompt's are in the answer */
    struct gen *next;             /* in the streamer's list of those that wait */
    bool waiting;                 /* is in that list */
    enum gen_wants wants;         /* while it waits */
    uint64_t wait_us;             /* since when */
};

struct exchange {
    struct fcgi *fcgi;
    struct arena arena; /* the body and everything parsed from it */
    uint64_t arrival_us;

    /* The answer. */
    struct buf out; /* not sent yet: from out_sent on */
    size_t out_sent;
    bool complete;  /* nothing will be added to out */
    bool head_sent; /* the status line is in out: errors go into the stream */

    /* Generations, if it has any. */
    enum exchange_format format;
    enum exchange_shape shape;  /* of answers and errors: the route says it */
    const struct json *request; /* what was asked, where the answer repeats it; in the arena */
    struct beams *beams;        /* beams.h, in the arena; NULL: the choices are sampled */
    void (*on_free)(struct exchange *x); /* frees what beams has outside the arena; or NULL */
    struct keeping *keeping; /* kept.h, in the arena; NULL: the response is not to be kept */
    int64_t completed;       /* unix seconds; 0: not yet */
    struct gen *gens;        /* [n_gens], in the arena */
    int n_gens;
    int n_finished;
    int n; /* choices of each prompt */
    bool stream;
    bool include_usage;
    bool usage_always;    /* continuous_usage_stats */
    bool echo;            /* the text begins with the prompt; in chats with a gen's `echoed` */
    bool one_call;        /* parallel_tool_calls is false */
    bool hides_reasoning; /* include_reasoning is false */
    bool splits_special;  /* control tokens written in a chat's values are text there */
    bool return_ids;      /* return_token_ids */
    bool tokens_as_ids;   /* return_tokens_as_token_ids: "token_id:7" in log probabilities */
    bool prompt_logprobs; /* the answer has those of the prompt */
    bool only_echo;       /* max_tokens is 0: what the engine must say is thrown away */
    int64_t think_max;    /* thinking_token_budget; -1: none */
    int64_t truncate_to;  /* prompt tokens that are kept, the last ones; 0: all; -1: what fits */
    bool truncates_right; /* truncation_side: the first ones */
    struct token_rules token_rules;
    struct detok_stop *stop_texts; /* [n_stops], to name the one that matched; in the arena */
    int n_stops;
    bool max_tokens_given;
    uint32_t max_tokens;       /* when given */
    uint64_t timeout_us;       /* timeout_s; 0: not given */
    bool max_tokens_bends;     /* what the context has no room for is cut off, not refused */
    const struct form *form;   /* what the output must be; in the arena */
    struct compiled *compiled; /* a reference; NULL: it need not be anything */
    char request_id[72];       /* the client's, or ours; nothing but letters, digits and -._ */
    char id[88];               /* "chatcmpl-..." */
    int64_t created;           /* unix seconds */
    bool asks;                 /* an operator's, about the cache: the answer is facts */
    struct buf facts;          /* struct wire_out each */
    bool probe;                /* /health?deep=1: the answer is whether a token came */
    const char *model;         /* the served name; lives as long as the process */
    const char *role;          /* of a chat's answer; lives as long as the process */
    const char *fingerprint;   /* of the server's build and model; lives as long as the process */
    const struct brought *brought; /* NULL: the tokens are the engine's */
    const char *notice;            /* a header X-Quire-Notice of an answer that is no error; NULL */

    /* The streamer's. */
    uint64_t answer;      /* as in wire_generate; 0: it has one choice at most */
    int retry_after_s;    /* the engine's word for this request; 0: none */
    bool watching_out;    /* epoll is asked for writability */
    uint64_t progress_us; /* when the client last took a byte, or nothing was pending */
    uint64_t said_us;     /* when the engine, or a keep-alive, last said something */
    bool dead;            /* to be freed at the end of the pass */
    bool unflushed;       /* in the streamer's list of those that have something to send */
    struct exchange *next_unflushed;
    struct exchange *prev, *next;
};

/* Tokens that a prompt has to leave room for: those that were asked for, unless any number will
 * do. */
static inline uint64_t exchange_least_answer(const struct exchange *x)
{
    return x->max_tokens_given && !x->max_tokens_bends ? x->max_tokens : 1;
}

struct exchange *exchange_new(struct fcgi *f);

/* Free all but the slots that the engine still writes to. */
void exchange_free(struct exchange *x);

/* Take a client's name for the request; false when it is empty, too long, or holds other bytes
 * than letters, digits, '-', '.' and '_'. */
bool exchange_name(struct exchange *x, const char *name);

/* Append the header of x->notice to a head, if there is one. */
void exchange_add_notice(struct exchange *x);

/* Make the whole answer: head and body. The exchange is complete then. */
void exchange_reply(struct exchange *x, int status, const char *type, const char *body, size_t len);

/* The same with status 200 and the JSON text of a buffer, which is freed. A buffer that ran out of
 * memory is answered with an error. */
void exchange_reply_json(struct exchange *x, struct buf *json);

/* The same with an error object of the exchange's shape. message NULL: the error's own sentence.
 * param may be NULL. retry_after_s > 0 adds the header. */
void exchange_reply_error(struct exchange *x, int err, const char *message, const char *param,
                          int retry_after_s);

/* Append `{"error":{...}}`, as OpenAI's APIs have it. */
void exchange_add_error(struct buf *b, int err, const char *message, const char *param);

/* Append `{"type":"error","error":{...}}`, as Anthropic's API has it. */
void exchange_add_error_messages(struct buf *b, const struct exchange *x, int err,
                                 const char *message);

#endif
