/* Everything that crosses a process boundary: the lane between one front and the engine.
 *
 * A lane is a sealed memfd that lives exactly as long as the connection of its front to the
 * engine's control socket. Nothing in it is ever repaired: a dead peer ends the lane, and the
 * next connection makes another.
 *
 *   wire_lane | uint32 queue[queue_cap] | wire_slot[n_slots] | wire_out[n_slots][OUT_CAP] | arena
 *
 * One writer a cache line, marked [W: ...]. What is published is stored with release and read
 * with acquire; a sleeper sets its flag, fences, looks again and only then sleeps.
 *
 * A slot's life, and what is found when its owner is gone:
 *
 *   state       known by           front dies there              engine dies there
 *   free        front              nothing to do                 nothing to do
 *   filling     front              nothing was published         submitted to the next engine
 *   queued      front, ring        engine drops the lane         submitted to the next engine
 *   running     both               engine frees its pages        resubmitted with the output so
 *                                                                far; an error the third time
 *   finished    both, in out ring  engine has nothing to free    front still reads the records
 *
 * The engine treats a lane as hostile input: it copies, then checks, then uses the copy, and
 * keeps its own indices in private memory. */
#ifndef QUIRE_IPC_WIRE_H
#define QUIRE_IPC_WIRE_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC     UINT64_C(0x3165726975716e6c) /* "lnquire1" */
#define WIRE_SLOTS_MAX 4096                         /* a bit each in wire_lane.ready */
#define WIRE_OUT_CAP \
    1024                      /* records of one slot; a power of two. A client may be this far
                              * behind before its sequence pauses */
#define WIRE_STOP_IDS      16 /* stop_token_ids of one request */
#define WIRE_SALT_BYTES    16
#define WIRE_EOS_MAX       8
#define WIRE_LINE          64  /* bytes of a cache line */
#define WIRE_TENANT_BYTES  32  /* of a tenant's name, its NUL included */
#define WIRE_TENANTS       128 /* that are told apart at a time; further ones count as nobody */
#define WIRE_SPACES        256 /* namespaces of the cache, alike: those used last */

#define WIRE_AUTOMATA_MAX  256  /* of one lane at a time */
#define WIRE_LOGPROBS_MAX  128  /* alternatives told with a token */
#define WIRE_ASKED_MAX     128  /* further ids told with a token */
#define WIRE_THINK_IDS     16   /* that the end tag of a reasoning takes */
#define WIRE_THINK_TAG     16   /* bytes of a tag, its NUL included */
#define WIRE_BIASES_MAX    1024 /* of one request */
#define WIRE_BAD_WORDS_MAX 1024 /* int32 of one request's bad words, lengths included */

enum wire_engine_state {
    WIRE_STARTING = 0,
    WIRE_SERVING = 1,
    WIRE_DRAINING = 2,
    WIRE_ASLEEP = 3, /* requests are welcome: they wake it */
    WIRE_WAKING = 4,
};

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

/* Why a front no longer wants a sequence: the value of wire_slot.cancel. */
enum wire_cancel { WIRE_WANTED = 0, WIRE_CLIENT_GONE = 1, WIRE_STOP_STRING = 2 };

/* One request as the front submits it. Sampling fields as in model/batch.h. */
struct wire_request {
    uint64_t arrival_us;  /* clock_us() when the front read it; for the latency metrics */
    uint64_t deadline_us; /* clock_us() after which nobody wants it; 0: none */
    uint64_t seed;
    uint64_t arena_offset; /* bytes from the arena's start to int32 [n_tokens] */
    uint32_t n_tokens;     /* prompt and, after an engine's death, the output so far */
    uint32_t n_prompt;     /* 1 .. n_tokens */
    uint32_t max_tokens;   /* >= 1; counts from n_prompt */
    uint32_t min_tokens;   /* no end of text before this many */
    uint32_t flags;        /* enum wire_flags */
    int32_t priority;      /* lower runs first */
    int32_t top_k;
    float temperature;
    float top_p;
    float min_p;
    float presence;
    float frequency;
    float repetition;
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

/* Why a request was refused, or ended before its time. */
enum wire_refusal {
    WIRE_NOT_REFUSED = 0,
    WIRE_REFUSED_REQUESTS, /* too many wait */
    WIRE_REFUSED_TOKENS,   /* too many tokens wait */
    WIRE_REFUSED_TENANT,   /* its tenant had most of the queue and another came, or it has its share
                            * of a front's slots */
    WIRE_REFUSED_SLOTS,    /* the front has no slot, or no room for the prompt */
    WIRE_REFUSED_WAIT,     /* it would have waited past its deadline or queue_timeout_s */
    WIRE_REFUSED_TIMEOUT,  /* it has waited for queue_timeout_s, or wake_timeout_s */
    WIRE_REFUSED_DEADLINE, /* it ran out of its own time */
    WIRE_REFUSALS          /* the length of arrays by reason; [WIRE_NOT_REFUSED] is not used */
};

/* A share of a bounded room, without knowing who else wants some: nobody takes more than so many
 * times what is left free. One tenant alone may have 4/5 of it, two 4/9 each, and there is always
 * room for one who comes. */
#define WIRE_SHARE_FACTOR 4
static inline int wire_share_allows(uint64_t held, uint64_t n_free)
{
    return held < WIRE_SHARE_FACTOR * n_free;
}

/* int32 words that stand behind a request's tokens. */
static inline uint64_t wire_extra(const struct wire_request *r)
{
    return (uint64_t)r->n_allowed + 2 * (uint64_t)r->n_biases + r->n_bad + r->n_asked;
}

enum wire_kind {
    WIRE_ADMITTED = 1, /* value: prompt tokens found in the prefix cache; always first */
    WIRE_TOKEN = 2,    /* value: token id; finish is WIRE_FIN_STOP for the one that ends it */
    WIRE_FINISHED = 3, /* finish says why; value: stop token id, or enum err; always last */
    /* Log probabilities, of the logits as the model gave them. value: token id. Those of a prompt
     * come in the order of positions, from the second token on, and before the first WIRE_TOKEN.
     * A prompt whose engine died is told again from the start unless a WIRE_TOKEN has come. */
    WIRE_PROMPT_CHOSEN = 4, /* the token that stands there */
    WIRE_PROMPT_TOP = 5,    /* behind its WIRE_PROMPT_CHOSEN, the most probable first */
    WIRE_CHOSEN = 6,        /* of the WIRE_TOKEN that follows */
    WIRE_TOP = 7,           /* the most probable first, then what was asked for: rank 0 */
    WIRE_FACT = 8,          /* value: enum wire_fact; amount is its number */
};

/* What is told of the cache. A row begins with the fact that names it; those that follow are its
 * numbers. Rows are bounded: what has no room of its own is in the last of its kind. */
enum wire_fact {
    WIRE_FACT_TIER,     /* begins a tier: enum wire_tier */
    WIRE_FACT_SPACE,    /* begins a namespace: its id; 0: all that have no row */
    WIRE_FACT_HINT,     /* begins what is kept alike: the id of its namespace */
    WIRE_FACT_SLOTS,    /* of a tier: pages that it has room for */
    WIRE_FACT_PAGES,    /* of a tier */
    WIRE_FACT_KEPT,     /* of a tier: above the default priority */
    WIRE_FACT_KEPT_MAX, /* of a tier: as many may be */
    WIRE_FACT_DEVICE,   /* of a namespace or hint: pages in each tier */
    WIRE_FACT_HOST,
    WIRE_FACT_STORE,
    WIRE_FACT_KEPT_PAGES, /* of a namespace: above the default priority, in all tiers */
    WIRE_FACT_QUERIES,    /* of a namespace: tokens of prompts, and those found in the cache */
    WIRE_FACT_HITS,
    WIRE_FACT_SHARED,   /* of a namespace: it is the one without a salt */
    WIRE_FACT_PRIORITY, /* of a hint; none of several kinds in one row */
    WIRE_FACT_UNTIL,    /* of a hint: unix seconds; 0: without end */
    WIRE_FACT_DROPPED,  /* pages, of all tiers */
    WIRE_FACT_HELD,     /* tokens of the prompt that are kept as was asked */
    WIRE_FACTS
};

enum wire_tier { WIRE_DEVICE, WIRE_HOST, WIRE_STORE, WIRE_TIERS };

enum wire_finish {
    WIRE_FIN_STOP = 1,      /* an end-of-text or stop id, which is the last token sent */
    WIRE_FIN_LENGTH = 2,    /* max_tokens or the model's length */
    WIRE_FIN_CANCELLED = 3, /* the front asked for it */
    WIRE_FIN_ERROR = 4,     /* value is a negative enum err; may come without WIRE_ADMITTED */
};

struct wire_out {
    int32_t value;
    uint8_t kind;           /* enum wire_kind */
    uint8_t finish;         /* enum wire_finish, with WIRE_FINISHED */
    uint16_t retry_after_s; /* with WIRE_FINISHED and ERR_OVERLOADED: when to come again */
    union {
        uint64_t time_us; /* when the engine had it */
        uint64_t amount;  /* of a WIRE_FACT */
        struct {          /* of log probabilities */
            float logprob;
            uint32_t rank; /* 1: the most probable; of WIRE_CHOSEN 0: not known */
        };
    };
};

struct wire_slot {
    alignas(WIRE_LINE) struct wire_request request; /* [W: front] before it is queued */
    alignas(WIRE_LINE) _Atomic uint32_t cancel;     /* [W: front] enum wire_cancel */
    alignas(WIRE_LINE) _Atomic uint32_t out_tail;   /* [W: engine] records written */
    alignas(WIRE_LINE) _Atomic uint32_t out_head;   /* [W: front] records taken */
};

struct wire_lane {
    /* [W: creator], before the front sees it. */
    uint64_t magic;
    uint64_t layout; /* wire_layout() */
    uint64_t lane_bytes;
    uint64_t epoch;        /* of the engine: one life */
    uint64_t queue_offset; /* bytes from the start of the lane, as the following */
    uint64_t slots_offset;
    uint64_t out_offset;
    uint64_t arena_offset;
    uint64_t arena_bytes;
    uint32_t n_slots;
    uint32_t queue_cap;  /* a power of two >= n_slots: the queue can never be full */
    uint32_t engine_pid; /* for people and tools, never for decisions */
    uint32_t front_pid;

    alignas(WIRE_LINE) _Atomic uint64_t heartbeat_us; /* [W: engine] last pass of its loop */
    _Atomic uint64_t progress_us;                     /* [W: engine] a step ended, or none had to */
    _Atomic uint32_t engine_state;                    /* [W: engine] */
    _Atomic uint32_t n_running;                       /* [W: engine] sequences, all lanes */
    _Atomic uint32_t n_waiting;                       /* [W: engine] */
    _Atomic uint32_t retry_after_s;                   /* [W: engine] for a 429, from its rate */
    _Atomic uint32_t room_reqs;   /* [W: engine] by this one; less when the queue gets full */
    _Atomic uint32_t room_tokens; /* [W: engine] tokens of prompts, by this one */

    alignas(WIRE_LINE) _Atomic uint32_t queue_tail; /* [W: front] */
    alignas(WIRE_LINE) _Atomic uint32_t queue_head; /* [W: engine] */

    alignas(WIRE_LINE) _Atomic uint32_t refused[WIRE_REFUSALS]; /* [W: front] by itself, so far */

    /* Written by both with exchange: the sleeper sets 1, who wakes it sets 0. A front that lies
     * here delays nobody but itself, because each lane has its own. */
    alignas(WIRE_LINE) _Atomic uint32_t engine_sleeping;
    alignas(WIRE_LINE) _Atomic uint32_t front_sleeping;

    /* Slots with something to read: the engine sets a bit, the front takes the word. */
    alignas(WIRE_LINE) _Atomic uint64_t ready[WIRE_SLOTS_MAX / 64];
};

/* Both first messages begin with magic and layout in every build, whatever follows: so builds can
 * tell that they are different. */

/* First message of a front, or of somebody who only wants the statistics: he gets them twice in
 * place of a lane, and the connection ends. */
enum wire_visitor { WIRE_FRONT = 0, WIRE_OBSERVER = 1 };

struct wire_hello {
    uint64_t magic;
    uint64_t layout;
    uint64_t visitor; /* enum wire_visitor */
};

/* What a front sends once it is attached, one descriptor with each: a memfd of bytes bytes that is
 * sealed against writing and resizing. The engine has it before it takes a request that was queued
 * afterwards, or refuses that with ERR_NO_FORM: it had no room for what was offered, the place is
 * empty, and the vocabulary is to be offered again as well. A place may be filled again when no
 * request that names it is under way. */
enum wire_offer_kind {
    WIRE_VOCABULARY = 1, /* grammar/vocab.h; before the first automaton. The first that the engine
                          * could take stays */
    WIRE_AUTOMATON = 2,  /* grammar/automaton.h */
};

struct wire_offer {
    uint32_t kind; /* enum wire_offer_kind */
    uint32_t idx;  /* of an automaton: 0 .. WIRE_AUTOMATA_MAX - 1 */
    uint64_t bytes;
};

/* The engine's answer. With error == 0 two descriptors travel with it: the lane and the
 * statistics page. Afterwards each side sends single bytes to wake the other. */
struct wire_welcome {
    uint64_t magic;
    uint64_t layout;
    uint64_t epoch;
    uint64_t lane_bytes;
    int32_t error; /* enum err */
    uint32_t n_vocab;
    uint32_t max_model_len;
    uint32_t block_tokens;
    uint32_t n_eos;
    int32_t eos[WIRE_EOS_MAX];
    uint8_t fingerprint[32];
};

/* --- statistics: one page for all fronts, written by the engine, mapped read-only ------------ */

/* Upper bounds of vLLM's buckets; the last bucket, +Inf, is implied. */
#define WIRE_BUCKETS_TTFT                                                                       \
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, \
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0
#define WIRE_BUCKETS_ITL                                                                           \
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, \
        40.0, 80.0
#define WIRE_BUCKETS_LONG                                                                    \
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, \
        240.0, 480.0, 960.0, 1920.0, 7680.0
#define WIRE_BUCKETS_TOKENS                                                                \
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, \
        20000.0, 50000.0, 100000.0, 200000.0
#define WIRE_BUCKETS_STEP \
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0

#define WIRE_BUCKETS_N 1.0, 2.0, 5.0, 10.0, 20.0

#define WIRE_BUCKETS_FIRST \
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0

#define WIRE_BUCKETS_MAX  24
#define WIRE_CONFIG_BYTES 512

enum wire_metric {
#define COUNTER(id, name, labels, help) METRIC_##id,
#define GAUGE(id, name, labels, help)   METRIC_##id,
#define HISTOGRAM(id, name, help, buckets)
#include "ipc/metric.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    METRIC_COUNT
};

enum wire_histogram_id {
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, buckets) HISTOGRAM_##id,
#include "ipc/metric.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    HISTOGRAM_COUNT
};

struct wire_histogram {
    _Atomic uint64_t buckets[WIRE_BUCKETS_MAX]; /* not cumulative; the last used one is +Inf */
    _Atomic uint64_t count;
    _Atomic uint64_t sum_micro; /* sum of the observed values, in millionths */
};

/* One of those whose requests are told apart. */
struct wire_tenant {
    char name[WIRE_TENANT_BYTES];
    _Atomic uint64_t prompt_tokens; /* computed or found in a cache, since the place is its */
    _Atomic uint64_t generation_tokens;
    _Atomic uint64_t n_refused; /* by the engine */
    _Atomic uint32_t n_running;
    _Atomic uint32_t n_waiting;
};

/* How much was asked of a namespace of the prefix cache, and found: with a store since that was
 * begun. While a place is given to another its numbers may be of both. */
struct wire_space {
    _Atomic uint64_t space; /* its id; 0 in the first place: all that have none of their own */
    _Atomic uint64_t queries, hits; /* tokens; no queries: nobody's place */
};

struct wire_stats { /* [W: engine], all of it */
    uint64_t magic;
    uint64_t layout;
    _Atomic uint64_t values[METRIC_COUNT];
    struct wire_histogram histograms[HISTOGRAM_COUNT];
    char cache_config[WIRE_CONFIG_BYTES]; /* labels of vllm:cache_config_info; set at start */
    _Atomic uint32_t n_tenants;
    struct wire_tenant tenants[WIRE_TENANTS]; /* the first is nobody */
    struct wire_space spaces[WIRE_SPACES];    /* as they were a second ago */
};

_Static_assert(sizeof(struct wire_out) == 16, "four records share a cache line");
_Static_assert(sizeof(struct wire_slot) % WIRE_LINE == 0, "slots do not share cache lines");
_Static_assert((WIRE_OUT_CAP & (WIRE_OUT_CAP - 1)) == 0, "indices wrap by masking");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock in shared memory dies with its holder");

/* Digest of sizeof and offsetof of everything above: two builds that differ refuse each other. */
uint64_t wire_layout(void);

/* Bucket bounds of a histogram; the number of them in *n. */
const double *wire_bucket_bounds(enum wire_histogram_id id, int *n);

#endif
