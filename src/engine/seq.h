/* SPDX-License-Identifier: Apache-2.0
 *
 * A sequence: the engine's side of one request, from intake to its last record.
 *
 * A sequence comes from a pool that is made at start. It waits without pages (SEQ_WAITING), runs
 * with pages (SEQ_RUNNING), may be preempted and wait again, and goes back to the pool when it is
 * retired. Its fields are written by the engine's thread alone; each group below belongs to the
 * file that its comment names. */
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

struct lora_adapter;
struct token_trie;
struct guide_automaton;
struct guide_late;

enum seq_state {
    SEQ_FREE,    /* not in use */
    SEQ_WAITING, /* has no pages; in the scheduler's waiting list */
    SEQ_RUNNING, /* has pages; in the scheduler's running array */
};

/* Where the output is with respect to its reasoning (think.h): after it or without one, before it,
 * inside. */
enum think_state { THINK_OVER, THINK_BEFORE, THINK_INSIDE };

struct seq_think {
    enum think_state state;
    int n_followed; /* tokens of the sequence that were looked at */
    int n_tokens;   /* tokens of the reasoning so far */
    int n_matched;  /* bytes of the next tag that the output ends with */
    const struct token_trie *vocab;
};

/* The page table of one cache group (tables.h). */
struct seq_table {
    int32_t *pages; /* int32 [pages_cap]; of a state: its pages */
    int first;      /* entries before it were given back, because the window has moved past them */
    int n;          /* entries [first, n) hold a page */
};

/* A copy of all states of the sequence after some token. */
struct seq_snapshot {
    int32_t *pages; /* int32 [state_pages], each with a reference; valid when at > 0 */
    int at;         /* tokens that are in it; 0: there is no snapshot */
};

struct seq {
    enum seq_state state;
    struct wire_request request; /* checked copy */
    int lane_idx;
    uint32_t slot;
    int tenant_idx;   /* index in tenants.list */
    uint64_t arrival; /* number in the order of arrival, unique */

    /* Tokens, and how many of them are computed. Always 0 <= n_computed < n_tokens <= tokens_max,
     * and n_computed + n_ahead <= n_tokens + n_pending: a step may compute at most the tokens that
     * will be known when it runs. */
    int32_t *tokens; /* int32 [max_model_len], prompt then output */
    int n_tokens;
    int n_prompt;
    int n_computed;      /* tokens whose keys and values are in pages */
    int n_ahead;         /* further tokens that steps in flight compute */
    unsigned step_ahead; /* the last step that samples one of n_pending (struct sched, n_begun) */
    int n_pending;  /* tokens that steps in flight sample: without drafts 0 or 1 whenever a plan is
                     * made */
    int row_ahead;  /* the row of the last such step that samples */
    int tokens_max; /* the sequence ends when n_tokens reaches it */

    /* Pages (tables.h). The first n_named pages of each table have their names. */
    struct seq_table tables[CACHE_GROUPS_MAX];
    int n_named;
    int n_branch; /* tokens that a state would have served, had a snapshot been there: one is taken
                   * there; 0: none */
    struct hash root;           /* the name before the first page */
    struct hash chain;          /* the name of the prefix of n_named pages; root if there is none */
    struct seq_snapshot taken;  /* enqueued, not named yet */
    struct seq_snapshot newest; /* the newest named one of the output, or the one that the sequence
                                 * began with */
    struct seq_snapshot kept; /* before the step in flight, if it computes drafts: if one is wrong,
                                 * the sequence goes back to it */
    int n_snapped;            /* tokens at which the last snapshot was taken or found */
    int n_again;              /* tokens up to here that are computed again are no prompt; 0: none */

    struct lora_adapter *adapter; /* NULL: none; counted in its n_seqs */
    bool awaits_adapter;          /* it waits, and its adapter has no slot yet (lora.h) */

    struct retain retain; /* the priority of the pages of its first retain_tokens tokens */
    int retain_tokens;

    /* The cached part of the prompt (tiers.c, sched.c). */
    uint64_t maker;           /* written to its pages as their maker (pages.h), to distinguish own
                              * from foreign cache hits */
    int n_foreign;            /* tokens of the cached prefix that other tenants computed */
    int n_found[CACHE_KINDS]; /* tokens of the prompt that the groups of one kind could serve */
    bool found_foreign;       /* a page of another tenant was among them */
    int n_cached_told;        /* the part of n_cached that may be reported to its tenant */
    int n_cached;             /* prompt tokens found in the cache at the first admission */
    int n_fetched;            /* the part of n_cached whose pages came from host memory or the
                              * disk */
    int n_loading;            /* pages that are loading; the sequence is not admitted before this is
                              * 0 */
    bool awaits_load;         /* n_loading is 1 because it waits for a free load, not for a page */
    bool searched;            /* all pages that the lower tiers have were asked for */
    int n_asked;             /* pages up to which the search came before loads ran out; 0: it starts
                              * anew */
    int n_goal;              /* pages of its prompt that all tiers together can serve */
    struct hash asked_chain; /* name of the prefix of n_asked pages */
    int n_searched_from;     /* pages that the device had when the search began */
    /* Where it is in its life. */
    bool counted;        /* set by the scheduler: its prompt was charged to the tenant and
                          * counted */
    bool admitted;       /* WIRE_ADMITTED was sent */
    bool is_awaited;     /* its client has received a part of the answer: of another choice */
    int n_generated_max; /* tokens of the longest choice of its answer that has ended */
    bool paused;         /* its output ring is full because the client is slow */
    int n_planned;       /* tokens in this step's plan */

    struct draft draft;
    int room; /* records that its output ring has room for, beyond those of one token */

    /* Log probabilities (publish.c), and the room that their records need. */
    int n_told;    /* prompt tokens after the first whose log probabilities were reported; of a
                    * mean: tokens whose rows were added */
    int n_owed;    /* records that steps in flight will write */
    int chunk_max; /* prompt tokens that a step may compute, so that their records find room; 0: any
                    * number */
    /* A row of logits that is reported whole: the last token's, or a prompt token's; see
     * publish_row(). */
    float *row; /* float [1 + n_vocab], from the pool: in the layout of WIRE_ROW. The sum so far,
                 * of a mean */
    int row_at; /* floats that were written to the ring */
    bool tells_row, row_is_prompts;

    /* Constraints on sampling (guide.h). The arrays are the pool's. */
    uint32_t *allowed;         /* uint32 [request.generate.n_allowed] */
    uint32_t *stops;           /* uint32 [request.generate.n_stops] */
    int32_t *bad;              /* int32 [request.generate.n_bad] */
    struct batch_bias *biases; /* [request.generate.n_biases] */
    int32_t *asked;            /* int32 [request.generate.n_asked] */
    struct walk *walk;         /* state of the automaton after n_walked tokens */
    int n_walked;
    uint32_t *made;          /* uint32 [n_words]: a mask that was late and is ready */
    int n_made;              /* the mask in `made` is for the token after this many; 0: there is
                              * none */
    struct guide_late *late; /* the job that makes its mask; NULL: none */
    bool is_late;            /* it waits for its mask, and is not planned meanwhile */
    struct seq_think think;
    bool is_masked;                    /* the row that was planned last has a mask */
    struct guide_automaton *automaton; /* NULL: none; borrowed, and counted in its n_users */

    unsigned step_seen;   /* steps that had ended when it arrived; wraps */
    uint64_t admitted_us; /* clock_us() of events, for the metrics */
    uint64_t first_token_us;
    uint64_t last_token_us;

    int n_overtaken;  /* sequences that were admitted before it while it found no pages */
    struct seq *next; /* in the free list, or in its tenant's list of waiting sequences */
    struct seq *prev; /* in the waiting list only */
};

/* All sequences there can be, allocated at start. */
struct seq_pool {
    struct seq *seqs; /* [n] */
    struct seq *free;
    int n;
    int tokens_cap; /* capacity of a sequence's tokens */
    int pages_cap;  /* of each of its tables */
    int row_cap;    /* of its row of logits, floats */
};

struct seq_pool_limits {
    int n_seqs;
    int max_model_len;
    int page_tokens;
    int n_vocab;
    int n_groups;
    int n_state_pages; /* pages of all states of one sequence */
    bool has_drafts;
};

/* Is the answer a row of numbers, in place of tokens? And is it the mean of the rows of all
 * tokens? */
static inline bool seq_is_pooled(const struct seq *seq)
{
    return seq->request.generate.pooling != WIRE_POOL_NONE;
}
static inline bool seq_is_mean(const struct seq *seq)
{
    return seq->request.generate.pooling == WIRE_POOL_MEAN;
}

static inline bool seq_pools_each(const struct seq *seq)
{
    return seq->request.generate.pooling == WIRE_POOL_EACH;
}

/* Do tokens of the output (of the prompt) report their whole row of logits, instead of the most
 * probable tokens? */
static inline bool seq_has_rows(const struct seq *seq)
{
    return seq_is_pooled(seq) || ((seq->request.flags & WIRE_LOGPROBS) != 0 &&
                                  seq->request.generate.n_logprobs > WIRE_LOGPROBS_MAX);
}
static inline bool seq_prompt_has_rows(const struct seq *seq)
{
    return seq_pools_each(seq) || seq->request.generate.n_prompt_logprobs > WIRE_LOGPROBS_MAX;
}

/* Records of one token of the output (of the prompt) in the output ring. Rows of logits are not
 * counted: they are written piece by piece as there is room. */
static inline int seq_token_records(const struct seq *seq)
{
    if ((seq->request.flags & WIRE_LOGPROBS) == 0)
        return 1; /* the token */
    if (seq_has_rows(seq))
        return 2; /* and its log probability */
    return 2 + (int)(seq->request.generate.n_logprobs + seq->request.generate.n_asked);
}
static inline int seq_prompt_records(const struct seq *seq)
{
    if (seq_is_mean(seq))
        return 0; /* they are only summed */
    return seq_prompt_has_rows(seq) ? 1 : 1 + (int)seq->request.generate.n_prompt_logprobs;
}

/* Is id in the request's set of stop ids? And is that set still forbidden after n_pending unknown
 * tokens, because the output is shorter than min_tokens? */
static inline bool seq_has_stop(const struct seq *seq, int32_t id)
{
    return seq->request.generate.n_stops > 0 && (seq->stops[id / 32] >> id % 32 & 1) != 0;
}
static inline bool seq_bans_stops(const struct seq *seq, int n_pending)
{
    return seq->request.generate.n_stops > 0 &&
           seq->n_tokens + n_pending - seq->n_prompt < (int)seq->request.generate.min_tokens;
}

/* Are log probabilities of the prompt still to be reported, or rows of it to be summed? */
static inline bool seq_tells_prompt(const struct seq *seq)
{
    return ((seq->request.flags & WIRE_PROMPT_LOGPROBS) != 0 || seq_is_mean(seq) ||
            seq_pools_each(seq)) &&
           seq->n_told < seq->n_prompt - 1;
}

/* Has the next step to wait until a row is reported? There is room for one row per sequence. */
static inline bool seq_awaits_row(const struct seq *seq)
{
    return seq->tells_row || (seq_has_rows(seq) && seq->n_pending > 0) ||
           (seq_prompt_has_rows(seq) && seq_tells_prompt(seq) && seq->n_ahead > 0);
}

/* Of the n tokens that seq lacks: is it to decode? The tokens before the last one may be those that
 * a state has lost with wrong drafts. */
static inline bool seq_decodes(const struct seq *seq, int n)
{
    return n == 1 || (n > 1 && seq->n_tokens - 1 <= seq->n_again);
}

/* May seq still be refused for overload? Not after its client has received a part of the answer,
 * nor if it continues an output or is a probe. */
static inline bool seq_may_refuse(const struct seq *seq)
{
    return !seq->admitted && !seq->is_awaited &&
           (seq->request.flags & (WIRE_RESUMED | WIRE_PROBE)) == 0;
}

/* The retention of the page that ends with seq's first n_tokens tokens. */
static inline struct retain seq_retain(const struct seq *seq, int n_tokens)
{
    return n_tokens <= seq->retain_tokens ? seq->retain : (struct retain){0};
}

/* The order of running sequences: smaller priority number first, then earlier arrival. */
static inline bool seq_before(const struct seq *a, const struct seq *b)
{
    if (a->request.priority != b->request.priority)
        return a->request.priority < b->request.priority;
    return a->arrival < b->arrival;
}

/* Reserve address space for all sequences at the greatest length; memory is taken as it is touched.
 * ERR_NO_MEMORY. */
int seq_pool_init(struct seq_pool *p, const struct seq_pool_limits *limits) ERR_CHECKED;

/* A sequence with empty fields and its own arrays, or NULL when all are in use. */
struct seq *seq_claim(struct seq_pool *p);

/* Give s back; it must hold no pages. Memory of long prompts is returned to the system. */
void seq_release(struct seq_pool *p, struct seq *s);

#endif
