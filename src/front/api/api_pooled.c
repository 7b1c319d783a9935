/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/embeddings, /pooling, /classify, /score, /rerank and their other names: texts become
 * generations that the engine answers with rows of numbers (answer/pooled.h).
 *
 * Fields that a text request shares with a completion or a chat are read by the same table
 * (fields.c); others, such as temperature, are ignored. */
#include <stdio.h>
#include <string.h>

#include "front/answer/pooled.h"
#include "front/api/api.h"
#include "front/request/lax.h"

/* Texts of a request, in its arena. */
struct pooled_texts {
    const struct json **at; /* [n] */
    int n;
};

/* --- fields ----------------------------------------------------------------------------------- */

/* Does the model answer this endpoint? False after an error answer. */
static bool pooled_serves(struct exchange *x, enum pooled_answer answer)
{
    const struct pooling *p = &x->served->pooling;
    const char *why = NULL;

    if (p->kind == POOLING_NONE)
        why = "The model does not support this API: it generates text. A server with runner = "
              "pooling turns texts into vectors";
    else if (answer == POOLED_EMBEDDINGS && p->kind != POOLING_EMBED)
        why = "The model does not support the Embeddings API: it gives scores, for /score, /rerank "
              "and /pooling";
    else if (answer == POOLED_CLASSES && p->kind != POOLING_SCORE)
        why = "The model does not support the Classification API: it gives vectors";
    else if ((answer == POOLED_SCORES || answer == POOLED_RANKS) && p->kind == POOLING_SCORE &&
             p->n_labels != 1)
        why = "The model does not support the Score API, because it has several labels; /classify "
              "has their scores";
    if (why == NULL)
        return true;
    exchange_reply_error(x, ERR_UNSUPPORTED, why, "model", 0);
    return false;
}

/* A text field that has one of the values (NULL-terminated); false after an error answer. *at: the
 * index of the value, 0 if the field is missing. */
static bool pooled_choose(struct exchange *x, const struct json *body, const char *field,
                          const char *const *values, int *at)
{
    const struct json *v = json_get(body, field);
    char why[200];
    size_t n;

    *at = 0;
    if (v == NULL || v->kind == JSON_NULL)
        return true;
    for (int i = 0; values[i] != NULL; i++) {
        *at = i;
        if (json_is_text(v, values[i]))
            return true;
    }
    n = (size_t)snprintf(why, sizeof why, "'%s' must be ", field);
    for (int i = 0; values[i] != NULL; i++)
        n += (size_t)snprintf(why + n, sizeof why - n, "%s%s", i > 0 ? " or " : "", values[i]);
    exchange_reply_error(x, ERR_INVALID, why, field, 0);
    return false;
}

/* use_activation, and its older names. */
static bool pooled_read_activation(struct exchange *x, const struct json *body)
{
    static const char *const names[] = {"softmax", "activation", "normalize", "use_activation"};
    char why[80];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct json *v = json_get(body, names[i]);

        if (v == NULL || v->kind == JSON_NULL || lax_flag(v, &x->pooled->activates))
            continue;
        (void)snprintf(why, sizeof why, "'%s' must be true or false", names[i]);
        exchange_reply_error(x, ERR_INVALID, why, names[i], 0);
        return false;
    }
    return true;
}

/* The length of the vectors. */
static bool pooled_read_dimensions(struct exchange *x, const struct json *body)
{
    const struct json *v = json_get(body, "dimensions");
    const struct pooling *p = x->pooled->model;
    struct json n;
    char why[300];

    if (v == NULL || v->kind == JSON_NULL)
        return true;
    n = lax_number(v);
    if (n.kind == JSON_INT && n.whole >= 1 && pooling_has_dimension(p, n.whole)) {
        x->pooled->dimensions = (int)(n.whole < INT32_MAX ? n.whole : INT32_MAX);
        return true;
    }
    if (n.kind != JSON_INT || n.whole < 1)
        (void)snprintf(why, sizeof why, "'dimensions' must be a whole number of at least 1");
    else if (!p->is_matryoshka)
        (void)snprintf(why, sizeof why,
                       "Model \"%.80s\" does not support matryoshka representation: 'dimensions' "
                       "would cut its vectors to poor ones",
                       x->served->model_name);
    else
        (void)snprintf(why, sizeof why,
                       "Model \"%.80s\" does not support %lld dimensions: config.json lists others "
                       "(matryoshka_dimensions)",
                       x->served->model_name, (long long)n.whole);
    exchange_reply_error(x, ERR_INVALID, why, "dimensions", 0);
    return false;
}

/* The forms of numbers. embed_dtype and endianness have one value each. */
static bool pooled_read_encoding(struct exchange *x, const struct json *body)
{
    static const char *const encodings[] = {"float", "base64", NULL};
    static const char *const types[] = {"float32", NULL};
    static const char *const orders[] = {"native", "little", NULL};
    int encoding, other;

    if (!pooled_choose(x, body, "encoding_format", encodings, &encoding) ||
        !pooled_choose(x, body, "embed_dtype", types, &other) ||
        !pooled_choose(x, body, "endianness", orders, &other))
        return false;
    x->pooled->base64 = encoding == 1;
    return true;
}

/* The task of /pooling: the model has one, and the same for each token. */
static bool pooled_read_task(struct exchange *x, const struct json *body)
{
    static const char *const vectors[] = {"embed", "token_embed", NULL};
    static const char *const scores[] = {"classify", "token_classify", "score", NULL};
    int task;

    if (!pooled_choose(x, body, "task", x->pooled->model->kind == POOLING_EMBED ? vectors : scores,
                       &task))
        return false;
    x->pooled->each = task == 1;
    return true;
}

/* Make what the request wants; false after an error answer. */
static bool pooled_begin(struct exchange *x, const struct json *body, enum pooled_answer answer,
                         const char *param)
{
    if (!pooled_serves(x, answer))
        return false;
    x->pooled = arena_zalloc(&x->arena, sizeof *x->pooled);
    if (x->pooled == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    *x->pooled = (struct pooled){.answer = answer,
                                 .model = &x->served->pooling,
                                 .param = param,
                                 .activates = x->served->pooling.activates,
                                 .dimensions = x->served->pooling.preset_dimensions};
    return pooled_read_activation(x, body);
}

/* --- generations ------------------------------------------------------------------------------ */

/* The members of the body that a completion or chat has, too. A chat ends without the beginning of
 * an answer, unless the request wants one. NULL: no memory. */
static const struct json *pooled_shared(struct exchange *x, const struct json *body)
{
    static const char *const names[] = {"model",
                                        "user",
                                        "priority",
                                        "timeout_s",
                                        "request_id",
                                        "cache_salt",
                                        "cache_retention",
                                        "truncate_prompt_tokens",
                                        "truncation_side",
                                        "add_special_tokens",
                                        "messages",
                                        "chat_template",
                                        "chat_template_kwargs",
                                        "continue_final_message",
                                        "split_special_tokens",
                                        "documents"};
    struct json_made made = {.arena = &x->arena};
    struct json *out = arena_alloc(&x->arena, sizeof *out);

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct json *v = json_get(body, names[i]);

        if (v != NULL && (strcmp(names[i], "documents") != 0 || json_get(body, "messages") != NULL))
            json_put(&made, names[i], v);
    }
    json_put_flag(&made, "add_generation_prompt",
                  lax_get_flag(body, "add_generation_prompt", false));
    if (out == NULL || made.failed)
        return NULL;
    *out = json_made(&made, JSON_OBJECT);
    return out;
}

/* Make n generations without tokens. The shared fields are in *shared. */
static bool pooled_prepare(struct front *f, struct exchange *x, const struct json *body, int n,
                           const struct json **shared)
{
    bool chat = json_get(body, "messages") != NULL;
    const struct json *side = json_get(body, "truncation_side");

    *shared = pooled_shared(x, body);
    if (*shared == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    if (!gen_prepare(f, x, *shared, chat ? EXCHANGE_CHAT : EXCHANGE_COMPLETION, n))
        return false;
    /* As Hugging Face's tokenizers do. */
    if (side == NULL || side->kind == JSON_NULL)
        x->truncates_right = true;
    x->max_tokens_given = true;
    x->max_tokens = 1;
    for (int i = 0; i < n; i++) {
        struct wire_generate *g = &x->gens[i].request.generate;

        g->sampling = sampling_greedy();
        g->min_tokens = 0;
        g->pooling = x->pooled->model->type == POOLING_MEAN ? WIRE_POOL_MEAN : WIRE_POOL_LAST;
        if (x->pooled->each)
            g->pooling = WIRE_POOL_EACH;
    }
    return true;
}

/* The tokens to keep of each text; 0: all. */
static size_t pooled_most(const struct exchange *x)
{
    struct link_state engine;

    if (x->truncate_to >= 0)
        return (size_t)x->truncate_to;
    engines_read_state(&x->served->engines, &engine, 0);
    return engine.max_model_len;
}

/* The special tokens that end a text: of those around an empty one (none), those that are not a
 * beginning of g's. */
static size_t pooled_n_ends(const struct gen *g, const struct token_list *none)
{
    size_t n = 0;

    while (n < none->len && n < g->tokens.len && g->tokens.ids[n] == none->ids[n])
        n++;
    return none->len - n;
}

/* Cut a text to the wanted length. Special tokens at its end stay, because vectors are made of
 * them. */
static void pooled_cut(struct gen *g, size_t most, const struct token_list *none)
{
    size_t ends = pooled_n_ends(g, none), len = g->tokens.len;
    int32_t *ids = g->tokens.ids;

    if (most == 0 || len <= most)
        return;
    if (!g->exchange->truncates_right)
        memmove(ids, ids + (len - most), most * sizeof *ids);
    else if (ends < most)
        memmove(ids + (most - ends), ids + (len - ends), ends * sizeof *ids);
    g->tokens.len = most;
}

/* Their rows are in memory until the answer is sent. */
static void pooled_refuse_each(struct exchange *x)
{
    char why[160];

    (void)snprintf(why, sizeof why,
                   "the texts have %llu tokens; a row for each token is given for at most %d in a "
                   "request",
                   (unsigned long long)x->pooled->n_tokens, POOLED_TOKENS_MAX);
    exchange_reply_error(x, ERR_TOO_LONG, why, x->pooled->param, 0);
}

/* All generations have their tokens. In a causal model the first token's row depends on that token
 * alone, so a model that pools by CLS computes no other. */
static void pooled_finish_prompts(struct exchange *x, bool add_special)
{
    struct token_list none = {0};
    size_t most = pooled_most(x);

    if (most > 0 && add_special &&
        tokenizer_encode(x->served->tokenizer, "", 0, true, &none) != ERR_OK)
        none.len = 0;
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];

        pooled_cut(g, most, &none);
        x->pooled->n_tokens += g->tokens.len;
        if (x->pooled->model->type == POOLING_CLS && g->tokens.len > 1 && !x->pooled->each)
            g->tokens.len = 1;
    }
    token_list_fini(&none);
    if (x->pooled->each && x->pooled->n_tokens > POOLED_TOKENS_MAX) {
        pooled_refuse_each(x);
        return;
    }
    (void)gen_finish_prompts(x, x->pooled->param); /* false: it has answered */
}

/* --- /v1/embeddings and /pooling -------------------------------------------------------------- */

static bool pooled_is_ids(const struct json *v)
{
    return v->kind == JSON_LIST && v->n > 0 && v->items[0].kind == JSON_INT;
}

/* The number of texts in `input`; 0: it has none of the four forms. */
static int pooled_count(const struct json *input)
{
    if (input == NULL)
        return 0;
    if (input->kind == JSON_TEXT || pooled_is_ids(input))
        return 1;
    if (input->kind != JSON_LIST || input->n > POOLED_TEXTS_MAX)
        return 0;
    return (int)input->n;
}

/* A text behind a prompt of the model's. ERR_NO_MEMORY. */
static int pooled_add_prompted(struct gen *g, const struct json *prompt, const struct json *v,
                               bool add_special, char *why, size_t cap)
{
    size_t len = prompt->text_len + v->text_len;
    char *text = arena_alloc(&g->exchange->arena, len + 1);
    struct json whole = {.kind = JSON_TEXT, .text_len = len, .text = text};

    if (text == NULL)
        return ERR_NO_MEMORY;
    memcpy(text, prompt->text, prompt->text_len);
    memcpy(text + prompt->text_len, v->text, v->text_len);
    text[len] = '\0';
    return gen_add_text(g, &whole, add_special, why, cap);
}

/* prompt: what is put before a text; NULL: nothing. */
static int pooled_add_input(struct gen *g, const struct json *prompt, const struct json *v,
                            bool add_special, char *why, size_t cap)
{
    int rc = ERR_INVALID;

    if (v->kind == JSON_TEXT && prompt != NULL)
        return pooled_add_prompted(g, prompt, v, add_special, why, cap);
    if (v->kind == JSON_TEXT)
        return gen_add_text(g, v, add_special, why, cap);
    if (pooled_is_ids(v))
        rc = gen_add_ids(g, v, why, cap);
    if (rc == ERR_INVALID)
        (void)snprintf(why, cap, "'input' must hold only texts or token ids");
    return rc;
}

/* The prompt that the field prompt_name names, of the model's folder. False after an error
 * answer. */
static bool pooled_read_prompt(struct exchange *x, const struct json *body,
                               const struct json **prompt)
{
    const struct json *name = json_get(body, "prompt_name"), *all = x->served->prompts;
    char why[300];
    size_t n;

    *prompt = NULL;
    if (name == NULL || name->kind == JSON_NULL)
        return true;
    if (name->kind == JSON_TEXT)
        *prompt = json_get_n(all, name->text, name->text_len);
    if (*prompt != NULL && (*prompt)->kind == JSON_TEXT)
        return true;
    n = (size_t)snprintf(why, sizeof why, "'prompt_name' must be one of the model's prompts:");
    for (uint32_t i = 0; all != NULL && i < all->n && n < sizeof why; i++)
        n += (size_t)snprintf(why + n, sizeof why - n, " %.40s", all->items[i].key);
    if (all == NULL || all->n == 0)
        (void)snprintf(why, sizeof why, "'prompt_name': the model's folder has no prompts");
    exchange_reply_error(x, ERR_INVALID, why, "prompt_name", 0);
    return false;
}

/* The one text of a chat. */
static void pooled_take_chat(struct front *f, struct exchange *x, const struct json *body)
{
    struct chat_prompt prompt = {0};
    const struct json *shared;
    char why[160] = "";
    int rc;

    x->pooled->param = "messages";
    if (!pooled_prepare(f, x, body, 1, &shared))
        return;
    if (!api_render_chat(x, shared, &prompt)) {
        chat_prompt_fini(&prompt);
        return;
    }
    rc = gen_add_prompt(&x->gens[0], &prompt, lax_get_flag(body, "add_special_tokens", false), why,
                        sizeof why);
    chat_prompt_fini(&prompt);
    if (rc == ERR_OK)
        pooled_finish_prompts(x, lax_get_flag(body, "add_special_tokens", false));
    else
        exchange_reply_error(x, rc, why, "messages", 0);
}

static void pooled_take_inputs(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *input = json_get(body, "input"), *shared, *prompt;
    bool add_special = lax_get_flag(body, "add_special_tokens", true);
    int n = pooled_count(input);
    char why[160] = "";

    if (n == 0) {
        (void)snprintf(why, sizeof why,
                       "'input' must be a string, token ids, or a list of up to %d of these",
                       POOLED_TEXTS_MAX);
        exchange_reply_error(x, ERR_INVALID, why, "input", 0);
        return;
    }
    if (!pooled_read_prompt(x, body, &prompt) || !pooled_prepare(f, x, body, n, &shared))
        return;
    for (int i = 0; i < n; i++) {
        bool one = input->kind == JSON_TEXT || pooled_is_ids(input);
        int rc = pooled_add_input(&x->gens[i], prompt, one ? input : &input->items[i], add_special,
                                  why, sizeof why);

        if (rc != ERR_OK) {
            exchange_reply_error(x, rc, why, "input", 0);
            return;
        }
    }
    pooled_finish_prompts(x, add_special);
}

static void pooled_vectors(struct front *f, struct exchange *x, const struct json *body,
                           enum pooled_answer answer)
{
    if (!pooled_begin(x, body, answer, "input") || !pooled_read_encoding(x, body))
        return;
    if (x->pooled->model->kind == POOLING_EMBED && !pooled_read_dimensions(x, body))
        return;
    if (answer == POOLED_ROWS && !pooled_read_task(x, body))
        return;
    if (json_get(body, "messages") != NULL)
        pooled_take_chat(f, x, body);
    else
        pooled_take_inputs(f, x, body);
}

void api_embeddings(struct front *f, struct exchange *x, const struct json *body)
{
    pooled_vectors(f, x, body, POOLED_EMBEDDINGS);
}

void api_pooling(struct front *f, struct exchange *x, const struct json *body)
{
    pooled_vectors(f, x, body, POOLED_ROWS);
}

/* --- /classify --- */

void api_classify(struct front *f, struct exchange *x, const struct json *body)
{
    if (!pooled_begin(x, body, POOLED_CLASSES, "input"))
        return;
    x->pooled->labels = x->served->labels;
    if (json_get(body, "messages") != NULL)
        pooled_take_chat(f, x, body);
    else
        pooled_take_inputs(f, x, body);
}

/* --- /score and /rerank ----------------------------------------------------------------------- */

/* The text of a document: a string, {"text": ...}, a part of content, or {"content": ...} with one
 * part. NULL: it is none, or not a text. */
static const struct json *pooled_document(const struct json *v)
{
    const struct json *content = json_get(v, "content");

    if (v->kind == JSON_TEXT)
        return v;
    if (v->kind != JSON_OBJECT)
        return NULL;
    if (content != NULL && content->kind == JSON_TEXT)
        return content;
    if (content != NULL && content->kind == JSON_LIST && content->n == 1)
        return chat_part_text(&content->items[0]);
    return content == NULL ? chat_part_text(v) : NULL;
}

/* The texts of a field: one, or a list; the parts of {"content": [...]} are a list, too. False
 * after an error answer. */
static bool pooled_read_texts(struct exchange *x, const struct json *body, const char *field,
                              struct pooled_texts *out)
{
    const struct json *v = json_get(body, field);
    const struct json *parts = json_get_kind(v, "content", JSON_LIST);
    char why[160];
    bool good = v != NULL;

    if (parts != NULL)
        v = parts;
    out->n = good && v->kind == JSON_LIST ? (int)(v->n <= POOLED_TEXTS_MAX ? v->n : 0) : 1;
    out->at = arena_alloc(&x->arena, sizeof(struct json *) * (size_t)(out->n + 1));
    if (out->at == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    for (int i = 0; good && i < out->n; i++) {
        out->at[i] = pooled_document(v->kind == JSON_LIST ? &v->items[i] : v);
        good = out->at[i] != NULL;
    }
    if (good && out->n > 0)
        return true;
    (void)snprintf(why, sizeof why, "'%s' must be a string or a list of 1 to %d strings", field,
                   POOLED_TEXTS_MAX);
    exchange_reply_error(x, ERR_INVALID, why, field, 0);
    return false;
}

/* A pair as the prompt of a model that gives scores: rendered by the template of the setting
 * chat_template, with the roles query and document, or the texts one behind the other. */
static int pooled_add_pair(struct gen *g, const struct json *left, const struct json *right,
                           char *why, size_t cap)
{
    struct exchange *x = g->exchange;
    struct json_made query = {.arena = &x->arena}, document = query, messages = query;
    struct chat_request request = {.kwargs = x->served->chat_kwargs};
    struct chat_prompt prompt = {0};
    struct json list;
    int rc = ERR_OK;

    if (x->served->settings.chat_template[0] == '\0') {
        buf_add(&prompt.text, left->text, left->text_len);
        buf_add(&prompt.text, right->text, right->text_len);
        rc = prompt.text.failed ? ERR_NO_MEMORY : ERR_OK;
    } else {
        json_put_text(&query, "role", "query");
        json_put(&query, "content", left);
        json_put_text(&document, "role", "document");
        json_put(&document, "content", right);
        json_put_made(&messages, NULL, JSON_OBJECT, &query);
        json_put_made(&messages, NULL, JSON_OBJECT, &document);
        list = json_made(&messages, JSON_LIST);
        request.messages = &list;
        rc = messages.failed ? ERR_NO_MEMORY
                             : chat_render(x->served->chat, &request, &x->arena, &prompt);
        (void)snprintf(why, cap, "%s", prompt.why);
    }
    if (rc == ERR_OK && prompt.text.len > 0)
        rc = tokenizer_encode_own(x->served->tokenizer, buf_text(&prompt.text), prompt.text.len,
                                  true, x->splits_special ? &prompt.own : NULL, &g->tokens);
    chat_prompt_fini(&prompt);
    return rc;
}

/* Generations of pairs, or of all texts alone. */
static bool pooled_add_texts(struct exchange *x, const struct pooled_texts *left,
                             const struct pooled_texts *right, char *why, size_t cap)
{
    const struct pooled *p = x->pooled;
    int rc = ERR_OK;

    x->splits_special =
        x->served->settings.split_special_tokens && x->served->settings.chat_template[0] != '\0';
    for (int i = 0; i < x->n_gens && rc == ERR_OK; i++) {
        if (!p->by_vectors)
            rc = pooled_add_pair(&x->gens[i], left->at[left->n == 1 ? 0 : i], right->at[i], why,
                                 cap);
        else if (i < p->n_left)
            rc = gen_add_text(&x->gens[i], left->at[i], true, why, cap);
        else
            rc = gen_add_text(&x->gens[i], right->at[i - p->n_left], true, why, cap);
    }
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, why, p->param, 0);
    return rc == ERR_OK;
}

/* Scores of the left texts with the right ones. */
static void pooled_pairs(struct front *f, struct exchange *x, const struct json *body,
                         const char *left_name, const char *right_name)
{
    struct pooled *p = x->pooled;
    struct pooled_texts left, right;
    const struct json *shared;
    char why[sizeof((struct chat_prompt *)NULL)->why] = "";

    p->param = right_name;
    if (!pooled_read_texts(x, body, left_name, &left) ||
        !pooled_read_texts(x, body, right_name, &right))
        return;
    if (left.n != 1 && left.n != right.n) {
        exchange_reply_error(x, ERR_INVALID, "Input lengths must be either 1:1, 1:N or N:N",
                             right_name, 0);
        return;
    }
    p->by_vectors = p->model->kind == POOLING_EMBED;
    p->n_left = left.n;
    p->n_right = right.n;
    p->documents = right.at;
    if (pooled_prepare(f, x, body, right.n + (p->by_vectors ? left.n : 0), &shared) &&
        pooled_add_texts(x, &left, &right, why, sizeof why))
        pooled_finish_prompts(x, true);
}

/* vLLM's names of the two sides. */
void api_score(struct front *f, struct exchange *x, const struct json *body)
{
    static const char *const pairs[][2] = {
        {"text_1", "text_2"}, {"data_1", "data_2"}, {"queries", "documents"}, {"queries", "items"}};
    size_t at = 0;

    if (!pooled_begin(x, body, POOLED_SCORES, "text_2"))
        return;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (json_get(body, pairs[i][0]) != NULL && json_get(body, pairs[i][1]) != NULL) {
            at = i;
            break;
        }
    }
    pooled_pairs(f, x, body, pairs[at][0], pairs[at][1]);
}

void api_rerank(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *query = json_get(body, "query"), *top = json_get(body, "top_n");
    struct json n;

    if (!pooled_begin(x, body, POOLED_RANKS, "documents"))
        return;
    x->pooled->returns_documents = lax_get_flag(body, "return_documents", true);
    if (top != NULL && top->kind != JSON_NULL) {
        n = lax_number(top);
        if (n.kind != JSON_INT) {
            exchange_reply_error(x, ERR_INVALID, "'top_n' must be a whole number", "top_n", 0);
            return;
        }
        x->pooled->top_n = n.whole;
    }
    if (query == NULL || pooled_document(query) == NULL) {
        exchange_reply_error(x, ERR_INVALID, "'query' must be a string", "query", 0);
        return;
    }
    pooled_pairs(f, x, body, "query", "documents");
}
