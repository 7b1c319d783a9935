/* What a front asks the engine for: one request, as it lies in its slot of a lane (wire_lane.h).
 *
 * The engine copies it, then checks the copy, then uses the copy. */
#ifndef QUIRE_IPC_WIRE_REQUEST_H
#define QUIRE_IPC_WIRE_REQUEST_H

#include <stdint.h>

#include "ipc/wire.h"
#include "kernels/sampling.h"

#define WIRE_STOP_IDS      16 /* stop_token_ids of one request */
#define WIRE_SALT_BYTES    16
#define WIRE_LOGPROBS_MAX  128  /* alternatives told with a token */
#define WIRE_ASKED_MAX     128  /* further ids told with a token */
#define WIRE_THINK_IDS     16   /* that the end tag of a reasoning takes */
#define WIRE_THINK_TAG     16   /* bytes of a tag, its NUL included */
#define WIRE_BIASES_MAX    1024 /* of one request */
#define WIRE_BAD_WORDS_MAX 1024 /* int32 of one request's bad words, lengths included */

enum wire_flags { /* of wire_request.flags */
                  WIRE_IGNORE_EOS = 1,
                  WIRE_LOGPROBS =
                      2, /* a WIRE_CHOSEN and n_logprobs WIRE_TOP before each WIRE_TOKEN */
                  WIRE_PROMPT_LOGPROBS = 4, /* the same of each prompt token but the first */
                  WIRE_RESUMED = 8, /* an engine that died had taken it: the queue's bounds let it
                                     * pass */
                  WIRE_PROBE = 16,  /* asked by the front itself: the same, and it is not counted */
                  WIRE_TELL_KEPT = 32, /* a WIRE_FACT before the end: how much of its prompt is
                                        * kept */
                  WIRE_THINKS = 64,    /* the prompt ends inside of a reasoning */
};

/* What a front asks for. All but the first are asked by operators about the cache: they take no
 * turn, and are answered by WIRE_FACT records and an end. */
enum wire_ask {
    WIRE_GENERATE = 0,
    WIRE_LIST = 1,        /* what the tiers hold */
    WIRE_DROP_PROMPT = 2, /* the pages of the prompt, of all tiers */
    WIRE_DROP_SPACE = 3,  /* those of one namespace */
    WIRE_DROP_ALL = 4,
    WIRE_SLEEP = 5, /* the end comes when the engine sleeps */
    WIRE_WAKE = 6,  /* or is awake */
};

/* logits[id] += value, before penalties. */
struct wire_bias {
    int32_t id;
    float value; /* finite */
};

/* One request as the front submits it. */
struct wire_request {
    uint64_t arrival_us;   /* clock_us() when the front read it; for the latency metrics */
    uint64_t deadline_us;  /* clock_us() after which nobody wants it; 0: none */
    uint64_t arena_offset; /* bytes from the arena's start to int32 [n_tokens] */
    uint32_t n_tokens;     /* prompt and, after an engine's death, the output so far */
    uint32_t n_prompt;     /* 1 .. n_tokens */
    uint32_t max_tokens;   /* >= 1; counts from n_prompt */
    uint32_t min_tokens;   /* no end of text before this many */
    uint32_t flags;        /* enum wire_flags */
    int32_t priority;      /* lower runs first */
    struct sampling sampling;
    uint32_t n_logprobs; /* 0 .. WIRE_LOGPROBS_MAX */
    uint32_t n_prompt_logprobs;
    uint32_t automaton; /* the output follows it: 1 + its index in the lane; 0: none */
    /* Behind the tokens in the arena stand, as int32, the ids that may come, those to be biased,
     * the sequences that may not come, and the ids that are told. */
    uint32_t n_allowed; /* 0: all; else ceil(n_vocab / 32): id i is bit i % 32 of word i / 32 */
    uint32_t n_biases;  /* struct wire_bias, each id once */
    uint32_t n_bad;     /* int32, 0 .. WIRE_BAD_WORDS_MAX: a length >= 1, so many ids, and again */
    uint32_t n_asked;   /* int32, 0 .. WIRE_ASKED_MAX: ids told with each token (WIRE_LOGPROBS) */
    uint32_t ask;       /* enum wire_ask */
    uint32_t retain;    /* 1 + the priority, 0 .. 100, of the prompt's pages; 0: nothing is said */
    uint32_t retain_s;  /* for so many seconds; 0: without end */
    uint32_t retain_tokens; /* of the prompt's start that it is said of; 0: all of it */
    uint64_t space;         /* WIRE_DROP_SPACE: this namespace; 0: that of the salt */
    uint64_t answer;        /* the same for all choices of one answer, and for no other of this
                             * front: when one has begun none is refused; 0: there is one choice */
    uint32_t n_choices;     /* of the answer, this one included; for metrics alone */
    uint32_t n_stop_ids;    /* 0 .. WIRE_STOP_IDS */
    int32_t stop_ids[WIRE_STOP_IDS];
    /* A reasoning that has so many tokens is ended: its end tag comes next, as these ids. Tags are
     * found by what tokens spell, for which the front has offered its vocabulary. */
    uint32_t think_max;                /* 1 + tokens; 0: without a bound, and nothing below holds */
    uint32_t n_think_ids;              /* 1 .. WIRE_THINK_IDS */
    int32_t think_ids[WIRE_THINK_IDS]; /* which spell think_close */
    char think_open[WIRE_THINK_TAG];   /* texts that are not empty */
    char think_close[WIRE_THINK_TAG];
    uint8_t salt[WIRE_SALT_BYTES];  /* prefixes are shared only under equal salts */
    char tenant[WIRE_TENANT_BYTES]; /* who pays: the key's name, NULs behind it; "": nobody */
};

/* int32 words that stand behind a request's tokens. */
static inline uint64_t wire_extra(const struct wire_request *r)
{
    return (uint64_t)r->n_allowed + 2 * (uint64_t)r->n_biases + r->n_bad + r->n_asked;
}

#endif
