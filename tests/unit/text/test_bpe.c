/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: merging is what its definition says, long or short, cut or not. Method: random models of
 * few letters are built through tokenizer.json; texts of all lengths are merged by the definition
 * (find the pair of lowest rank, leftmost, join it, begin again) and by the tokenizer. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "tests/tap.h"
#include "text/tokenizer/tokenizer.h"

#define LETTERS 5
#define TOKENS  60
#define TEXT    400

struct model {
    char texts[TOKENS][40];
    int n;
    int left[TOKENS]; /* of merges: rank r makes token LETTERS + r, unless said otherwise */
    int right[TOKENS];
    int made[TOKENS];
    int n_merges;
};

static char folder[100];

static int find(const struct model *m, const char *text)
{
    int i;

    for (i = 0; i < m->n; i++)
        if (strcmp(m->texts[i], text) == 0)
            return i;
    return -1;
}

/* Random merges of what is there; some make a token that another pair has made. */
static void make_model(struct model *m, unsigned *seed)
{
    int tries;

    *m = (struct model){.n = LETTERS};
    for (int i = 0; i < LETTERS; i++)
        m->texts[i][0] = (char)('a' + i);
    for (tries = 0; tries < 200 && m->n < TOKENS && m->n_merges < TOKENS; tries++) {
        int a = (int)(random_next(seed) % (unsigned)m->n);
        int b = (int)(random_next(seed) % (unsigned)m->n);
        char joined[80];
        int made;
        int r;

        (void)snprintf(joined, sizeof joined, "%s%s", m->texts[a], m->texts[b]);
        if (strlen(joined) >= sizeof m->texts[0])
            continue;
        for (r = 0; r < m->n_merges && (m->left[r] != a || m->right[r] != b); r++)
            ;
        if (r < m->n_merges)
            continue;
        made = find(m, joined);
        if (made < 0) {
            made = m->n++;
            (void)snprintf(m->texts[made], sizeof m->texts[made], "%s", joined);
        }
        m->left[m->n_merges] = a;
        m->right[m->n_merges] = b;
        m->made[m->n_merges++] = made;
    }
}

/* Byte-level, or from characters with byte fallback, which may be cut apart. */
static struct tokenizer *open_model(const struct model *m, bool byte_level)
{
    struct tokenizer *t = NULL;
    struct buf json = {0};
    char path[200];
    char why[600] = "";
    FILE *f;
    int i;

    buf_printf(&json, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":%s,\"vocab\":{",
               byte_level ? "false" : "true");
    for (i = 0; i < m->n; i++)
        buf_printf(&json, "%s\"%s\":%d", i > 0 ? "," : "", m->texts[i], i);
    for (i = 0; i < 256 && !byte_level; i++)
        buf_printf(&json, ",\"<0x%02X>\":%d", (unsigned)i, m->n + i);
    buf_add_text(&json, "},\"merges\":[");
    for (i = 0; i < m->n_merges; i++)
        buf_printf(&json, "%s[\"%s\",\"%s\"]", i > 0 ? "," : "", m->texts[m->left[i]],
                   m->texts[m->right[i]]);
    buf_add_text(&json, byte_level
                            ? "]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false,"
                              "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}"
                            : "]},\"decoder\":{\"type\":\"ByteFallback\"}}");
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(json.bytes, 1, json.len, f) != json.len || fclose(f) != 0)
        tap_skip_all("the temporary folder cannot be written");
    if (tokenizer_open(&t, folder, why, sizeof why) != ERR_OK)
        ok(false, "a model opens: %s", why);
    buf_fini(&json);
    (void)unlink(path);
    return t;
}

static int merge_by_definition(const struct model *m, const char *text, int len, int *ids)
{
    int n = len;
    int i;
    int r;

    for (i = 0; i < len; i++)
        ids[i] = text[i] - 'a';
    for (;;) { /* each round joins two */
        int best = m->n_merges;
        int at = -1;

        for (i = 0; i + 1 < n; i++)
            for (r = 0; r < best; r++)
                if (m->left[r] == ids[i] && m->right[r] == ids[i + 1]) {
                    best = r;
                    at = i;
                }
        if (at < 0)
            return n;
        ids[at] = m->made[best];
        memmove(&ids[at + 1], &ids[at + 2], (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

static int count_wrong(const struct model *m, const struct tokenizer *t, unsigned *seed)
{
    struct token_list got = {0};
    int wrong = 0;
    int n;

    for (n = 0; n < 120; n++) {
        char text[TEXT];
        int want[TEXT];
        int len = 1 + (int)(random_next(seed) % (n % 10 == 0 ? TEXT : 60));
        int letters = 1 + (int)(random_next(seed) % LETTERS);
        int i;
        int n_want;

        for (i = 0; i < len; i++)
            text[i] = (char)('a' + (int)(random_next(seed) % (unsigned)letters));
        n_want = merge_by_definition(m, text, len, want);
        got.len = 0;
        if (tokenizer_encode(t, text, (size_t)len, false, &got) != ERR_OK ||
            got.len != (size_t)n_want || memcmp(got.ids, want, (size_t)n_want * sizeof *want) != 0)
            wrong++;
    }
    token_list_fini(&got);
    return wrong;
}

int main(void)
{
    unsigned seed = tap_seed(7);
    struct model m;
    int wrong[2] = {0};
    int n;
    int k;

    (void)snprintf(folder, sizeof folder, "/tmp/quire-bpe-%ld", (long)getpid());
    if (mkdir(folder, 0700) != 0)
        tap_skip_all("no temporary folder");
    for (n = 0; n < 60; n++) {
        make_model(&m, &seed);
        for (k = 0; k < 2; k++) {
            struct tokenizer *t = open_model(&m, k == 0);

            if (t != NULL)
                wrong[k] += count_wrong(&m, t, &seed);
            tokenizer_close(t);
        }
    }
    is_int(wrong[0], 0, "60 byte-level models, 120 texts each");
    is_int(wrong[1], 0, "60 models of characters, 120 texts each");
    (void)rmdir(folder);
    return tap_done();
}
