/* A sequence: the engine's side of one request, from intake to its last record. */
#ifndef QUIRE_ENGINE_SEQ_H
#define QUIRE_ENGINE_SEQ_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "engine/draft.h"
#include "grammar/walk.h"
#include "ipc/wire_request.h"
#include "kv/retain.h"
#include "model/batch.h"

struct token_trie;
struct guide_automaton;
struct guide_late;

enum seq_state {
    SEQ_FREE,    /* not in use */
    SEQ_WAITING, /* has no pages; in the scheduler's waiting list */
    SEQ_RUNNING, /* has pages; in the scheduler's running array */
};

/* Where the output stands in its reasoning (think.h). */
enum think_state { THINK_OVER, THINK_BEFORE, THINK_INSIDE };

struct seq_think {
    enum think_state state;
    int n_followed; /* tokens of the sequence that are accounted for */
    int n_tokens;   /* of the reasoning so far */
    int n_matched;  /* bytes of the next tag that the output ends with */
    const struct token_trie *vocab;
};

/* Pages of one cache group, in order (tables.h). */
struct seq_table {
    int32_t *pages; /* int32 [pages_cap]; of a state: its pages */
    int first;      /* entries before it were given back: a window has passed */
    int n;          /* entries up to here are pages */
};

/* A copy of all states behind some token. */
struct seq_snapshot {
    int32_t *pages; /* int32 [state_pages], each with a reference; valid when at > 0 */
    int at;         /* tokens that it has seen; 0: there is none */
};

struct seq {
    enum seq_state state;
    struct wire_request request; /* checked copy */
    int lane_idx;
    uint32_t slot;
    int tenant_idx;   /* in tenants.h */
    uint64_t arrival; /* its number in the order of arrival */

    /* What is known and what is done. 0 <= n_computed < n_tokens <= tokens_max, and
     * n_computed + n_ahead <= n_tokens + n_pending. */
    int32_t *tokens; /* int32 [max_model_len], prompt then output */
    int n_tokens;
    int n_prompt;
    int n_computed; /* tokens whose keys and values lie in pages */
    int n_ahead;    /* more, which steps under way compute */
    int n_pending;  /* tokens that steps under way sample: 0 or 1 whenever a plan is made, but of
                     * drafts */
    int row_ahead;  /* the row of the last such step that samples */
    int tokens_max; /* the sequence ends when n_tokens reaches it */

    /* Pages (tables.h); of the first n_named of each table the names are known. */
    struct seq_table tables[CACHE_GROUPS_MAX];
    int n_named;
    struct hash root;           /* the name before the first page */
    struct hash chain;          /* the name of the prefix of n_named pages, or root */
    struct seq_snapshot taken;  /* enqueued, and not named yet */
    struct seq_snapshot newest; /* of the output: named; or the one to begin with */
    int n_snapped;              /* tokens behind which the last snapshot was taken or found */

    struct retain retain; /* how long its first retain_tokens tokens are to stay */
    int retain_tokens;

    uint64_t maker;    /* of its pages (pages.h), which it asks for as */
    int n_foreign;     /* tokens of the cached prefix that other tenants computed */
    int n_cached_told; /* of n_cached: those that its tenant may know of */
    int n_cached;      /* prompt tokens found in the cache at the first admission */
    int n_fetched;     /* of these, tokens whose pages came from host memory or the disk */
    int n_loading;     /* pages on their way from the store; not admitted before 0 */
    bool awaits_load;  /* n_loading is 1 for a place to load to, not for a page */
    bool searched;     /* the lower tiers were asked for all that they may have */
    int n_asked;       /* pages before which that stopped, for want of room; 0: it begins anew */
    int n_goal;        /* pages of its prompt that all tiers together can serve */
    struct hash asked_chain; /* of these pages */
    int n_searched_from;     /* pages that the device had when they were first asked */
    bool counted;            /* the scheduler's: its prompt was charged and counted */
    bool admitted;           /* WIRE_ADMITTED was sent */
    bool is_awaited;         /* its client has an answer already: of another choice */
    int n_generated_max;     /* most tokens of a choice of its answer that has ended */
    bool paused;             /* its output ring is full: the client is slow */
    int n_planned;           /* tokens in this step's plan */

    struct draft draft;
    int room; /* records that the lane has room for, beside those of one token */

    /* What is said of each token, and the room for it. */
    int n_told;    /* prompt tokens behind the first whose log probabilities were told */
    int n_owed;    /* records that steps under way will put */
    int chunk_max; /* prompt tokens that a step may compute, for their records; 0: any number */
    /* A row that is told whole: of the last token, or of a prompt's token; publish_row(). */
    float *row; /* float [1 + n_vocab], the pool's: as WIRE_ROW tells it */
    int row_at; /* floats that were put */
    bool tells_row, row_is_prompts;

    /* What steers sampling (guide.h). Arrays of the pool's. */
    uint32_t *allowed;         /* uint32 [request.generate.n_allowed] */
    uint32_t *stops;           /* uint32 [request.generate.n_stops] */
    int32_t *bad;              /* int32 [request.generate.n_bad] */
    struct batch_bias *biases; /* [request.generate.n_biases] */
    int32_t *asked;            /* int32 [request.generate.n_asked] */
    struct walk *walk;         /* behind n_walked tokens; with an automaton */
    int n_walked;
    uint32_t *made;          /* uint32 [n_words]: a mask that was late, and is there now */
    int n_made;              /* behind so many tokens it holds; 0: for none */
    struct guide_late *late; /* who makes one; NULL: none does */
    bool is_late;            /* it has to wait for its mask, and is not planned meanwhile */
    struct seq_think think;
    bool is_masked;                    /* the row that was planned last */
    struct guide_automaton *automaton; /* NULL: none; borrowed, and counted there */

    unsigned step_seen;   /* steps that had ended when it came; wraps */
    uint64_t admitted_us; /* clock_us() of the events that the metrics want */
    uint64_t first_token_us;
    uint64_t last_token_us;

    int n_overtaken;  /* admitted before it while it found no pages */
    struct seq *next; /* in the free list, or in its tenant's that waits */
    struct seq *prev; /* in the latter */
};

/* All sequences there can be, made at start. */
struct seq_pool {
    struct seq *seqs; /* [n] */
    struct seq *free;
    int n;
    int tokens_cap; /* room of one sequence's tokens */
    int pages_cap;  /* and of each of its tables */
    int row_cap;    /* and of its row, floats */
};

struct seq_pool_limits {
    int n_seqs;
    int max_model_len;
    int page_tokens;
    int n_vocab;
    int n_groups;
    int n_state_pages; /* of all states of a sequence */
    bool has_drafts;
};

/* Whether tokens of the output, or of the prompt, are told with their whole rows. */
static inline bool seq_has_rows(const struct seq *q)
{
    return (q->request.flags & WIRE_LOGPROBS) != 0 &&
           q->request.generate.n_logprobs > WIRE_LOGPROBS_MAX;
}
static inline bool seq_prompt_has_rows(const struct seq *q)
{
    return q->request.generate.n_prompt_logprobs > WIRE_LOGPROBS_MAX;
}

/* Records that a token of the output, or of the prompt, has in the out ring; rows come when there
 * is room. */
static inline int seq_token_records(const struct seq *q)
{
    return (q->request.flags & WIRE_LOGPROBS) == 0 ? 1
           : seq_has_rows(q)
               ? 2
               : 2 + (int)(q->request.generate.n_logprobs + q->request.generate.n_asked);
}
static inline int seq_prompt_records(const struct seq *q)
{
    return seq_prompt_has_rows(q) ? 1 : 1 + (int)q->request.generate.n_prompt_logprobs;
}

/* Whether id is in q's set of stop ids, and whether that set must not come behind n_pending tokens
 * that are not known yet: before min_tokens. */
static inline bool seq_has_stop(const struct seq *q, int32_t id)
{
    return q->request.generate.n_stops > 0 && (q->stops[id / 32] >> id % 32 & 1) != 0;
}
static inline bool seq_bans_stops(const struct seq *q, int n_pending)
{
    return q->request.generate.n_stops > 0 &&
           q->n_tokens + n_pending - q->n_prompt < (int)q->request.generate.min_tokens;
}

/* Whether log probabilities of the prompt are still to be told. */
static inline bool seq_tells_prompt(const struct seq *q)
{
    return (q->request.flags & WIRE_PROMPT_LOGPROBS) != 0 && q->n_told < q->n_prompt - 1;
}

/* Whether the next step has to wait for a row: there is room for one. */
static inline bool seq_awaits_row(const struct seq *q)
{
    return q->tells_row || (seq_has_rows(q) && q->n_pending > 0) ||
           (seq_prompt_has_rows(q) && seq_tells_prompt(q) && q->n_ahead > 0);
}

/* Whether it may still be refused because there is too much to do: nothing was said of it, nor of
 * another choice of its answer. */
static inline bool seq_may_refuse(const struct seq *q)
{
    return !q->admitted && !q->is_awaited && (q->request.flags & (WIRE_RESUMED | WIRE_PROBE)) == 0;
}

/* How long the page is to stay that ends behind its first n_tokens tokens. */
static inline struct retain seq_retain(const struct seq *q, int n_tokens)
{
    return n_tokens <= q->retain_tokens ? q->retain : (struct retain){0};
}

/* The order in which sequences run: lower priority number first, then arrival. */
static inline bool seq_before(const struct seq *a, const struct seq *b)
{
    if (a->request.priority != b->request.priority)
        return a->request.priority < b->request.priority;
    return a->arrival < b->arrival;
}

/* Address space for n sequences of the longest length is reserved, memory is taken as it is
 * touched. ERR_NO_MEMORY. */
int seq_pool_init(struct seq_pool *p, const struct seq_pool_limits *limits) ERR_CHECKED;

/* A sequence with empty fields and its own arrays, or NULL when all are in use. */
struct seq *seq_claim(struct seq_pool *p);

/* Back to the pool; it holds no pages. Memory of long prompts goes back to the system. */
void seq_release(struct seq_pool *p, struct seq *s);

#endif
