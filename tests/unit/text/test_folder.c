/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the files beside tokenizer.json count as they do for transformers. Method: folders of a
 * few tokens, written here, and the ids of one text in them. */
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "tests/tap.h"
#include "text/output/detok.h"
#include "text/tokenizer/tokenizer.h"

static char folder[100];

static const char *const names[] = {"tokenizer.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tiktoken.model",
                                    "tokenizer_config.json",
                                    "added_tokens.json",
                                    "special_tokens_map.json",
                                    "generation_config.json",
                                    "config.json"};

static void put(const char *name, const char *text)
{
    char path[300];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        tap_skip_all("the temporary folder cannot be written");
}

static void clear(void)
{
    char path[300];
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
}

/* Whether the folder opens and encodes text (with special tokens) to these ids, -1 behind them. */
static bool gives(const char *text, const int *ids)
{
    struct tokenizer *t = NULL;
    struct token_list got = {0};
    char why[600] = "";
    size_t n = 0;
    bool good = false;

    while (ids[n] >= 0)
        n++;
    if (tokenizer_open(&t, folder, why, sizeof why) != ERR_OK)
        printf("# %s\n", why);
    else if (tokenizer_encode(t, text, strlen(text), true, &got) == ERR_OK)
        good = got.len == n && (n == 0 || memcmp(got.ids, ids, n * sizeof *ids) == 0);
    if (!good)
        for (size_t i = 0; i < got.len; i++)
            printf("# got %d\n", got.ids[i]);
    tokenizer_close(t);
    token_list_fini(&got);
    return good;
}

#define IDS(...) ((const int[]){__VA_ARGS__, -1})

#define LLAMA                                                                                     \
    "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":"        \
    "\"<unk>\",\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"\xe2\x96\x81\":3,\"a\":4,"           \
    "\"\xe2\x96\x81"                                                                              \
    "a\":5,\"<0xC3>\":6,\"<0xA9>\":7,\"<0xE4>\":8},\"merges\":[\"\xe2\x96\x81 a\"]},"             \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"   \
    "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"         \
    "\"\xe2\x96\x81\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\"," \
    "\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"   \
    "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"        \
    "\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":"  \
    "\"<s>\",\"special\":true},{\"id\":2,\"content\":\"</s>\",\"special\":true}],"                \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"  \
    "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[1]}}}}"

static void test_overrides(void)
{
    clear();
    put("tokenizer.json", LLAMA);
    ok(gives("a a", IDS(1, 5, 5)), "the template without a configuration");
    ok(gives("a</s>a", IDS(1, 5, 2, 5)), "Prepend works on each part");
    ok(gives("\xc3\xa9", IDS(1, 3, 6, 7)), "byte fallback");
    ok(gives("\xe4\xbd\xa0", IDS(1, 3, 0)), "a character whose bytes are not all there");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":false,"
                                 "\"add_eos_token\":true,\"bos_token\":\"<s>\",\"eos_token\":"
                                 "{\"content\":\"</s>\"}}");
    ok(gives("a", IDS(5, 2)), "LlamaTokenizer: the configuration overrules it");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"add_eos_token\":"
                                 "true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    ok(gives("a", IDS(1, 5, 2)), "add_bos_token is true where it is not said");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"PreTrainedTokenizerFast\","
                                 "\"add_bos_token\":false,\"bos_token\":\"<s>\"}");
    ok(gives("a", IDS(1, 5)), "PreTrainedTokenizerFast: it does not");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"<s>\"}");
    ok(gives("a", IDS(1, 5)), "nor LlamaTokenizer that says neither");
}

static void test_pair(void)
{
    clear();
    put("vocab.json", "{\"<|endoftext|>\":0,\"a\":1,\"b\":2,\"ab\":3,\"\\u0120\":4}");
    put("merges.txt", "#version: 0.2\r\na b\r\n");
    ok(gives("ab ab", IDS(3, 4, 3)), "a pair without a configuration");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_bos_token\":true}");
    ok(gives("ab<|endoftext|>", IDS(0, 3, 0)), "GPT2Tokenizer names its tokens by itself");
    put("added_tokens.json", "{\"<x>\":5,\"<y>\":6}");
    ok(gives("<x>ab<y>", IDS(0, 5, 3, 6)), "added_tokens.json");
    put("special_tokens_map.json", "{\"bos_token\":\"<x>\",\"eos_token\":{\"content\":\"<y>\"}}");
    ok(gives("ab", IDS(5, 3)), "special_tokens_map.json names bos");
    put("tokenizer_config.json", "{\"add_prefix_space\":true,\"add_bos_token\":true,\"bos_token\":"
                                 "{\"content\":\"<y>\"}}");
    ok(gives("ab", IDS(6, 4, 3)), "tokenizer_config.json wins, and puts a space in front");
    put("merges.txt", "a b\na");
    ok(!gives("ab", IDS(3)), "a merge of one token is refused");
}

/* Lines of the 256 bytes, then more. */
static void put_ranks(const char *more)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct buf b = {0};

    for (unsigned i = 0; i < 256; i++)
        buf_printf(&b, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
    buf_add_text(&b, more);
    put("tiktoken.model", b.bytes);
    buf_fini(&b);
}

#define KIMI \
    "{\"tokenizer_class\":\"TikTokenTokenizer\",\"bos_token\":\"[BOS]\",\"eos_token\":\"[EOS]\","

/* Refused, and why has the word. */
static bool refuses(const char *word)
{
    struct tokenizer *t = NULL;
    char why[600] = "";
    bool good = tokenizer_open(&t, folder, why, sizeof why) != ERR_OK && strstr(why, word) != NULL;

    if (!good)
        printf("# %s\n", why);
    tokenizer_close(t);
    return good;
}

/* tiktoken.model: bc 256, ab 257, abc 258, abcd (no way to cut it leads to two tokens but abc d)
 * 259, xyz, which no two tokens make, 260. */
static void test_ranks(void)
{
    struct tokenizer *t = NULL;
    char why[600];

    clear();
    put_ranks("YmM= 256\nYWI= 257\nYWJj 258\nYWJjZA== 259\neHl6 260\n");
    ok(refuses("TikTokenTokenizer"), "a class whose pattern is not known");
    put("tokenizer_config.json",
        KIMI "\"added_tokens_decoder\":{\"261\":{\"content\":\"[BOS]\",\"special\":true},"
             "\"263\":{\"content\":\"<|t|>\",\"special\":false}}}");
    ok(gives("abc", IDS(258)), "a token is itself");
    ok(gives("abcde", IDS(259, 'e')), "merged by the rank of what comes of it: bc, then abc, abcd");
    ok(gives("abe", IDS(257, 'e')), "ab");
    ok(gives("xyz", IDS(260)), "a token that no merge makes is found as a whole");
    ok(gives("xyza", IDS('x', 'y', 'z', 'a')), "and only then");
    ok(gives("1234", IDS('1', '2', '3', '4')), "bytes");
    ok(gives("[BOS]a<|t|>[EOS]", IDS(261, 'a', 263, '[', 'E', 'O', 'S', ']')), "special tokens");
    ok(gives("<|reserved_token_262|><|reserved_token_516|>", IDS(262, 516)),
       "ids that nothing names have names");
    ok(!gives("<|reserved_token_517|>", IDS(517)), "of which there are 256");
    must_ok(tokenizer_open(&t, folder, why, sizeof why));
    is_int(tokenizer_n_vocab(t), 517, "ids in all");
    is_int(tokenizer_bos(t), 261, "the named token");
    ok(tokenizer_is_special(t, 261) && !tokenizer_is_special(t, 263) &&
           !tokenizer_is_special(t, 300),
       "what is special");
    tokenizer_close(t);
    put_ranks("\n\r\nYmM= 256\r\n\r\nYWI= 257");
    ok(gives("ab", IDS(257)), "lines without anything, and of other systems");
    put_ranks("YmM= 256\nYmM= 257\n");
    ok(refuses("line 258"), "a token twice");
    put_ranks("YmM= 256\nYWI= 256\n");
    ok(refuses("line 258"), "a rank twice");
    put_ranks("YmM= 257\n");
    ok(refuses("rank 256"), "a rank that is not there");
    put_ranks("YmM 256\n");
    ok(refuses("base64"), "no base64");
    put_ranks("YmM= x\n");
    ok(refuses("line 257"), "no rank");
    put("tiktoken.model", "YQ== 0\n");
    ok(refuses("byte 0"), "a byte without a token");
    put("tiktoken.model", "");
    ok(refuses("tiktoken.model"), "an empty file");
    put("tokenizer.json", LLAMA);
    ok(gives("a", IDS(1, 5)), "a tokenizer.json counts more");
}

static void add_base64(struct buf *b, const unsigned char *text, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i + 2 < len; i += 3) {
        unsigned bits =
            (unsigned)text[i] << 16 | (unsigned)text[i + 1] << 8 | (unsigned)text[i + 2];

        for (int shift = 18; shift >= 0; shift -= 6)
            buf_add_byte(b, digits[bits >> shift & 63]);
    }
}

/* The file's tokens: of 3, 6, ... max bytes 0x80, each of which begins and ends all longer ones,
 * and n of max bytes that differ in their middle. GPT-2's alphabet spells all of them with two. */
static double seconds_of(unsigned n, size_t max)
{
    unsigned char text[1024];
    struct buf b = {0};
    unsigned rank = 257;
    clock_t began;

    memset(text, 0x80, sizeof text);
    buf_add_text(&b, "gIA= 256\n");
    for (size_t len = 3; len <= max; len += 3) {
        add_base64(&b, text, len);
        buf_printf(&b, " %u\n", rank++);
    }
    for (unsigned i = 0; i < n; i++) {
        for (int k = 0; k < 5; k++)
            text[max / 2 + (size_t)k] = (unsigned char)(0x81 + (i >> 4 * k & 15));
        add_base64(&b, text, max);
        buf_printf(&b, " %u\n", rank++);
    }
    put_ranks(b.failed ? "" : b.bytes);
    buf_fini(&b);
    began = clock();
    ok(gives("b", IDS('b')), "opens with tokens of %zu bytes", max);
    return (double)(clock() - began) / CLOCKS_PER_SEC;
}

/* As many bytes in long tokens as in short ones. The times are for a reader: looking up both sides
 * of each cut made the long ones take 1.5 times as long as the short ones. */
static void test_long_ranks(void)
{
    double of_short, of_long;

    clear();
    put("tokenizer_config.json", KIMI "\"added_tokens_decoder\":{}}");
    of_short = seconds_of(310000, 33);
    of_long = seconds_of(10000, 1023);
    printf("# 10 MB in tokens of 1023 bytes take %.2f s, of 33 bytes %.2f\n", of_long, of_short);
}

static void test_ends(void)
{
    struct tokenizer *t = NULL;
    const int32_t *ids;
    char why[600];
    size_t n;

    clear();
    put("tokenizer.json", LLAMA);
    put("tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    put("generation_config.json", "{\"eos_token_id\":[5,2,100]}");
    put("config.json", "{\"text_config\":{\"eos_token_id\":1}}");
    if (!ok(tokenizer_open(&t, folder, why, sizeof why) == ERR_OK, "opens"))
        return;
    ids = tokenizer_eos_ids(t, &n);
    ok(n == 3 && ids[0] == 1 && ids[1] == 2 && ids[2] == 5,
       "ids that end: of three files, once each, none beyond the vocabulary");
    ids = tokenizer_special_ids(t, &n);
    ok(n == 3 && ids[0] == 0 && ids[1] == 1 && ids[2] == 2, "special ids");
    ok(tokenizer_is_byte(t, 6) && !tokenizer_is_byte(t, 5) && !tokenizer_is_byte(t, 99),
       "tokens of bytes");
    ids = tokenizer_eos_ids(t, &n);
    ok(tokenizer_bytes(t, 6, &n)[0] == (char)0xc3 && n == 1, "the byte that one stands for");
    ok(memcmp(tokenizer_bytes(t, 5, &n), " a", 2) == 0 && n == 2, "a text with its space");
    tokenizer_close(t);
}

/* Push ids; the text after each, with | between. */
static void stream(const struct tokenizer *t, bool goes_on, const int *ids, struct buf *out)
{
    struct detok d;

    buf_clear(out);
    if (detok_init(&d, t, true, NULL, 0, false) != ERR_OK)
        tap_skip_all("no memory");
    if (goes_on)
        detok_continue(&d);
    for (; *ids >= 0; ids++) {
        (void)detok_push(&d, *ids, out);
        buf_add_byte(out, '|');
    }
    (void)detok_finish(&d, out);
    detok_fini(&d);
}

static size_t most_bytes(const char *tokenizer_json)
{
    struct tokenizer *t = NULL;
    char why[600] = "";
    size_t most;

    clear();
    put("tokenizer.json", tokenizer_json);
    must_ok(tokenizer_open(&t, folder, why, sizeof why));
    most = tokenizer_most_bytes(t);
    tokenizer_close(t);
    return most;
}

/* A byte-level model of all bytes and of "abcde"; more: what else stands in it. */
static const char *all_bytes(struct buf *b, const char *more)
{
    int id = 0;

    buf_clear(b);
    buf_add_text(b, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned c = 33; c < 0x144; c++) {
        bool is_spelling =
            c <= 126 || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff) || c >= 0x100;

        if (is_spelling)
            buf_printf(b, "\"\\u%04x\":%d,", c, id++);
    }
    buf_printf(b, "\"abcde\":%d},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"}%s}", id, more);
    return b->failed ? "" : b->bytes;
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define ADDED      ",\"added_tokens\":[{\"id\":257,\"content\":\"<longer>\""
#define SPLIT(behavior)                                                                 \
    ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\"," \
    "\"pattern\":{\"String\":\"x\"},\"behavior\":\"" behavior "\"}," BYTE_LEVEL "]}"
#define PLAIN ",\"pre_tokenizer\":" BYTE_LEVEL
#define REPLACE(by) \
    PLAIN           \
    ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"xyz\"},\"content\":\"" by "\"}"

/* Whether a text that is one token has no more bytes than are promised. */
static bool holds(const char *tokenizer_json, const char *text)
{
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    char why[600] = "";
    bool good;

    clear();
    put("tokenizer.json", tokenizer_json);
    must_ok(tokenizer_open(&t, folder, why, sizeof why));
    must_ok(tokenizer_encode(t, text, strlen(text), false, &ids));
    good = ids.len == 1 && strlen(text) <= tokenizer_most_bytes(t);
    token_list_fini(&ids);
    tokenizer_close(t);
    return good;
}

#define NORMALIZED(text)                                             \
    ",\"added_tokens\":[{\"id\":257,\"normalized\":true,\"content\"" \
    ":\"" text "\"}]"
#define FOUR(text) text text text text

/* What makes a text shorter, and what makes any of it vanish. */
static void test_most_bytes(void)
{
    struct buf b = {0};

    is_int(most_bytes(all_bytes(&b, PLAIN)), 5, "the longest token");
    is_int(most_bytes(all_bytes(&b, PLAIN ADDED "}]")), 8, "an added one");
    is_int(most_bytes(all_bytes(&b, PLAIN ADDED ",\"rstrip\":true}]")), 0,
           "one that takes white space");
    is_int(most_bytes(all_bytes(&b, PLAIN ",\"normalizer\":{\"type\":\"NFC\"}")), 20,
           "NFC makes seven bytes two");
    is_int(most_bytes(all_bytes(&b, REPLACE("ab"))), 10, "two for three, at most two for one");
    is_int(most_bytes(all_bytes(&b, REPLACE(""))), 0, "nothing for three");
    is_int(most_bytes(all_bytes(&b, SPLIT("Isolated"))), 5, "a split");
    is_int(most_bytes(all_bytes(&b, SPLIT("Removed"))), 0, "one that removes");
    is_int(most_bytes(LLAMA), 0, "bytes that have no token are left out");
    ok(holds(all_bytes(&b, PLAIN NORMALIZED(FOUR("\xce\x90")) ",\"normalizer\":{\"type\":\"NFC\"}"),
             FOUR("\xe1\xbe\xbe\xcc\x88\xcc\x81")),
       "iotas of three bytes with two marks each become one token");
    ok(holds(all_bytes(&b,
                       PLAIN NORMALIZED("xy") ",\"normalizer\":{\"type\":\"Replace\","
                                              "\"pattern\":{\"String\":\"xy\"},\"content\":\"" FOUR(
                                                  "\xc4\xa0") "\"}"),
             FOUR("\xc4\xa0")),
       "an added token whose normalized form is longer than what it is and says");
    buf_fini(&b);
}

static void test_streams(void)
{
    struct tokenizer *t = NULL;
    struct buf out = {0};
    int long_run[80];
    char why[600];
    size_t n;
    int i;

    clear();
    put("tokenizer.json", LLAMA);
    if (!ok(tokenizer_open(&t, folder, why, sizeof why) == ERR_OK, "opens"))
        return;
    stream(t, false, IDS(5, 5), &out);
    is_text(out.bytes, "a| a|", "the start of a text loses its space");
    stream(t, false, IDS(1, 5), &out);
    is_text(out.bytes, "|a|", "also behind a special token that is left out");
    stream(t, true, IDS(5, 5), &out);
    is_text(out.bytes, " a| a|", "the rest of a text keeps it");
    stream(t, false, IDS(3, 3, 5), &out);
    is_text(out.bytes, "| | a|", "one space is lost, not two");
    stream(t, false, IDS(6, 7, 4), &out);
    is_text(out.bytes,
            "||\xc3\xa9"
            "a|",
            "bytes wait for the end of their run");
    stream(t, false, IDS(6, 7, 7, 4), &out);
    is_text(out.bytes,
            "|||\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
            "a|",
            "a wrong run is U+FFFD a byte");
    stream(t, false, IDS(6, 7, 8), &out);
    is_text(out.bytes, "|||\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", "an open one at the end as well");
    for (i = 0; i < 78; i++)
        long_run[i] = 6 + i % 2;
    long_run[78] = -1;
    stream(t, false, long_run, &out);
    for (n = 0; n < out.len && out.bytes[n] == '|'; n++)
        ;
    is_int(n, DETOK_RUN_MAX - 1, "a long run leaves at its %dth byte", DETOK_RUN_MAX);
    is_int(out.len, 78 + 78, "and is whole in the end");
    buf_fini(&out);
    tokenizer_close(t);
}

int main(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/quire-folder-%ld", (long)getpid());
    if (mkdir(folder, 0700) != 0)
        tap_skip_all("no temporary folder");
    test_overrides();
    test_pair();
    test_ranks();
    test_long_ranks();
    test_ends();
    test_most_bytes();
    test_streams();
    clear();
    (void)rmdir(folder);
    return tap_done();
}
