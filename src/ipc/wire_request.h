/* SPDX-License-Identifier: Apache-2.0
 *
 * One request of a front to the engine, as it lies in its slot of a lane (wire_lane.h).
 *
 * The engine copies it, then checks the copy, then uses the copy. */
#ifndef QUIRE_IPC_WIRE_REQUEST_H
#define QUIRE_IPC_WIRE_REQUEST_H

#include <stdint.h>

#include "ipc/wire.h"
#include "ipc/wire_adapters.h"
#include "kernels/sampling.h"

#define WIRE_STOP_IDS      16 /* stop_token_ids inside the request; more are sent as a set */
#define WIRE_SALT_BYTES    16
#define WIRE_LOGPROBS_MAX  128 /* alternatives sent one by one; above it, the whole row */
#define WIRE_ASKED_MAX     128 /* additional ids per token whose log probability is sent */
#define WIRE_THINK_IDS     16  /* token ids of the tag that ends a reasoning */
#define WIRE_THINK_TAG     24  /* bytes of a tag, its NUL included */
#define WIRE_DRAFTS_MAX    64
#define WIRE_BIASES_MAX    1024 /* of one request */
#define WIRE_BAD_WORDS_MAX 1024 /* int32 words of the bad words of one request, lengths included */

/* Bits of wire_request.flags. The first two apply to any task, the others to WIRE_GENERATE. */
enum wire_flags {
    WIRE_RESUMED = 1, /* an earlier engine had accepted it: the bounds of the queue do not apply */
    WIRE_PROBE = 2,   /* the front's own health probe: the bounds do not apply, and it is not
                       * counted */

    WIRE_IGNORE_EOS = 4,
    WIRE_LOGPROBS = 8,         /* a WIRE_CHOSEN and n_logprobs WIRE_TOP before each WIRE_TOKEN */
    WIRE_PROMPT_LOGPROBS = 16, /* a WIRE_PROMPT_CHOSEN and its tops for each prompt token but the
                                * first */
    WIRE_TELL_KEPT = 32,       /* send a WIRE_FACT before the end: how many prompt tokens are
                                * retained */
    WIRE_THINKS = 64,          /* the prompt ends inside a reasoning */
};

/* logits[id] += value, before penalties are applied. */
struct wire_bias {
    int32_t id;
    float value; /* finite */
};

/* The answer of a model that pools: floats of the last norm's results or of scores, as WIRE_ROW
 * records, and no token. Sampling, stops and log probabilities do not apply then. A model that
 * pools answers nothing else, and one that generates none of these. */
enum wire_pooling {
    WIRE_POOL_NONE = 0, /* tokens are generated */
    WIRE_POOL_LAST = 1, /* the last token's */
    WIRE_POOL_MEAN = 2, /* the mean over all tokens */
    WIRE_POOL_EACH = 3, /* every token's: those before the last one as WIRE_PROMPT_ROW records */
};

/* The parameters of one generation. */
struct wire_generate {
    struct sampling sampling;
    uint64_t answer;     /* shared by all choices of one answer, and by nothing else of this front:
                          * once one choice has begun, no other is refused; 0: the answer has one
                          * choice */
    uint32_t n_choices;  /* choices of the answer, this one included; only for metrics */
    uint32_t n_prompt;   /* 1 .. n_tokens: later tokens are output of an engine that died */
    uint32_t max_tokens; /* >= 1; counted from n_prompt */
    uint32_t min_tokens; /* end-of-text tokens are masked before this many */
    uint32_t n_logprobs; /* 0 .. n_vocab; above WIRE_LOGPROBS_MAX each token has WIRE_ROW */
    uint32_t n_prompt_logprobs; /* likewise for the prompt, with WIRE_PROMPT_ROW */
    uint32_t drafts; /* 1 + the most tokens that are drafted at a time, 0 .. WIRE_DRAFTS_MAX; 0: as
                      * many as the engine likes */
    uint32_t automaton; /* constrains the output: 1 + its index in the lane; 0: none */
    /* The arena holds, as int32 after the tokens and in this order: the set of allowed ids, biases,
     * bad words, asked ids, and the set of stop ids. */
    uint32_t n_allowed; /* words of the set; 0: all ids are allowed; else ceil(n_vocab / 32): id i
                         * is bit i % 32 of word i / 32 */
    uint32_t n_biases;  /* struct wire_bias, each id at most once */
    uint32_t n_bad;     /* int32 words, 0 .. WIRE_BAD_WORDS_MAX: a length >= 1, that many ids, and
                         * so on */
    uint32_t n_asked;   /* int32, 0 .. WIRE_ASKED_MAX: ids reported with each token (needs
                         * WIRE_LOGPROBS) */
    uint32_t retain;    /* 1 + the priority, 0 .. 100, of the prompt's pages; 0: the default */
    uint32_t retain_s;  /* seconds that the priority lasts; 0: without end */
    uint32_t retain_tokens; /* first tokens of the prompt to which it applies; 0: all */
    uint32_t pooling;       /* enum wire_pooling */
    uint32_t n_stops;       /* words of the set of stop ids; 0: they are in stop_ids */
    uint32_t n_stop_ids;    /* used elements of stop_ids; 0 with a set */
    int32_t stop_ids[WIRE_STOP_IDS];
    /* A reasoning of think_max - 1 tokens is ended by force: the next tokens are think_ids. The
     * engine finds the tags by the bytes of the tokens, for which it needs the front's
     * vocabulary. */
    uint32_t think_max;                /* 1 + tokens; 0: unlimited, and the fields below are
                                        * unused */
    uint32_t n_think_ids;              /* 1 .. WIRE_THINK_IDS */
    int32_t think_ids[WIRE_THINK_IDS]; /* they spell think_close */
    char think_open[WIRE_THINK_TAG];   /* the tags; neither is empty */
    char think_close[WIRE_THINK_TAG];
};

/* Read the state of the prefix cache, or drop a part of it. Answered by WIRE_FACT records and
 * WIRE_FINISHED. */
enum wire_cache_action {
    WIRE_LIST = 0,        /* report the contents of the tiers */
    WIRE_DROP_PROMPT = 1, /* drop the pages of this prompt from all tiers */
    WIRE_DROP_SPACE = 2,  /* drop all pages of one namespace */
    WIRE_DROP_ALL = 3,
};

struct wire_cache {
    uint64_t space;  /* WIRE_DROP_SPACE: the namespace's id; 0: that of the salt */
    uint32_t action; /* enum wire_cache_action */
};

/* Release the device memory, or take it again: WIRE_FINISHED comes when that is done. Or end the
 * process: then the connection closes, and WIRE_FINISHED comes for an error only. */
enum wire_power_action { WIRE_SLEEP = 0, WIRE_WAKE = 1, WIRE_END = 2 };

struct wire_power {
    uint32_t action; /* enum wire_power_action */
};

/* Load or unload a LoRA adapter. The end is WIRE_FIN_STOP; what failed is told by a
 * WIRE_FACT_FAILED and the WIRE_TEXT records of a sentence. */
enum wire_adapter_action { WIRE_LOAD_ADAPTER = 0, WIRE_UNLOAD_ADAPTER = 1 };

struct wire_adapter {
    uint32_t action; /* enum wire_adapter_action */
    char name[WIRE_ADAPTER_NAME];
    char path[WIRE_ADAPTER_PATH]; /* to load; below lora_dir */
};

/* The task of a request: selects the member of its union. All but WIRE_GENERATE are operators'
 * commands and bypass the queue. A further task needs a value here, a struct, a member of the
 * union, and a case in engine/intake.c. */
enum wire_task {
    WIRE_GENERATE = 0,
    WIRE_CACHE = 1,
    WIRE_POWER = 2,
    WIRE_ADAPTER = 3,
};

/* One request as the front submits it. */
struct wire_request {
    uint64_t arrival_us;   /* clock_us() when the front read the request; for the latency
                                     * metrics */
    uint64_t deadline_us;  /* clock_us() after which the answer is useless; 0: none */
    uint64_t arena_offset; /* bytes from the arena's start to int32 [n_tokens] */
    uint32_t n_tokens;     /* prompt tokens; see wire_generate.n_prompt */
    uint32_t flags;        /* enum wire_flags */
    int32_t priority;      /* lower runs first */
    uint32_t task;         /* enum wire_task */
    uint8_t adapter[WIRE_ADAPTER_DIGEST]; /* the adapter's content; zeros: none */
    uint8_t salt[WIRE_SALT_BYTES];        /* prefixes are shared only between equal salts */
    char tenant[WIRE_TENANT_BYTES];       /* owner of the API key, padded with NULs; "": no key */
    union {
        struct wire_generate generate;
        struct wire_cache cache;
        struct wire_power power;
        struct wire_adapter change;
    };
};

/* The number of int32 words that follow a request's tokens in the arena. */
static inline uint64_t wire_generate_extra(const struct wire_generate *g)
{
    return (uint64_t)g->n_allowed + 2 * (uint64_t)g->n_biases + g->n_bad + g->n_asked + g->n_stops;
}
static inline uint64_t wire_extra(const struct wire_request *r)
{
    if (r->task != WIRE_GENERATE)
        return 0; /* commands have tokens at most */
    return wire_generate_extra(&r->generate);
}

#endif
