/* SPDX-License-Identifier: Apache-2.0
 *
 * lmdb-dump and quire cache: print the prefix cache on disk, whether the engine runs or not.
 *
 * It reads LMDB's snapshot and, with --verify, the page file. It writes nothing, and holds no lock
 * that the engine waits for. It needs write permission on lock.mdb (LMDB's reader table), so run it
 * as the engine's user, the owner of the files.
 *
 * A row of the table: slot, first digits of the page's name and of its parent's, number of the
 * model, tokens, tier, bytes, uses, last use, retention, and with --verify the damage. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "kv/store_db.h"
#include "tools/dump.h"
#include "tools/quire.h"

struct dump {
    const char *dir;
    bool json;
    bool verify;
    bool summary;
    const char *name;  /* first digits of a page's name */
    const char *space; /* a part of the model's name, or the beginning of its fingerprint */
    uint64_t limit;

    struct store_db *db;
    struct store_format format;
    struct buf out;
    void *slot; /* slot_bytes, for --verify */
    int file_fd;
    struct dump_roots roots;
    uint64_t n_entries, n_shown, n_tokens, n_damaged;
    uint64_t by_space[STORE_SPACES_MAX];
};

/* Read the description of a space (a model with its cache format), and compare it with --space. */
static bool dump_space_matches(struct dump *d, uint32_t index, struct store_space *space)
{
    char hex[2 * HASH_BYTES + 1];

    /* A space without a description is shown as "?". */
    if (!store_db_read_space(d->db, index, space))
        *space = (struct store_space){.name = "?"};
    if (d->space == NULL)
        return true;
    hash_hex(space->fingerprint.bytes, HASH_BYTES, hex);
    return strstr(space->name, d->space) != NULL || strncmp(hex, d->space, strlen(d->space)) == 0;
}

/* Read a slot and check it as the engine does. Returns the damaged part, or NULL. */
static const char *dump_verify(struct dump *d, uint64_t slot, const struct store_record *r)
{
    const struct store_header *header = d->slot;
    size_t done = 0;

    /* A large pread() may return less than was asked for. A slot beyond the end of the file returns
     * 0 and counts as unreadable. */
    while (done < d->format.slot_bytes) {
        ssize_t n = pread(d->file_fd, (char *)d->slot + done, d->format.slot_bytes - done,
                          (off_t)(slot * d->format.slot_bytes + done));

        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0)
            return "unreadable";
        done += (size_t)n;
    }
    /* The header repeats the record, so it shows a slot that was reused for another page. The
     * payload's sum then shows damage to the page itself. */
    if (!store_header_matches(header, r, d->format.page_bytes))
        return "header";
    if (header->payload_xxh3 != r->payload_xxh3 ||
        header->payload_xxh3 !=
            hash_xxh3((const char *)d->slot + STORE_HEADER_BYTES, d->format.page_bytes))
        return "payload";
    return NULL;
}

/* Format Unix seconds as ISO 8601 in UTC, "2026-05-01T12:00:00Z"; 0 means never and gives "-". */
static void dump_time(char *out, size_t cap, uint32_t unix_s)
{
    time_t when_s = (time_t)unix_s;
    struct tm tm;

    if (unix_s == 0 || gmtime_r(&when_s, &tm) == NULL)
        (void)snprintf(out, cap, "-");
    else
        (void)strftime(out, cap, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

/* Print one page, as JSON or as a row of the table. */
static void dump_entry(struct dump *d, uint64_t slot, const struct store_record *r,
                       const struct store_use *use, const char *damage)
{
    char name[2 * HASH_BYTES + 1];
    char parent[2 * HASH_BYTES + 1];
    char last[32], kept[48];
    struct retain retain = retain_now(retain_unpack(r->retains), (uint32_t)time(NULL));

    dump_retain(retain, kept);
    hash_hex(r->name.bytes, HASH_BYTES, name);
    hash_hex(r->parent.bytes, HASH_BYTES, parent);
    /* A page that was never found has no last use; its creation is shown instead. */
    dump_time(last, sizeof last, use->last != 0 ? use->last : r->created);
    if (d->json) {
        buf_printf(&d->out,
                   "%s{\"slot\":%llu,\"name\":\"%s\",\"parent\":\"%s\",\"space\":%u,"
                   "\"tokens\":%u,\"tier\":\"disk\",\"bytes\":%llu,\"uses\":%u,"
                   "\"last_use\":%u,\"created\":%u,\"generation\":%llu,"
                   "\"priority\":%d,\"until\":%u",
                   d->n_shown == 0 ? "" : ",\n", (unsigned long long)slot, name, parent, r->space,
                   r->n_tokens, (unsigned long long)d->format.page_bytes, use->count, use->last,
                   r->created, (unsigned long long)r->generation, retain_priority(retain),
                   retain.until);
        if (d->verify)
            buf_printf(&d->out, ",\"damage\":%s%s%s", damage == NULL ? "null" : "\"",
                       damage == NULL ? "" : damage, damage == NULL ? "" : "\"");
        buf_add_byte(&d->out, '}');
    } else {
        buf_printf(&d->out, "%8llu  %.16s  %.16s  %5u  %6u  disk  %10llu  %5u  %-20s  %-24s %s\n",
                   (unsigned long long)slot, name, parent, r->space, r->n_tokens,
                   (unsigned long long)d->format.page_bytes, use->count, last, kept,
                   damage == NULL ? "" : damage);
    }
    (void)fwrite(d->out.bytes, 1, d->out.len, stdout);
    buf_clear(&d->out);
}

/* Called by store_db_scan() for each record: filter, count, verify, print. The scan runs inside one
 * LMDB read transaction: it sees the store at one moment, while the engine continues to write. A
 * slot may therefore be reused between the scan and its check, and then --verify reports a wrong
 * header. */
static void dump_one(void *context, uint64_t slot, const struct store_record *r,
                     const struct store_use *use)
{
    struct dump *dump = context;
    struct store_space space;
    char name[2 * HASH_BYTES + 1];
    const char *damage = NULL;

    /* Filters first: totals count only pages that match. */
    hash_hex(r->name.bytes, HASH_BYTES, name);
    if (dump->name != NULL && strncmp(name, dump->name, strlen(dump->name)) != 0)
        return;
    if (!dump_space_matches(dump, r->space, &space))
        return;
    dump->n_entries++;
    dump->n_tokens += r->n_tokens;
    dump_count(&dump->roots, r->root, retain_now(retain_unpack(r->retains), (uint32_t)time(NULL)),
               use->count);
    if (r->space < STORE_SPACES_MAX)
        dump->by_space[r->space]++;
    if (dump->verify) {
        damage = dump_verify(dump, slot, r);
        dump->n_damaged += damage != NULL;
    }
    /* Totals count pages beyond the limit, too. */
    if (dump->summary || (dump->limit != 0 && dump->n_shown >= dump->limit))
        return;
    dump_entry(dump, slot, r, use, damage);
    dump->n_shown++;
}

/* Totals: by namespace, hit rates, and by model. */
static void dump_totals(struct dump *d, uint64_t n_bad)
{
    struct store_rate rates[STORE_RATES_MAX];
    struct buf *out = &d->out;
    bool first = true;

    if (d->json)
        buf_printf(out, "],\n\"entries\":%llu,\"tokens\":%llu,\"bytes\":%llu,\"bad_records\":%llu,",
                   (unsigned long long)d->n_entries, (unsigned long long)d->n_tokens,
                   (unsigned long long)(d->n_entries * d->format.page_bytes),
                   (unsigned long long)n_bad);
    (void)fwrite(buf_text(out), 1, out->len, stdout);
    buf_clear(out);
    dump_print_roots(&d->roots, d->json);
    dump_print_rates(rates, store_db_read_rates(d->db, rates), d->json);
    if (d->json && d->verify)
        buf_printf(out, "\"damaged\":%llu,", (unsigned long long)d->n_damaged);
    buf_add_text(out, d->json ? "\"namespaces\":[" : "\nmodels\n");
    /* Spaces are numbered from 0 without gaps, so the first missing one ends the list. */
    for (uint32_t i = 0; i < STORE_SPACES_MAX; i++) {
        struct store_space space;
        char hex[2 * HASH_BYTES + 1];

        if (!store_db_read_space(d->db, i, &space))
            break;
        if (!dump_space_matches(d, i, &space))
            continue;
        hash_hex(space.fingerprint.bytes, HASH_BYTES, hex);
        if (d->json) {
            buf_printf(out, "%s{\"space\":%u,\"fingerprint\":\"%s\",\"entries\":%llu,\"name\":",
                       first ? "" : ",", i, hex, (unsigned long long)d->by_space[i]);
            buf_add_json_string(out, space.name, strlen(space.name));
            buf_add_byte(out, '}');
        } else {
            buf_printf(out, "%5u  %.16s  %8llu entries  %s\n", i, hex,
                       (unsigned long long)d->by_space[i], space.name);
        }
        first = false;
    }
    if (d->json) {
        buf_add_text(out, "]}\n");
    } else {
        buf_printf(out, "\n%llu entries, %llu tokens, %.1f MiB of payload; pages of %u tokens",
                   (unsigned long long)d->n_entries, (unsigned long long)d->n_tokens,
                   (double)(d->n_entries * d->format.page_bytes) / 1048576.0,
                   d->format.page_tokens);
        if (d->verify)
            buf_printf(out, "; %llu damaged", (unsigned long long)d->n_damaged);
        if (n_bad != 0)
            buf_printf(out, "; %llu records of a wrong size", (unsigned long long)n_bad);
        buf_add_byte(out, '\n');
    }
    (void)fwrite(out->bytes, 1, out->len, stdout);
    buf_clear(out);
}

/* Open the store for reading. The page file is opened only for --verify, because everything else is
 * in LMDB's records. */
static int dump_open(struct dump *d)
{
    char path[4096];
    int rc = store_db_open_read(&d->db, d->dir, &d->format);

    if (rc != ERR_OK) {
        (void)fprintf(stderr, "lmdb-dump: %s: %s\n", d->dir,
                      rc == ERR_NOT_FOUND ? "no page store here" : err_sentence(rc));
        return rc;
    }
    if (!d->verify)
        return ERR_OK;
    (void)snprintf(path, sizeof path, "%s/pages.kv", d->dir);
    d->file_fd = open(path, O_RDONLY | O_CLOEXEC);
    d->slot = mem_alloc(d->format.slot_bytes);
    if (d->file_fd == -1 || d->slot == NULL) {
        (void)fprintf(stderr, "lmdb-dump: %s: %s\n", path, strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}

/* The dump of a page store: head, one row for each page, totals. The JSON form is one object, whose
 * list of pages is written as the scan finds them. */
static int dump_run(struct dump *d)
{
    uint64_t n_bad = 0;
    int rc = dump_open(d);

    if (rc != ERR_OK)
        return rc;
    if (d->json)
        (void)printf("{\"format\":%u,\"page_tokens\":%u,\"page_bytes\":%llu,\"pages\":[\n",
                     d->format.version, d->format.page_tokens,
                     (unsigned long long)d->format.page_bytes);
    else if (!d->summary)
        (void)printf("%8s  %-16s  %-16s  %5s  %6s  tier  %10s  %5s  %-20s  retained\n", "slot",
                     "name", "parent", "space", "tokens", "bytes", "uses", "last use");
    /* Records of a wrong size are counted, not printed. */
    rc = store_db_scan(d->db, dump_one, d, &n_bad);
    dump_totals(d, n_bad);
    return rc;
}

/* The text of --help; docs/man/lmdb-dump.1 is made from it. */
static const char dump_usage[] =
    "usage: lmdb-dump [options] DIR\n"
    "       lmdb-dump [options] --host FILE\n"
    "Print the pages of quire's prefix cache on disk in DIR (kv_store_dir), or in host memory in\n"
    "FILE (kv_host_file), with their retention, and totals by model and by namespace. Namespaces\n"
    "have the names of GET /admin/cache. The engine is never blocked.\n"
    "  --json          print one JSON object\n"
    "  --verify        read every payload and check its sum\n"
    "  --summary       print totals only\n"
    "  --name HEX      only pages whose name begins with HEX\n"
    "  --space TEXT    only models whose name contains TEXT or whose fingerprint begins with it\n"
    "  --limit N       print at most N pages; totals count all\n"
    "Exit status: 0 success, 1 usage, 2 unreadable, 3 --verify found damage.\n";

int quire_cache(int argc, char **argv)
{
    static struct dump dump = {.file_fd = -1};
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},
        {"verify", no_argument, NULL, 'v'},
        {"summary", no_argument, NULL, 's'},
        {"name", required_argument, NULL, 'n'},
        {"space", required_argument, NULL, 'p'},
        {"limit", required_argument, NULL, 'l'},
        {"help", no_argument, NULL, 'h'},
        {"host", required_argument, NULL, 'o'},
        {NULL, 0, NULL, 0},
    };
    const char *host = NULL;
    int opt;
    int rc;

    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (opt) {
        case 'j': dump.json = true; break;
        case 'v': dump.verify = true; break;
        case 's': dump.summary = true; break;
        case 'n': dump.name = optarg; break;
        case 'p': dump.space = optarg; break;
        case 'l': dump.limit = strtoull(optarg, NULL, 10); break;
        case 'o': host = optarg; break;
        case 'h': (void)fputs(dump_usage, stdout); return 0;
        default: (void)fputs(dump_usage, stderr); return 1;
        }
    }
    /* A host tier's file has a command of its own; --space does not apply to it, because it holds
     * one model. */
    if (host != NULL && optind == argc)
        return dump_host(host, &(struct dump_wishes){.json = dump.json,
                                                     .verify = dump.verify,
                                                     .summary = dump.summary,
                                                     .name = dump.name,
                                                     .limit = dump.limit});
    if (host != NULL || optind != argc - 1) {
        (void)fputs(dump_usage, stderr);
        return 1;
    }
    /* Warnings of the store's code would mix with the output. */
    dump.dir = argv[optind];
    log_set_level(LOG_LEVEL_ERROR);
    rc = dump_run(&dump);
    store_db_close(dump.db);
    buf_fini(&dump.out);
    mem_free(dump.slot);
    if (rc != ERR_OK)
        return 2;
    if (dump.n_damaged > 0)
        return 3;
    return 0;
}
