/* SPDX-License-Identifier: Apache-2.0
 *
 * An image is its header and then the tables, each aligned to a cache line. Checks run in a fixed
 * order and rely only on earlier ones: places of tables, then texts and tokens, then the tables
 * that hold ids and texts. */
#include "text/tokenizer/image.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"

#define IMAGE_ALIGN ((size_t)64)

static const char magic[8] = "quiretok";

/* Size of one element of each table. */
static const size_t sizes[IMAGE_SECTIONS] = {
#define SECTION(name, type) sizeof(type),
    IMAGE_TABLES(SECTION)
#undef SECTION
};

/* A digest that changes with the structures, the list of tables and the byte order. */
static uint64_t image_layout_digest(void)
{
    static const uint32_t shape[] = {
        IMAGE_VERSION,
        0x01020304,
        sizeof(size_t),
        IMAGE_SECTIONS,
        IMAGE_PIECE_LEN,
        sizeof(struct image_header),
        offsetof(struct image_header, sources),
        offsetof(struct image_header, tables),
        offsetof(struct image_header, facts),
        sizeof(struct image_facts),
        offsetof(struct image_facts, byte_ids),
        sizeof(struct image_token),
        offsetof(struct image_token, flags),
        sizeof(struct image_piece),
        offsetof(struct image_piece, id),
        sizeof(struct image_merge),
        offsetof(struct image_merge, id),
        sizeof(struct image_pair),
        sizeof(struct image_added),
        offsetof(struct image_added, flags),
        sizeof(struct image_step),
        offsetof(struct image_step, by),
        IMAGE_FLAGS_ALL,
    };

    /* Any change of the list above makes images of another build unusable, and they are built
     * again. The second word is 0x04030201 on a machine with the other byte order. */
    return hash_xxh3(shape, sizeof shape);
}

/* Covers everything after the checksum itself. */
static uint64_t image_checksum_of(const struct image_header *image)
{
    size_t from = offsetof(struct image_header, layout);

    must(image->bytes >= sizeof *image);
    return hash_xxh3((const char *)image + from, (size_t)image->bytes - from);
}

int image_build(struct image_header **out, const struct image_facts *facts,
                const struct image_part parts[IMAGE_SECTIONS], const struct hash *sources)
{
    struct image_table tables[IMAGE_SECTIONS];
    size_t bytes = (sizeof **out + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
    struct image_header *image;
    int section;

    must(facts != NULL && sources != NULL);
    /* Lay out first, allocate once, then copy. Each sum is compared with the bound before it can
     * overflow. */
    for (section = 0; section < IMAGE_SECTIONS; section++) {
        if (parts[section].n > (IMAGE_BYTES_MAX - bytes) / sizes[section])
            return ERR_LIMIT;
        /* Each table begins at a multiple of IMAGE_ALIGN; the gaps are zero. */
        tables[section] = (struct image_table){.at = bytes, .n = parts[section].n};
        bytes += (parts[section].n * sizes[section] + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
        if (bytes > IMAGE_BYTES_MAX)
            return ERR_LIMIT;
    }
    image = mem_zalloc(bytes);
    if (image == NULL)
        return ERR_NO_MEMORY;
    memcpy(image->magic, magic, sizeof magic);
    image->layout = image_layout_digest();
    image->bytes = bytes;
    image->sources = *sources;
    image->facts = *facts;
    memcpy(image->tables, tables, sizeof tables);
    for (section = 0; section < IMAGE_SECTIONS; section++)
        if (parts[section].n > 0)
            memcpy((char *)image + tables[section].at, parts[section].items,
                   parts[section].n * sizes[section]);
    *out = image;
    return ERR_OK;
}

void image_seal(struct image_header *image)
{
    must(image->bytes > sizeof *image);
    image->checksum = image_checksum_of(image);
}

/* --- checks ------------------------------------------------------------------------------------*/

/* Together these make sure that no offset, id or search can leave the image. They do not prove that
 * the tables are meaningful: a checksum and the digest of the sources do that. */

static int image_corrupt(const char **why, const char *reason)
{
    *why = reason;
    return ERR_CORRUPT;
}

/* Is the table aligned and inside the image? Written so that no sum can overflow. */
static bool image_is_table(const struct image_header *image, enum image_section section)
{
    const struct image_table *table = &image->tables[section];

    return table->at % IMAGE_ALIGN == 0 && table->at >= sizeof *image &&
           table->at <= image->bytes && table->n <= (image->bytes - table->at) / sizes[section];
}

/* Is a text inside the table of texts? */
static bool image_is_text(const struct image_header *image, struct image_text text)
{
    size_t n = image_count(image, IMAGE_TEXT);

    return text.at <= n && text.len <= n - text.at;
}

/* Is it also valid UTF-8? For texts whose readers decode characters without checking. */
static bool image_is_utf8(const struct image_header *image, struct image_text text)
{
    return image_is_text(image, text) &&
           utf8_is_valid((const char *)image_table(image, IMAGE_TEXT) + text.at, text.len);
}

static bool image_is_id(const struct image_header *image, int64_t id)
{
    return id >= 0 && (uint64_t)id < image_count(image, IMAGE_TOKENS);
}

static bool image_is_id_or_none(const struct image_header *image, int32_t id)
{
    return id == -1 || image_is_id(image, id);
}

static bool image_is_power_of_two(size_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Every token's texts must lie inside the table of texts. */
static int image_check_tokens(const struct image_header *image, const char **why)
{
    const struct image_token *tokens = image_table(image, IMAGE_TOKENS);
    size_t n = image_count(image, IMAGE_TOKENS);
    size_t i;

    if (n > INT32_MAX / 4)
        return image_corrupt(why, "too many tokens");
    /* Three texts per token: as it is written in the vocabulary, as bytes of the output, and as
     * the piece that is searched for. */
    for (i = 0; i < n; i++) {
        if (!image_is_text(image, tokens[i].text) || !image_is_text(image, tokens[i].bytes) ||
            !image_is_text(image, tokens[i].piece))
            return image_corrupt(why, "a token's text");
        if ((tokens[i].flags & TOKEN_BYTE) != 0 && tokens[i].bytes.len != 1)
            return image_corrupt(why, "a token of one byte");
    }
    return ERR_OK;
}

/* A hash table of ids. A search ends at a free slot, so at least one slot must be free. */
static int image_check_ids_table(const struct image_header *image, enum image_section section,
                                 const char **why)
{
    const uint32_t *slots = image_table(image, section);
    size_t n = image_count(image, section);
    size_t n_free = 0;
    size_t i;

    /* The hash is reduced by a mask, which is a remainder only for powers of two. */
    if (!image_is_power_of_two(n))
        return image_corrupt(why, "the size of a table of tokens");
    /* Slots hold an id plus 1, so that zeroed memory is an empty table. */
    for (i = 0; i < n; i++) {
        n_free += slots[i] == 0;
        if (slots[i] != 0 && !image_is_id(image, (int64_t)slots[i] - 1))
            return image_corrupt(why, "a table of tokens");
    }
    if (n_free > 0)
        return ERR_OK;
    return image_corrupt(why, "a table of tokens is full");
}

/* The three hash tables with larger elements: size, ids, and a free slot. */
static int image_check_pieces(const struct image_header *image, const char **why)
{
    const struct image_piece *pieces = image_table(image, IMAGE_PIECES);
    size_t n = image_count(image, IMAGE_PIECES);
    size_t n_free = 0;
    size_t i;

    if (!image_is_power_of_two(n))
        return image_corrupt(why, "the size of the table of pieces");
    /* A free slot has the id -1. */
    for (i = 0; i < n; i++) {
        n_free += pieces[i].id == -1;
        if (!image_is_id_or_none(image, pieces[i].id))
            return image_corrupt(why, "the table of pieces");
    }
    if (n_free > 0)
        return ERR_OK;
    return image_corrupt(why, "the table of pieces is full");
}

/* The table needs a free slot, because a search ends there. */
static int image_check_merges(const struct image_header *image, const char **why)
{
    const struct image_merge *merge = image_table(image, IMAGE_MERGES);
    size_t n = image_count(image, IMAGE_MERGES);
    size_t n_free = 0;
    size_t i;

    if (!image_is_power_of_two(n))
        return image_corrupt(why, "the size of the table of merges");
    for (i = 0; i < n; i++) {
        n_free += merge[i].pair == IMAGE_MERGE_FREE;
        /* A rank of UINT32_MAX means "no merge" to the encoder and would never be chosen. */
        if (merge[i].pair != IMAGE_MERGE_FREE &&
            (!image_is_id(image, merge[i].id) || merge[i].rank == UINT32_MAX))
            return image_corrupt(why, "the table of merges");
    }
    if (n_free > 0)
        return ERR_OK;
    return image_corrupt(why, "the table of merges is full");
}

/* The table of byte pairs is indexed by two bytes, so its size is fixed. */
static int image_check_pairs(const struct image_header *image, const char **why)
{
    const struct image_pair *pairs = image_table(image, IMAGE_BYTE_PAIRS);
    size_t n = image_count(image, IMAGE_BYTE_PAIRS);
    size_t i;

    if (!image_is_power_of_two(image_count(image, IMAGE_LIKELY)))
        return image_corrupt(why, "the size of the table of likely pairs");
    /* Only byte-level models have the table; others have it empty. */
    if (n != ((image->facts.flags & IMAGE_BYTE_LEVEL) != 0 ? 65536 : 0))
        return image_corrupt(why, "the size of the table of byte pairs");
    /* Most pairs of bytes do not merge, and then the id is not read. */
    for (i = 0; i < n; i++)
        if (pairs[i].rank != UINT32_MAX && !image_is_id(image, pairs[i].id))
            return image_corrupt(why, "the table of byte pairs");
    return ERR_OK;
}

/* Are two added tokens in order, by text, then by id? The binary search relies on it. */
static bool image_is_before(const struct image_header *image, const struct image_added *a,
                            const struct image_added *b)
{
    const char *text = image_table(image, IMAGE_TEXT);
    size_t n = a->text.len < b->text.len ? a->text.len : b->text.len;
    int order = memcmp(text + a->text.at, text + b->text.at, n);

    /* The order must be that of added_compare(), by which the table was sorted. */
    if (order != 0)
        return order < 0;
    if (a->text.len != b->text.len)
        return a->text.len < b->text.len;
    return a->id <= b->id;
}

/* Added tokens must not be empty, because a match must advance the search. */
static int image_check_added(const struct image_header *image, enum image_section section,
                             const char **why)
{
    const struct image_added *added = image_table(image, section);
    size_t n = image_count(image, section);
    size_t i;

    for (i = 0; i < n; i++) {
        if (!image_is_utf8(image, added[i].text) || added[i].text.len == 0 ||
            !image_is_id(image, added[i].id))
            return image_corrupt(why, "an added token");
        /* The search for added tokens relies on the order of the table. */
        if (i > 0 && !image_is_before(image, &added[i - 1], &added[i]))
            return image_corrupt(why, "the order of the added tokens");
    }
    return ERR_OK;
}

static int image_check_steps(const struct image_header *image, enum image_section section,
                             const char **why)
{
    const struct image_step *step = image_table(image, section);
    size_t i;

    /* Patterns go to the regex engine, which demands valid UTF-8. Kinds and behaviors are
     * checked where the steps are prepared. */
    for (i = 0; i < image_count(image, section); i++)
        if (!image_is_utf8(image, step[i].pattern) || !image_is_utf8(image, step[i].by))
            return image_corrupt(why, "a step's text");
    return ERR_OK;
}

static int image_check_list(const struct image_header *image, enum image_section section,
                            const char **why)
{
    const int32_t *ids = image_table(image, section);
    size_t i;

    /* Ids of these lists are put into outputs without a further check. */
    for (i = 0; i < image_count(image, section); i++)
        if (!image_is_id(image, ids[i]))
            return image_corrupt(why, "a list of tokens");
    return ERR_OK;
}

/* The header's facts: flags that are known, and ids that exist or are -1. */
static int image_check_facts(const struct image_header *image, const char **why)
{
    const struct image_facts *facts = &image->facts;
    int i;

    /* An unknown flag would change the rules in a way that the encoder does not know. */
    if ((facts->flags & ~(uint32_t)IMAGE_FLAGS_ALL) != 0 ||
        !image_is_id_or_none(image, facts->bos) || !image_is_id_or_none(image, facts->eos) ||
        !image_is_id_or_none(image, facts->pad) || !image_is_id_or_none(image, facts->unk) ||
        facts->strip_char > 0x10ffff)
        return image_corrupt(why, "a fact");
    /* -1 means that the model has no token for the byte; the encoder then uses `unk`. */
    for (i = 0; i < 256; i++)
        if (!image_is_id_or_none(image, facts->byte_ids[i]))
            return image_corrupt(why, "the token of a byte");
    for (i = 0; i < 128; i++)
        if (!image_is_id_or_none(image, facts->ascii_ids[i]))
            return image_corrupt(why, "the token of a character");
    /* IMAGE_APART cuts between characters, which are not the symbols of a byte-level model. */
    if ((facts->flags & (IMAGE_APART | IMAGE_BYTE_LEVEL)) == (IMAGE_APART | IMAGE_BYTE_LEVEL))
        return image_corrupt(why, "bytes that are cut as characters");
    /* The table is read by a mask only if the flag is set. */
    if ((facts->flags & IMAGE_APART) != 0 &&
        !image_is_power_of_two(image_count(image, IMAGE_JOINED)))
        return image_corrupt(why, "the size of the table of joined characters");
    return ERR_OK;
}

int image_check_tables(const struct image_header *image, const char **why)
{
    static int (*const checks[])(const struct image_header *, const char **) = {
        image_check_tokens, image_check_pieces, image_check_merges, image_check_pairs,
        image_check_facts};
    static const struct {
        int (*check)(const struct image_header *, enum image_section, const char **);
        enum image_section section;
    } tables[] = {
        {image_check_ids_table, IMAGE_BY_TEXT}, {image_check_ids_table, IMAGE_LONG_PIECES},
        {image_check_added, IMAGE_RAW},         {image_check_added, IMAGE_NORMAL},
        {image_check_steps, IMAGE_REWRITES},    {image_check_steps, IMAGE_CUTS},
        {image_check_list, IMAGE_BEFORE},       {image_check_list, IMAGE_AFTER},
        {image_check_list, IMAGE_SPECIAL},      {image_check_list, IMAGE_ENDS}};
    size_t i;
    int rc = ERR_OK;
    int s;

    must(why != NULL);
    /* Places come first, because all later checks read the tables. */
    for (s = 0; s < IMAGE_SECTIONS; s++)
        if (!image_is_table(image, (enum image_section)s))
            return image_corrupt(why, "the place of a table");
    for (i = 0; i < sizeof checks / sizeof checks[0] && rc == ERR_OK; i++)
        rc = checks[i](image, why);
    for (i = 0; i < sizeof tables / sizeof tables[0] && rc == ERR_OK; i++)
        rc = tables[i].check(image, tables[i].section, why);
    return rc;
}

int image_check(const void *bytes, size_t len, const struct hash *sources, const char **why)
{
    const struct image_header *image = bytes;

    must(sources != NULL && why != NULL);
    if (len < sizeof *image || len > IMAGE_BYTES_MAX ||
        memcmp(image->magic, magic, sizeof magic) != 0)
        return image_corrupt(why, "not an image");
    /* The layout is compared before the length and the checksum: an image of another version is not
     * damaged, and the caller reports it differently. */
    if (image->layout != image_layout_digest()) {
        *why = "the layout of another version";
        return ERR_VERSION;
    }
    if (image->bytes != len)
        return image_corrupt(why, "the length");
    if (image->checksum != image_checksum_of(image))
        return image_corrupt(why, "the checksum");
    if (memcmp(&image->sources, sources, sizeof *sources) != 0) {
        *why = "made of other files";
        return ERR_VERSION;
    }
    return image_check_tables(image, why);
}
