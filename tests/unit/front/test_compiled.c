/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: what is asked for again is compiled once, and the engine has what a request names before it
 * has the request. Method: the cache by itself; a vocabulary of the demo model's tokenizer; uploads
 * read at the other end of a socket, as an engine does. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "front/link/upload.h"
#include "front/structured/vocabulary.h"
#include "grammar/trie.h"
#include "grammar/walk.h"
#include "tests/tap.h"

static const char tenant_a[WIRE_TENANT_BYTES] = "a";

static struct compiled *get(struct compiled_cache *s, const char *pattern)
{
    struct grammar_request r = {
        .kind = GRAMMAR_REGEX, .source = pattern, .source_len = strlen(pattern)};
    struct compiled *st = NULL;

    must_ok(compiled_cache_get(s, &r, tenant_a, &st, NULL));
    return st;
}

/* Open descriptors of this process. */
static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}

static void test_cache(void)
{
    static struct compiled_cache s;
    struct grammar_request bad = {.kind = GRAMMAR_REGEX, .source = "(", .source_len = 1};
    struct grammar_part parts[2] = {{.kind = PART_TEXT, .text = "ab", .len = 2},
                                    {.kind = PART_TEXT, .text = "c", .len = 1}};
    struct grammar_request composed = {.kind = GRAMMAR_PARTS, .parts = parts, .n_parts = 2};
    struct grammar_error error;
    struct compiled *a, *b, *c;
    int before = count_fds();
    char pattern[32];

    must_ok(compiled_cache_init(&s));
    a = get(&s, "a+");
    b = get(&s, "a+");
    c = get(&s, "b+");
    ok(a == b && a != c, "the same again is the same");
    is_int(s.n_kept, 2, "two are kept");
    compiled_unref(b);
    compiled_unref(c);
    is_int(compiled_cache_get(&s, &bad, tenant_a, &b, &error), ERR_SYNTAX, "what is no pattern");
    ok(error.text[0] != '\0', "says why: %s", error.text);
    is_int(s.n_kept, 2, "and is not kept");
    for (int i = 0; i < COMPILED_MAX; i++) {
        (void)snprintf(pattern, sizeof pattern, "x{%d}", i + 1);
        compiled_unref(get(&s, pattern));
    }
    is_int(s.n_kept, COMPILED_MAX, "no more are kept than may be");
    b = get(&s, "a+");
    ok(a != b && memcmp(&a->name, &b->name, sizeof a->name) == 0,
       "one that was dropped is made again, under its name");
    compiled_unref(b);
    must_ok(compiled_cache_get(&s, &composed, tenant_a, &b, NULL));
    parts[0].len = 1; /* and the other text "bc" */
    parts[1] = (struct grammar_part){.kind = PART_TEXT, .text = "bc", .len = 2};
    must_ok(compiled_cache_get(&s, &composed, tenant_a, &c, NULL));
    ok(b != c, "parts that are cut in other places have another name");
    compiled_unref(b);
    compiled_unref(c);
    compiled_cache_fini(&s);
    ok(fcntl(a->sealed, F_GETFD) != -1, "a holder has it beyond the cache");
    compiled_unref(a);
    is_int(count_fds(), before, "no descriptor is left");
}

/* --- compilations ------------------------------------------------------------------------- */

#define N_ASKING 24

/* One thread's request; its pattern takes some milliseconds, and is another for each number. */
struct asking {
    struct compiled_cache *s;
    char tenant[WIRE_TENANT_BYTES];
    int number;
    int rc;
    uint64_t n_compiled; /* by all, when it was answered */
    struct compiled *st;
    pthread_t thread;
};

static void *ask(void *arg)
{
    struct asking *a = arg;
    char pattern[100];
    struct grammar_request r = {.kind = GRAMMAR_REGEX, .source = pattern};

    (void)snprintf(pattern, sizeof pattern, "(a|b)*a(a|b){%d}(xy|yx){%d}", 8, a->number);
    r.source_len = strlen(pattern);
    a->rc = compiled_cache_get(a->s, &r, a->tenant, &a->st, NULL);
    (void)pthread_mutex_lock(&a->s->lock);
    a->n_compiled = a->s->n_compiled;
    (void)pthread_mutex_unlock(&a->s->lock);
    hash_end_thread();
    return NULL;
}

static void asking_begin(struct asking *a, struct compiled_cache *s, const char *tenant, int number)
{
    *a = (struct asking){.s = s, .number = number};
    (void)snprintf(a->tenant, sizeof a->tenant, "%s", tenant);
    must_ok(pthread_create(&a->thread, NULL, ask, a));
}

static void asking_end(struct asking *a)
{
    must_ok(pthread_join(a->thread, NULL));
    compiled_unref(a->st);
}

static int n_waiting(struct compiled_cache *s)
{
    int n;

    (void)pthread_mutex_lock(&s->lock);
    n = s->n_waiting;
    (void)pthread_mutex_unlock(&s->lock);
    return n;
}

static atomic_int n_aside, n_back;

static void step_aside(void *arg)
{
    (void)arg;
    (void)atomic_fetch_add(&n_aside, 1);
}

static void step_back(void *arg)
{
    (void)arg;
    (void)atomic_fetch_add(&n_back, 1);
}

/* The first to step aside comes back when another's compilation has been kept. */
static void step_aside_long(void *arg)
{
    struct compiled_cache *s = arg;
    bool is_kept = atomic_fetch_add(&n_aside, 1) > 0;

    while (!is_kept) {
        (void)usleep(1000);
        (void)pthread_mutex_lock(&s->lock);
        is_kept = s->n_kept > 0;
        (void)pthread_mutex_unlock(&s->lock);
    }
}

/* A form is not compiled again when its compilation ends between a lookup and the wait. */
static void test_ended_meanwhile(void)
{
    static struct compiled_cache s;
    static struct asking a[2];

    must_ok(compiled_cache_init(&s));
    atomic_store(&n_aside, 0);
    s.before_wait = step_aside_long;
    s.wait_arg = &s;
    asking_begin(&a[0], &s, "a", 1);
    while (atomic_load(&n_aside) == 0)
        (void)usleep(1000);
    asking_begin(&a[1], &s, "b", 1);
    asking_end(&a[1]);
    asking_end(&a[0]);
    is_int((int)s.n_compiled, 1, "a compilation that ended meanwhile is used");
    ok(a[0].rc == ERR_OK && a[1].rc == ERR_OK, "by both");
    atomic_store(&n_aside, 0);
    compiled_cache_fini(&s);
}

/* Equal forms at once, and one that is refused again and again, are compiled once. */
static void test_single(void)
{
    static struct compiled_cache s;
    static struct asking a[N_ASKING];
    struct grammar_request bad = {.kind = GRAMMAR_REGEX, .source = "(", .source_len = 1};
    struct grammar_error first = {.text = ""}, again = {.text = ""};
    struct compiled *st;
    bool same = true;

    must_ok(compiled_cache_init(&s));
    s.before_wait = step_aside;
    s.after_wait = step_back;
    for (int i = 0; i < N_ASKING; i++)
        asking_begin(&a[i], &s, i % 2 == 0 ? "a" : "b", 1);
    for (int i = 0; i < N_ASKING; i++) {
        must_ok(pthread_join(a[i].thread, NULL));
        same = same && a[i].rc == ERR_OK && a[i].st == a[0].st;
    }
    is_int((int)s.n_compiled, 1, "%d threads ask for one form: one compilation", N_ASKING);
    ok(same, "and all have what came of it");
    ok(n_aside > 0 && n_aside == n_back, "%d gave their place away, %d took it back", n_aside,
       n_back);
    for (int i = 0; i < N_ASKING; i++)
        compiled_unref(a[i].st);
    is_int(compiled_cache_get(&s, &bad, tenant_a, &st, &first), ERR_SYNTAX, "what is no pattern");
    for (int i = 0; i < 10; i++)
        is_int(compiled_cache_get(&s, &bad, tenant_a, &st, &again), ERR_SYNTAX, "again");
    is_int((int)s.n_compiled, 2, "was tried once");
    ok(strcmp(first.text, again.text) == 0 && again.text[0] != '\0', "with the same words: %s",
       again.text);
    st = get(&s, "cd");
    compiled_cache_refuse(&s, &st->name, ERR_LIMIT, "its masks cost too much");
    compiled_unref(st);
    bad = (struct grammar_request){.kind = GRAMMAR_REGEX, .source = "cd", .source_len = 2};
    is_int(compiled_cache_get(&s, &bad, tenant_a, &st, &again), ERR_LIMIT,
           "what could not be walked is refused from then on: %s", again.text);
    compiled_cache_fini(&s);
}

/* One tenant asks for many forms: it has one compiler at a time, and another's form is compiled
 * before most of them. */
static void test_turns(void)
{
    static struct compiled_cache s;
    static struct asking a[N_ASKING], b[4];

    must_ok(compiled_cache_init(&s));
    for (int i = 0; i < N_ASKING; i++)
        asking_begin(&a[i], &s, "a", 2 + i);
    while (n_waiting(&s) < N_ASKING / 2) /* they are there, or were answered */
        if (s.n_compiled >= N_ASKING / 4)
            break;
    for (int i = 0; i < 4; i++) {
        asking_begin(&b[i], &s, "b", 100 + i);
        must_ok(pthread_join(b[i].thread, NULL));
        is_int(b[i].rc, ERR_OK, "another tenant's form is compiled");
        compiled_unref(b[i].st);
    }
    for (int i = 0; i < N_ASKING; i++)
        asking_end(&a[i]);
    is_int((int)s.n_compiled, N_ASKING + 4, "all were compiled in the end");
    ok(b[0].n_compiled < N_ASKING,
       "the other's first was the %dth to be begun or before: it did "
       "not wait for all %d of the first tenant",
       (int)b[0].n_compiled, N_ASKING);
    compiled_cache_fini(&s);
}

/* The engine's end: the next upload; -1 when there is none. */
static int next_upload(int fd, struct wire_upload *o, const void **bytes)
{
    int sealed;

    if (attach_read_upload(fd, o, &sealed) != 1)
        return -1;
    must_ok(attach_map_upload(o, sealed, bytes));
    return (int)o->kind;
}

static void test_uploads(void)
{
    static struct compiled_cache s;
    static struct uploads o;
    struct compiled *st[WIRE_AUTOMATA_MAX + 1];
    struct wire_upload upload;
    const void *bytes;
    uint32_t idx, first;
    char pattern[32];
    int ends[2];
    int rc;

    must_ok(compiled_cache_init(&s));
    must_ok(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    for (int i = 0; i <= WIRE_AUTOMATA_MAX; i++) {
        (void)snprintf(pattern, sizeof pattern, "y{%d}", i + 1);
        st[i] = get(&s, pattern);
    }
    must_ok(uploads_add_vocabulary(&o, ends[0], st[0]->sealed, st[0]->bytes));
    must_ok(uploads_add_vocabulary(&o, ends[0], st[0]->sealed, st[0]->bytes));
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_VOCABULARY, "the vocabulary comes first");
    is_int(next_upload(ends[1], &upload, &bytes), -1, "and once");
    must_ok(uploads_claim(&o, ends[0], st[0], &first));
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_AUTOMATON, "then an automaton");
    ok(upload.idx == first && upload.bytes == st[0]->bytes &&
           automaton_check(bytes, upload.bytes) == ERR_OK,
       "in the place that the request names");
    must_ok(uploads_claim(&o, ends[0], st[0], &idx));
    ok(idx == first && next_upload(ends[1], &upload, &bytes) == -1, "which is not uploaded again");
    uploads_release(&o, idx);
    for (int i = 1; i < WIRE_AUTOMATA_MAX; i++) {
        must_ok(uploads_claim(&o, ends[0], st[i], &idx));
        if (next_upload(ends[1], &upload, &bytes) != WIRE_AUTOMATON || upload.idx != idx)
            ok(false, "place %u", idx);
    }
    is_int(uploads_claim(&o, ends[0], st[WIRE_AUTOMATA_MAX], &idx), ERR_OVERLOADED,
           "all places are in use");
    uploads_release(&o, 7);
    uploads_release(&o, 5);
    must_ok(uploads_claim(&o, ends[0], st[WIRE_AUTOMATA_MAX], &idx));
    is_int(idx, 5, "one that is not in use is filled again: the one used least recently");
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_AUTOMATON, "and uploaded");
    must_ok(uploads_claim(&o, ends[0], st[7], &idx));
    ok(idx == 7 && next_upload(ends[1], &upload, &bytes) == -1, "the other is still there");
    uploads_clear(&o);
    must_ok(uploads_claim(&o, ends[0], st[3], &idx));
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_AUTOMATON,
           "another lane is uploaded it again");
    do { /* the socket's buffer ends */
        uploads_clear(&o);
        rc = uploads_claim(&o, ends[0], st[3], &idx);
    } while (rc == ERR_OK);
    is_int(rc, ERR_AGAIN, "an engine that does not read");
    ok(o.places[0].compiled == NULL && o.places[0].n_users == 0, "nothing was claimed");
    (void)close(ends[1]);
    is_int(uploads_claim(&o, ends[0], st[3], &idx), ERR_ENGINE_GONE, "an engine that is gone");
    (void)close(ends[0]);
    uploads_clear(&o);
    for (int i = 0; i <= WIRE_AUTOMATA_MAX; i++)
        compiled_unref(st[i]);
    compiled_cache_fini(&s);
}

/* Two requests name what the engine lost. When the first is refused the form is uploaded elsewhere,
 * and that the second is refused later does not undo it. */
static void test_lost(void)
{
    static struct compiled_cache s;
    static struct uploads o;
    struct compiled *st;
    struct wire_upload upload;
    const void *bytes;
    uint32_t first, second, third;
    int ends[2];

    must_ok(compiled_cache_init(&s));
    must_ok(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    st = get(&s, "z+");
    must_ok(uploads_add_vocabulary(&o, ends[0], st->sealed, st->bytes));
    must_ok(uploads_claim(&o, ends[0], st, &first));
    must_ok(uploads_claim(&o, ends[0], st, &second));
    (void)!next_upload(ends[1], &upload, &bytes);
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_AUTOMATON, "uploaded, for two requests");
    uploads_lose(&o, first);
    uploads_release(&o, first);
    must_ok(uploads_add_vocabulary(&o, ends[0], st->sealed, st->bytes));
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_VOCABULARY, "lost: the vocabulary again");
    must_ok(uploads_claim(&o, ends[0], st, &third));
    is_int(next_upload(ends[1], &upload, &bytes), WIRE_AUTOMATON, "and the form");
    ok(second == first && third != first && upload.idx == third, "where none names another");
    uploads_lose(&o, second);
    uploads_release(&o, second);
    must_ok(uploads_claim(&o, ends[0], st, &second));
    ok(second == third && next_upload(ends[1], &upload, &bytes) == -1, "there it stays");
    uploads_clear(&o);
    compiled_unref(st);
    compiled_cache_fini(&s);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* May this token come first in a text that matches the pattern? */
static bool may_come(const struct token_trie *v, struct compiled_cache *s, const char *pattern,
                     int32_t token)
{
    struct compiled *st = get(s, pattern);
    struct walk_work *work = malloc(walk_work_bytes(v->n_vocab));
    uint32_t *mask = calloc(v->n_words, sizeof *mask);
    const struct automaton *a = mmap(NULL, st->bytes, PROT_READ, MAP_PRIVATE, st->sealed, 0);
    struct walk w;
    bool may;

    walk_work_init(work, v->n_vocab);
    walk_init(&w, a);
    must_ok(walk_mask(work, a, v, NULL, &w, mask));
    may = (mask[token / 32] >> token % 32 & 1) != 0;
    (void)munmap((void *)(uintptr_t)a, st->bytes);
    compiled_unref(st);
    free(work);
    free(mask);
    return may;
}

static void test_vocabulary(const char *dir)
{
    static struct compiled_cache s;
    static struct vocabulary v;
    struct tokenizer *t;
    struct wire_welcome engine = {.n_eos = 1};
    struct wire_upload upload = {.kind = WIRE_VOCABULARY};
    const struct token_trie *image;
    const void *bytes;
    char why[300];
    int32_t end, start;
    int made[2], sealed, n_polls = 0;
    char byte[8];

    must_ok(compiled_cache_init(&s));
    must_ok(tokenizer_open(&t, dir, why, sizeof why));
    must_ok(pipe(made));
    must_ok(vocabulary_init(&v, t, REPLY_HERMES, REPLY_NO_REASONING, made[1]));
    end = tokenizer_eos(t);
    start = tokenizer_find(t, "<|im_start|>", 12);
    engine.n_vocab = (uint32_t)tokenizer_n_vocab(t) + 10; /* models have more than tokenizers */
    engine.eos[0] = end;
    is_int(vocabulary_get(&v, &sealed, &upload.bytes), ERR_AGAIN, "none before an engine");
    vocabulary_want(&v, &engine);
    is_int(read(made[0], byte, sizeof byte), 8, "it says when it is made");
    must_ok(vocabulary_get(&v, &sealed, &upload.bytes));
    vocabulary_want(&v, &engine);
    must_ok(vocabulary_get(&v, &sealed, &upload.bytes)); /* at once: nothing is made again */
    must_ok(attach_map_upload(&upload, dup(sealed), &bytes));
    must_ok(trie_check(bytes, upload.bytes));
    image = bytes;
    is_int(image->n_vocab, engine.n_vocab, "as many tokens as the model has");
    ok(may_come(image, &s, "a.*", tokenizer_find(t, "a", 1)), "a letter spells itself");
    ok(!may_come(image, &s, "[^]*", start), "a special token spells nothing");
    ok(may_come(image, &s, "<tool_call>.*", tokenizer_find(t, "<tool_call>", 11)),
       "a tag of the replies does");
    ok(may_come(image, &s, "[^]*", end), "the end may come where the text may end");
    ok(!may_come(image, &s, "[^]+", end), "and nowhere else");
    engine.n_vocab++;
    vocabulary_want(&v, &engine);
    while (vocabulary_get(&v, &sealed, &upload.bytes) == ERR_AGAIN && n_polls++ < 10000)
        (void)usleep(1000);
    must_ok(attach_map_upload(&upload, dup(sealed), &bytes));
    is_int(((const struct token_trie *)bytes)->n_vocab, engine.n_vocab,
           "another model, another one");
    compiled_cache_fini(&s);
    tokenizer_close(t);
}

int main(void)
{
    const char *srcdir = getenv("srcdir");
    char dir[512];

    (void)snprintf(dir, sizeof dir, "%s/tools/demo-model/model", srcdir == NULL ? "." : srcdir);
    test_cache();
    test_ended_meanwhile();
    test_single();
    test_turns();
    test_uploads();
    test_lost();
    test_vocabulary(dir);
    return tap_done();
}
