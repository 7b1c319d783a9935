/* What a front asks the engine for: one request, as it lies in its slot of a lane (wire_lane.h).
 *
 * The engine copies it, then checks the copy, then uses the copy. */
#ifndef QUIRE_IPC_WIRE_REQUEST_H
#define QUIRE_IPC_WIRE_REQUEST_H

#include <stdint.h>

#include "ipc/wire.h"
#include "kernels/sampling.h"

#define WIRE_STOP_IDS      16 /* stop_token_ids that a request itself holds; more are a set */
#define WIRE_SALT_BYTES    16
#define WIRE_LOGPROBS_MAX  128  /* alternatives told one by one; for more the whole row is */
#define WIRE_ASKED_MAX     128  /* further ids told with a token */
#define WIRE_THINK_IDS     16   /* that the end tag of a reasoning takes */
#define WIRE_THINK_TAG     16   /* bytes of a tag, its NUL included */
#define WIRE_BIASES_MAX    1024 /* of one request */
#define WIRE_BAD_WORDS_MAX 1024 /* int32 of one request's bad words, lengths included */

/* Of wire_request.flags. Those of any task, then those of WIRE_GENERATE. */
enum wire_flags {
    WIRE_RESUMED = 1, /* an engine that died had taken it: the queue's bounds let it pass */
    WIRE_PROBE = 2,   /* asked by the front itself: the same, and it is not counted */

    WIRE_IGNORE_EOS = 4,
    WIRE_LOGPROBS = 8,         /* a WIRE_CHOSEN and n_logprobs WIRE_TOP before each WIRE_TOKEN */
    WIRE_PROMPT_LOGPROBS = 16, /* the same of each prompt token but the first */
    WIRE_TELL_KEPT = 32,       /* a WIRE_FACT before the end: how much of its prompt is kept */
    WIRE_THINKS = 64,          /* the prompt ends inside of a reasoning */
};

/* logits[id] += value, before penalties. */
struct wire_bias {
    int32_t id;
    float value; /* finite */
};

/* Continue a prompt. */
struct wire_generate {
    struct sampling sampling;
    uint64_t answer;     /* the same for all choices of one answer, and for no other of this
                          * front: when one has begun none is refused; 0: there is one choice */
    uint32_t n_choices;  /* of the answer, this one included; for metrics alone */
    uint32_t n_prompt;   /* 1 .. n_tokens: the others are output, after an engine's death */
    uint32_t max_tokens; /* >= 1; counts from n_prompt */
    uint32_t min_tokens; /* no end of text before this many */
    uint32_t n_logprobs; /* 0 .. the vocabulary; above WIRE_LOGPROBS_MAX tokens have WIRE_ROW */
    uint32_t n_prompt_logprobs; /* the same, WIRE_PROMPT_ROW */
    uint32_t automaton;         /* the output follows it: 1 + its index in the lane; 0: none */
    /* Behind the tokens in the arena stand, as int32, the ids that may come, those to be biased,
     * the sequences that may not come, the ids that are told, and the ids that end the text. */
    uint32_t n_allowed; /* 0: all; else ceil(n_vocab / 32): id i is bit i % 32 of word i / 32 */
    uint32_t n_biases;  /* struct wire_bias, each id once */
    uint32_t n_bad;     /* int32, 0 .. WIRE_BAD_WORDS_MAX: a length >= 1, so many ids, and again */
    uint32_t n_asked;   /* int32, 0 .. WIRE_ASKED_MAX: ids told with each token (WIRE_LOGPROBS) */
    uint32_t retain;    /* 1 + the priority, 0 .. 100, of the prompt's pages; 0: nothing is said */
    uint32_t retain_s;  /* for so many seconds; 0: without end */
    uint32_t retain_tokens; /* of the prompt's start that it is said of; 0: all of it */
    uint32_t n_stops;    /* 0, or as n_allowed's: the set of stop ids, where there are more than */
    uint32_t n_stop_ids; /* 0 .. WIRE_STOP_IDS of them; 0 with a set */
    int32_t stop_ids[WIRE_STOP_IDS];
    /* A reasoning that has so many tokens is ended: its end tag comes next, as these ids. Tags are
     * found by what tokens spell, for which the front has uploaded its vocabulary. */
    uint32_t think_max;                /* 1 + tokens; 0: without a bound, and nothing below holds */
    uint32_t n_think_ids;              /* 1 .. WIRE_THINK_IDS */
    int32_t think_ids[WIRE_THINK_IDS]; /* which spell think_close */
    char think_open[WIRE_THINK_TAG];   /* texts that are not empty */
    char think_close[WIRE_THINK_TAG];
};

/* Look into the prefix cache, or drop a part of it. Answered by WIRE_FACT records and an end. */
enum wire_cache_action {
    WIRE_LIST = 0,        /* what the tiers hold */
    WIRE_DROP_PROMPT = 1, /* the pages of the prompt, of all tiers */
    WIRE_DROP_SPACE = 2,  /* those of one namespace */
    WIRE_DROP_ALL = 3,
};

struct wire_cache {
    uint64_t space;  /* WIRE_DROP_SPACE: this namespace; 0: that of the salt */
    uint32_t action; /* enum wire_cache_action */
};

/* Give the device's memory back, or take it. The end comes when the engine sleeps, or is awake. */
enum wire_power_action { WIRE_SLEEP = 0, WIRE_WAKE = 1 };

struct wire_power {
    uint32_t action; /* enum wire_power_action */
};

/* What is asked for: the tag that says which member of a request's union is there. All but the
 * first are operators' and take no turn. A new task gets a value, a struct, a member of the union,
 * and a case in engine/intake.c. */
enum wire_task {
    WIRE_GENERATE = 0,
    WIRE_CACHE = 1,
    WIRE_POWER = 2,
};

/* One request as the front submits it. */
struct wire_request {
    uint64_t arrival_us;            /* clock_us() when the front read it; for the latency metrics */
    uint64_t deadline_us;           /* clock_us() after which nobody wants it; 0: none */
    uint64_t arena_offset;          /* bytes from the arena's start to int32 [n_tokens] */
    uint32_t n_tokens;              /* the prompt; see wire_generate.n_prompt */
    uint32_t flags;                 /* enum wire_flags */
    int32_t priority;               /* lower runs first */
    uint32_t task;                  /* enum wire_task */
    uint8_t salt[WIRE_SALT_BYTES];  /* prefixes are shared only under equal salts */
    char tenant[WIRE_TENANT_BYTES]; /* who pays: the key's name, NULs behind it; "": nobody */
    union {
        struct wire_generate generate;
        struct wire_cache cache;
        struct wire_power power;
    };
};

/* int32 words that stand behind a request's tokens. */
static inline uint64_t wire_generate_extra(const struct wire_generate *g)
{
    return (uint64_t)g->n_allowed + 2 * (uint64_t)g->n_biases + g->n_bad + g->n_asked + g->n_stops;
}
static inline uint64_t wire_extra(const struct wire_request *r)
{
    return r->task == WIRE_GENERATE ? wire_generate_extra(&r->generate) : 0;
}

#endif
